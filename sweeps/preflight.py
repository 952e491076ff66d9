"""Judges what was measured of the untouched policy: whether a study with it can find anything at all."""

import math
from collections.abc import Mapping
from typing import Any

from grpo_core.metric_names import (
    EVAL_ACCURACY,
    GROUPS_DEAD_FRAC,
    POLICY_ENTROPY,
    REWARD_MEAN,
    ROLLOUT_LENGTH_MEAN,
    ROLLOUT_TRUNCATED_FRAC,
)
from sweeps.findings import Finding
from sweeps.sections import EntropyBand, SweepConfig

#: Shares of truncated completions and of groups without a signal from which a person should know.
MANY_TRUNCATED = 0.5
ALL_TRUNCATED = 0.95
MANY_DEAD = 0.9


def judge(measured: Mapping[str, Any], config: SweepConfig) -> list[Finding]:
    """What to know before trial 0, errors first; an error means that no trial could come to anything."""
    findings = [*_entropy(measured, config.stability.entropy), *_signal(measured, config)]
    return sorted(findings, key=lambda finding: finding.level)


def _entropy(measured: Mapping[str, Any], band: EntropyBand | None) -> list[Finding]:
    value = measured[POLICY_ENTROPY]
    if not math.isfinite(value):
        message = f"{POLICY_ENTROPY} of the untouched policy is {value}: its logits are not finite; check train.policy"
        return [Finding("error", "train.policy.name", message)]
    if band is None or band.min <= value <= band.max:
        return []
    side, key = ("below", "min") if value < band.min else ("above", "max")
    limit = getattr(band, key)
    room = f"{value * 0.8:.2g} or less" if key == "min" else f"{value * 1.25:.2g} or more"
    other = "raise" if key == "min" else "lower"
    message = (
        f"the untouched policy has {POLICY_ENTROPY} {value:.3g} nats, {side} {limit:g}, so that every trial would be "
        f"pruned; set stability.entropy.{key} to {room}, or {other} train.rollout.temperature"
    )
    return [Finding("error", f"stability.entropy.{key}", message)]


def _signal(measured: Mapping[str, Any], config: SweepConfig) -> list[Finding]:
    truncated, reward = measured[ROLLOUT_TRUNCATED_FRAC], measured[REWARD_MEAN]
    dead, length = measured[GROUPS_DEAD_FRAC], measured[ROLLOUT_LENGTH_MEAN]
    cap = config.train.rollout.max_new_tokens
    no_reward = reward == 0 and measured[EVAL_ACCURACY] == 0
    if truncated >= ALL_TRUNCATED and no_reward:
        message = (
            f"{truncated:.0%} of completions are cut at {cap} tokens before they come to an answer, so none is "
            f"rewarded: this is truncation, not a bad model; raise train.rollout.max_new_tokens"
        )
        return [Finding("error", "train.rollout.max_new_tokens", message)]
    findings = []
    if truncated >= MANY_TRUNCATED:
        message = (
            f"{truncated:.0%} of completions are cut at {cap} tokens (mean length {length:.0f}); "
            "raise it, unless the cut is meant to teach brevity"
        )
        findings.append(Finding("warning", "train.rollout.max_new_tokens", message))
    if no_reward:
        message = (
            "no completion of the untouched policy earned a reward, so groups have nothing to compare; "
            "take easier problems, a stronger policy or a longer warm start"
        )
        findings.append(Finding("warning", "train.task.name", message))
    elif dead >= MANY_DEAD and config.train.algorithm.compares_groups:
        message = (
            f"{dead:.0%} of groups have equal rewards and so no signal (mean reward {reward:.2g}); "
            f"{'harder' if reward > 0.5 else 'easier'} problems or larger groups would have more"
        )
        findings.append(Finding("warning", "train.task.name", message))
    return findings
