"""From the rewards of a step to the batch its updates learn from: what the policies say of it, and its advantages."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core import metric_names as names
from grpo_core.advantages import compute_advantages
from grpo_core.assessment import assess
from grpo_core.batches import Batch, build_batch
from grpo_core.collection import Collection
from grpo_core.config import AlgorithmConfig, TrainConfig
from grpo_core.importance import truncated_importance
from grpo_core.losses import kl_divergence
from grpo_core.presets import GROUP_BASELINES
from grpo_core.reward_groups import RewardGroups, dead_frac
from grpo_core.rollouts import Rollouts, select_rows
from grpo_core.step_metrics import importance_metrics
from grpo_core.tasks import Task
from grpo_core.token_credit import generalised_advantages, scale_token_advantages, token_rewards
from grpo_core.update import Learner
from grpo_core.value import explained_variance


@dataclass(frozen=True)
class _Views:
    """What is known of the completions before the updates, beside their rewards; all `[B, T]` or None."""

    old_logprobs: Tensor
    importance: Tensor | None
    ref_logprobs: Tensor | None
    old_values: Tensor | None


def learning_batch(
    collection: Collection, learner: Learner, task: Task, config: TrainConfig
) -> tuple[Batch | None, dict[str, float]]:
    """This rank's batch of the groups in use, and the metrics of its making; no batch where no rank has such a group.

    Every rank's batch has as many groups: those of a rank with fewer are made up by groups that count in no loss.
    """
    algorithm, ranks = config.algorithm, learner.ranks
    groups = RewardGroups(collection, task, algorithm, ranks)
    metrics = {names.GROUPS_DEAD_FRAC: dead_frac(groups.table(collection.rewards.flatten()))}
    most = int(ranks.largest({"used": float(collection.used.sum())})["used"])
    if most == 0:
        return None, metrics
    rollouts, rows = _rows_to_learn_from(collection, most)
    in_use = collection.used.repeat_interleave(collection.group_size)
    loss_mask = rollouts.completion_mask & in_use[rows].to(rollouts.ended.device).unsqueeze(1)
    views = _views(rollouts, loss_mask, learner, config, metrics)
    kl_cost = _kl_cost(views, loss_mask, algorithm)

    rewards = torch.where(in_use, collection.rewards.flatten(), torch.nan)
    returns = value_mask = None
    if algorithm.credit == "sequence":
        if kl_cost is not None:
            # The scale is of the task's rewards alone, so that it weighs them against the cost.
            rewards[rows] -= kl_cost.double().sum(dim=1).cpu() / algorithm.reward_scale
        advantages = groups.own(compute_advantages(groups.table(rewards), algorithm))[rows]
    else:
        scores = _token_scores(rewards, groups, algorithm)[rows].to(rollouts.logprobs)
        scored = loss_mask & ~scores.isnan().unsqueeze(1)
        step_rewards = token_rewards(scores, scored, kl_cost, 1.0)
        advantages, returns = generalised_advantages(
            step_rewards, views.old_values, scored, algorithm.gamma, algorithm.gae_lambda
        )
        advantages = scale_token_advantages(advantages, scored, algorithm, ranks.add_up)
        if views.old_values is not None:
            value_mask = scored & rollouts.ended.unsqueeze(1) if algorithm.mask_truncated else scored
            explained = explained_variance(views.old_values, returns, value_mask, ranks.add_up)
            metrics[names.VALUE_EXPLAINED_VARIANCE] = explained
    batch = build_batch(
        rollouts,
        advantages,
        algorithm.mask_truncated,
        loss_mask=loss_mask,
        returns=returns if views.old_values is not None else None,
        value_mask=value_mask,
        **vars(views),
    )
    return batch, metrics


def _rows_to_learn_from(collection: Collection, num_groups: int) -> tuple[Rollouts, Tensor]:
    """Rollouts of `num_groups` groups, those in use first and others behind, and their rows among the collection's."""
    fillers = (~collection.used).nonzero().squeeze(1)[: num_groups - int(collection.used.sum())]
    rows = collection.rows_of(torch.cat([collection.used.nonzero().squeeze(1), fillers]))
    if collection.used.all():
        return collection.rollouts, rows
    return select_rows(collection.rollouts, rows.to(collection.rollouts.prompt_index.device)), rows


def _views(
    rollouts: Rollouts, mask: Tensor, learner: Learner, config: TrainConfig, metrics: dict[str, float]
) -> _Views:
    """One pass of the policy, and one of the reference, where something reads it; `metrics` gains what they show."""
    algorithm, size, autocast = config.algorithm, config.micro_batch_size, learner.accelerator.autocast
    old_logprobs, importance, old_values, ref_logprobs = rollouts.logprobs, None, None, None
    cap = algorithm.importance_cap
    if cap is not None or algorithm.baseline == "value":
        own = assess(learner.forward, rollouts, size, autocast)
        old_values = own.values
        if cap is not None:
            importance, sums = truncated_importance(own.logprobs, rollouts.logprobs, mask, cap)
            old_logprobs = own.logprobs
            metrics |= importance_metrics(sums, learner.ranks)
    if learner.reference is not None:
        ref_logprobs = assess(learner.reference, rollouts, size, autocast).logprobs
    return _Views(old_logprobs, importance, ref_logprobs, old_values)


def _kl_cost(views: _Views, mask: Tensor, algorithm: AlgorithmConfig) -> Tensor | None:
    """What each token's divergence from the reference takes off the rewards, `[B, T]`; None where it takes nothing."""
    if views.ref_logprobs is None or algorithm.kl_in != "reward":
        return None
    divergence = kl_divergence(views.old_logprobs, views.ref_logprobs, algorithm.kl_estimator)
    return algorithm.kl_coef * torch.where(mask, divergence, 0.0)


def _token_scores(rewards: Tensor, groups: RewardGroups, algorithm: AlgorithmConfig) -> Tensor:
    """What each completion's last token earns, `[B]`: its scaled reward, centred where the baseline is its group's."""
    if algorithm.baseline not in GROUP_BASELINES:
        return rewards * algorithm.reward_scale
    unscaled = algorithm.model_copy(update={"advantage_scale": "none"})
    centred = groups.own(compute_advantages(groups.table(rewards), unscaled))
    return torch.where(rewards.isnan(), torch.nan, centred)
