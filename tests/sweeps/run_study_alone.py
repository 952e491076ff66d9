"""`python run_study_alone.py CONFIG.json RUNS_DIR`: a controller of its own, for tests that kill it."""

import json
import sys
from pathlib import Path


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parent))
    from study_jobs import KINDS

    from sweeps.controller import run_study
    from sweeps.executors.local import LocalExecutor
    from sweeps.executors.slots import Slot
    from sweeps.sections import SweepConfig

    preload = ["sweeps.trial_process", "sweeps.guard", "grpo_core.run_record"]
    config = SweepConfig.model_validate(json.loads(Path(sys.argv[1]).read_text()))
    executor = LocalExecutor([Slot(), Slot()], preload=preload)
    try:
        return run_study(config, runs_dir=sys.argv[2], executor=executor, job_kinds=KINDS).exit_code
    finally:
        executor.close()


if __name__ == "__main__":
    sys.exit(main())
