"""Value loss and explained variance by hand, and what they leave untouched."""

import pytest
import torch

from grpo_core.value import explained_variance, value_loss

NAN = float("nan")
MASK = torch.tensor([[1, 1, 0]], dtype=torch.bool)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


VALUES, OLD, RETURNS = tensor([[1.0, 0.5, NAN]]), tensor([[0.5, 0.4, NAN]]), tensor([[2.0, 0.0, NAN]])


def test_value_loss_clips_the_first_and_not_the_second():
    # Near the old value 0.5 the first is 0.7: max(1, 1.69); the second moved by 0.1 alone: 0.25.
    values = VALUES.clone().requires_grad_()
    loss, metrics = value_loss(values, OLD, RETURNS, MASK, 0.2, 2)
    loss.backward()
    assert loss.item() == pytest.approx((1.69 + 0.25) / 4, abs=1e-12)
    assert values.grad[0].tolist() == pytest.approx([0.0, 0.25, 0.0], abs=1e-12)
    assert metrics["value_error"].item() == pytest.approx(1.25, abs=1e-12)
    assert metrics["value_clipped"] == 1


def test_value_loss_without_clipping():
    values = VALUES.clone().requires_grad_()
    loss, metrics = value_loss(values, OLD, RETURNS, MASK, None, 2)
    loss.backward()
    assert loss.item() == pytest.approx((1.0 + 0.25) / 4, abs=1e-12)
    assert values.grad[0].tolist() == pytest.approx([-0.5, 0.25, 0.0], abs=1e-12)
    assert metrics["value_clipped"] == 0


def test_a_clipped_value_that_overshoots_is_drawn_back():
    # Moved past the return: the unclipped error is the larger and keeps its gradient.
    values = tensor([[3.0]]).requires_grad_()
    loss, _ = value_loss(values, tensor([[0.5]]), tensor([[0.6]]), MASK[:, :1], 0.2, 1)
    loss.backward()
    assert (loss.item(), values.grad.item()) == (pytest.approx(0.5 * 2.4**2), pytest.approx(2.4))


def test_parts_add_up_to_the_whole():
    draws = torch.Generator().manual_seed(0)
    values, old, returns = (torch.randn(6, 5, generator=draws, dtype=torch.float64) for _ in range(3))
    mask = torch.arange(5) < torch.tensor([[5], [1], [3], [0], [2], [4]])
    whole = value_loss(values, old, returns, mask, 0.2, mask.sum())[0]
    for size in (1, 2, 4):
        parts = [
            value_loss(*(each[i : i + size] for each in (values, old, returns, mask)), 0.2, mask.sum())[0]
            for i in range(0, 6, size)
        ]
        assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-12)


def test_everything_masked_gives_zero():
    values = VALUES.clone().requires_grad_()
    loss, metrics = value_loss(values, OLD, RETURNS, torch.zeros_like(MASK), 0.2, 1)
    loss.backward()
    assert loss.item() == 0 and values.grad.tolist() == [[0.0] * 3]
    assert metrics["value_error"] == 0


def test_explained_variance():
    # errors [0, 0, 0, 1]: squares 0.75 about their mean, against 5 of the returns
    mask = torch.tensor([[1, 1, 1, 1, 0]], dtype=torch.bool)
    returns, values = tensor([[1.0, 2.0, 3.0, 4.0, NAN]]), tensor([[1.0, 2.0, 3.0, 3.0, NAN]])
    assert explained_variance(values, returns, mask) == pytest.approx(0.85, abs=1e-12)
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(returns + 7, returns, mask) == pytest.approx(1.0, abs=1e-12)
    assert explained_variance(torch.zeros_like(values), returns, mask) == pytest.approx(0.0, abs=1e-12)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0, abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.7, -1e6, 1e-200])
def test_explained_variance_of_equal_returns_is_zero(value):
    mask = torch.ones(2, 5, dtype=torch.bool)
    returns = torch.full((2, 5), value, dtype=torch.float64)
    assert explained_variance(torch.arange(10.0).view(2, 5), returns, mask) == 0.0
    assert explained_variance(returns, returns, ~mask) == 0.0


def test_explained_variance_is_over_all_ranks():
    draws = torch.Generator().manual_seed(0)
    values, returns = (torch.randn(2, 6, generator=draws, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(2, 6, dtype=torch.bool)
    # What a second rank with the second row sends: a count and a sum, then squares about the mean of both rows.
    sent = []
    for row in (returns, returns - values):
        squares = (row[1] - row.mean()).square().sum().item()
        sent += [{"count": 6.0, "sum": row[1].sum().item()}, {"squares": squares, "apart": 6.0}]
    received = iter(sent)

    def add_up(sums):
        other = next(received)
        return {name: value + other[name] for name, value in sums.items()}

    pooled = explained_variance(values[:1], returns[:1], mask[:1], add_up)
    assert pooled == pytest.approx(explained_variance(values, returns, mask), rel=1e-12)
    assert next(received, None) is None
