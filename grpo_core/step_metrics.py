"""The metrics of one step, pooled by completions and tokens over all ranks."""

import math
import statistics
from collections.abc import Sequence

import torch

from grpo_core import metric_names as names
from grpo_core.advantages import dead_groups
from grpo_core.ranks import Ranks
from grpo_core.rollouts import Rollouts
from grpo_core.scoring import Score
from grpo_core.update import UpdateStats


def rollout_metrics(rollouts: Rollouts, ranks: Ranks) -> dict[str, float]:
    """Entropy, length and truncation of a step's rollouts; entropy is the mean over all tokens of all ranks."""
    sums = ranks.add_up(
        {
            "tokens": float(rollouts.completion_mask.sum()),
            "entropy": float(rollouts.entropy.double().sum()),
            "completions": float(len(rollouts.ended)),
            "truncated": float((~rollouts.ended).sum()),
        }
    )
    return {
        names.POLICY_ENTROPY: sums["entropy"] / sums["tokens"],
        names.ROLLOUT_LENGTH_MEAN: sums["tokens"] / sums["completions"],
        names.ROLLOUT_TRUNCATED_FRAC: sums["truncated"] / sums["completions"],
    }


def reward_metrics(scores: Sequence[Score], group_size: int) -> dict[str, float]:
    """Rewards of all ranks' completions, groups side by side, before `reward_scale`; NaN where none has a score."""
    rewards = [score.reward for score in scores if not math.isnan(score.reward)]
    metrics = {
        names.REWARD_MEAN: statistics.fmean(rewards) if rewards else math.nan,
        names.REWARD_STD: statistics.pstdev(rewards) if rewards else math.nan,
        names.REWARD_UNSCORED: float(len(scores) - len(rewards)),
        names.GROUPS_DEAD_FRAC: float(dead_groups(reward_table(scores, group_size)).double().mean()),
    }
    for part in dict.fromkeys(name for score in scores for name in score.parts):
        metrics[f"reward/{part}"] = statistics.fmean(score.parts[part] for score in scores if part in score.parts)
    return metrics


def reward_table(scores: Sequence[Score], group_size: int) -> torch.Tensor:
    """Rewards as `[num_groups, group_size]`, float64, NaN without a score."""
    return torch.tensor([score.reward for score in scores], dtype=torch.float64).view(-1, group_size)


def update_metrics(stats: UpdateStats, lr: float, num_skipped: float) -> dict[str, float]:
    """What the step's updates were like; `num_skipped` counts the updates not applied in the run so far."""
    return {
        names.LOSS_POLICY: stats.loss,
        names.OPTIM_GRAD_NORM: stats.grad_norm,
        names.OPTIM_LR: lr,
        names.OPTIM_SKIPPED_STEPS: num_skipped,
        names.POLICY_CLIP_FRAC: stats.clip_frac,
        names.POLICY_RATIO_MAX: stats.ratio_max,
        names.POLICY_KL: stats.kl,
    }
