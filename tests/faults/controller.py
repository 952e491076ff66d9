"""A controller of its own for a study under faults: `python -m tests.faults.controller CONFIG.json RUNS_DIR`.

Its trials train for real; what the environment variable GRPO_FAULT names is broken in them.
"""

import json
import sys
from pathlib import Path

from sweeps.continuation import Refused
from sweeps.controller import run_study
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyBusy


def main() -> int:
    """Runs the study; gives the exit code, as `sweeps.launch` does."""
    config = SweepConfig.model_validate(json.loads(Path(sys.argv[1]).read_text()))
    try:
        result = run_study(config, runs_dir=sys.argv[2], job_kinds={"trial": "tests.faults.injections:trial"})
    except (Refused, StudyBusy) as error:
        print(error)
        return 2
    print(result.message)
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
