import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from sweeps.study_folder import (
    StudyBusy,
    StudyFolder,
    best_trial,
    list_studies,
    live_process,
    read_json,
    read_lines,
    write_json,
    write_text,
)


def test_paths_are_those_of_the_contract(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "gsm8k")
    trial = folder.trial(7)
    assert str(trial.params_file.relative_to(folder.path)) == "trials/0007/params.json"
    assert trial.number == 7
    assert folder.study_db.name == "study.db"
    assert not folder.exists
    write_text(folder.sweep_file, "study: {}\n")
    assert folder.exists
    assert list_studies(tmp_path) == ["gsm8k"]


def test_a_record_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    assert read_json(path) is None
    write_json(path, {"a": 1})
    with path.open() as open_before:
        write_json(path, {"a": 2})
        assert json.load(open_before) == {"a": 1}
    assert read_json(path) == {"a": 2}
    assert [entry.name for entry in path.parent.iterdir()] == ["record.json"]


def step_line(step: int, **more: str) -> bytes:
    return json.dumps({"step": step, "time": 1.5, "metrics": {}, **more}).encode() + b"\n"


def test_a_torn_last_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == ([], 0)
    path.write_bytes(step_line(1) + step_line(2) + step_line(3)[:9])
    lines, offset = read_lines(path)
    assert [line["step"] for line in lines] == [1, 2]
    assert offset == len(step_line(1) + step_line(2))
    assert read_lines(path, offset) == ([], offset)
    with path.open("ab") as file:
        file.write(step_line(3)[9:])
    lines, end = read_lines(path, offset)
    assert [line["step"] for line in lines] == [3] and end == path.stat().st_size


def test_reading_in_small_pieces_gives_every_line_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(step_line(step, pad="x" * step) for step in range(1, 41)))
    steps, offset = [], 0
    while offset < path.stat().st_size:
        lines, offset = read_lines(path, offset, max_bytes=30)
        steps += [line["step"] for line in lines]
    assert steps == list(range(1, 41))


def test_nan_and_infinity_survive(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 1.5, "metrics": {"a": NaN, "b": Infinity}}\n')
    [line] = read_lines(path)[0]
    assert line["metrics"]["a"] != line["metrics"]["a"]
    assert line["metrics"]["b"] == float("inf")


def test_only_trials_with_params_are_listed(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    for number in (10, 2):
        write_json(folder.trial(number).params_file, {"number": number})
    folder.trial(3).path.mkdir()
    (folder.path / "trials" / "notes").mkdir()
    assert [trial.number for trial in folder.trials()] == [2, 10]


def test_best_trial_is_the_earlier_of_equals_and_never_a_pruned_one(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    for number, (state, objective) in enumerate(
        [("complete", 0.5), ("pruned", 0.9), ("complete", 0.7), ("complete", 0.7), ("failed", None)]
    ):
        write_json(folder.trial(number).params_file, {"number": number})
        outcome = {"number": number, "state": state, "objective": objective}
        write_json(folder.trial(number).outcome_file, outcome)
    best, worst = best_trial(folder, "maximize"), best_trial(folder, "minimize")
    assert best is not None and best["number"] == 2
    assert worst is not None and worst["number"] == 0
    assert best_trial(StudyFolder(tmp_path / "none"), "maximize") is None


def test_log_tail_is_the_end_of_the_log(tmp_path: Path) -> None:
    trial = StudyFolder(tmp_path / "s").trial(0)
    assert trial.log_tail() == ""
    trial.path.mkdir(parents=True)
    trial.log_file.write_text("".join(f"line {n}\n" for n in range(5000)))
    assert trial.log_tail(2) == "line 4998\nline 4999"


def test_a_pid_alone_is_not_the_same_process() -> None:
    import psutil

    started = psutil.Process().create_time()
    assert live_process(os.getpid(), started) is not None
    assert live_process(os.getpid(), started - 60) is None
    assert live_process(None, None) is None


def _hold(path: str, held, release) -> None:
    with StudyFolder(Path(path)).lock():
        held.set()
        release.wait(20)


def test_one_controller_at_a_time_and_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    folder = StudyFolder(tmp_path / "s")
    held, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(folder.path), held, release))
    holder.start()
    assert held.wait(20)
    with pytest.raises(StudyBusy, match="python -m sweeps stop s"), folder.lock():
        pass
    holder.kill()
    holder.join()
    time.sleep(0.05)
    with folder.lock():
        pass
