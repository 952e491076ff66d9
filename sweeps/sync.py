"""Brings MLflow up to date with a study's records on disk, also where its runs or the whole store were lost."""

import os
from pathlib import Path

from sweeps.config import load_resolved
from sweeps.credentials import mask_credentials
from sweeps.study_folder import StudyFolder
from sweeps.tracking import MLFLOW_ENVIRONMENT, tracking_uri


class SyncFailed(RuntimeError):
    """The store took nothing, or not everything; the text says why."""


def sync(folder: StudyFolder, runs_dir: Path, uri: str | None = None) -> str:
    """Sends what the store lacks, in order and nothing twice; what was done, in words.

    Call it only while holding the study's lock.

    Raises:
        SyncFailed: the store cannot be reached or refuses a record.
    """
    for name, value in MLFLOW_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from sweeps.mlflow_feed import Feed

    config = load_resolved(folder.sweep_file)
    uri = uri or tracking_uri(config, runs_dir)
    state = folder.controller().get("state", "interrupted")
    feed = Feed(config, folder, uri, runs_dir)
    try:
        num_lost = feed.forget_lost_runs()
        # A controller that was killed left no word of its end.
        num_steps = feed.send((), "interrupted" if state == "running" else state)
    except Exception as error:
        words = str(error).strip().splitlines()
        found = words[0][:300] if words else type(error).__name__
        raise SyncFailed(mask_credentials(f"MLflow at {uri} could not be brought up to date: {found}")) from error
    lost = f"{num_lost} runs were lost and are there again; " if num_lost else ""
    return mask_credentials(f"{lost}{num_steps} steps were sent; MLflow at {uri} has all of {folder.name}")
