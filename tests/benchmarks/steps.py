"""Our step against that of TRL's GRPOTrainer, in turns: `python -m tests.benchmarks.steps`.

Same weights, prompts, completions a step, lengths and updates (`step_setups`), two threads each; seconds are split into
sampling, scoring (rewards and, for TRL, everything else before the update) and update.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.lines import Line
from tests.benchmarks.step_costs import shares_of_limits
from tests.benchmarks.step_setups import SETUPS
from tests.benchmarks.turns import workers

NUM_WARM_UP, NUM_STEPS = 1, 5


def measure() -> dict[str, Any]:
    """Figures of both setups."""
    return {name: measure_setup(name) for name in SETUPS}


def measure_setup(name: str) -> dict[str, Any]:
    """Medians over the steps of each side, the ratios of medians (TRL's over ours), and how near limits ours are."""
    with tempfile.TemporaryDirectory() as folder:
        SETUPS[name].config(Path(folder))
        commands = [(f"tests.benchmarks.{side}_steps", name, folder) for side in ("our", "trl")]
        with workers(*commands) as (ours, trl):
            turns = [(ours.turn(), trl.turn()) for _ in range(NUM_WARM_UP + NUM_STEPS)][NUM_WARM_UP:]
    of_ours, of_trl = (
        {key: statistics.median(turn[side][key] for turn in turns) for key in turns[0][side]} for side in (0, 1)
    )
    ratio = {key: of_trl[key] / of_ours[key] for key in of_trl}
    return {"ours": of_ours, "trl": of_trl, "ratio": ratio, "ours, share of limits": shares_of_limits(of_ours)}


def lines(figures: dict[str, Any]) -> list[Line]:
    """The lines of the table."""
    tiny, smollm2 = figures["tiny"]["ratio"], figures["smollm2"]["ratio"]
    return [
        Line("step, tiny policy, against TRL", tiny["step_s"], at_least=1.8),
        Line("step, SmolLM2-135M on GSM8K, against TRL", smollm2["step_s"], at_least=2.2),
        Line("peak memory of an update against TRL's, SmolLM2", 1 / smollm2["update_peak_mb"], at_most=0.7),
    ]


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=2))
    for line in lines(measured):
        print(line.text())
