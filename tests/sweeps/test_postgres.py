"""A study whose Optuna storage is a PostgreSQL server."""

import optuna
import pytest

from sweeps.config import load_sweep
from sweeps.study import SweepStudy
from sweeps.study_folder import StudyFolder

pytestmark = pytest.mark.postgres


def test_draws_and_outcomes_are_kept_on_the_server(postgres_url, tmp_path):
    config = load_sweep("search_spaces/smoke.yaml", [f"study.storage={postgres_url}"])
    folder = StudyFolder(tmp_path / "smoke")
    study = SweepStudy(config, folder)
    first, second = study.draw(), study.draw()
    assert first is not None and second is not None
    assert (first.number, second.number, study.draw()) == (0, 1, None)
    assert not study.report(0, 3, 0.25)
    study.tell({"number": 0, "state": "complete", "objective": 0.25, "constraint": 0.0})
    study.tell({"number": 1, "state": "pruned", "objective": None, "constraint": 0.5, "reason": {"rule": "entropy"}})

    study.close()
    storage = optuna.storages.RDBStorage(postgres_url)
    stored = optuna.load_study(study_name="smoke", storage=storage)
    assert [trial.state.name for trial in stored.trials] == ["COMPLETE", "PRUNED"]
    assert stored.trials[0].value == 0.25
    assert stored.trials[0].params["lr"] == config.train.optim.lr
    storage.remove_session()
    storage.engine.dispose()
    again = SweepStudy(config, folder)
    assert (again.num_attempts, again.num_left) == (2, 0)
    again.close()
