from pathlib import Path

import pytest

from grpo_core.config import TrainConfig
from sweeps.retries import Retries, can_shrink
from sweeps.study_folder import TrialFolder


def config_of(**rollout: int) -> TrainConfig:
    return TrainConfig.model_validate({"rollout": {"completions_per_step": 128, **rollout}})


def test_half_as_much_at_once_until_one_completion_is_left() -> None:
    retries, seen = Retries(), []
    config = config_of()
    while can_shrink(retries.applied_to(config)):
        retries.halve(retries.applied_to(config))
        changed = retries.applied_to(config)
        seen.append((changed.micro_batch_size, changed.rollout.chunk_size))
    assert seen == [(32, 128), (16, 64), (8, 32), (4, 16), (2, 8), (1, 8)]
    # Groups stay whole: the group size is 8.
    assert config.algorithm.group_size == 8


def test_what_was_not_halved_stays_as_it_is() -> None:
    config = config_of()
    assert Retries().applied_to(config) is config
    assert Retries().changes == {}


def test_only_its_own_fields_differ() -> None:
    retries, config = Retries(), config_of()
    retries.halve(config)
    before, after = config.model_dump(), retries.applied_to(config).model_dump()
    before["optim"]["micro_batch_size"], before["rollout"]["chunk_size"] = 32, 128
    assert after == before


def test_tries_are_on_disk_before_the_next_one_starts(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path / "0000")
    retries = Retries.of(folder)
    retries.note(folder, {"rule": "crash", "step": 4, "message": "it died", "value": -9}, counts=True)
    retries.halve(config_of())
    retries.note(folder, {"rule": "out_of_memory", "step": 5, "message": "too much"}, counts=False)
    again = Retries.of(folder)
    assert again == retries
    assert (again.num_counted, again.changes) == (1, {"optim.micro_batch_size": 32, "rollout.chunk_size": 128})
    assert [(each["rule"], each["step"]) for each in again.history] == [("crash", 4), ("out_of_memory", 5)]


@pytest.mark.parametrize(("size", "possible"), [(1, False), (2, True), (None, True)])
def test_one_completion_is_the_least(size: int | None, possible: bool) -> None:
    config = TrainConfig.model_validate({"optim": {"micro_batch_size": size}})
    assert can_shrink(config) is possible
