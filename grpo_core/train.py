"""The training loop: `python -m grpo_core.train config.yaml` runs it alone, a study runs it once for each trial."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from grpo_core import metric_names as names
from grpo_core.advantages import compute_advantages
from grpo_core.batches import build_batch
from grpo_core.checkpoints import newest_checkpoint, save_checkpoint
from grpo_core.config import TrainConfig
from grpo_core.evaluation import evaluate, evaluation_metrics
from grpo_core.rollouts import sample_groups
from grpo_core.run_setup import Run, open_run
from grpo_core.scoring import Score, decode_completions, score_completions
from grpo_core.seeds import generator, shuffled
from grpo_core.step_metrics import reward_metrics, reward_table, rollout_metrics, update_metrics
from grpo_core.tasks import Completion, Problem, Task
from grpo_core.update import learning_rate, update_policy


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
        step = run.last_step
        while step < config.num_steps and verdict is None:
            step += 1
            metrics, lines = train_step(run, step)
            if step % config.eval.every == 0 or step == config.num_steps:
                metrics |= evaluate_step(run)
            with run.ranks.together():
                verdict = record_step(run, step, metrics, lines, on_step)
            verdict = run.ranks.from_first(verdict)
            ends = step == config.num_steps or verdict is not None
            pruned = verdict is not None and verdict.action == "prune"
            if not pruned and (ends or step % config.checkpoint.every == 0):
                save(run, step)
        return result(run, step, verdict)


def train_step(run: Run, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """One step: metrics pooled over all ranks, and a record of each completion."""
    config, ranks, policy = run.config, run.ranks, run.policy
    group_size = config.algorithm.group_size
    started = time.perf_counter()
    with ranks.together():
        problems = ranks.share(problems_of_step(run.task, config, step))
        prompts = [policy.encode_prompt(run.task.prompt(problem)) for problem in problems]
        draws = generator(policy.model.device, config.seed, "rollout", step, ranks.rank)
        with run.accelerator.autocast():
            rollouts = sample_groups(policy, prompts, group_size, config.rollout, generator=draws)
        rollout_s = time.perf_counter() - started

        asked = [problem for problem in problems for _ in range(group_size)]
        completions = decode_completions(policy, rollouts)
        scores = score_completions(run.task, asked, completions)
    all_scores = ranks.gather(scores)
    advantages = compute_advantages(reward_table(all_scores, group_size), config.algorithm)
    own_advantages = advantages[ranks.rank * len(problems) : (ranks.rank + 1) * len(problems)]

    update_started = time.perf_counter()
    lr = learning_rate(config, step)
    for group in run.learner.optimizer.param_groups:
        group["lr"] = lr
    batch = build_batch(rollouts, own_advantages, config.algorithm.mask_truncated)
    stats = update_policy(run.learner, batch, config)
    run.num_skipped += stats.num_skipped
    ended = time.perf_counter()

    metrics = reward_metrics(all_scores, group_size) | rollout_metrics(rollouts, ranks)
    metrics |= update_metrics(stats, lr, run.num_skipped)
    num_tokens = metrics[names.ROLLOUT_LENGTH_MEAN] * config.rollout.completions_per_step
    metrics |= {
        names.TIME_ROLLOUT_S: rollout_s,
        names.TIME_UPDATE_S: ended - update_started,
        names.TIME_STEP_S: ended - started,
        names.THROUGHPUT_TOKENS_PER_S: num_tokens / (ended - started),
    }
    lines = rollout_lines(run.task, asked, completions, scores, own_advantages.flatten().tolist())
    return metrics, ranks.gather(lines)


def problems_of_step(task: Task, config: TrainConfig, step: int) -> list[Problem]:
    """The training problems of `step` over all ranks: each once an epoch, in an order drawn by `config.seed`."""
    num_prompts = config.rollout.completions_per_step // config.algorithm.group_size
    problems, order, drawn_epoch = [], [], -1
    for place in range((step - 1) * num_prompts, step * num_prompts):
        epoch, index = divmod(place, len(task.train))
        if epoch != drawn_epoch:
            order, drawn_epoch = shuffled(len(task.train), config.seed, "epoch", epoch), epoch
        problems.append(task.train[order[index]])
    return problems


def rollout_lines(
    task: Task,
    problems: list[Problem],
    completions: list[Completion],
    scores: list[Score],
    advantages: list[float],
) -> list[dict[str, Any]]:
    """What rollouts.jsonl.zst keeps of each completion."""
    return [
        {
            "problem_id": problem.id,
            "prompt": task.prompt(problem),
            "completion": completion.text,
            "reward": None if math.isnan(score.reward) else score.reward,
            "parts": score.parts,
            "advantage": advantage,
            "num_tokens": completion.num_tokens,
            "ended": completion.ended,
            **({"fault": score.fault} if score.fault else {}),
        }
        for problem, completion, score, advantage in zip(problems, completions, scores, advantages, strict=True)
    ]


def evaluate_step(run: Run) -> dict[str, float]:
    """`eval/*` of the policy as it is now, on the validation problems."""
    started = time.perf_counter()
    problems = run.task.validation[: run.config.eval.num_problems]
    with run.accelerator.autocast():
        results = evaluate(run.policy, run.task, problems, run.config, run.ranks)
    return evaluation_metrics(results) | {names.TIME_EVAL_S: time.perf_counter() - started}


def record_step(
    run: Run, step: int, metrics: dict[str, float], lines: list[dict[str, Any]], on_step: OnStep | None
) -> Verdict | None:
    """Writes the step and asks `on_step`; does neither on other ranks, nor for a step written before."""
    if run.record is None or not run.record.write(step, metrics, lines) or on_step is None:
        return None
    return on_step(step, metrics)


def save(run: Run, step: int) -> None:
    """Leaves a checkpoint after `step`, written by rank 0."""
    if run.ranks.is_first:
        state = {"num_skipped": run.num_skipped}
        optimizer = run.learner.optimizer
        save_checkpoint(run.run_dir, step, run.policy, optimizer, state, run.config.checkpoint.keep)


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
