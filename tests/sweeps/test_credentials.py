"""A password in a URI reaches no message, no record in MLflow and no page."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from sweeps.config import ConfigError, load_sweep
from sweeps.credentials import mask_credentials
from sweeps.failures import describe
from sweeps.mlflow_feed import Feed
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, write_json, write_text
from sweeps.summary import next_commands
from sweeps.tracking import Tracker

# MLflow's own models use what SQLAlchemy is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

STORAGE = "postgresql://ann:s3cret@127.0.0.1:1/optuna"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("uri: postgresql://ann:s3cret@db:5432/x", "uri: postgresql://***@db:5432/x"),
        ("https://token@host/path", "https://***@host/path"),
        ("https://host/a?user=1&api_key=abc&b=2", "https://host/a?user=1&api_key=***&b=2"),
        ("webhook: https://hooks.example/T1/k3y", "webhook: ***"),
        ("--set monitoring.webhook=http://h/k3y: no", "--set monitoring.webhook=*** no"),
        ("webhook: $ALERTS", "webhook: $ALERTS"),
        ("mail ann@example.org, sqlite:///runs/mlflow.db", "mail ann@example.org, sqlite:///runs/mlflow.db"),
    ],
)
def test_user_password_and_tokens_are_masked_and_nothing_else(text: str, masked: str) -> None:
    assert mask_credentials(text) == masked


def test_an_error_in_a_file_or_an_option_shows_no_password(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"study: {{name: s, n_trials: 1, storag: '{STORAGE}'}}\nsearch_space: {{lr: {{values: [1, 2]}}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_sweep(file, [f"tracking.url={STORAGE}"])
    assert "storag" in str(caught.value) and "tracking.url" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_an_error_of_a_rank_shows_no_password() -> None:
    data = describe(ConnectionError(f"could not connect to {STORAGE}"), 0)
    assert "***@127.0.0.1" in data["message"] and "s3cret" not in json.dumps(data)


def config_with_secrets() -> SweepConfig:
    return SweepConfig.model_validate(
        {
            "study": {"name": "s", "n_trials": 1, "storage": STORAGE},
            "search_space": {"lr": {"values": [1e-4, 2e-4]}},
            "tracking": {"uri": "http://ann:s3cret@127.0.0.1:1"},
        }
    )


def test_a_server_that_is_away_is_named_without_the_log_in(tmp_path: Path) -> None:
    config, folder = config_with_secrets(), StudyFolder(tmp_path / "s")
    tracker = Tracker(config, folder, tmp_path)
    tracker.start()
    problem = tracker.close("done", timeout_s=4.0)
    assert problem is not None and "http://***@127.0.0.1:1" in problem and "s3cret" not in problem
    assert "s3cret" not in "\n".join(next_commands(folder, config, tmp_path, tracker.uri))


def test_nothing_in_the_store_has_a_password(tmp_path: Path) -> None:
    config, folder = config_with_secrets(), StudyFolder(tmp_path / "s")
    write_text(folder.sweep_file, json.dumps(config.dump()))
    trial = folder.trial(0)
    write_json(trial.params_file, {"number": 0, "params": {"lr": 1e-4}, "seed": 0, "source": "sampler"})
    write_text(trial.log_file, f"ConnectionError: {STORAGE}\n")
    reason = {"rule": "error", "message": mask_credentials(STORAGE)}
    outcome = {"number": 0, "state": "failed", "objective": None, "reason": reason, "ended_at": 1_790_000_100.0}
    write_json(trial.outcome_file, outcome)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    Feed(config, folder, uri, tmp_path).send((), "done")
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("s").experiment_id])
    assert len(runs) == 2
    told = [json.dumps(run.to_dictionary()) for run in runs]
    for run in runs:
        for artifact in client.list_artifacts(run.info.run_id):
            told.append(Path(client.download_artifacts(run.info.run_id, artifact.path)).read_text())
    assert len(told) >= 4 and any("***@127.0.0.1" in text for text in told)
    assert not any("s3cret" in text for text in told)
    assert "s3cret" not in folder.tracking_file.read_text()
