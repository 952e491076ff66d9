"""How good a policy is on problems that it was not trained on, with the standard error of that figure."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo_core import metric_names as names
from grpo_core.checkpoints import checkpoint_policy_folder
from grpo_core.config import TrainConfig
from grpo_core.policy import Policy, load_policy
from grpo_core.ranks import Ranks, close_ranks, open_ranks
from grpo_core.rollouts import sample_groups
from grpo_core.scoring import Score, decode_completions, score_completion
from grpo_core.seeds import generator
from grpo_core.tasks import Completion, Problem, Task, load_task
from grpo_core.warm_start import ensure_warm_start

NUM_REPORTED_SAMPLES = 5


@dataclass(frozen=True)
class ProblemResult:
    """What one policy did on one problem."""

    accuracy: float
    """Share of the samples that are correct."""
    reward: float
    greedy: float | None
    """1.0 when the likeliest completion is correct, else 0.0; None where it was not asked for."""
    sample: tuple[Completion, Score]
    """The first of the samples."""


def evaluate(
    policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig, ranks: Ranks
) -> list[ProblemResult]:
    """Results on `problems`, `eval.samples_per_problem` completions each at the rollout temperature, on every rank.

    The draws depend only on the number of ranks, not on the trial's seed, so that trials meet the same luck.
    """
    own = problems[ranks.rank :: ranks.size]
    with ranks.together():
        results = _evaluate_part(policy, task, own, config, generator(policy.model.device, "evaluation", ranks.rank))
    placed = ranks.gather([(ranks.rank + ranks.size * place, result) for place, result in enumerate(results)])
    return [result for _, result in sorted(placed, key=lambda pair: pair[0])]


def _evaluate_part(
    policy: Policy, task: Task, problems: Sequence[Problem], config: TrainConfig, draws: torch.Generator
) -> list[ProblemResult]:
    if not problems:
        return []
    num_samples = config.eval.samples_per_problem
    prompts = [policy.encode_prompt(task.prompt(problem)) for problem in problems]
    sampled = sample_groups(policy, prompts, num_samples, config.rollout, generator=draws)
    completions = decode_completions(policy, sampled)
    scores = [score_completion(task, problems[place // num_samples], each) for place, each in enumerate(completions)]
    greedy: list[float | None] = [None] * len(problems)
    if config.eval.greedy:
        likeliest = decode_completions(policy, sample_groups(policy, prompts, 1, config.rollout, greedy=True))
        greedy = [
            score_completion(task, problem, each).parts.get("correct", 0.0)
            for problem, each in zip(problems, likeliest, strict=True)
        ]
    results = []
    for place in range(len(problems)):
        rows = slice(place * num_samples, (place + 1) * num_samples)
        correct = [score.parts.get("correct", 0.0) for score in scores[rows]]
        # A completion without a score counts as wrong here: leaving it out would raise the figure.
        rewards = [0.0 if math.isnan(score.reward) else score.reward for score in scores[rows]]
        sample = (completions[rows][0], scores[rows][0])
        results.append(ProblemResult(statistics.fmean(correct), statistics.fmean(rewards), greedy[place], sample))
    return results


def evaluation_metrics(results: Sequence[ProblemResult]) -> dict[str, float]:
    """`eval/*` of `results`; the standard error is over problems, samples of one problem not being independent."""
    accuracies = [result.accuracy for result in results]
    metrics = {
        names.EVAL_ACCURACY: statistics.fmean(accuracies),
        names.EVAL_ACCURACY_SE: standard_error(accuracies),
        names.EVAL_REWARD: statistics.fmean(result.reward for result in results),
    }
    greedy = [result.greedy for result in results if result.greedy is not None]
    if greedy:
        metrics[names.EVAL_ACCURACY_GREEDY] = statistics.fmean(greedy)
    return metrics


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of independent `values`; infinite for one value."""
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def compare_on_test(config: TrainConfig, checkpoint: str | Path, out: Path) -> dict[str, Any]:
    """Measures the policy in `checkpoint` and the base policy on the same test problems; writes the record to `out`.

    The difference is paired by problem, so its standard error is smaller than that of either figure.
    """
    accelerator, ranks = open_ranks(config.compute)
    try:
        task = load_task(config.task)
        problems = task.test[: config.eval.num_test_problems]
        results = {}
        start = ranks.from_first(ensure_warm_start(config) if ranks.is_first else None)
        checkpoints = {"base": None, "winner": checkpoint_policy_folder(Path(checkpoint))}
        for which, folder in checkpoints.items():
            policy = load_policy(config.policy, task, start, folder)
            policy.model.to(accelerator.device)
            with accelerator.autocast():
                results[which] = evaluate(policy, task, problems, config, ranks)
    finally:
        close_ranks(ranks)
    gains = [after.accuracy - before.accuracy for before, after in zip(*results.values(), strict=True)]
    record = {
        "split": "test",
        "num_problems": len(problems),
        "samples_per_problem": config.eval.samples_per_problem,
        **{which: evaluation_metrics(of) for which, of in results.items()},
        "difference": {"mean": statistics.fmean(gains), "se": standard_error(gains)},
        "samples": [
            {
                "problem_id": problem.id,
                "question": problem.question,
                "answer": problem.answer,
                **{which: _sample(of[place]) for which, of in results.items()},
            }
            for place, problem in enumerate(problems[:NUM_REPORTED_SAMPLES])
        ],
    }
    if ranks.is_first:
        out.write_text(json.dumps(record, indent=2))
    return record


def _sample(result: ProblemResult) -> dict[str, Any]:
    completion, score = result.sample
    return {"text": completion.text, "reward": score.reward, "ended": completion.ended}
