"""`python -m sweeps.launch FILE`: runs the study that a YAML file describes, or goes on with it.

Nothing heavy is imported here at module level: every trial process imports the main module again.
"""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from sweeps.controller import StudyResult


def main(arguments: list[str] | None = None) -> int:
    """Launches a study; gives the exit code: 0 done, 1 failed, 2 refused, 130 and 143 interrupted and resumable."""
    given = _parser().parse_args(arguments)
    from sweeps.config import ConfigError, load_sweep
    from sweeps.lint import lint

    try:
        config = load_sweep(given.file, _overrides(given), given.profile)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"profile {config.profile or 'none'}: {config.profile_reason}", flush=True)
    findings = lint(config)
    for finding in findings:
        print(finding, file=sys.stderr, flush=True)
    if any(finding.level == "error" for finding in findings):
        return 2

    from sweeps.controller import run_study
    from sweeps.plan import print_plan

    if given.dry_run:
        return exit_code_of(lambda: print_plan(config, given.runs_dir))
    return exit_code_of(
        lambda: run_study(config, runs_dir=given.runs_dir, fresh=given.fresh, import_from=given.import_from)
    )


def exit_code_of(run: "Callable[[], StudyResult | None]") -> int:
    """Runs a study, or its dry run, and says on standard error why it was refused or failed."""
    from sweeps.config import ConfigError
    from sweeps.continuation import Refused
    from sweeps.study_folder import StudyBusy

    try:
        result = run()
    except (ConfigError, Refused, StudyBusy) as error:
        print(error, file=sys.stderr)
        return 2
    if result is None:
        return 0
    if result.exit_code in (1, 2):
        print(result.message, file=sys.stderr)
    return result.exit_code


def _overrides(given: "argparse.Namespace") -> list[str]:
    named = {"study.n_trials": given.n_trials, "study.name": given.study, "resources.executor": given.executor}
    return [*given.set, *(f"{key}={value}" for key, value in named.items() if value is not None)]


def _parser() -> "argparse.ArgumentParser":
    import argparse

    parser = argparse.ArgumentParser(prog="python -m sweeps.launch", description="Run a study, or go on with it.")
    parser.add_argument("file", metavar="FILE", help="search space file, for example search_spaces/gsm8k.yaml")
    parser.add_argument("--profile", help="overlay of the file to apply; without it the machine decides")
    parser.add_argument("--n-trials", metavar="N", help="attempts in all, also across restarts")
    parser.add_argument("--study", metavar="NAME", help="name of the study, instead of the file's")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override any key; repeatable")
    parser.add_argument("--executor", help="where trials run")
    parser.add_argument("--dry-run", action="store_true", help="print plan, cost and time, start nothing")
    parser.add_argument("--fresh", action="store_true", help="start over; the old study is kept under another name")
    parser.add_argument("--import", dest="import_from", metavar="NAME", help="take over fitting trials of that study")
    parser.add_argument("--runs-dir", default="runs", help="folder that holds the studies (default: runs)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
