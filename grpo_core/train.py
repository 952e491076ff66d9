"""The training loop: `python -m grpo_core.train config.yaml` runs it alone, a study runs it once for each trial."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from grpo_core import metric_names as names
from grpo_core.batches import Batch
from grpo_core.checkpoints import newest_checkpoint, save_checkpoint
from grpo_core.collection import Collection, collect
from grpo_core.config import TrainConfig
from grpo_core.credit import learning_batch
from grpo_core.evaluation import evaluate, evaluation_metrics
from grpo_core.prompt_order import problems_of_step, updated_priorities
from grpo_core.rollback import may_be_needed, note_evaluation, roll_back
from grpo_core.run_setup import Run, open_run
from grpo_core.run_state import rollout_of_step
from grpo_core.step_metrics import (
    collection_metrics,
    reward_metrics,
    rollout_metrics,
    schedule_metrics,
    update_metrics,
)
from grpo_core.tasks import Task
from grpo_core.update import UpdateStats, learning_rate, set_learning_rate, update_policy


@dataclass(frozen=True)
class Verdict:
    """Why a run ends before its last step: `prune` for good, `stop` to be resumed from a checkpoint."""

    action: Literal["prune", "stop"]
    reason: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainResult:
    status: Literal["complete", "pruned", "stopped"]
    last_step: int
    metrics: dict[str, float]
    """The last known value of every metric."""
    reason: dict[str, Any] | None
    checkpoint: str | None


OnStep = Callable[[int, dict[str, float]], Verdict | None]


def train(config: TrainConfig, *, run_dir: Path | str, on_step: OnStep | None = None) -> TrainResult:
    """Trains one policy; steps count from 1, each a rollout batch with all its updates.

    Every step is appended to `run_dir/metrics.jsonl` before `on_step(step, metrics)` hears of it, on rank 0 alone;
    its verdict ends all ranks at that step. Called again on the same `run_dir` it goes on from the newest checkpoint;
    steps recorded already are repeated without being recorded or told again.

    Raises ValueError for a mistake in `config` that only the machine, the task or the model shows.
    """
    with open_run(config, Path(run_dir)) as run:
        verdict = None
        step, saved_at = run.state.step, time.monotonic()
        while step < config.num_steps and verdict is None:
            step += 1
            metrics, lines = train_step(run, step)
            if step % config.eval.every == 0 or step == config.num_steps:
                metrics |= evaluate_step(run)
                metrics |= follow_evaluation(run, step, metrics)
            with run.ranks.together():
                verdict = record_step(run, step, metrics, lines, on_step)
            verdict, seconds = run.ranks.from_first((verdict, time.monotonic() - saved_at))
            if is_checkpoint_due(run, step, verdict, seconds):
                save(run, step)
                saved_at = time.monotonic()
        return result(run, step, verdict)


def train_step(run: Run, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """One step: metrics pooled over all ranks, and a record of each completion."""
    ranks, state = run.ranks, run.state
    started = time.perf_counter()
    rollout = rollout_of_step(run.config, step)
    algorithm = state.algorithm_of_step(run.config.algorithm)
    config = run.config.model_copy(update={"algorithm": algorithm})

    problems = problems_of_step(run.task, config, step, state.priorities)
    with run.accelerator.autocast():
        collection = collect(run.policy, run.task, config, rollout, ranks, problems, step)
    collected = time.perf_counter()

    batch, credit_metrics = learning_batch(collection, run.learner, run.task, config)
    lr = learning_rate(config, step) * state.lr_scale
    set_learning_rate(run.learner, lr)
    stats = UpdateStats() if batch is None else update_policy(run.learner, batch, config, step)
    state.num_skipped += stats.num_skipped
    state.num_idle += batch is None
    ended = time.perf_counter()

    metrics = reward_metrics(ranks.gather(collection.scores)) | rollout_metrics(collection.rollouts, ranks)
    metrics |= credit_metrics | update_metrics(stats, lr, state.num_skipped)
    metrics |= collection_metrics(collection, config, ranks) | schedule_metrics(config, rollout, algorithm)
    num_tokens = metrics[names.ROLLOUT_LENGTH_MEAN] * len(collection.scores) * ranks.size
    metrics |= {
        names.TIME_ROLLOUT_S: collected - started,
        names.TIME_UPDATE_S: ended - collected,
        names.TIME_STEP_S: ended - started,
        names.THROUGHPUT_TOKENS_PER_S: num_tokens / (ended - started),
    }
    return metrics | remember(run, step, collection, metrics), ranks.gather(rollout_lines(run.task, collection, batch))


def remember(run: Run, step: int, collection: Collection, metrics: dict[str, float]) -> dict[str, float]:
    """Carries what later steps need into the run's state; gives the metrics that look back over earlier ones."""
    algorithm, state = run.config.algorithm, run.state
    state.step = step
    state.steer(algorithm, metrics[names.POLICY_KL], metrics[names.POLICY_ENTROPY])
    if run.config.rollout.priority_exponent:
        problems = run.ranks.gather(collection.problems)
        rewards = torch.tensor(run.ranks.gather(collection.rewards.tolist()), dtype=torch.float64)
        state.priorities = updated_priorities(state.priorities, problems, rewards)
    more = {names.OPTIM_IDLE_STEPS: state.num_idle} if algorithm.dynamic_sampling else {}
    if algorithm.smoothing_window is not None:
        more[names.REWARD_SMOOTHED] = state.smoothed_reward(metrics[names.REWARD_MEAN], algorithm.smoothing_window)
    return more


