"""The metrics of one step, pooled by completions and tokens over all ranks."""

import math
import statistics
from collections.abc import Mapping, Sequence

from torch import Tensor

from grpo_core import metric_names as names
from grpo_core.collection import Collection
from grpo_core.config import AlgorithmConfig, RolloutConfig, TrainConfig
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


def reward_metrics(scores: Sequence[Score]) -> dict[str, float]:
    """Rewards of all ranks' completions as the task gave them, before shaping and scale; NaN where none has a score."""
    rewards = [score.reward for score in scores if not math.isnan(score.reward)]
    metrics = {
        names.REWARD_MEAN: statistics.fmean(rewards) if rewards else math.nan,
        names.REWARD_STD: statistics.pstdev(rewards) if rewards else math.nan,
        names.REWARD_UNSCORED: float(len(scores) - len(rewards)),
    }
    for part in dict.fromkeys(name for score in scores for name in score.parts):
        metrics[f"reward/{part}"] = statistics.fmean(score.parts[part] for score in scores if part in score.parts)
    return metrics


def collection_metrics(collection: Collection, config: TrainConfig, ranks: Ranks) -> dict[str, float]:
    """What dynamic sampling cost in this step; nothing where it is off."""
    if not config.algorithm.dynamic_sampling:
        return {}
    used = ranks.add_up({"used": float(collection.used.sum())})["used"] * collection.group_size
    wanted = config.rollout.completions_per_step
    return {
        names.ROLLOUT_REFILLS: float(collection.num_refills),
        names.ROLLOUT_EXTRA_COMPLETIONS: float(len(collection.scores) * ranks.size - wanted),
        names.ROLLOUT_USED_FRAC: used / wanted,
    }


def importance_metrics(sums: Mapping[str, Tensor], ranks: Ranks) -> dict[str, float]:
    """Ratio of trainer to sampler before its cap, and the share of tokens that the cap cut."""
    pooled = ranks.add_up({name: float(sums[name]) for name in ("importance", "truncated", "tokens")})
    largest = ranks.largest({"largest": float(sums["importance_max"])})["largest"]
    return {
        names.POLICY_SAMPLER_RATIO: pooled["importance"] / max(pooled["tokens"], 1),
        names.POLICY_SAMPLER_RATIO_MAX: largest,
        names.POLICY_SAMPLER_TRUNCATED_FRAC: pooled["truncated"] / max(pooled["tokens"], 1),
    }


def schedule_metrics(config: TrainConfig, rollout: RolloutConfig, algorithm: AlgorithmConfig) -> dict[str, float]:
    """Those settings of this step that change from step to step."""
    given = config.algorithm
    metrics = {}
    if config.rollout.temperature_decay < 1:
        metrics[names.ROLLOUT_TEMPERATURE] = rollout.temperature
    if given.kl_target is not None:
        metrics[names.POLICY_KL_COEF] = algorithm.kl_coef
    if given.entropy_target is not None:
        metrics[names.POLICY_ENTROPY_COEF] = algorithm.entropy_coef
    return metrics


def update_metrics(stats: UpdateStats, lr: float, num_skipped: float) -> dict[str, float]:
    """What the step's updates were like; `num_skipped` counts the updates not applied in the run so far."""
    of_values = {} if stats.value_loss is None else {names.LOSS_VALUE: stats.value_loss}
    return of_values | {
        names.LOSS_POLICY: stats.loss,
        names.OPTIM_GRAD_NORM: stats.grad_norm,
        names.OPTIM_LR: lr,
        names.OPTIM_SKIPPED_STEPS: num_skipped,
        names.POLICY_CLIP_FRAC: stats.clip_frac,
        names.POLICY_RATIO_MAX: stats.ratio_max,
        names.POLICY_KL: stats.kl,
    }
