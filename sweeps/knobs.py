"""What is read or recorded only under certain knobs: what lint needs to know to name a setting that changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from grpo_core import metric_names as names
from grpo_core.config import TrainConfig


@dataclass(frozen=True)
class Condition:
    """What is there only `when` something holds, in words, and as a question to a TrainConfig."""

    when: str
    holds: Callable[[TrainConfig], bool]


_TOKEN_CREDIT = Condition("credit is token", lambda train: train.algorithm.credit == "token")
_VALUE_HEAD = Condition("baseline is value", lambda train: train.algorithm.baseline == "value")
_SURROGATE = Condition("clipping is surrogate", lambda train: train.algorithm.clipping == "surrogate")
_SIMILARITY = Condition("grouping is similarity", lambda train: train.algorithm.grouping == "similarity")
_KL = Condition("kl_coef is above 0", lambda train: train.algorithm.kl_coef > 0)
_DYNAMIC = Condition("dynamic_sampling is true", lambda train: train.algorithm.dynamic_sampling)
_ENTROPY_TARGET = Condition("entropy_target is set", lambda train: train.algorithm.entropy_target is not None)
_DECAY = Condition("temperature_decay is below 1", lambda train: train.rollout.temperature_decay < 1)
_IMPORTANCE = Condition("importance_cap is set", lambda train: train.algorithm.importance_cap is not None)

#: Fields that not every algorithm reads, by their dotted path; all others always are.
KNOBS: dict[str, Condition] = {
    "algorithm.gamma": _TOKEN_CREDIT,
    "algorithm.gae_lambda": _TOKEN_CREDIT,
    "algorithm.value_coef": _VALUE_HEAD,
    "algorithm.value_clip_range": _VALUE_HEAD,
    "algorithm.clip_range": _SURROGATE,
    "algorithm.clip_range_high": _SURROGATE,
    "algorithm.dual_clip": _SURROGATE,
    "algorithm.ratio_cap": Condition("clipping is weight", lambda train: train.algorithm.clipping == "weight"),
    "algorithm.constant_length": Condition(
        "aggregation is constant", lambda train: train.algorithm.aggregation == "constant"
    ),
    "algorithm.min_similar_group": _SIMILARITY,
    "algorithm.max_similar_group": _SIMILARITY,
    "algorithm.max_refills": _DYNAMIC,
    "algorithm.overlong_buffer_tokens": Condition(
        "overlong_penalty is above 0", lambda train: train.algorithm.overlong_penalty > 0
    ),
    "algorithm.kl_estimator": _KL,
    "algorithm.kl_in": _KL,
    "algorithm.entropy_coef_step": _ENTROPY_TARGET,
    "optim.value_lr_factor": _VALUE_HEAD,
    "rollout.temperature_min": _DECAY,
}

#: Metrics that not every run records; policy/kl is 0 in runs without a reference.
METRICS: dict[str, Condition] = {
    names.EVAL_ACCURACY_GREEDY: Condition("eval.greedy is true", lambda train: train.eval.greedy),
    names.REWARD_SMOOTHED: Condition(
        "smoothing_window is set", lambda train: train.algorithm.smoothing_window is not None
    ),
    names.LOSS_VALUE: _VALUE_HEAD,
    names.VALUE_EXPLAINED_VARIANCE: _VALUE_HEAD,
    names.POLICY_KL: _KL,
    names.POLICY_KL_COEF: Condition("kl_target is set", lambda train: train.algorithm.kl_target is not None),
    names.POLICY_ENTROPY_COEF: _ENTROPY_TARGET,
    names.POLICY_SAMPLER_RATIO: _IMPORTANCE,
    names.POLICY_SAMPLER_RATIO_MAX: _IMPORTANCE,
    names.POLICY_SAMPLER_TRUNCATED_FRAC: _IMPORTANCE,
    names.ROLLOUT_TEMPERATURE: _DECAY,
    names.ROLLOUT_REFILLS: _DYNAMIC,
    names.ROLLOUT_EXTRA_COMPLETIONS: _DYNAMIC,
    names.ROLLOUT_USED_FRAC: _DYNAMIC,
    names.OPTIM_IDLE_STEPS: _DYNAMIC,
}
