"""What MLflow lacks of a study's records on disk, sent in one pass.

tracking.json says what MLflow has: run ids, and the byte offset in each metrics.jsonl. A record that was sent but not
noted there is sent again as the same point (its time stamp is the file's), which MLflow keeps once.
"""

import contextlib
import fcntl
import logging
import sqlite3
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from sweeps import mlflow_records as records
from sweeps.credentials import mask_credentials
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, TrialFolder, best_trial, read_json, read_lines, write_json

#: Limits of MLflow's log_batch.
_METRICS_PER_BATCH = 1000
_PARAMS_PER_BATCH = 100
_BYTES_PER_READ = 1_000_000
#: Of the log of a trial that failed, its end.
_LOG_CHARACTERS = 1_000_000


class Feed:
    """One study's records on their way to one MLflow store; every method raises what store and network raise."""

    def __init__(self, config: SweepConfig, folder: StudyFolder, uri: str, runs_dir: Path) -> None:
        self._folder = folder
        self._config = config
        self._uri = uri
        self._runs_dir = runs_dir
        self._client: MlflowClient | None = None
        self._state: dict[str, Any] = {}
        # False after a pass that was cut off, here or in an earlier process: it may have made a run and not noted it.
        self._knows_all_runs = False
        # Whether something was sent that tracking.json does not tell of yet.
        self._has_news = False
        self._num_steps_sent = 0

    @property
    def is_open(self) -> bool:
        return self._client is not None

    def send(self, running: Collection[int], study_state: str) -> int:
        """Sends what MLflow lacks: trials in `running` are shown as RUNNING, the study as `study_state`.

        Returns the number of steps that were sent.
        """
        self._num_steps_sent = 0
        try:
            self._send_difference(running, study_state)
        except Exception:
            self._knows_all_runs = False
            raise
        self._knows_all_runs = True
        return self._num_steps_sent

    def forget_lost_runs(self) -> int:
        """Has trials whose runs are no longer in the store sent again as a whole; returns how many those are."""
        client = self._client or self._open()
        lost = [name for name, entry in self._state["trials"].items() if _is_gone(client, entry["run_id"])]
        for name in lost:
            del self._state["trials"][name]
        if lost:
            self._save()
        return len(lost)

    def _send_difference(self, running: Collection[int], study_state: str) -> None:
        client = self._client or self._open()
        try:
            for trial in self._folder.trials():
                entry = self._state["trials"].get(trial.path.name)
                if entry is None or not entry["ended"]:
                    self._send_trial(client, trial, trial.number in running)
        finally:
            # Once a pass: what was sent and not noted, because the process died, is found or sent again.
            if self._has_news:
                self._save()
        if study_state != self._state["study_state"]:
            self._end_study(client, study_state)

    def _open(self) -> MlflowClient:
        # Notes about making tables, and tracebacks of errors that are caught here and told in one line.
        for name in ("alembic", "mlflow.store", "mlflow.utils"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with _only_one_at_a_time(self._uri):
            client = MlflowClient(tracking_uri=self._uri)
            experiment = _experiment(
                client, self._config.tracking.experiment or self._config.study.name, self._artifacts()
            )
        known = read_json(self._folder.tracking_file) or {}
        store = mask_credentials(self._uri)
        if known.get("uri") != store or _is_gone(client, known["parent_run_id"]):
            # Another store, or one that was emptied: everything is sent again.
            known = {"uri": store, "parent_run_id": None, "trials": {}}
        self._state = {**known, "experiment_id": experiment, "study_state": "running"}
        self._save()
        if self._state["parent_run_id"] is None:
            self._start_study(client)
        else:
            client.update_run(self._state["parent_run_id"], status="RUNNING")
            self._tag(client, self._state["parent_run_id"], records.study_tags(self._config, self._folder))
        self._client = client
        return client

    def _artifacts(self) -> str | None:
        """Where artifacts of the embedded store go; a server decides that itself."""
        if not self._uri.startswith("sqlite:"):
            return None
        return (self._runs_dir.resolve() / "mlartifacts" / self._config.study.name).as_uri()

    def _start_study(self, client: MlflowClient) -> None:
        tags = {**records.study_tags(self._config, self._folder), "uid": self._folder.identity()}
        run_id = self._find_or_create(client, self._config.study.name, tags, ("uid",))
        self._log_params(client, run_id, records.study_params(self._config))
        self._log_dataset(client, run_id)
        client.log_text(run_id, mask_credentials(self._folder.sweep_file.read_text()), "sweep.yaml")
        self._state["parent_run_id"] = run_id
        self._save()

    def _send_trial(self, client: MlflowClient, trial: TrialFolder, is_running: bool) -> None:
        entry = self._state["trials"].get(trial.path.name)
        # Looked for before the lines are read: once it is there, no line follows.
        outcome = trial.outcome()
        if entry is None:
            entry = self._start_trial(client, trial)
        wanted = "RUNNING" if is_running or outcome else records.STATUS_WHEN_INTERRUPTED
        if entry["status"] != wanted:
            if wanted == "RUNNING":
                client.update_run(entry["run_id"], status=wanted)
            else:
                self._send_lines(client, trial, entry)
                client.set_terminated(entry["run_id"], status=wanted)
            entry["status"] = wanted
            self._has_news = True
        if outcome is None:
            self._send_lines(client, trial, entry)
        else:
            self._end_trial(client, trial, entry, outcome)

    def _start_trial(self, client: MlflowClient, trial: TrialFolder) -> dict[str, Any]:
        record = trial.params()
        assert record is not None
        tags = {**records.trial_tags(self._config, record), "mlflow.parentRunId": self._state["parent_run_id"]}
        run_id = self._find_or_create(client, f"trial {trial.path.name}", tags, ("mlflow.parentRunId", "number"))
        config = records.config_of(trial)
        self._log_params(client, run_id, records.trial_params(config, record["params"]))
        client.log_artifact(run_id, str(trial.params_file))
        if trial.config_file.exists():
            client.log_artifact(run_id, str(trial.config_file))
        entry = {"run_id": run_id, "offset": 0, "status": "RUNNING", "ended": False}
        self._state["trials"][trial.path.name] = entry
        self._has_news = True
        return entry

    def _send_lines(
        self, client: MlflowClient, trial: TrialFolder, entry: dict[str, Any], tags: dict[str, str] | None = None
    ) -> None:
        """Sends the steps that MLflow lacks, and with the last of them the `tags`."""
        last = [RunTag(key, value) for key, value in (tags or {}).items()]
        size = _METRICS_PER_BATCH - len(last)
        while True:
            lines, offset = read_lines(trial.metrics_file, entry["offset"], _BYTES_PER_READ)
            if offset == entry["offset"]:
                if last:
                    client.log_batch(entry["run_id"], tags=last)
                return
            points = [
                Metric(records.metric_name(name), float(value), int(line["time"] * 1000), int(line["step"]))
                for line in lines
                for name, value in line["metrics"].items()
                if value is not None
            ]
            is_last = 0 < len(points) <= size and offset == trial.metrics_file.stat().st_size
            for start in range(0, len(points), size):
                client.log_batch(entry["run_id"], metrics=points[start : start + size], tags=last if is_last else [])
            if is_last:
                last = []
            entry["offset"] = offset
            self._num_steps_sent += len(lines)
            self._has_news = True

    def _end_trial(
        self, client: MlflowClient, trial: TrialFolder, entry: dict[str, Any], outcome: dict[str, Any]
    ) -> None:
        run_id = entry["run_id"]
        self._send_lines(client, trial, entry, records.outcome_tags(outcome))
        note = records.outcome_note(outcome, trial)
        if note is not None:
            client.set_tag(run_id, "mlflow.note.content", note)
        if outcome["state"] == "failed" and trial.log_file.exists():
            text = trial.log_file.read_text(errors="replace")[-_LOG_CHARACTERS:]
            client.log_text(run_id, mask_credentials(text), trial.log_file.name)
        ended_ms = int(outcome["ended_at"] * 1000)
        client.set_terminated(run_id, status=records.STATUS_OF_STATE[outcome["state"]], end_time=ended_ms)
        entry.update(status=records.STATUS_OF_STATE[outcome["state"]], ended=True)
        self._has_news = True

    def _end_study(self, client: MlflowClient, study_state: str) -> None:
        run_id = self._state["parent_run_id"]
        objective = self._config.study.objective
        found = records.summary_metrics(
            best_trial(self._folder, objective.direction),
            read_json(self._folder.preflight_file) or {},
            read_json(self._folder.final_file) or {},
            objective.metric,
        )
        now_ms = int(time.time() * 1000)
        client.log_batch(run_id, metrics=[Metric(name, value, now_ms, 0) for name, value in found.items()])
        self._tag(client, run_id, {"outcome": study_state})
        for file in (self._folder.report_file, self._folder.preflight_file, self._folder.final_file):
            if file.exists():
                client.log_artifact(run_id, str(file))
        status = {"done": "FINISHED", "failed": "FAILED"}.get(study_state, records.STATUS_WHEN_INTERRUPTED)
        client.set_terminated(run_id, status=status)
        self._state["study_state"] = study_state
        self._save()

    def _find_or_create(self, client: MlflowClient, name: str, tags: dict[str, str], identity: tuple[str, ...]) -> str:
        """The run with these tags, which an earlier pass may have made and not noted, or a new one."""
        if not self._knows_all_runs:
            query = " and ".join(f"tags.`{key}` = '{tags[key]}'" for key in identity)
            found = client.search_runs([self._state["experiment_id"]], query, max_results=1)
            if found:
                return found[0].info.run_id
        return client.create_run(self._state["experiment_id"], tags=tags, run_name=name).info.run_id

    def _log_params(self, client: MlflowClient, run_id: str, params: dict[str, str]) -> None:
        items = [Param(key, value) for key, value in params.items()]
        for start in range(0, len(items), _PARAMS_PER_BATCH):
            client.log_batch(run_id, params=items[start : start + _PARAMS_PER_BATCH])

    def _log_dataset(self, client: MlflowClient, run_id: str) -> None:
        identity = records.dataset_identity(self._config)
        dataset = Dataset(identity["name"], identity["digest"], source_type="task", source=identity["source"])
        client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])

    def _tag(self, client: MlflowClient, run_id: str, tags: dict[str, str]) -> None:
        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def _save(self) -> None:
        write_json(self._folder.tracking_file, self._state)
        self._has_news = False


def _experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """Id of the experiment with this name, made or brought back if need be."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return client.create_experiment(name, artifact_location=artifacts)
        except MlflowException:
            # Another study may have made it since; if not, that is the error to show.
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    return experiment.experiment_id


def _is_gone(client: MlflowClient, run_id: str | None) -> bool:
    """Whether a run that was made is no longer in the store."""
    if run_id is None:
        return False
    try:
        return client.get_run(run_id).info.lifecycle_stage != "active"
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return True
        raise


@contextlib.contextmanager
def _only_one_at_a_time(uri: str) -> Iterator[None]:
    """Keeps other controllers off an embedded store while its tables are made: MLflow makes them twice otherwise."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    path = Path(uri.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f".{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # A reader (an open UI) then never waits for a controller, nor a controller for it.
        with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        yield
