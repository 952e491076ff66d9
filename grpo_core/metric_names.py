"""Names of the metrics that training records, one place for all who write or read them.

A name is `area/name`. Reward parts of a task are recorded as `reward/<part>` beside the names below.
"""

REWARD_MEAN = "reward/mean"
REWARD_STD = "reward/std"
REWARD_UNSCORED = "reward/unscored"
REWARD_SMOOTHED = "reward/smoothed"
GROUPS_DEAD_FRAC = "groups/dead_frac"
POLICY_ENTROPY = "policy/entropy"
POLICY_KL = "policy/kl"
POLICY_CLIP_FRAC = "policy/clip_frac"
POLICY_RATIO_MAX = "policy/ratio_max"
POLICY_KL_COEF = "policy/kl_coef"
POLICY_ENTROPY_COEF = "policy/entropy_coef"
POLICY_SAMPLER_RATIO = "policy/sampler_ratio"
POLICY_SAMPLER_RATIO_MAX = "policy/sampler_ratio_max"
POLICY_SAMPLER_TRUNCATED_FRAC = "policy/sampler_truncated_frac"
LOSS_POLICY = "loss/policy"
LOSS_VALUE = "loss/value"
VALUE_EXPLAINED_VARIANCE = "value/explained_variance"
OPTIM_GRAD_NORM = "optim/grad_norm"
OPTIM_LR = "optim/lr"
OPTIM_SKIPPED_STEPS = "optim/skipped_steps"
OPTIM_IDLE_STEPS = "optim/idle_steps"
OPTIM_ROLLBACKS = "optim/rollbacks"
ROLLOUT_LENGTH_MEAN = "rollout/length_mean"
ROLLOUT_TRUNCATED_FRAC = "rollout/truncated_frac"
ROLLOUT_TEMPERATURE = "rollout/temperature"
ROLLOUT_REFILLS = "rollout/refills"
ROLLOUT_EXTRA_COMPLETIONS = "rollout/extra_completions"
ROLLOUT_USED_FRAC = "rollout/used_frac"
EVAL_ACCURACY = "eval/accuracy"
EVAL_ACCURACY_SE = "eval/accuracy_se"
EVAL_ACCURACY_GREEDY = "eval/accuracy_greedy"
EVAL_REWARD = "eval/reward"
TIME_ROLLOUT_S = "time/rollout_s"
TIME_UPDATE_S = "time/update_s"
TIME_STEP_S = "time/step_s"
TIME_EVAL_S = "time/eval_s"
THROUGHPUT_TOKENS_PER_S = "throughput/tokens_per_s"

#: Recorded at evaluation steps only; all others are recorded at every step, where the settings give them a meaning.
EVALUATION_METRICS = (EVAL_ACCURACY, EVAL_ACCURACY_SE, EVAL_ACCURACY_GREEDY, EVAL_REWARD)
#: Areas whose values depend on the machine, not on settings and seed.
MACHINE_AREAS = ("time/", "throughput/", "system/")


def depends_on_machine(name: str) -> bool:
    """True for metrics (seconds, tokens a second, …) that differ between two equal runs."""
    return name.startswith(MACHINE_AREAS)
