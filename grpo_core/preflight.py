"""Preflight: the untouched policy measured once, before a study spends anything on trials."""

import copy
import json
import time
from pathlib import Path
from typing import Any

from grpo_core import metric_names as names
from grpo_core.config import TrainConfig
from grpo_core.evaluation import evaluate, evaluation_metrics
from grpo_core.policy import load_policy
from grpo_core.ranks import close_ranks, open_ranks
from grpo_core.run_setup import Run, build_learner
from grpo_core.tasks import load_task
from grpo_core.train import train_step
from grpo_core.warm_start import ensure_warm_start

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
        task = load_task(config.task)
        start = ranks.from_first(ensure_warm_start(config) if ranks.is_first else None)
        policy = load_policy(config.policy, task, start)
        learner = build_learner(policy, config, accelerator, ranks, reference=None)
        untouched = copy.deepcopy(policy.model.state_dict())
        run = Run(config, Path(run_dir), task, policy, learner, accelerator, ranks, record=None, last_step=0)
        # The first step also pays for warming up the machine; the second tells what a step costs.
        first, _ = train_step(run, 1)
        second, _ = train_step(run, 2)
        policy.model.load_state_dict(untouched)
        started = time.perf_counter()
        with accelerator.autocast():
            problems = task.validation[: config.eval.num_problems]
            results = evaluate(policy, task, problems, config, ranks)
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
