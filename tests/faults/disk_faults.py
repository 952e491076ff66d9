"""Disks that are full or read-only, and files that are cut, flipped or gone.

Each function makes a study meet one fault, brings it to its end, and gives in words how it came out; it raises where
anything is wrong.
"""

import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_core.checkpoints import all_checkpoints
from tests.faults.study import Broken, Study, begun, expect, killed, resumed, wait_for_ranks


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of its own."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def disk_full(runs_dir: Path) -> str:
    with small_disk(runs_dir, "60m"):
        study = begun(runs_dir, step=1)
        filler = runs_dir / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            except OSError:
                pass
        expect(study.finish(), 1)
        study.said("No space left on device|disk is full")
        study.said("go on with: python -m sweeps resume")
        filler.unlink(missing_ok=True)
        return resumed(study)


def disk_read_only_at_the_next_launch(runs_dir: Path) -> str:
    with small_disk(runs_dir, "60m"):
        study = killed(runs_dir)
        wait_for_ranks(study)
        subprocess.run(["mount", "-o", "remount,ro", runs_dir], check=True)
        expect(study.launch(), 2)
        study.said("cannot be written to: Read-only file system")
        subprocess.run(["mount", "-o", "remount,rw", runs_dir], check=True)
        return f"refused, exit code 2; writable again: {resumed(study)}"


def metrics_jsonl_torn_last_line(runs_dir: Path) -> str:
    study = killed(runs_dir)
    with study.folder.trial(0).metrics_file.open("a") as file:
        file.write('{"step": 99, "time": 17')
    return resumed(study)


def newest_checkpoint_a_bit_flipped(runs_dir: Path) -> str:
    study = killed(runs_dir)
    wait_for_ranks(study)
    folder = all_checkpoints(study.folder.trial(0).path)[-1]
    file = next((folder / "policy").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-5] ^= 4
    file.write_bytes(data)
    said = resumed(study)
    if not list((study.folder.trial(0).path / "checkpoints").glob("damaged_*")):
        raise Broken("the damaged checkpoint was not set aside")
    return said


def newest_checkpoint_half_written(runs_dir: Path) -> str:
    study = killed(runs_dir)
    wait_for_ranks(study)
    folder = all_checkpoints(study.folder.trial(0).path)[-1]
    (folder / "state.json").unlink()
    (folder / "optimizer.pt").write_bytes(b"half")
    return resumed(study)


def study_db_overwritten(runs_dir: Path) -> str:
    study = killed(runs_dir)
    for log in study.folder.path.glob("study.db-*"):
        log.unlink()
    study.folder.study_db.write_bytes(b"no database at all" * 999)
    said = resumed(study)
    study.said("study.db is damaged")
    return said


def study_db_deleted(runs_dir: Path) -> str:
    study = killed(runs_dir)
    for file in study.folder.path.glob("study.db*"):
        file.unlink()
    return resumed(study)


def study_db_locked_for_5_s(runs_dir: Path) -> str:
    study = begun(runs_dir, step=1)
    connection = sqlite3.connect(study.folder.study_db, isolation_level=None, timeout=20)
    connection.execute("BEGIN EXCLUSIVE")
    time.sleep(5)
    connection.execute("ROLLBACK")
    connection.close()
    expect(study.finish(), 0)
    study.check_whole()
    return "complete"


def outcome_json_cut_in_half(runs_dir: Path) -> str:
    study = Study(runs_dir)
    expect(study.launch(), 0)
    cut(study.folder.trial(0).outcome_file)
    study.configure("study.n_trials=3")
    expect(study.launch(), 0)
    study.said("outcome.json is not readable")
    study.check_whole(num_trials=3)
    return "set aside and made again, complete"


def controller_json_and_tracking_json_cut_in_half(runs_dir: Path) -> str:
    study = killed(runs_dir)
    cut(study.folder.controller_file)
    cut(study.folder.tracking_file)
    said = resumed(study)
    if len(study.runs("tags.kind = 'study'")) != 1:
        raise Broken("MLflow has two parent runs")
    return said


def folder_of_a_running_trial_deleted_after_killed(runs_dir: Path) -> str:
    study = killed(runs_dir)
    wait_for_ranks(study)
    shutil.rmtree(study.folder.trial(0).path)
    return resumed(study)


def sweep_yaml_cut_in_half(runs_dir: Path) -> str:
    study = killed(runs_dir)
    wait_for_ranks(study)
    kept = study.folder.sweep_file.read_bytes()
    study.folder.sweep_file.write_bytes(b"study: [" + kept[:40])
    expect(study.launch(), 2)
    study.said("is not readable")
    study.folder.sweep_file.write_bytes(kept)
    return f"refused, exit code 2; brought back: {resumed(study)}"


def cut(file: Path) -> None:
    """Takes the second half of a file away."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DISK_FAULTS: dict[str, Callable[[Path], str]] = {
    "disk full": disk_full,
    "disk read-only at the next launch": disk_read_only_at_the_next_launch,
    "metrics.jsonl: torn last line": metrics_jsonl_torn_last_line,
    "newest checkpoint: a bit flipped": newest_checkpoint_a_bit_flipped,
    "newest checkpoint: half written": newest_checkpoint_half_written,
    "study.db: overwritten": study_db_overwritten,
    "study.db: deleted": study_db_deleted,
    "study.db: locked for 5 s": study_db_locked_for_5_s,
    "outcome.json: cut in half": outcome_json_cut_in_half,
    "controller.json and tracking.json: cut in half": controller_json_and_tracking_json_cut_in_half,
    "folder of a running trial: deleted after kill -9": folder_of_a_running_trial_deleted_after_killed,
    "sweep.yaml: cut in half": sweep_yaml_cut_in_half,
}
