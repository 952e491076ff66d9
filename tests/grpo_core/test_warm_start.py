import pytest
import torch

from grpo_core.policy import load_policy
from grpo_core.tasks import load_task
from grpo_core.warm_start import ensure_warm_start, imitate, rate_factor

from .conftest import small_config


def test_it_is_trained_once_and_found_again(monkeypatch):
    config = small_config(warm_start={"num_steps": 20, "batch_size": 4})
    told = []
    folder = ensure_warm_start(config, told.append)
    assert [each["step"] for each in told] == [10, 20]
    assert told[-1]["loss"] < told[0]["loss"] < 6
    monkeypatch.setattr("grpo_core.warm_start.imitate", lambda *_: pytest.fail("it is in the cache"))
    assert ensure_warm_start(config) == folder


def test_what_makes_another_result_makes_another_place():
    folders = {
        ensure_warm_start(small_config(**change))
        for change in (
            {},
            {"warm_start": {"num_steps": 6}},
            {"task": {"seed": 1}},
            {"policy": {"hidden_size": 40}},
        )
    }
    assert len(folders) == 4
    assert ensure_warm_start(small_config(seed=5, optim={"lr": 1e-5})) in folders, "trials share it"


def test_no_steps_no_folder():
    assert ensure_warm_start(small_config(warm_start={"num_steps": 0})) is None


def test_the_saved_weights_are_the_trained_ones():
    config = small_config()
    task = load_task(config.task)
    trained = load_policy(config.policy, task)
    imitate(trained, task, config)
    loaded = load_policy(config.policy, task, ensure_warm_start(config))
    for ours, theirs in zip(trained.model.parameters(), loaded.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_rate():
    assert [rate_factor(step, 100) for step in (1, 10, 55, 100)] == pytest.approx([0.1, 1.0, 0.5, 0.0])
