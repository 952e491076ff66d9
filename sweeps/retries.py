"""How often a trial was started again and what was changed for it, kept on disk for a controller that comes later."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_core.config import TrainConfig
from sweeps.study_folder import TrialFolder, read_json, write_json

RETRIES_FILE = "retries.json"


@dataclass
class Retries:
    """The tries of one trial so far."""

    num_counted: int = 0
    """Those that `study.retries` bounds: faults of the machine, crashes, hangs."""
    micro_batch_size: int | None = None
    """What running out of memory has left of it; None as long as it was never halved."""
    chunk_size: int | None = None
    """The same for `rollout.chunk_size`."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """For each, oldest first: `rule`, `step`, `message`, `time`."""

    @classmethod
    def of(cls, folder: TrialFolder) -> "Retries":
        """What the record in a trial's folder says; none where there is no record."""
        record = read_json(folder.path / RETRIES_FILE)
        return cls() if record is None else cls(**record)

    @property
    def changes(self) -> dict[str, int]:
        """Settings that differ from those that the trial drew, by their dotted path."""
        found = {"optim.micro_batch_size": self.micro_batch_size, "rollout.chunk_size": self.chunk_size}
        return {key: value for key, value in found.items() if value is not None}

    def note(self, folder: TrialFolder, reason: dict[str, Any], counts: bool) -> None:
        """Records one more try, before it starts."""
        self.num_counted += counts
        self.history.append({key: reason.get(key) for key in ("rule", "step", "message")} | {"time": time.time()})
        write_json(folder.path / RETRIES_FILE, asdict(self))

    def halve(self, config: TrainConfig) -> None:
        """Takes half as many completions at once from here on; `config` is that of the try that ran out of memory."""
        self.micro_batch_size = max(1, config.micro_batch_size // 2)
        # Whole groups are sampled at once, however small the chunk.
        self.chunk_size = max(config.algorithm.group_size, config.rollout.chunk_size // 2)

    def applied_to(self, config: TrainConfig) -> TrainConfig:
        """`config` with the changes. Neither changes what a step computes, only how much of it at once."""
        if self.micro_batch_size is None:
            return config
        optim = config.optim.model_copy(update={"micro_batch_size": self.micro_batch_size})
        rollout = config.rollout.model_copy(update={"chunk_size": self.chunk_size})
        return config.model_copy(update={"optim": optim, "rollout": rollout})


def can_shrink(config: TrainConfig) -> bool:
    """Whether half as much memory is worth another try: below one completion at a time nothing is left to halve."""
    return config.micro_batch_size > 1
