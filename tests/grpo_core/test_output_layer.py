import pytest
import torch

from grpo_core import output_layer
from grpo_core.logprobs import entropy
from grpo_core.output_layer import OutputLayer, token_logprobs_of


def drawn(num_tokens=70, size=6, vocabulary=11, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, size, dtype=dtype, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, size, dtype=dtype, generator=generator).requires_grad_()
    bias = torch.randn(vocabulary, dtype=dtype, generator=generator).requires_grad_()
    return hidden, weight, bias, torch.randint(vocabulary, (num_tokens,), generator=generator)


@pytest.mark.parametrize("chunk", [2**23, 1])
def test_figures_and_gradients_are_those_of_the_plain_formulas(chunk, monkeypatch):
    monkeypatch.setattr(output_layer, "CHUNK_LOGITS", chunk)
    hidden, weight, bias, ids = drawn()
    of_logprobs, of_entropy = torch.randn(2, len(ids), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = token_logprobs_of(hidden, OutputLayer(weight, bias, 0.5), ids, 0.7)
    logits = 0.5 * (hidden @ weight.T + bias) / 0.7
    expected = logits.log_softmax(1).gather(1, ids.unsqueeze(1)).squeeze(1), entropy(logits)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 1e-12
    inputs = (hidden, weight, bias)
    gradients = [
        torch.autograd.grad((of_logprobs * logprobs + of_entropy * entropies).sum(), inputs)
        for logprobs, entropies in (found, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        assert (one - other).norm() <= 1e-12 * other.norm()


def test_gradients_by_finite_differences():
    hidden, weight, bias, ids = drawn(num_tokens=5)
    layer = lambda hidden, weight, bias: token_logprobs_of(hidden, OutputLayer(weight, bias, 1.0), ids, 1.3)  # noqa: E731
    assert torch.autograd.gradcheck(layer, (hidden, weight, bias))


def test_frozen_weights_get_no_gradient():
    hidden, weight, _, ids = drawn()
    logprobs, _ = token_logprobs_of(hidden, OutputLayer(weight.detach(), None, 1.0), ids, 1.0)
    logprobs.sum().backward()
    assert hidden.grad is not None and weight.grad is None


def test_the_logits_of_many_tokens_are_never_held_at_once(monkeypatch):
    monkeypatch.setattr(output_layer, "CHUNK_LOGITS", 64 * 11)
    seen, softmax = [], output_layer._log_softmax

    def spy(hidden, *rest):
        seen.append(len(hidden))
        return softmax(hidden, *rest)

    monkeypatch.setattr(output_layer, "_log_softmax", spy)
    hidden, weight, bias, ids = drawn(num_tokens=1000)
    token_logprobs_of(hidden, OutputLayer(weight, bias, 1.0), ids, 1.0)[0].sum().backward()
    assert set(seen) == {64} and len(seen) == 2 * 16


def test_logits_far_apart_stay_finite():
    hidden = torch.tensor([[1e4, 0.0]], requires_grad=True)
    logprobs, entropies = token_logprobs_of(hidden, OutputLayer(torch.eye(2), None, 1.0), torch.tensor([1]), 1.0)
    (logprobs + entropies).sum().backward()
    assert logprobs.item() == -1e4 and entropies.item() == 0.0
    assert torch.isfinite(hidden.grad).all()
