"""Checkpoints as they lie on disk: whole, proved before use, and thinned."""

import json
import shutil

import pytest

from grpo_core.checkpoints import (
    CHECKSUMS_FILE,
    all_checkpoints,
    checkpoint_folder,
    damage,
    newest_sound_checkpoint,
    save_checkpoint,
)
from grpo_core.run_record import read_metrics
from grpo_core.tasks import TASKS
from grpo_core.train import train

from .conftest import load_odd_words, small_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 3 steps with a checkpoint after each."""
    run_dir = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "odd_words", load_odd_words)
        train(small_config(checkpoint={"every": 1, "keep": 3}), run_dir=run_dir)
    return run_dir


@pytest.fixture
def run_dir(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def weights_of(folder):
    return next((folder / "policy").glob("*.safetensors"))


def test_a_checkpoint_is_as_it_was_written(run_dir):
    assert [damage(folder) for folder in all_checkpoints(run_dir)] == [None, None, None]


def flip_a_bit(folder):
    file = weights_of(folder)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(folder):
    file = folder / "optimizer.pt"
    file.write_bytes(file.read_bytes()[:-7])


def lose(folder):
    (folder / "state.json").unlink()


def scribble(folder):
    (folder / CHECKSUMS_FILE).write_text("[1")


def list_in_place_of_sums(folder):
    (folder / CHECKSUMS_FILE).write_text("[1]")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (flip_a_bit, "policy/model.safetensors is not what was written"),
        (cut, "optimizer.pt is not what was written"),
        (lose, "state.json is missing"),
        (scribble, "checksums.json"),
        (list_in_place_of_sums, "checksums.json"),
    ],
)
def test_a_run_goes_on_from_the_newest_sound_checkpoint(run_dir, finished, capfd, spoil, problem):
    spoil(checkpoint_folder(run_dir, 3))
    assert problem in damage(checkpoint_folder(run_dir, 3))
    result = train(small_config(checkpoint={"every": 1, "keep": 3}), run_dir=run_dir)
    assert (result.status, result.last_step) == ("complete", 3)
    assert "step_000003: damaged" in capfd.readouterr().out
    assert (run_dir / "checkpoints" / "damaged_step_000003").is_dir()
    again = checkpoint_folder(run_dir, 3)
    assert damage(again) is None
    assert weights_of(again).read_bytes() == weights_of(checkpoint_folder(finished, 3)).read_bytes()


def test_without_a_sound_checkpoint_it_starts_over_and_records_nothing_twice(run_dir, finished):
    for folder in all_checkpoints(run_dir):
        flip_a_bit(folder)
    train(small_config(checkpoint={"every": 1, "keep": 3}), run_dir=run_dir)
    lines = [list(read_metrics(each / "metrics.jsonl")) for each in (run_dir, finished)]
    assert lines[0] == lines[1]
    assert damage(checkpoint_folder(run_dir, 3)) is None


def test_a_checkpoint_ahead_of_the_record_is_not_used(run_dir):
    file = run_dir / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[0])
    assert newest_sound_checkpoint(run_dir, 1) == checkpoint_folder(run_dir, 1)
    train(small_config(checkpoint={"every": 1, "keep": 3}), run_dir=run_dir)
    steps = list(read_metrics(file))
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert steps[2]["metrics"]["reward/mean"] == json.loads(lines[2])["metrics"]["reward/mean"]


def test_a_disk_that_takes_nothing_leaves_the_older_checkpoints(run_dir, monkeypatch):
    import torch

    def full(*_):
        raise OSError(28, "No space left on device")

    policy = type("SomePolicy", (), {"save": lambda self, folder: folder.mkdir()})()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    monkeypatch.setattr("torch.save", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(run_dir, 4, policy, optimizer, {}, keep=1)
    assert [folder.name for folder in all_checkpoints(run_dir)] == ["step_000001", "step_000002", "step_000003"]
    assert newest_sound_checkpoint(run_dir) == checkpoint_folder(run_dir, 3)


def test_a_checkpoint_comes_by_the_clock_too(tmp_path):
    train(small_config(num_steps=3, checkpoint={"every_s": 1e-6, "keep": 5}), run_dir=tmp_path)
    assert [folder.name for folder in all_checkpoints(tmp_path)] == ["step_000001", "step_000002", "step_000003"]
