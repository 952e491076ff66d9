"""Optuna's database, made to wait where another process holds it and not to fail."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import optuna
import sqlalchemy.event
import sqlalchemy.exc
from optuna.storages import RDBStorage

from sweeps.credentials import mask_credentials
from sweeps.disk import disk_advice
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

_BUSY_TIMEOUT_S = 20.0
_RETRY_PAUSES_S = (0.2, 1.0, 3.0)
_DAMAGED = ("not a database", "malformed", "file is encrypted")


def open_storage(config: SweepConfig, folder: StudyFolder) -> RDBStorage:
    """The database that the file names, or `study.db` in the study's folder."""
    if config.study.storage is not None and not config.study.storage.startswith("sqlite"):
        return RDBStorage(config.study.storage, engine_kwargs={"pool_pre_ping": True})
    folder.path.mkdir(parents=True, exist_ok=True)
    url = config.study.storage or f"sqlite:///{folder.study_db.resolve()}"
    storage = patiently(lambda: RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _BUSY_TIMEOUT_S}}))

    @sqlalchemy.event.listens_for(storage.engine, "connect")
    def _let_readers_in(connection: "sqlite3.Connection", _: object) -> None:
        # A reader (status, a dashboard) then never waits for the controller, nor the controller for it.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    storage.engine.dispose()
    return storage


def is_storage_error(error: BaseException) -> bool:
    """Whether `error` comes from Optuna's database, and not from us."""
    return isinstance(error, optuna.exceptions.StorageInternalError | sqlalchemy.exc.DBAPIError)


def is_damaged(error: BaseException) -> bool:
    """Whether `error` says that the file of an SQLite database is no sound database any more."""
    words = f"{error} {error.__cause__ or ''}".lower()
    return is_storage_error(error) and any(sign in words for sign in _DAMAGED)


def storage_advice(error: BaseException, config: SweepConfig, folder: StudyFolder) -> str:
    """What went wrong with Optuna's database, and the way out."""
    found = str(error.__cause__ or error).strip().splitlines()[0]
    url = config.study.storage or f"sqlite:///{folder.study_db}"
    way = "see that the server runs and takes the log-in" if config.study.storage else disk_advice(folder.path)
    return mask_credentials(f"Optuna's storage {url} failed: {found}; {way}")


def patiently(call: Callable[[], T]) -> T:
    """The result of `call`, tried again a few times when another process holds the storage."""
    for pause_s in _RETRY_PAUSES_S:
        try:
            return call()
        except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.OperationalError):
            time.sleep(pause_s)
    return call()
