"""Loss values by hand (float64, 1e-9) and the laws that hold for every loss."""

import pytest
import torch

from grpo_core.config import AlgorithmConfig
from grpo_core.losses import kl_divergence, loss_denominator, policy_loss
from grpo_core.presets import PRESETS

LOGPROBS = [[-1.0, -2.0, -0.5], [-0.7, -1.5, -9.0]]
OLD = [[-1.1, -1.6, -0.5], [-1.2, -1.4, -9.0]]
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def algorithm(**knobs):
    return AlgorithmConfig(**{"clip_range": 0.2, "clip_range_high": 0.28, "constant_length": 4, **knobs})


def loss_of(given, advantages=(1.0, -1.0), **inputs):
    return policy_loss(tensor(LOGPROBS), tensor(OLD), tensor(advantages), MASK, given, **inputs)[0].item()


@pytest.mark.parametrize(
    ("aggregation", "value", "with_kl"),
    [
        ("sequence_mean", 0.17580784483, 0.18320198967),
        ("token_mean", -0.04438645508, -0.03627163924),
        # The same sums as token_mean, over 2 completions of 4 tokens instead of 5 tokens.
        ("constant", -0.02774153442, -0.03627163924 * 5 / 8),
    ],
)
def test_surrogate_by_aggregation(aggregation, value, with_kl):
    assert loss_of(algorithm(aggregation=aggregation)) == pytest.approx(value, abs=1e-9)
    ref = torch.full((2, 3), -1.0, dtype=torch.float64)
    given = algorithm(aggregation=aggregation, kl_coef=0.04, kl_estimator="k3")
    assert loss_of(given, ref_logprobs=ref) == pytest.approx(with_kl, abs=1e-9)


def test_sequence_ratio():
    given = algorithm(ratio_level="sequence", aggregation="sequence_mean")
    assert loss_of(given) == pytest.approx(0.15828267006, abs=1e-9)
    assert loss_of(AlgorithmConfig(name="gspo"), advantages=(-1.0, 1.0)) == pytest.approx(-0.00035, abs=1e-9)


def test_cispo():
    assert loss_of(AlgorithmConfig(name="cispo")) == pytest.approx(0.08688999872, abs=1e-9)


@pytest.mark.parametrize(("estimator", "value"), [("k1", -0.14), ("k2", 0.159), ("k3", 0.20287039591)])
def test_kl_as_token_mean(estimator, value):
    kl = kl_divergence(tensor(LOGPROBS), torch.full((2, 3), -1.0, dtype=torch.float64), estimator)
    assert kl[MASK].mean().item() == pytest.approx(value, abs=1e-9)


def test_entropy_bonus_lowers_the_loss_by_its_weighted_mean():
    entropy = tensor([[0.5, 0.7, 0.9], [1.1, 1.3, 99.0]])
    given = algorithm(aggregation="token_mean", entropy_coef=0.1)
    assert loss_of(given, entropy=entropy) == pytest.approx(-0.04438645508 - 0.1 * 4.5 / 5, abs=1e-9)


@pytest.mark.parametrize("name", PRESETS)
def test_nan_under_the_mask_reaches_neither_loss_nor_gradient(name):
    given = AlgorithmConfig(name=name, constant_length=4, kl_coef=0.04, entropy_coef=0.1)
    clean, dirty = tensor(LOGPROBS), tensor(LOGPROBS)
    dirty[1, 2] = torch.nan
    ref, entropy = tensor(OLD), tensor(OLD).abs()
    losses, gradients = [], []
    for logprobs in (clean, dirty):
        noise = 0.0 if logprobs is clean else torch.nan
        logprobs.requires_grad_()
        old = tensor(OLD)
        old[1, 2] += noise
        loss, _ = policy_loss(
            logprobs, old, tensor([1.0, -1.0]), MASK, given, ref_logprobs=ref + (~MASK) * 0.0, entropy=entropy
        )
        loss.backward()
        losses.append(loss.item())
        gradients.append(logprobs.grad)
    assert losses[0] == losses[1]
    assert gradients[1][1, 2] == 0
    assert torch.equal(gradients[0][MASK], gradients[1][MASK])


@pytest.mark.parametrize("name", PRESETS)
def test_everything_masked_gives_zero_loss_and_gradient(name):
    given = AlgorithmConfig(name=name, constant_length=4, kl_coef=0.04, entropy_coef=0.1)
    logprobs = tensor(LOGPROBS).requires_grad_()
    beside = {name: tensor(OLD) for name in ("ref_logprobs", "entropy", "importance")}
    loss, metrics = policy_loss(logprobs, tensor(OLD), tensor([1.0, -1.0]), torch.zeros_like(MASK), given, **beside)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logprobs.grad, torch.zeros_like(logprobs))
    assert metrics["tokens"] == 0


