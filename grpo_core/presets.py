"""Algorithms as data: each preset sets the shared knobs of `config.AlgorithmConfig` that make it what it is.

A knob that a preset leaves out has the default of `AlgorithmConfig`. Adding an algorithm is one entry, and a column in
docs/algorithms.md, which compares them and says where they differ from those of TRL and verl.
"""

from typing import Any

#: Baselines taken from the rewards of a completion's own group.
GROUP_BASELINES = ("mean", "median", "leave_one_out")

PRESETS: dict[str, dict[str, Any]] = {
    # Shao et al. 2024, DeepSeekMath, arXiv:2402.03300: group mean and std, mean over each sequence first.
    "grpo": {"baseline": "mean", "advantage_scale": "group_std", "aggregation": "sequence_mean"},
    # Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv:2503.20783: no std, constant denominator.
    "dr_grpo": {"baseline": "mean", "advantage_scale": "none", "aggregation": "constant"},
    # Yu et al. 2025, DAPO, arXiv:2503.14476: wider upper clip, every token weighs the same, groups without a signal
    # replaced, long completions charged and cut ones left out.
    "dapo": {
        "baseline": "mean",
        "advantage_scale": "group_std",
        "aggregation": "token_mean",
        "clip_range_high": 0.28,
        "dynamic_sampling": True,
        "overlong_penalty": 1.0,
        "mask_truncated": True,
    },
    # Zheng et al. 2025, GSPO, arXiv:2507.18071: one ratio a sequence, hence tiny clip ranges.
    "gspo": {
        "baseline": "mean",
        "advantage_scale": "group_std",
        "ratio_level": "sequence",
        "aggregation": "sequence_mean",
        "clip_range": 3e-4,
        "clip_range_high": 4e-4,
    },
    # Schulman et al. 2017, PPO, arXiv:1707.06347: a value head and generalised advantages, several updates a batch.
    "ppo": {
        "credit": "token",
        "baseline": "value",
        "advantage_scale": "batch_std",
        "gae_lambda": 0.95,
        "value_coef": 0.5,
        "value_clip_range": 0.2,
        "aggregation": "token_mean",
        "entropy_coef": 0.01,
        "kl_in": "reward",
        "kl_estimator": "k1",
        "updates_per_batch": 4,
    },
    # Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740: leave-one-out baseline, unscaled; the gradient of a whole
    # sequence is the sum over its tokens, here over a constant.
    "rloo": {
        "baseline": "leave_one_out",
        "advantage_scale": "none",
        "aggregation": "constant",
        "kl_in": "reward",
        "kl_estimator": "k1",
    },
    # Hu et al. 2025, REINFORCE++, arXiv:2501.03262: no critic, rewards to come normalised over the whole batch.
    "reinforce_pp": {
        "credit": "token",
        "baseline": "batch_mean",
        "advantage_scale": "batch_std",
        "aggregation": "token_mean",
        "kl_in": "reward",
        "kl_estimator": "k1",
    },
    # MiniMax 2025, MiniMax-M1, arXiv:2506.13585: clips the detached weight, every token keeps its gradient.
    "cispo": {
        "baseline": "mean",
        "advantage_scale": "group_std",
        "aggregation": "token_mean",
        "clipping": "weight",
        "ratio_cap": 5.0,
    },
}
