"""Verbs on studies that exist: `status`, `resume`, `best`, `stop`, `sync`, `delete`.

A verb is a function from parsed arguments to an exit code, and a line in VERBS.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sweeps.study_folder import DamagedRecord, StudyBusy, StudyFolder, list_studies

#: Time in which a controller that was told to stop is gone.
_STOP_TIMEOUT_S = 15.0


class UnknownStudy(ValueError):
    """There is no study of that name."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one verb; gives the exit code."""
    given = _parser().parse_args(arguments)
    try:
        return VERBS[given.verb](given)
    except (UnknownStudy, StudyBusy) as error:
        print(error, file=sys.stderr)
        return 2
    except DamagedRecord as error:
        print(f"{error}; python -m sweeps resume {given.name} sets it aside and makes it again", file=sys.stderr)
        return 1


def status(given: argparse.Namespace) -> int:
    """Prints how one study stands, or all of them in a line each."""
    if given.name is None and given.watch:
        print("--watch follows one study; name it", file=sys.stderr)
        return 2
    if given.name is None:
        for name in list_studies(given.runs_dir):
            print(status_line(StudyFolder(given.runs_dir / name)))
        return 0
    from sweeps.config import load_resolved
    from sweeps.summary import best_lines, describe_outcome, last_metrics, settings

    folder = find(given)
    config = load_resolved(folder.sweep_file)
    if given.watch:
        from sweeps.progress import open_progress
        from sweeps.study_view import watch

        with contextlib.suppress(KeyboardInterrupt):
            watch(folder, config, open_progress())
    print(status_line(folder))
    is_live = folder.live_controller() is not None
    for trial in folder.trials():
        outcome, params = trial.outcome(), (trial.params() or {}).get("params", {})
        if outcome is not None:
            print("  " + describe_outcome(outcome, config, params))
        else:
            steps = trial.steps()
            step = steps[-1]["step"] if steps else 0
            value = last_metrics(trial).get(config.study.objective.metric)
            score = "" if value is None else f", {config.study.objective.metric} {value:.4g}"
            state = "running" if is_live else "open, goes on with resume"
            print(
                f"  trial {trial.number}: {state}, step {step} of {config.train.num_steps}{score}  ({settings(params)})"
            )
    for line in best_lines(folder, config):
        print(line)
    return 0


def status_line(folder: StudyFolder) -> str:
    """A study in one line."""
    from sweeps.summary import count_states

    record = folder.controller()
    state = record.get("state", "not started")
    if state == "running" and folder.live_controller() is None:
        state = f"killed, go on with: python -m sweeps resume {folder.name}"
    message = f" ({record['message']})" if record.get("message") and state in ("failed", "done") else ""
    return f"{folder.name}: {state}{message}; {count_states(folder)}"


def resume(given: argparse.Namespace) -> int:
    """Goes on with a study from its own record of its settings, with a larger budget if that is asked for."""
    from sweeps.config import load_resolved
    from sweeps.controller import run_study
    from sweeps.launch import exit_code_of
    from sweeps.sections import SweepConfig, parse_duration

    folder = find(given)
    data = load_resolved(folder.sweep_file).dump()
    if given.n_trials is not None:
        if given.n_trials < 1:
            print(f"--n-trials={given.n_trials}: a study has at least 1 trial", file=sys.stderr)
            return 2
        data["study"]["n_trials"] = given.n_trials
    if given.timeout is not None:
        try:
            data["study"]["timeout"] = parse_duration(given.timeout)
        except ValueError as error:
            print(f"--timeout={given.timeout}: {error}", file=sys.stderr)
            return 2
    return exit_code_of(lambda: run_study(SweepConfig.model_validate(data), runs_dir=given.runs_dir))


def best(given: argparse.Namespace) -> int:
    """Prints the best trial with the command that reproduces it, and exports its policy if that is asked for."""
    from sweeps.config import load_resolved
    from sweeps.study_folder import best_trial
    from sweeps.summary import best_lines, reproduce_command

    folder = find(given)
    config = load_resolved(folder.sweep_file)
    found = best_trial(folder, config.study.objective.direction)
    for line in best_lines(folder, config):
        print(line)
    if found is None:
        return 1
    trial = folder.trial(found["number"])
    print(f"  again: {reproduce_command(trial.path, config.resources.processes_per_trial)}")
    if given.export is None:
        return 0
    if given.export.exists() and any(given.export.iterdir() if given.export.is_dir() else [given.export]):
        print(f"--export {given.export}: exists and is not empty; name a new folder", file=sys.stderr)
        return 2
    if found["checkpoint"] is None or not (trial.path / found["checkpoint"]).is_dir():
        print(
            f"trial {found['number']} has no checkpoint any more; run it again with the command above", file=sys.stderr
        )
        return 1
    from grpo_core.checkpoints import export_policy

    try:
        export_policy(trial.path / found["checkpoint"], given.export)
    except ValueError as error:
        print(f"--export {given.export}: {error}", file=sys.stderr)
        return 1
    print(f"  policy: {given.export}")
    return 0


