"""What loss and advantages cost beside the model: `python -m tests.benchmarks.loss_share`.

For each preset, on the tiny policy: milliseconds of the advantages of a step (128 completions), of the loss with its
backward pass down to the log-probabilities, and of a whole update; and their share of it, in one run on one thread.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from grpo_core.advantages import compute_advantages
from grpo_core.batches import Batch, micro_batches
from grpo_core.collection import collect
from grpo_core.config import AlgorithmConfig, TrainConfig
from grpo_core.credit import learning_batch
from grpo_core.losses import loss_denominator, policy_loss
from grpo_core.presets import PRESETS
from grpo_core.prompt_order import problems_of_step
from grpo_core.ranks import open_ranks
from grpo_core.run_setup import build_run
from grpo_core.run_state import rollout_of_step
from grpo_core.token_credit import generalised_advantages, scale_token_advantages, token_rewards
from grpo_core.update import update_policy
from grpo_core.value import explained_variance, value_loss


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    given = parser.parse_args()
    print(f"{'preset':<14}{'advantages ms':>15}{'loss ms':>9}{'update ms':>11}{'share':>8}")
    for preset in given.presets:
        advantages_s, loss_s, update_s = measure(preset)
        share = (advantages_s + loss_s) / update_s
        print(f"{preset:<14}{advantages_s * 1e3:>15.2f}{loss_s * 1e3:>9.2f}{update_s * 1e3:>11.0f}{share:>8.2%}")


def measure(preset: str) -> tuple[float, float, float]:
    """Seconds of a step's advantages, of an update's losses, and of that update."""
    # Random weights give no reward, so that every group would be refilled in vain.
    knobs = {"name": preset, "updates_per_batch": 1, "entropy_coef": 0.01, "dynamic_sampling": False}
    config = TrainConfig.model_validate({"algorithm": knobs, "compute": {"device": "cpu"}})
    accelerator, ranks = open_ranks(config.compute)
    with tempfile.TemporaryDirectory() as folder:
        run = build_run(config, Path(folder), accelerator, ranks)
    problems = problems_of_step(run.task, config, 1)
    collection = collect(run.policy, run.task, config, rollout_of_step(config, 1), ranks, problems, 1)
    draws = torch.Generator().manual_seed(0)
    collection.rewards.copy_(torch.rand(collection.rewards.shape, generator=draws).round())
    batch, _ = learning_batch(collection, run.learner, run.task, config)
    assert batch is not None
    algorithm = config.loss_algorithm
    update_s = seconds(lambda: update_policy(run.learner, batch, config), 5)
    advantages_s = seconds(lambda: advantages(collection.rewards, batch, algorithm), 50)
    parts = [(part, *leaves(part)) for part in micro_batches(batch, config.micro_batch_size)]
    denominator = float(loss_denominator(batch.loss_mask, algorithm))
    return advantages_s, seconds(lambda: losses(parts, algorithm, denominator), 50), update_s


def advantages(rewards: Tensor, batch: Batch, algorithm: AlgorithmConfig) -> None:
    """What `credit.learning_batch` computes from the rewards, without the passes of the policy."""
    if algorithm.credit == "sequence":
        compute_advantages(rewards, algorithm)
        return
    earned = token_rewards(rewards.flatten().float(), batch.loss_mask, None, 0.0)
    found, returns = generalised_advantages(
        earned, batch.old_values, batch.loss_mask, algorithm.gamma, algorithm.gae_lambda
    )
    scale_token_advantages(found, batch.loss_mask, algorithm)
    if batch.old_values is not None:
        explained_variance(batch.old_values, returns, batch.loss_mask)


def leaves(part: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, entropy and values where the gradient of the loss ends."""
    logprobs, entropy = part.rollouts.logprobs.clone(), part.rollouts.entropy.clone()
    return logprobs.requires_grad_(), entropy.requires_grad_(), torch.zeros_like(logprobs).requires_grad_()


def losses(parts: list[tuple[Batch, Tensor, Tensor, Tensor]], algorithm: AlgorithmConfig, denominator: float) -> None:
    """The losses of an update's micro-batches, with their backward passes."""
    for part, logprobs, entropy, values in parts:
        loss, _ = policy_loss(
            logprobs,
            part.old_logprobs,
            part.advantages,
            part.loss_mask,
            algorithm,
            entropy=entropy,
            denominator=denominator,
        )
        if part.returns is not None and part.value_mask is not None and part.old_values is not None:
            clip = algorithm.value_clip_range
            loss = loss + value_loss(values, part.old_values, part.returns, part.value_mask, clip, denominator)[0]
        loss.backward()


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of `work`, after one call that does not count."""
    work()
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