@pytest.mark.parametrize("name", PRESETS)
def test_masked_completion_leaves_the_denominator_too(name):
    given = AlgorithmConfig(name=name, constant_length=4)
    alone = policy_loss(tensor(LOGPROBS[:1]), tensor(OLD[:1]), tensor([1.0]), MASK[:1], given)[0]
    mask = MASK.clone()
    mask[1] = False
    beside = policy_loss(tensor(LOGPROBS), tensor(OLD), tensor([1.0, -1.0]), mask, given)[0]
    assert beside.item() == pytest.approx(alone.item(), abs=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_loss_does_not_depend_on_how_the_batch_is_cut(name):
    given = AlgorithmConfig(name=name, constant_length=4)
    torch.manual_seed(0)
    logprobs = -torch.rand(8, 6, dtype=torch.float64) * 3
    old = logprobs + 0.3 * torch.randn(8, 6, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([6, 1, 3, 2, 6, 4, 5, 2]).unsqueeze(1)
    advantages = torch.randn(8, dtype=torch.float64)
    whole = policy_loss(logprobs, old, advantages, mask, given)[0]
    total = loss_denominator(mask, given)
    for size in (1, 2, 3, 4):
        parts = [
            policy_loss(*(each[i : i + size] for each in (logprobs, old, advantages, mask)), given, denominator=total)[
                0
            ]
            for i in range(0, 8, size)
        ]
        assert sum(parts).item() == pytest.approx(whole.item(), abs=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_gradient_on_policy_is_that_of_reinforce(name):
    given = AlgorithmConfig(name=name, constant_length=4)
    advantages = tensor([0.7, -1.3])
    logprobs = tensor(LOGPROBS).requires_grad_()
    policy_loss(logprobs, tensor(LOGPROBS), advantages, MASK, given)[0].backward()
    weights = MASK.double()
    if given.aggregation == "sequence_mean":
        weights = weights / MASK.sum(dim=1, keepdim=True)
    expected = -advantages.unsqueeze(1) * weights / loss_denominator(MASK, given)
    torch.testing.assert_close(logprobs.grad, expected, rtol=1e-12, atol=0)


def test_dual_clip_bounds_the_loss_of_bad_tokens():
    given = algorithm(aggregation="token_mean", dual_clip=3.0)
    logprobs = tensor([[0.0, 0.0, 0.0, 0.0]]).requires_grad_()
    # ratios 4, 2, 0.5, 4: the last has a positive advantage, which the upper clip bounds already
    old = -tensor([[4.0, 2.0, 0.5, 4.0]]).log()
    advantages = tensor([[-1.0, -1.0, -1.0, 1.0]])
    loss, metrics = policy_loss(logprobs, old, advantages, torch.ones(1, 4, dtype=torch.bool), given)
    loss.backward()
    assert loss.item() == pytest.approx((3.0 + 2.0 + 0.8 - 1.28) / 4, abs=1e-12)
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, 2.0 / 4, 0.0, 0.0], abs=1e-12)
    assert metrics["clipped"] == 3
    unbounded = policy_loss(
        logprobs, old, advantages, torch.ones(1, 4, dtype=torch.bool), algorithm(aggregation="token_mean")
    )
    assert unbounded[0].item() == pytest.approx((4.0 + 2.0 + 0.8 - 1.28) / 4, abs=1e-12)
    assert unbounded[1]["clipped"] == 2


def test_importance_weighs_the_policy_term_alone_and_has_no_gradient():
    given = algorithm(aggregation="token_mean", kl_coef=0.04, entropy_coef=0.1)
    plain = algorithm(aggregation="token_mean")
    ref, entropy = torch.full((2, 3), -1.0, dtype=torch.float64), tensor([[0.5, 0.7, 0.9], [1.1, 1.3, 99.0]])
    weights = tensor([[2.0, 2.0, 2.0], [2.0, 2.0, torch.nan]]).requires_grad_()
    weighted = loss_of(given, ref_logprobs=ref, entropy=entropy, importance=weights)
    other_terms = 0.04 * 0.20287039591 - 0.1 * 4.5 / 5
    assert weighted == pytest.approx(2 * -0.04438645508 + other_terms, abs=1e-9)
    logprobs = tensor(LOGPROBS).requires_grad_()
    loss, _ = policy_loss(logprobs, tensor(OLD), tensor([1.0, -1.0]), MASK, plain, importance=weights)
    loss.backward()
    assert weights.grad is None and torch.isfinite(logprobs.grad).all()


def test_importance_by_token():
    given = algorithm(aggregation="token_mean")
    weights = tensor([[0.5, 1.0, 2.0], [3.0, 0.0, 1.0]])
    ratios = (tensor(LOGPROBS) - tensor(OLD)).exp()
    # All ratios but the fourth (A < 0, above the upper clip, unbounded) and the second lie inside the clips or keep
    # their surrogate: r A for A > 0 below, r A for A < 0 above.
    expected = -(0.5 * ratios[0, 0] + ratios[0, 1] + 2 * ratios[0, 2] - 3 * ratios[1, 0]) / 5
    assert loss_of(given, importance=weights) == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_measured_and_not_a_term(estimator):
    ref = torch.full((2, 3), -1.0, dtype=torch.float64)
    given = algorithm(aggregation="token_mean", kl_coef=0.04, kl_in="reward", kl_estimator=estimator)
    loss, metrics = policy_loss(tensor(LOGPROBS), tensor(OLD), tensor([1.0, -1.0]), MASK, given, ref_logprobs=ref)
    assert loss.item() == pytest.approx(-0.04438645508, abs=1e-9)
    as_term = algorithm(aggregation="token_mean", kl_coef=0.04, kl_estimator=estimator)
    with_term, same = policy_loss(tensor(LOGPROBS), tensor(OLD), tensor([1.0, -1.0]), MASK, as_term, ref_logprobs=ref)
    expected = {"k1": -0.14, "k2": 0.159, "k3": 0.20287039591}[estimator]
    assert metrics["kl"].item() == same["kl"].item() == pytest.approx(5 * expected, abs=1e-9)
    assert with_term.item() == pytest.approx(-0.04438645508 + 0.04 * expected, abs=1e-9)


def test_clipped_share_is_that_of_all_tokens_over_parts():
    given = algorithm(aggregation="token_mean")
    parts = []
    for num_tokens in (12, 4):
        ratios = torch.ones(1, num_tokens, dtype=torch.float64)
        ratios[0, :3] = 2.0
        mask = torch.ones(1, num_tokens, dtype=torch.bool)
        parts.append(policy_loss(torch.zeros_like(ratios), -ratios.log(), tensor([1.0]), mask, given)[1])
    clipped, tokens = (sum(part[name].item() for part in parts) for name in ("clipped", "tokens"))
    assert clipped / tokens == 0.375


def test_clipped_tokens_have_no_gradient_and_are_counted():
    given = algorithm(aggregation="token_mean")
    logprobs = tensor([[0.0, 0.0, 0.0, 0.0]]).requires_grad_()
    # ratios 1.5, 1.1, 0.5, 0.9 with a positive advantage: only the first is above 1.28
    old = -tensor([[1.5, 1.1, 0.5, 0.9]]).log()
    mask = torch.ones(1, 4, dtype=torch.bool)
    loss, metrics = policy_loss(logprobs, old, tensor([1.0]), mask, given)
    loss.backward()
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, -1.1 / 4, -0.5 / 4, -0.9 / 4], abs=1e-12)
    assert (metrics["clipped"].item(), metrics["tokens"].item()) == (1, 4)
    assert metrics["ratio_max"].item() == pytest.approx(1.5, abs=1e-12)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("difference", [1e4, -1e4])
def test_huge_differences_stay_finite(name, difference):
    given = AlgorithmConfig(name=name, constant_length=4, kl_coef=0.04)
    logprobs = torch.tensor([[-1.0, -1.0]]).requires_grad_()
    old = logprobs.detach() - difference
    mask = torch.ones(1, 2, dtype=torch.bool)
    loss, _ = policy_loss(logprobs, old, torch.tensor([-1.0]), mask, given, ref_logprobs=old)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logprobs.grad).all()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("difference", [19.9, 79.0])
def test_a_large_batch_of_huge_ratios_overflows_neither_loss_nor_gradient_norm(name, difference):
    given = AlgorithmConfig(name=name, constant_length=4, kl_coef=0.04)
    logprobs = torch.full((512, 1024), -1.0).requires_grad_()
    old = logprobs.detach() - difference
    mask = torch.ones(512, 1024, dtype=torch.bool)
    loss, metrics = policy_loss(logprobs, old, torch.full((512,), -10.0), mask, given, ref_logprobs=-old, denominator=1)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logprobs.grad.norm())
    assert all(torch.isfinite(value) for value in metrics.values())
