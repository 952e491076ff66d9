"""What people do to a study that runs.

Each function makes a study meet one fault, brings it to its end, and gives in words how it came out; it raises where
anything is wrong.
"""

from collections.abc import Callable
from pathlib import Path

from tests.faults.study import Study, begun, expect


def two_controllers_on_one_study(runs_dir: Path) -> str:
    study = begun(runs_dir)
    other = Study(runs_dir)
    expect(other.launch(), 2)
    other.said("is being run by another process")
    expect(study.finish(), 0)
    study.check_whole()
    return "the second is refused, exit code 2; complete"


def file_changed_under_a_running_study(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.configure("search_space.lr.max=0.01")
    expect(study.finish(), 0)
    study.check_whole()
    expect(study.launch(), 2)
    study.said("search_space.lr: 1e-05 to 0.0001")
    return "complete by its own settings; the next launch names the change, exit code 2"


PEOPLE_FAULTS: dict[str, Callable[[Path], str]] = {
    "two controllers on one study": two_controllers_on_one_study,
    "file changed under a running study": file_changed_under_a_running_study,
}