def stop(given: argparse.Namespace) -> int:
    """Stops the controller of a study, which leaves it resumable."""
    folder = find(given)
    process = folder.live_controller()
    if process is None:
        print(f"study {folder.name} is not running")
        return 0
    process.terminate()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while folder.live_controller() is not None:
        if time.monotonic() > deadline:
            print(
                f"pid {process.pid} has not ended after {_STOP_TIMEOUT_S:.0f} s; see: ps {process.pid}", file=sys.stderr
            )
            return 1
        time.sleep(0.1)
    print(f"study {folder.name} stopped; go on with: python -m sweeps resume {folder.name}")
    return 0


def sync(given: argparse.Namespace) -> int:
    """Sends MLflow what it lacks of a study, also where its runs or the whole store were lost."""
    from sweeps.sync import SyncFailed
    from sweeps.sync import sync as send

    folder = find(given)
    with folder.lock():
        try:
            print(send(folder, given.runs_dir, given.tracking_uri))
        except SyncFailed as error:
            print(error, file=sys.stderr)
            return 1
    return 0


def delete(given: argparse.Namespace) -> int:
    """Makes room: lists what a rule removes of a study, and removes it with --yes."""
    from sweeps.config import load_resolved
    from sweeps.retention import removals, remove
    from sweeps.sections import parse_duration

    folder = find(given)
    try:
        younger_than_s = None if given.keep_younger_than is None else parse_duration(given.keep_younger_than)
    except ValueError as error:
        print(f"--keep-younger-than={given.keep_younger_than}: {error}", file=sys.stderr)
        return 2
    if given.keep < 0:
        print(f"--keep={given.keep}: a number of trials from 0 on", file=sys.stderr)
        return 2
    with folder.lock():
        direction = "maximize" if given.what == "all" else load_resolved(folder.sweep_file).study.objective.direction
        found = removals(folder, direction, given.what, given.keep, younger_than_s)
        for removal in found:
            print(f"{removal.num_bytes / 1e6:10.1f} MB  {removal.path}")
        total = f"{sum(removal.num_bytes for removal in found) / 1e6:.1f} MB in {len(found)} places"
        if not given.yes:
            print(f"{total}; nothing was deleted, --yes deletes it")
            return 0
        try:
            remove(found)
        except OSError as error:
            print(f"{error.filename}: cannot be deleted: {error.strerror}", file=sys.stderr)
            return 1
    print(f"{total} deleted{'; the runs in MLflow stay' if given.what == 'all' else ''}")
    return 0


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "status": status,
    "resume": resume,
    "best": best,
    "stop": stop,
    "sync": sync,
    "delete": delete,
}


def find(given: argparse.Namespace) -> StudyFolder:
    """The folder of the study that was named; raises UnknownStudy with the names that there are."""
    folder = StudyFolder(given.runs_dir / given.name)
    names = list_studies(given.runs_dir)
    if given.name in names:
        return folder
    there = f"studies there: {', '.join(names)}" if names else "start one with: python -m sweeps.launch FILE"
    raise UnknownStudy(f"{given.name}: no such study under {given.runs_dir}; {there}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sweeps", description="Look at studies and go on with them.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        words = (verb.__doc__ or "").strip().splitlines()[0]
        added = verbs.add_parser(name, help=words, description=words)
        added.add_argument("name", metavar="NAME", nargs="?" if name == "status" else None, help="name of the study")
        added.add_argument("--runs-dir", type=Path, default=Path("runs"), help="folder of the studies (default: runs)")
        if name == "resume":
            added.add_argument("--n-trials", type=int, metavar="N", help="attempts in all, also those made before")
            added.add_argument("--timeout", metavar="TIME", help="time in all, for example 8h, also that spent before")
        if name == "status":
            added.add_argument("--watch", action="store_true", help="follow one study until nobody runs it any more")
        if name == "sync":
            added.add_argument("--tracking-uri", metavar="URI", help="another store than the study's own")
        if name == "delete":
            kinds = ("checkpoints", "rollouts", "all")
            added.add_argument("--what", choices=kinds, default="checkpoints", help="of ended trials (all: the study)")
            added.add_argument("--keep", type=int, default=1, metavar="N", help="best trials that keep theirs (1)")
            added.add_argument("--keep-younger-than", metavar="TIME", help="trials that ended since keep theirs: 30d")
            added.add_argument("--yes", action="store_true", help="delete it; without, it is only listed")
        if name == "best":
            added.add_argument("--export", type=Path, metavar="DIR", help="folder for the policy (save_pretrained)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
