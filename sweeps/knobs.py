"""Which knobs of an algorithm are read under which others: what lint needs to know to name one that changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from grpo_core.config import TrainConfig


@dataclass(frozen=True)
class Knob:
    """A field that is read only `when` something holds, in words, and as a question to a TrainConfig."""

    when: str
    is_read: Callable[[TrainConfig], bool]


_TOKEN_CREDIT = Knob("credit is token", lambda train: train.algorithm.credit == "token")
_VALUE_HEAD = Knob("baseline is value", lambda train: train.algorithm.baseline == "value")
_SURROGATE = Knob("clipping is surrogate", lambda train: train.algorithm.clipping == "surrogate")
_SIMILARITY = Knob("grouping is similarity", lambda train: train.algorithm.grouping == "similarity")
_KL = Knob("kl_coef is above 0", lambda train: train.algorithm.kl_coef > 0)

#: Fields that not every algorithm reads, by their dotted path; all others always are.
KNOBS: dict[str, Knob] = {
    "algorithm.gamma": _TOKEN_CREDIT,
    "algorithm.gae_lambda": _TOKEN_CREDIT,
    "algorithm.value_coef": _VALUE_HEAD,
    "algorithm.value_clip_range": _VALUE_HEAD,
    "algorithm.clip_range": _SURROGATE,
    "algorithm.clip_range_high": _SURROGATE,
    "algorithm.dual_clip": _SURROGATE,
    "algorithm.ratio_cap": Knob("clipping is weight", lambda train: train.algorithm.clipping == "weight"),
    "algorithm.constant_length": Knob(
        "aggregation is constant", lambda train: train.algorithm.aggregation == "constant"
    ),
    "algorithm.min_similar_group": _SIMILARITY,
    "algorithm.max_similar_group": _SIMILARITY,
    "algorithm.max_refills": Knob("dynamic_sampling is true", lambda train: train.algorithm.dynamic_sampling),
    "algorithm.overlong_buffer_tokens": Knob(
        "overlong_penalty is above 0", lambda train: train.algorithm.overlong_penalty > 0
    ),
    "algorithm.kl_estimator": _KL,
    "algorithm.kl_in": _KL,
    "algorithm.entropy_coef_step": Knob(
        "entropy_target is set", lambda train: train.algorithm.entropy_target is not None
    ),
    "optim.value_lr_factor": _VALUE_HEAD,
    "rollout.temperature_min": Knob("temperature_decay is below 1", lambda train: train.rollout.temperature_decay < 1),
}
