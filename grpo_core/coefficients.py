"""Coefficients that follow what a run measures, and the smoothing of its reward curve."""

import math
from collections.abc import Sequence

KL_GAIN = 0.1
"""Share of the relative error of the KL divergence by which its coefficient moves in a step."""
KL_ERROR_LIMIT = 0.2
"""Relative error beyond which a step moves the coefficient no further."""


def steered_kl_coef(coef: float, kl: float, target: float) -> float:
    """The KL coefficient after a step that measured `kl` nats per token: larger above `target`, smaller below.

    Ziegler et al. 2019, arXiv:1909.08593, sec. 2.2: coef * (1 + 0.1 * clip(kl / target - 1, -0.2, 0.2)).
    A `kl` that is not finite leaves it as it is.
    """
    if not math.isfinite(kl):
        return coef
    error = min(max(kl / target - 1, -KL_ERROR_LIMIT), KL_ERROR_LIMIT)
    return coef * (1 + KL_GAIN * error)


def steered_entropy_coef(coef: float, entropy: float, target: float, step: float) -> float:
    """The entropy coefficient after a step that measured `entropy` nats per token.

    He et al. 2025, arXiv:2505.22312: `step` more where the entropy is below `target`, `step` less where it is above,
    never below 0. An `entropy` that is not finite leaves it as it is.
    """
    if not math.isfinite(entropy) or entropy == target:
        return coef
    return max(0.0, coef + (step if entropy < target else -step))


def smoothed(values: Sequence[float], window: int) -> float:
    """The mean of the finite ones among the last `window` of `values`; NaN where none is."""
    finite = [value for value in values[-window:] if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
