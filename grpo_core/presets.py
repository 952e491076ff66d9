"""Algorithms as data: each preset sets the shared knobs of `config.AlgorithmConfig` that make it what it is.

A knob that a preset leaves out has the default of `AlgorithmConfig`. Adding an algorithm is one entry.
"""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # Shao et al. 2024, DeepSeekMath, arXiv:2402.03300: group mean and std, mean over each sequence first.
    "grpo": {"baseline": "mean", "advantage_scale": "group_std", "aggregation": "sequence_mean"},
    # Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv:2503.20783: no std, constant denominator.
    "dr_grpo": {"baseline": "mean", "advantage_scale": "none", "aggregation": "constant"},
    # Yu et al. 2025, DAPO, arXiv:2503.14476: wider upper clip, every token weighs the same.
    "dapo": {
        "baseline": "mean",
        "advantage_scale": "group_std",
        "aggregation": "token_mean",
        "clip_range_high": 0.28,
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
    # Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740: leave-one-out baseline, unscaled.
    "rloo": {"baseline": "leave_one_out", "advantage_scale": "none", "aggregation": "token_mean"},
    # MiniMax 2025, MiniMax-M1, arXiv:2506.13585: clips the detached weight, every token keeps its gradient.
    "cispo": {
        "baseline": "mean",
        "advantage_scale": "group_std",
        "aggregation": "token_mean",
        "clipping": "weight",
        "ratio_cap": 5.0,
    },
}
