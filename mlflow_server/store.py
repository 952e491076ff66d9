"""Where the tracking store is: a database and a folder of artifacts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_USER_INFO = re.compile(r"(://)[^/@]*@")


@dataclass(frozen=True)
class Store:
    """What a server serves."""

    uri: str
    """SQLAlchemy URI of the database."""
    artifacts: Path
    """Folder of files that runs keep."""

    @property
    def shown(self) -> str:
        """The URI without user and password."""
        return _USER_INFO.sub(r"\1***@", self.uri)

    @property
    def file(self) -> Path | None:
        """The database file, None for a database server."""
        return Path(self.uri.removeprefix("sqlite:///")) if self.uri.startswith("sqlite:///") else None

    @property
    def is_missing(self) -> bool:
        """True when nothing was ever written to it."""
        return self.file is not None and not self.file.exists()


def find_store(runs_dir: Path, environ: Mapping[str, str]) -> Store:
    """The store under `runs_dir`, or the database that MLFLOW_TRACKING_URI names.

    Raises:
        ValueError: the variable names something that cannot be served.
    """
    artifacts = (runs_dir / "mlartifacts").resolve()
    uri = environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        return Store(f"sqlite:///{(runs_dir / 'mlflow.db').resolve()}", artifacts)
    store = Store(uri, artifacts)
    scheme = uri.split(":", 1)[0].split("+")[0]
    if scheme in ("http", "https"):
        raise ValueError(
            f"MLFLOW_TRACKING_URI={store.shown}: this is a server already; open it in a browser, or unset the variable "
            f"to serve {runs_dir / 'mlflow.db'}"
        )
    if scheme not in _DATABASES:
        raise ValueError(
            f"MLFLOW_TRACKING_URI={store.shown}: not a database ({', '.join(_DATABASES)}); name one, or unset the "
            f"variable to serve {runs_dir / 'mlflow.db'}"
        )
    return store
