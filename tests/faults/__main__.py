"""`python -m tests.faults [WORD …]`: makes a small study with real training meet every fault, and prints the table.

Words pick the faults that contain one of them. Exit code 1 where a row was not survived. Needs root for small file
systems. Nothing but loopback is reached, and only processes that were started here are ended.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from tests.faults.disk_faults import DISK_FAULTS
from tests.faults.people_faults import PEOPLE_FAULTS
from tests.faults.process_faults import PROCESS_FAULTS
from tests.faults.tracking_faults import TRACKING_FAULTS
from tests.faults.trial_faults import TRIAL_FAULTS

FAULTS = {**PROCESS_FAULTS, **TRACKING_FAULTS, **DISK_FAULTS, **PEOPLE_FAULTS, **TRIAL_FAULTS}


def main() -> int:
    """Runs the faults one after the other; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Faults, and how studies survive them.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only faults whose name contains it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {name: run for name, run in FAULTS.items() if not given.words or any(w in name for w in given.words)}
    started, num_broken = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="grpo-sweeps-faults-") as temporary:
        os.environ["GRPO_SWEEPS_CACHE"] = str(Path(temporary) / "cache")
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        print(
            f"| {'fault':50} | {'survived':8} | {'s':>5} | how |\n|{'-' * 52}|{'-' * 10}|{'-' * 7}|-----|", flush=True
        )
        for number, (name, run) in enumerate(chosen.items()):
            began = time.monotonic()
            try:
                survived, how = "yes", run(Path(temporary) / f"runs{number}")
            except Exception as error:
                survived, how = "NO", f"{type(error).__name__}: {error}"
                num_broken += 1
                traceback.print_exc()
            print(f"| {name:50} | {survived:8} | {time.monotonic() - began:5.1f} | {how} |", flush=True)
    seconds = time.monotonic() - started
    print(f"{len(chosen) - num_broken} of {len(chosen)} survived, {seconds / 60:.1f} min")
    return int(num_broken > 0)


if __name__ == "__main__":
    sys.exit(main())
