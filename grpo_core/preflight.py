"""Preflight: the untouched policy measured once, before a study spends anything on trials."""

import copy
import json
import time
from pathlib import Path
from typing import Any

from grpo_core import metric_names as names
from grpo_core.config import TrainConfig
from grpo_core.evaluation import evaluate, evaluation_metrics
from grpo_core.ranks import close_ranks, open_ranks
from grpo_core.run_setup import build_run
from grpo_core.train import train_step

#: Metrics of the first step that describe the policy, not the update.
MEASURED = (
    names.POLICY_ENTROPY,
    names.REWARD_MEAN,
    names.REWARD_STD,
    names.GROUPS_DEAD_FRAC,
    names.ROLLOUT_LENGTH_MEAN,
    names.ROLLOUT_TRUNCATED_FRAC,
)


def measure_base_policy(config: TrainConfig, run_dir: Path | str) -> dict[str, Any]:
    """Entropy, reward, dead groups, validation accuracy and seconds per step of the policy before training.

    Writes them to `run_dir/preflight.json` too. The step is a whole one with its update, on weights that are thrown
    away afterwards.
    """

    accelerator, ranks = open_ranks(config.compute)
    try:
        run = build_run(config, Path(run_dir), accelerator, ranks)
        untouched = copy.deepcopy(run.learner.forward.state_dict())
        # The first step also pays for warming up the machine; the second tells what a step costs.
        first, _ = train_step(run, 1)
        second, _ = train_step(run, 2)
        run.learner.forward.load_state_dict(untouched)
        started = time.perf_counter()
        with accelerator.autocast():
            problems = run.task.validation[: config.eval.num_problems]
            results = evaluate(run.policy, run.task, problems, config, ranks)
        measured = {name: first[name] for name in MEASURED} | evaluation_metrics(results)
        measured |= {
            names.TIME_STEP_S: second[names.TIME_STEP_S],
            names.TIME_EVAL_S: time.perf_counter() - started,
            "num_problems": len(problems),
            "samples_per_problem": config.eval.samples_per_problem,
        }
    finally:
        close_ranks(ranks)
    if ranks.is_first:
        (Path(run_dir) / "preflight.json").write_text(json.dumps(measured, indent=2))
    return measured
