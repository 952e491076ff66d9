import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from sweeps import mlflow_records as records
from sweeps.mlflow_feed import Feed
from sweeps.search_space import apply_params
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, write_json, write_text
from sweeps.tracking import Tracker, tracking_uri

# MLflow's own models use what SQLAlchemy is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PARAMS = {"group_size": 4, "lr": 3e-4}


def make_config(**given: Any) -> SweepConfig:
    space = {"group_size": {"values": [4, 8]}, "lr": {"min": 1e-5, "max": 1e-3, "log": True}}
    return SweepConfig.model_validate({"study": {"name": "s", "n_trials": 4}, "search_space": space, **given})


@pytest.fixture
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path / "runs"


@pytest.fixture
def folder(runs_dir: Path) -> StudyFolder:
    folder = StudyFolder(runs_dir / "s")
    write_text(folder.sweep_file, "study: {name: s}\n")
    return folder


def add_trial(folder: StudyFolder, config: SweepConfig, number: int) -> None:
    trial = folder.trial(number)
    write_text(trial.config_file, yaml.safe_dump(apply_params(config.train, PARAMS).model_dump(mode="json")))
    write_json(trial.params_file, {"number": number, "params": PARAMS, "seed": 0, "source": "sampler"})


def add_steps(folder: StudyFolder, number: int, steps: range) -> None:
    with folder.trial(number).metrics_file.open("a") as file:
        for step in steps:
            metrics = {"reward/mean": step / 10, "policy/entropy": 0.7}
            if step % 5 == 0:
                metrics["eval/accuracy"] = step / 100
            file.write(json.dumps({"step": step, "time": 1_790_000_000.25 + step, "metrics": metrics}) + "\n")


def end_trial(folder: StudyFolder, number: int, state: str, reason: dict | None = None) -> None:
    outcome = {"number": number, "state": state, "objective": 0.1 if state == "complete" else None, "reason": reason}
    write_json(folder.trial(number).outcome_file, {**outcome, "ended_at": 1_790_000_100.0})


def feed_of(config: SweepConfig, folder: StudyFolder) -> Feed:
    return Feed(config, folder, tracking_uri(config, folder.path.parent), folder.path.parent)


def client_of(folder: StudyFolder) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{folder.path.parent.resolve() / 'mlflow.db'}")


def runs_of(folder: StudyFolder, query: str = "") -> list:
    client = client_of(folder)
    experiment = client.get_experiment_by_name("s")
    return client.search_runs([experiment.experiment_id], query, order_by=["attributes.start_time ASC"])


def points(folder: StudyFolder, run_id: str, name: str) -> list[tuple[int, float, int]]:
    return [(m.step, m.value, m.timestamp) for m in client_of(folder).get_metric_history(run_id, name)]


