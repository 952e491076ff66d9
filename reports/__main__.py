"""`python -m reports NAME`: writes the report of a study and prints where it is."""

import argparse
import gc
import sys
from pathlib import Path

from reports.page import build_report
from sweeps.study_folder import StudyFolder, list_studies


def main(arguments: list[str] | None = None) -> int:
    """Writes one report; gives the exit code, 2 for a study that does not exist."""
    parser = argparse.ArgumentParser(
        prog="python -m reports", description="Writes report.html of a study, finished or running."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the study, a folder under the runs folder")
    parser.add_argument("--runs-dir", default="runs", type=Path, help="folder that holds the studies (default: runs)")
    given = parser.parse_args(arguments)

    studies = list_studies(given.runs_dir)
    if given.name not in studies:
        print(_unknown_study(given.name, studies, given.runs_dir), file=sys.stderr)
        return 2
    print(build_report(StudyFolder(given.runs_dir / given.name).path))
    return 0


def _unknown_study(name: str | None, studies: list[str], runs_dir: Path) -> str:
    if not studies:
        return (
            f"no study under {runs_dir}: start one with python -m sweeps.launch FILE, or name its folder by --runs-dir"
        )
    problem = "NAME is missing" if name is None else f"{name!r}: no such study under {runs_dir}"
    return f"{problem}; studies there: {', '.join(studies)}"


if __name__ == "__main__":
    # A study of a million steps is tens of millions of objects and no cycle among them: looking for cycles again and
    # again took a third of the time.
    gc.disable()
    sys.exit(main())
