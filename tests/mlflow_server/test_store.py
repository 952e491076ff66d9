from pathlib import Path

import pytest

from mlflow_server.store import find_store


def test_default_is_the_store_that_studies_write_to(tmp_path: Path):
    store = find_store(tmp_path, {})
    assert store.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert store.artifacts == tmp_path / "mlartifacts"
    assert store.is_missing
    (tmp_path / "mlflow.db").touch()
    assert not store.is_missing


def test_the_variable_may_name_a_database_and_its_password_is_not_shown(tmp_path: Path):
    store = find_store(tmp_path, {"MLFLOW_TRACKING_URI": "postgresql+psycopg://ann:s3cret@db/mlflow"})
    assert store.uri == "postgresql+psycopg://ann:s3cret@db/mlflow"
    assert store.shown == "postgresql+psycopg://***@db/mlflow"
    assert not store.is_missing


@pytest.mark.parametrize(
    ("uri", "words"),
    [("https://ann:s3cret@host:5000", "this is a server already"), ("file:///tmp/mlruns", "not a database")],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, uri: str, words: str):
    with pytest.raises(ValueError, match=words) as refused:
        find_store(tmp_path, {"MLFLOW_TRACKING_URI": uri})
    assert "s3cret" not in str(refused.value)
    assert "unset the variable" in str(refused.value)
