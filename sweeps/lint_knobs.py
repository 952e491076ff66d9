"""Lint rules about knobs that nothing reads, or that nothing can reach."""

from collections.abc import Callable, Iterator

from grpo_core.config import TrainConfig
from grpo_core.presets import PRESETS
from sweeps.findings import Finding, Sweep, Variant, idle
from sweeps.knobs import KNOBS, Condition
from sweeps.mistakes import show
from sweeps.search_space import path_of
from sweeps.train_fields import get_value

#: Knobs that only cut off what leaves the old policy behind.
CLIPS = ("clip_range", "clip_range_high", "dual_clip", "ratio_cap", "value_clip_range")
_NAME = "algorithm.name"


def unread(sweep: Sweep) -> Iterator[Finding]:
    """A knob that no trial reads is a mistake; one that some don't read wants a condition."""
    for path, knob in KNOBS.items():
        for key in sweep.keys_of(path):
            variants = sweep.with_key(key)
            reads = [knob.holds(variant.train) for variant in variants]
            if not any(reads):
                yield _never_read(f"search_space.{key}", knob, variants)
            elif not all(reads):
                condition = _condition(sweep, knob, variants) or "a searched key that decides it"
                verb = "narrow its when to" if sweep.config.search_space[key].when else "add when:"
                message = f"matters only when {knob.when}; {verb} {condition}"
                yield Finding("warning", f"search_space.{key}", message)
        if not sweep.keys_of(path) and sweep.turned(path) and not any(map(knob.holds, sweep.trains)):
            yield _never_read(f"train.{path}", knob, sweep.variants)


def _never_read(place: str, knob: Condition, variants: list[Variant]) -> Finding:
    presets = ", ".join(name for name in PRESETS if knob.holds(_preset(name)))
    fix = f"change that, take an algorithm that reads it ({presets})," if presets else "change that,"
    names = ", ".join(dict.fromkeys(variant.train.algorithm.name for variant in variants))
    message = f"{names} never reads it: read when {knob.when}; {fix} or drop the key"
    return Finding("error", place, message, idle=True)


def _condition(sweep: Sweep, knob: Condition, variants: list[Variant]) -> str | None:
    """The value of `when` under which every trial reads a knob, told by one searched key; None where none tells."""
    space = sweep.config.search_space
    for key in sorted(space, key=lambda key: path_of(key) != _NAME):
        read_at: dict[object, set[bool]] = {}
        for variant in variants:
            read_at.setdefault(get_value(variant.train, path_of(key)), set()).add(knob.holds(variant.train))
        values = [value for value in space[key].values or () if read_at.get(value) == {True}]
        if values and all(len(read) == 1 for read in read_at.values()):
            return f"{{{key}: {show(values)}}}"
    return None


def _preset(name: str) -> TrainConfig:
    return TrainConfig.model_validate({"algorithm": {"name": name}})


def unreached_clips(sweep: Sweep) -> Iterator[Finding]:
    """No ratio leaves 1 in the only update of a batch, so no clip range is reached."""
    if sweep.possible("algorithm.updates_per_batch") != {1}:
        return
    for name in CLIPS:
        path = f"algorithm.{name}"
        if sweep.turned(path) and any(map(KNOBS[path].holds, sweep.trains)):
            message = (
                "the only update of a batch is on-policy, every ratio is 1 and nothing is clipped; "
                "set train.algorithm.updates_per_batch to 2 or more, or drop the key"
            )
            yield idle(sweep.place(path), message)


KNOB_RULES: tuple[Callable[[Sweep], Iterator[Finding]], ...] = (unread, unreached_clips)
