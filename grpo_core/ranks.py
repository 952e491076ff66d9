"""The ranks of one run: who they are, what they pool, and how they agree.

A rank that fails tells the others at the next point where all agree, so that none waits in a collective that
another skipped. One process is a run of one rank, without a process group.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs

from grpo_core.config import ComputeConfig

#: Accelerate's name of each `compute.precision`.
MIXED_PRECISION = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}


class Signal(IntEnum):
    """What a rank brings to a point of agreement; the largest of all ranks wins."""

    GO = 0
    SKIP = 1
    ERROR = 2


class PeerFailed(RuntimeError):
    """Another rank raised; this one ends too."""


@dataclass(frozen=True)
class Ranks:
    rank: int
    size: int
    control_group: Any = None
    """A gloo group for small CPU tensors, with a time-out; None for one rank."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, items: list[Any]) -> list[Any]:
        """This rank's contiguous part of `items`, which all ranks hold; every rank gets as many."""
        assert len(items) % self.size == 0, f"{len(items)} items over {self.size} ranks"
        part = len(items) // self.size
        return items[self.rank * part : (self.rank + 1) * part]

    def agree(self, signal: Signal) -> Signal:
        """The largest signal of all ranks, entered by every rank; raises PeerFailed where another rank's is ERROR."""
        if self.size == 1:
            return signal
        value = torch.tensor(int(signal))
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.control_group)
        agreed = Signal(int(value))
        if agreed is Signal.ERROR and signal is not Signal.ERROR:
            raise PeerFailed(f"rank {self.rank} ends because another rank failed")
        return agreed

    @contextmanager
    def together(self) -> Iterator[None]:
        """A part of the work that needs no other rank, and after it a point of agreement, entered also when it raised.

        So the others hear of it, and raise PeerFailed, before they would wait for this rank in a collective.
        """
        try:
            yield
        except BaseException:
            self.agree(Signal.ERROR)
            raise
        self.agree(Signal.GO)

    def add_up(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums over all ranks, by name, in float64; every rank gives the same names."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def largest(self, values: Mapping[str, float]) -> dict[str, float]:
        """Maxima over all ranks, by name; NaN wins over any number."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Mapping[str, float], operation: Any) -> dict[str, float]:
        if self.size == 1:
            return dict(values)
        names = sorted(values)
        pooled = torch.tensor([values[name] for name in names], dtype=torch.float64)
        lost = pooled.isnan().double()
        dist.all_reduce(pooled, operation, group=self.control_group)
        dist.all_reduce(lost, dist.ReduceOp.MAX, group=self.control_group)
        # MAX over NaN depends on the order of the ranks.
        pooled[lost > 0] = torch.nan
        return dict(zip(names, pooled.tolist(), strict=True))

    def from_first(self, value: Any) -> Any:
        """Rank 0's `value`, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control_group)
        return box[0]

    def gather(self, items: list[Any]) -> list[Any]:
        """All ranks' lists joined in rank order, on every rank."""
        if self.size == 1:
            return items
        boxes: list[Any] = [None] * self.size
        dist.all_gather_object(boxes, items, group=self.control_group)
        return [item for box in boxes for item in box]


def open_ranks(config: ComputeConfig) -> tuple[Accelerator, Ranks]:
    """The Accelerator of this process and its place among the ranks, from RANK, WORLD_SIZE, … as torchrun sets them.

    Raises ValueError when the environment has another number of ranks than the config, or CUDA is asked for or
    needed in vain.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size != config.num_ranks:
        raise ValueError(
            f"compute.num_ranks={config.num_ranks}: the launcher started {size} (WORLD_SIZE); make the two equal"
        )
    use_cpu = config.device == "cpu" or not torch.cuda.is_available()
    if config.device == "cuda" and use_cpu:
        raise ValueError("compute.device='cuda': torch sees no CUDA device; use auto or cpu")
    if config.precision == "float16" and use_cpu:
        raise ValueError(
            "compute.precision='float16': its loss scaling needs CUDA, and torch sees no CUDA device; use bfloat16 or "
            "float32"
        )
    if size == 1:
        # A lone LOCAL_RANK makes Accelerate open a process group of one.
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(config.num_threads))
    torch.set_num_threads(config.num_threads)
    # Its settings are process-wide: a second run in this process may have another device or precision.
    AcceleratorState._reset_state(reset_partial_state=not dist.is_initialized())
    timeout = timedelta(seconds=config.collective_timeout_s)
    accelerator = Accelerator(
        cpu=use_cpu,
        mixed_precision=MIXED_PRECISION[config.precision],
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timeout)],
    )
    if size == 1:
        return accelerator, Ranks(0, 1)
    return accelerator, Ranks(dist.get_rank(), size, dist.new_group(backend="gloo", timeout=timeout))


def close_ranks(ranks: Ranks) -> None:
    """Leaves the process group, if there is one."""
    if ranks.size > 1 and dist.is_initialized():
        dist.destroy_process_group()
