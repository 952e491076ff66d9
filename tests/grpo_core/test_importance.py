"""Truncated importance weights by hand."""

import pytest
import torch

from grpo_core.importance import truncated_importance

NAN = float("nan")


def test_weights_and_sums():
    ratios = torch.tensor([[1.5, 3.0], [0.5, NAN]], dtype=torch.float64)
    sampler = torch.tensor([[-1.0, -2.0], [-0.5, -1.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [1, 0]], dtype=torch.bool)
    weights, sums = truncated_importance(sampler + ratios.log(), sampler, mask, cap=2.0)
    assert weights.flatten().tolist() == pytest.approx([1.5, 2.0, 0.5, 0.0], abs=1e-12)
    assert sums["importance"].item() == pytest.approx(5.0, abs=1e-12)
    assert sums["importance_max"].item() == pytest.approx(3.0, abs=1e-12)
    assert (sums["truncated"].item(), sums["tokens"].item()) == (1, 3)


def test_engines_that_agree_weigh_exactly_one():
    logprobs = -torch.rand(3, 4)
    weights, sums = truncated_importance(logprobs, logprobs, torch.ones(3, 4, dtype=torch.bool), cap=2.0)
    assert torch.equal(weights, torch.ones(3, 4))
    assert (sums["truncated"].item(), sums["importance_max"].item()) == (0, 1)


@pytest.mark.parametrize("difference", [1e4, -1e4])
def test_huge_differences_stay_finite(difference):
    sampler = torch.full((2, 3), -1.0)
    weights, sums = truncated_importance(sampler + difference, sampler, torch.ones(2, 3, dtype=torch.bool), cap=2.0)
    assert torch.isfinite(weights).all() and all(torch.isfinite(value) for value in sums.values())
    assert weights.max().item() == pytest.approx(2.0 if difference > 0 else 0.0, abs=1e-8)


def test_they_are_constants():
    trainer = torch.full((1, 2), -1.0, requires_grad=True)
    weights, sums = truncated_importance(trainer, torch.full((1, 2), -1.5), torch.ones(1, 2, dtype=torch.bool), 2.0)
    assert not weights.requires_grad and not sums["importance"].requires_grad


def test_nothing_that_counts():
    empty = torch.zeros(2, 3, dtype=torch.bool)
    weights, sums = truncated_importance(torch.full((2, 3), NAN), torch.zeros(2, 3), empty, 2.0)
    assert weights.tolist() == [[0.0] * 3] * 2
    assert {name: value.item() for name, value in sums.items()} == dict.fromkeys(sums, 0)


def test_nan_on_a_token_that_counts_is_not_hidden():
    weights, _ = truncated_importance(torch.zeros(1, 1), torch.full((1, 1), NAN), torch.ones(1, 1, dtype=torch.bool), 2)
    assert weights.isnan().all()