def rollout_lines(task: Task, collection: Collection, batch: Batch | None) -> list[dict[str, Any]]:
    """What rollouts.jsonl.zst keeps of each completion; its advantage is the mean over its tokens, 0 where unused."""
    used = collection.used.repeat_interleave(collection.group_size).tolist()
    advantages = iter([] if batch is None else batch.mean_advantages().tolist())
    lines = []
    for row, (completion, score) in enumerate(zip(collection.completions, collection.scores, strict=True)):
        problem = collection.problems[row // collection.group_size]
        lines.append(
            {
                "problem_id": problem.id,
                "prompt": task.prompt(problem),
                "completion": completion.text,
                "reward": None if math.isnan(score.reward) else score.reward,
                "parts": score.parts,
                "advantage": next(advantages) if used[row] else 0.0,
                "num_tokens": completion.num_tokens,
                "ended": completion.ended,
                **({"fault": score.fault} if score.fault else {}),
            }
        )
    return lines


def evaluate_step(run: Run) -> dict[str, float]:
    """`eval/*` of the policy as it is now, on the validation problems."""
    started = time.perf_counter()
    problems = run.task.validation[: run.config.eval.num_problems]
    with run.accelerator.autocast():
        results = evaluate(run.policy, run.task, problems, run.config, run.ranks)
    return evaluation_metrics(results) | {names.TIME_EVAL_S: time.perf_counter() - started}


def follow_evaluation(run: Run, step: int, metrics: dict[str, float]) -> dict[str, float]:
    """Returns the run to its best checkpoint where evaluations have dropped too often; the count of it if it did."""
    config, state = run.config.rollback, run.state
    value = run.ranks.from_first(metrics[config.metric] if run.ranks.is_first else 0.0)
    if not note_evaluation(state, config, step, value) or step == run.config.num_steps:
        return {}
    problem = roll_back(run)
    if problem is not None:
        print(f"step {step}: {config.metric} dropped {config.after_drops} times in a row, no rollback: {problem}")
        return {}
    return {names.OPTIM_ROLLBACKS: state.num_rollbacks}


def is_checkpoint_due(run: Run, step: int, verdict: Verdict | None, seconds: float) -> bool:
    """Whether `step` leaves a checkpoint, `seconds` after the last one."""
    config, state = run.config.checkpoint, run.state
    if verdict is not None or step == run.config.num_steps:
        return verdict is None or verdict.action != "prune"
    is_best = state.best_step == step and may_be_needed(state, run.config, step)
    too_long = config.every_s is not None and seconds >= config.every_s
    return is_best or too_long or step % config.every == 0


def record_step(
    run: Run, step: int, metrics: dict[str, float], lines: list[dict[str, Any]], on_step: OnStep | None
) -> Verdict | None:
    """Writes the step and asks `on_step`; does neither on other ranks, nor for a step written before."""
    if run.record is None or not run.record.write(step, metrics, lines) or on_step is None:
        return None
    return on_step(step, metrics)


def save(run: Run, step: int) -> None:
    """Leaves a checkpoint after `step`, written by rank 0."""
    with run.ranks.together():
        if run.record is not None:
            # A checkpoint must not be ahead of the record.
            run.record.force_to_disk()
            learner, state = run.learner, run.state
            save_checkpoint(
                run.run_dir,
                step,
                run.policy,
                learner.optimizer,
                state.record(),
                run.config.checkpoint.keep,
                learner.forward.value_head,
                also_keep=state.best_step if may_be_needed(state, run.config, step) else None,
            )


def result(run: Run, step: int, verdict: Verdict | None) -> TrainResult:
    """What the run came to, the same on every rank but for the metrics, which rank 0 alone has."""
    status: Literal["complete", "pruned", "stopped"] = "complete"
    if verdict is not None and step < run.config.num_steps:
        status = "pruned" if verdict.action == "prune" else "stopped"
    elif verdict is not None and verdict.action == "prune":
        status = "pruned"
    checkpoint = newest_checkpoint(run.run_dir) if status != "pruned" else None
    return TrainResult(
        status=status,
        last_step=step,
        metrics=run.record.last_values if run.record else {},
        reason=verdict.reason if verdict else None,
        checkpoint=str(checkpoint) if checkpoint else None,
    )


def main() -> None:
    """`python -m grpo_core.train config.yaml --run-dir DIR`, also under torchrun and accelerate launch."""
    import argparse
    import sys

    import yaml

    parser = argparse.ArgumentParser(prog="python -m grpo_core.train", description="Train one GRPO policy.")
    parser.add_argument("config", type=Path, help="YAML of a TrainConfig")
    parser.add_argument("--run-dir", type=Path, required=True, help="where metrics, rollouts and checkpoints go")
    given = parser.parse_args()
    try:
        config = TrainConfig.model_validate(yaml.safe_load(given.config.read_text()) or {})
        outcome = train(config, run_dir=given.run_dir, on_step=_print_step)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    if os.environ.get("RANK", "0") == "0":
        print(f"{outcome.status} after step {outcome.last_step}; checkpoint {outcome.checkpoint}")


def _print_step(step: int, metrics: dict[str, float]) -> None:
    shown = (names.REWARD_MEAN, names.POLICY_ENTROPY, names.OPTIM_GRAD_NORM, names.EVAL_ACCURACY)
    print(f"step {step:5d}  " + "  ".join(f"{name} {metrics[name]:.4f}" for name in shown if name in metrics))


if __name__ == "__main__":
    main()