def test_a_study_is_one_parent_and_a_child_for_each_trial(folder: StudyFolder) -> None:
    config = make_config(profile="cpu")
    add_trial(folder, config, 0)
    add_steps(folder, 0, range(1, 11))
    end_trial(folder, 0, "complete")
    add_trial(folder, config, 1)
    add_steps(folder, 1, range(1, 4))
    breach = {"rule": "entropy", "step": 3, "message": "policy/entropy is 1.4 nats at step 3"}
    end_trial(folder, 1, "pruned", breach)
    add_trial(folder, config, 2)
    add_steps(folder, 2, range(1, 3))
    write_text(folder.report_file, "<html></html>")
    feed = feed_of(config, folder)
    feed.send({2}, "running")
    [parent] = runs_of(folder, "tags.kind = 'study'")
    children = runs_of(folder, f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert [child.info.run_name for child in children] == ["trial 0000", "trial 0001", "trial 0002"]
    assert [child.info.status for child in children] == ["FINISHED", "KILLED", "RUNNING"]
    assert [child.data.tags.get("outcome") for child in children] == ["complete", "pruned", None]
    assert children[1].data.tags["reason"] == "policy/entropy is 1.4 nats at step 3"
    assert children[1].data.tags["rule"] == "entropy"
    assert children[0].data.params["group_size"] == "4" and children[0].data.params["lr"] == "0.0003"
    assert children[0].data.params["clip_range"] == "0.2" and children[0].data.params["algorithm.name"] == "grpo"
    assert "algorithm.group_size" not in children[0].data.params
    assert children[0].data.tags["profile"] == "cpu"
    assert points(folder, children[0].info.run_id, "reward/mean") == [
        (step, step / 10, 1_790_000_000_250 + 1000 * step) for step in range(1, 11)
    ]
    assert [step for step, _, _ in points(folder, children[0].info.run_id, "eval/accuracy")] == [5, 10]
    [best] = runs_of(folder, "tags.outcome = 'complete' and metrics.`eval/accuracy` > 0.05")
    assert best.info.run_name == "trial 0000"
    assert parent.data.params["search_space.group_size"] == "[4, 8]"
    assert parent.inputs.dataset_inputs[0].dataset.name == "grade_school"
    assert not Path("mlruns").exists()
    end_trial(folder, 2, "failed", {"rule": "crash", "message": "the trial's process ended by signal 9"})
    write_text(folder.trial(2).log_file, "first line\nSegmentation fault\n")
    feed.send(set(), "done")
    [failed] = runs_of(folder, "tags.outcome = 'failed'")
    assert failed.info.status == "FAILED"
    assert "ended by signal 9" in failed.data.tags["mlflow.note.content"]
    assert "Segmentation fault" in failed.data.tags["mlflow.note.content"]
    [parent] = runs_of(folder, "tags.kind = 'study'")
    assert (parent.info.status, parent.data.metrics["best/eval/accuracy"]) == ("FINISHED", 0.1)
    artifacts = client_of(folder).list_artifacts(parent.info.run_id)
    assert {artifact.path for artifact in artifacts} == {"report.html", "sweep.yaml"}


def test_what_was_sent_but_not_noted_is_kept_once(folder: StudyFolder) -> None:
    config = make_config()
    add_trial(folder, config, 0)
    add_steps(folder, 0, range(1, 6))
    feed_of(config, folder).send({0}, "running")
    noted = json.loads(folder.tracking_file.read_text())
    noted["trials"]["0000"]["offset"] = 0
    write_json(folder.tracking_file, noted)
    add_steps(folder, 0, range(6, 8))
    feed_of(config, folder).send({0}, "running")
    [child] = runs_of(folder, "tags.kind = 'trial'")
    assert [step for step, _, _ in points(folder, child.info.run_id, "reward/mean")] == list(range(1, 8))


def test_a_run_that_was_made_but_not_noted_is_found_again(folder: StudyFolder) -> None:
    config = make_config()
    add_trial(folder, config, 0)
    feed_of(config, folder).send({0}, "running")
    noted = json.loads(folder.tracking_file.read_text())
    write_json(folder.tracking_file, {**noted, "parent_run_id": None, "trials": {}})
    feed_of(config, folder).send({0}, "running")
    assert len(runs_of(folder)) == 2


def test_an_interrupted_trial_is_killed_and_goes_on_in_the_same_run(folder: StudyFolder) -> None:
    config = make_config()
    add_trial(folder, config, 0)
    add_steps(folder, 0, range(1, 3))
    feed_of(config, folder).send({0}, "running")
    feed_of(config, folder).send(set(), "interrupted")
    parent, child = runs_of(folder)
    assert (parent.info.status, child.info.status) == ("KILLED", "KILLED")
    feed_of(config, folder).send({0}, "running")
    assert {run.info.status for run in runs_of(folder)} == {"RUNNING"}
    add_steps(folder, 0, range(3, 5))
    end_trial(folder, 0, "complete")
    feed_of(config, folder).send(set(), "done")
    parent, child = runs_of(folder)
    assert (parent.info.status, child.info.status) == ("FINISHED", "FINISHED")
    assert [step for step, _, _ in points(folder, child.info.run_id, "reward/mean")] == [1, 2, 3, 4]


def test_an_emptied_store_is_filled_again(folder: StudyFolder) -> None:
    config = make_config()
    add_trial(folder, config, 0)
    add_steps(folder, 0, range(1, 3))
    feed_of(config, folder).send({0}, "running")
    for file in folder.path.parent.glob("mlflow.db*"):
        file.unlink()
    feed_of(config, folder).send({0}, "running")
    [child] = runs_of(folder, "tags.kind = 'trial'")
    assert len(points(folder, child.info.run_id, "reward/mean")) == 2


def test_a_long_param_is_shortened_and_whole_as_artifact(folder: StudyFolder) -> None:
    weights = {f"part_{number}": 0.5 for number in range(900)}
    config = make_config(train={"task": {"reward_weights": weights}})
    add_trial(folder, config, 0)
    feed_of(config, folder).send({0}, "running")
    [child] = runs_of(folder, "tags.kind = 'trial'")
    value = child.data.params["task.reward_weights"]
    assert len(value) == records.MAX_PARAM_LENGTH and value.endswith("…")
    file = client_of(folder).download_artifacts(child.info.run_id, "config.yaml")
    assert yaml.safe_load(Path(file).read_text())["task"]["reward_weights"] == weights


def test_values_that_are_not_finite_do_not_stop_the_feed(folder: StudyFolder) -> None:
    config = make_config()
    add_trial(folder, config, 0)
    line = '{"step": 1, "time": 1.0, "metrics": {"loss/policy": NaN, "optim/grad_norm": Infinity, "reward/é[x]": 1}}\n'
    write_text(folder.trial(0).metrics_file, line)
    feed_of(config, folder).send({0}, "running")
    [child] = runs_of(folder, "tags.kind = 'trial'")
    [(_, loss, _)] = points(folder, child.info.run_id, "loss/policy")
    assert loss != loss
    assert points(folder, child.info.run_id, "optim/grad_norm")[0][1] > 1e308
    assert points(folder, child.info.run_id, "reward/é_x_")[0][1] == 1.0


def _track_alone(runs_dir: str, name: str, start: Any) -> None:
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    folder = StudyFolder(Path(runs_dir) / name)
    write_text(folder.sweep_file, "study: {}\n")
    config = SweepConfig.model_validate({"study": {"name": name, "n_trials": 1}, "search_space": {}})
    config = config.model_copy(update={"tracking": config.tracking.model_copy(update={"experiment": "shared"})})
    start.wait(60)
    Feed(config, folder, tracking_uri(config, Path(runs_dir)), Path(runs_dir)).send(set(), "done")


@pytest.mark.slow
def test_two_studies_start_at_once_on_a_fresh_store(runs_dir: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    both = [context.Process(target=_track_alone, args=(str(runs_dir), name, start)) for name in ("a", "b")]
    for process in both:
        process.start()
    start.set()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    client = MlflowClient(tracking_uri=f"sqlite:///{runs_dir.resolve() / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("shared")
    assert {run.info.run_name for run in client.search_runs([experiment.experiment_id])} == {"a", "b"}


def test_the_thread_sends_what_appears_and_closes_with_everything_sent(folder: StudyFolder) -> None:
    config = make_config()
    tracker = Tracker(config, folder, folder.path.parent)
    started = time.monotonic()
    tracker.start()
    tracker.running({0})
    assert time.monotonic() - started < 0.5
    add_trial(folder, config, 0)
    add_steps(folder, 0, range(1, 21))
    end_trial(folder, 0, "complete")
    tracker.wake()
    assert tracker.close("done", timeout_s=60) is None
    [child] = runs_of(folder, "tags.kind = 'trial'")
    assert child.info.status == "FINISHED"
    assert len(points(folder, child.info.run_id, "reward/mean")) == 20


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.fixture
def server_command(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    port = _free_port()
    store = f"sqlite:///{tmp_path / 'server.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", store, "--artifacts-destination", str(tmp_path / "artifacts"), "--workers", "1"]
    yield f"http://127.0.0.1:{port}", command


@pytest.mark.slow
def test_a_server_that_is_down_for_a_while_gets_every_record_in_order(
    folder: StudyFolder, server_command: tuple[str, list[str]]
) -> None:
    uri, command = server_command
    config = make_config(tracking={"uri": uri})
    tracker = Tracker(config, folder, folder.path.parent)
    tracker.start()
    tracker.running({0})
    add_trial(folder, config, 0)
    add_steps(folder, 0, range(1, 6))
    deadline = time.monotonic() + 60
    while tracker.problem is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert tracker.problem is not None
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = subprocess.Popen(command, start_new_session=True, env=environment, stderr=subprocess.DEVNULL)
    try:
        add_steps(folder, 0, range(6, 11))
        end_trial(folder, 0, "complete")
        assert tracker.close("done", timeout_s=120) is None
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("s")
        [child] = client.search_runs([experiment.experiment_id], "tags.kind = 'trial'")
        history = client.get_metric_history(child.info.run_id, "reward/mean")
        assert [point.step for point in history] == list(range(1, 11))
        assert child.info.status == "FINISHED"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def test_a_store_that_stays_away_holds_nobody_up(folder: StudyFolder) -> None:
    config = make_config(tracking={"uri": f"http://127.0.0.1:{_free_port()}"})
    tracker = Tracker(config, folder, folder.path.parent)
    tracker.start()
    add_trial(folder, config, 0)
    started = time.monotonic()
    problem = tracker.close("interrupted", timeout_s=1.0)
    assert time.monotonic() - started < 3
    assert problem is not None and str(folder.path) in problem


def test_where_a_study_is_tracked(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking_uri(make_config(), runs_dir) == f"sqlite:///{runs_dir.resolve()}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert tracking_uri(make_config(), runs_dir) == "http://tracking:5000"
    assert tracking_uri(make_config(tracking={"uri": "http://own:1"}), runs_dir) == "http://own:1"


def test_equal_problems_have_equal_digests(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('{"question": "q", "answer": "a"}\n')
    config = make_config(train={"task": {"name": "gsm8k", "path": str(tmp_path)}})
    before = records.dataset_identity(config)
    assert records.dataset_identity(config) == before
    file.write_text('{"question": "q", "answer": "b"}\n')
    assert records.dataset_identity(config)["digest"] != before["digest"]


def test_a_note_cannot_break_out_of_its_fence(folder: StudyFolder) -> None:
    write_text(folder.trial(0).log_file, "````\n# not a heading\n")
    outcome = {"state": "failed", "reason": {"message": "it broke"}}
    note = records.outcome_note(outcome, folder.trial(0))
    assert note is not None and note.endswith("`````") and "**failed**: it broke" in note
