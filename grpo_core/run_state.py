"""What a run remembers between steps beside weights and optimiser; every checkpoint keeps it for an exact resume."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from grpo_core.coefficients import smoothed, steered_entropy_coef, steered_kl_coef
from grpo_core.config import AlgorithmConfig, RolloutConfig, TrainConfig


@dataclass
class RunState:
    kl_coef: float
    """Weight of the KL divergence in the next step."""
    entropy_coef: float
    """Weight of the entropy bonus in the next step."""
    step: int = 0
    """The last step done."""
    num_skipped: float = 0.0
    """Updates not applied since the run began, because a number was not finite."""
    num_idle: float = 0.0
    """Steps without an update since the run began, because no group had a signal."""
    recent_rewards: list[float] = field(default_factory=list)
    """Mean rewards of the last `smoothing_window` steps."""
    priorities: dict[str, float] = field(default_factory=dict)
    """Of each problem met, by its id; empty where problems are not drawn by priority."""
    best_value: float | None = None
    """Best value of `rollback.metric` so far; None before the first evaluation."""
    best_step: int = 0
    """The step that it was measured at."""
    last_value: float | None = None
    """The value at the last evaluation, or at the best one after a rollback."""
    num_drops: int = 0
    """Evaluations in a row that were below the one before."""
    num_rollbacks: int = 0
    """Returns to the best checkpoint since the run began."""
    lr_scale: float = 1.0
    """What rollbacks have left of the learning rate."""

    @classmethod
    def at_start(cls, algorithm: AlgorithmConfig) -> "RunState":
        """The state before step 1."""
        return cls(algorithm.kl_coef, algorithm.entropy_coef)

    @classmethod
    def from_record(cls, record: Mapping[str, Any], algorithm: AlgorithmConfig) -> "RunState":
        """The state that `record` kept; what an older record lacks is as at the start."""
        known = {**cls.at_start(algorithm).record(), **record}
        return cls(**{each.name: known[each.name] for each in fields(cls)})

    def record(self) -> dict[str, Any]:
        """The state as data for JSON."""
        return asdict(self)

    def algorithm_of_step(self, algorithm: AlgorithmConfig) -> AlgorithmConfig:
        """`algorithm` with the coefficients of the next step."""
        return algorithm.model_copy(update={"kl_coef": self.kl_coef, "entropy_coef": self.entropy_coef})

    def steer(self, algorithm: AlgorithmConfig, kl: float, entropy: float) -> None:
        """Moves the coefficients towards the targets that `algorithm` sets, after a step with this KL and entropy."""
        if algorithm.kl_target is not None:
            self.kl_coef = steered_kl_coef(self.kl_coef, kl, algorithm.kl_target)
        if algorithm.entropy_target is not None:
            step = algorithm.entropy_coef_step
            self.entropy_coef = steered_entropy_coef(self.entropy_coef, entropy, algorithm.entropy_target, step)

    def smoothed_reward(self, reward: float, window: int) -> float:
        """Mean of `reward` and those of the steps before, `window` in all."""
        self.recent_rewards = [*self.recent_rewards, reward][-window:]
        return smoothed(self.recent_rewards, window)


def rollout_of_step(config: TrainConfig, step: int) -> RolloutConfig:
    """The rollout settings of step 1, 2, …: the temperature follows its schedule."""
    rollout = config.rollout
    if rollout.temperature_decay == 1:
        return rollout
    temperature = max(rollout.temperature_min, rollout.temperature * rollout.temperature_decay ** (step - 1))
    return rollout.model_copy(update={"temperature": temperature})
