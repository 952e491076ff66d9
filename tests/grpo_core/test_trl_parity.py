"""The same tensors through TRL's own code and ours: losses, gradients, importance weights, scaled advantages.

Differences that are intended, each with a test below:

- A completion that is masked out leaves our denominator; TRL's `grpo` and `dr_grpo` divide by the whole batch.
- What lies under the mask may be NaN with us; TRL multiplies by the mask, and NaN times 0 is NaN.
- Log ratios stop at 20 with us (e^20 is far outside every clip range); with TRL their exp becomes infinite.
- Importance weights under a sequence ratio: a token's gradient has its own weight with us (the ratio is carried by
  each token, GSPO-token); with TRL all of a sequence have the mean weight. The losses agree.
- Our entropy bonus is aggregated as the policy term is; TRL's is a mean over tokens whatever the loss.
- Tokens that dual clipping (`delta`) leaves without a gradient count as clipped with us.
- A sampler's log-probability that is NaN is a fault with us; TRL gives such a token the weight 1.
"""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from grpo_core.advantages import compute_advantages
from grpo_core.config import AlgorithmConfig
from grpo_core.losses import policy_loss

MAX_LENGTH = 11
DELTA = 1.6
OURS = {
    "grpo": {"aggregation": "sequence_mean"},
    "bnpo": {"aggregation": "token_mean"},
    "dapo": {"aggregation": "token_mean"},
    "dr_grpo": {"aggregation": "constant", "constant_length": MAX_LENGTH},
    "cispo": {"name": "cispo", "ratio_cap": 1.5},
}
#: The losses whose denominator counts completions.
BY_COMPLETION = ("grpo", "dr_grpo")
#: Ratio level, and whether sampler and trainer differ.
LEVELS = [("token", False), ("token", True), ("sequence", False)]


def trl_loss(loss_type, tensors, *, level="token", beta=0.0, delta=None, importance=False, entropy_coef=0.0):
    """Value, gradient and metrics of TRL's `_compute_loss`, in evaluation mode: one batch, no accumulation."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    logprobs = tensors["logprobs"].clone().requires_grad_()
    same = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, tensors["entropy"], None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=delta, steps_per_generation=1),
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=1.5 if loss_type == "cispo" else 0.28,
        use_vllm=importance,
        vllm_importance_sampling_correction=importance,
        model=SimpleNamespace(training=False),
        max_completion_length=MAX_LENGTH,
        _entropy_bonus_enabled=entropy_coef > 0,
        use_adaptive_entropy=False,
        entropy_coef=entropy_coef,
        _metrics=defaultdict(lambda: defaultdict(list)),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
    )
    mask = tensors["mask"].to(logprobs.dtype)
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask, dtype=torch.long),
        "completion_mask": mask,
        "advantages": tensors["advantages"],
        "old_per_token_logps": tensors["old"],
        "ref_per_token_logps": tensors["ref"],
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": tensors["importance"],
    }
    loss = GRPOTrainer._compute_loss(same, None, inputs)
    loss.backward()
    return loss.detach(), logprobs.grad, same._metrics["eval"]


def our_loss(loss_type, tensors, *, level="token", beta=0.0, delta=None, importance=False, entropy_coef=0.0):
    algorithm = AlgorithmConfig.model_validate(
        {
            "clip_range": 0.2,
            "clip_range_high": 0.28,
            "kl_coef": beta,
            "ratio_level": level,
            "dual_clip": delta,
            "entropy_coef": entropy_coef,
            **OURS[loss_type],
        }
    )
    logprobs = tensors["logprobs"].clone().requires_grad_()
    loss, metrics = policy_loss(
        logprobs,
        tensors["old"],
        tensors["advantages"],
        tensors["mask"],
        algorithm,
        ref_logprobs=tensors["ref"] if beta else None,
        entropy=tensors["entropy"],
        importance=tensors["importance"] if importance else None,
    )
    loss.backward()
    return loss.detach(), logprobs.grad, metrics


def random_tensors(seed, lengths="mixed"):
    """Six completions: all of full length, of mixed lengths (the rest is padding), or two of these masked out."""
    draws = torch.Generator().manual_seed(seed)
    shape = (6, MAX_LENGTH)
    logprobs = -3 * torch.rand(shape, generator=draws)
    ends = torch.randint(1, MAX_LENGTH + 1, (6, 1), generator=draws)
    mask = torch.arange(MAX_LENGTH) < (torch.full_like(ends, MAX_LENGTH) if lengths == "full" else ends)
    if lengths == "masked":
        mask[[1, 4]] = False
    return {
        "logprobs": logprobs,
        "old": logprobs + 0.4 * torch.randn(shape, generator=draws),
        "ref": logprobs + 0.3 * torch.randn(shape, generator=draws),
        "advantages": torch.randn(6, generator=draws),
        "entropy": 2 * torch.rand(shape, generator=draws),
        "importance": (0.3 * torch.randn(shape, generator=draws)).exp().clamp(max=1.5),
        "mask": mask,
    }


def assert_parity(ours, theirs, factor=1.0):
    assert ours[0].item() == pytest.approx(theirs[0].item() * factor, rel=1e-6, abs=1e-6)
    torch.testing.assert_close(ours[1], theirs[1] * factor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("level", "importance"), LEVELS)
@pytest.mark.parametrize("delta", [None, DELTA])
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("loss_type", OURS)
def test_loss_and_gradient_equal_those_of_trl(loss_type, level, beta, delta, importance):
    knobs = {"level": level, "beta": beta, "delta": delta, "importance": importance}
    for seed in range(3):
        for lengths in ("full", "mixed"):
            tensors = random_tensors(seed, lengths)
            assert_parity(our_loss(loss_type, tensors, **knobs), trl_loss(loss_type, tensors, **knobs))


@pytest.mark.parametrize(("level", "importance"), LEVELS)
@pytest.mark.parametrize("delta", [None, DELTA])
@pytest.mark.parametrize("loss_type", OURS)
def test_masked_completions_leave_our_denominator_and_not_that_of_trl(loss_type, level, delta, importance):
    """Intended: an overlong completion that is masked out does not dilute the others."""
    knobs = {"level": level, "beta": 0.04, "delta": delta, "importance": importance}
    for seed in range(3):
        tensors = random_tensors(seed, "masked")
        factor = 6 / 4 if loss_type in BY_COMPLETION else 1.0
        assert_parity(our_loss(loss_type, tensors, **knobs), trl_loss(loss_type, tensors, **knobs), factor)


def test_the_draws_reach_what_they_are_to_compare():
    """Both ends of the clip, the dual clip and the caps are met by tokens that count."""
    for seed in range(3):
        drawn = random_tensors(seed)
        mask, ratio = drawn["mask"], (drawn["logprobs"] - drawn["old"]).exp()
        good = (drawn["advantages"] > 0).unsqueeze(1) & mask
        bad = (drawn["advantages"] < 0).unsqueeze(1) & mask
        for met in (good & (ratio > 1.28), bad & (ratio < 0.8), bad & (ratio > DELTA), mask & (ratio > 1.5)):
            assert met.any()


@pytest.mark.parametrize("loss_type", OURS)
def test_nan_under_the_mask_reaches_theirs_and_not_ours(loss_type):
    tensors = random_tensors(0)
    clean = our_loss(loss_type, tensors)[0]
    tensors["logprobs"] = torch.where(tensors["mask"], tensors["logprobs"], torch.nan)
    assert our_loss(loss_type, tensors)[0] == clean
    assert trl_loss(loss_type, tensors)[0].isnan()


def test_runaway_ratios_stay_finite_with_us():
    tensors = random_tensors(0)
    tensors["old"] = tensors["logprobs"] - 1e4
    assert our_loss("grpo", tensors)[0].isfinite()
    assert not trl_loss("grpo", tensors)[0].isfinite()


@pytest.mark.parametrize("loss_type", [name for name in OURS if name != "cispo"])
def test_importance_weighs_each_token_of_a_sequence_ratio(loss_type):
    tensors = random_tensors(0)
    ours, theirs = (each(loss_type, tensors, level="sequence", importance=True) for each in (our_loss, trl_loss))
    assert ours[0].item() == pytest.approx(theirs[0].item(), rel=1e-6, abs=1e-6)
    mask, weights = tensors["mask"], tensors["importance"]
    mean_weight = (weights * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
    torch.testing.assert_close(ours[1] / weights * mean_weight, theirs[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss_type", OURS)
def test_entropy_bonus_is_aggregated_as_the_policy_term(loss_type):
    """The bonus of TRL where a loss is a token mean; for the others the mean over sequences, or over the constant."""
    tensors = random_tensors(0)
    entropy, mask = tensors["entropy"] * tensors["mask"], tensors["mask"]
    ours, theirs = (
        (each(loss_type, tensors, entropy_coef=0.1)[0] - each(loss_type, tensors)[0]).item() / -0.1
        for each in (our_loss, trl_loss)
    )
    token_mean = (entropy.sum() / mask.sum()).item()
    expected = {
        "grpo": (entropy.sum(dim=1) / mask.sum(dim=1)).mean().item(),
        "dr_grpo": entropy.sum().item() / (6 * MAX_LENGTH),
    }
    assert theirs == pytest.approx(token_mean, abs=1e-5)
    assert ours == pytest.approx(expected.get(loss_type, token_mean), abs=1e-5)


def test_tokens_cut_off_by_dual_clipping_count_as_clipped_with_us():
    tensors = random_tensors(0)
    ratio = (tensors["logprobs"] - tensors["old"]).exp()
    cut_off = ((ratio > DELTA) & (tensors["advantages"] < 0).unsqueeze(1) & tensors["mask"]).sum().item()
    num_tokens = tensors["mask"].sum().item()
    ours = our_loss("bnpo", tensors, delta=DELTA)[2]["clipped"].item()
    theirs = trl_loss("bnpo", tensors, delta=DELTA)[2]["clip_ratio/region_mean"][0] * num_tokens
    assert cut_off > 0
    assert ours == pytest.approx(theirs + cut_off, abs=1e-3)


def test_metrics_equal_those_of_trl():
    for seed in range(3):
        tensors = random_tensors(seed)
        ours, theirs = (each("bnpo", tensors, beta=0.04)[2] for each in (our_loss, trl_loss))
        assert ours["kl"] / ours["tokens"] == pytest.approx(theirs["kl"][0], rel=1e-5)
        assert ours["clipped"] / ours["tokens"] == pytest.approx(theirs["clip_ratio/region_mean"][0], rel=1e-5)


def test_advantages_are_scaled_as_by_trl():
    from trl.trainer.utils import nanstd

    draws = torch.Generator().manual_seed(0)
    rewards = torch.randn(12, 8, generator=draws)
    rewards[torch.rand(12, 8, generator=draws) < 0.2] = torch.nan
    centred = rewards - rewards.nanmean(dim=1, keepdim=True)
    for scale, std in {"group_std": nanstd(rewards, dim=1, keepdim=True), "batch_std": nanstd(rewards)}.items():
        theirs = (centred / (std + 1e-4)).nan_to_num(nan=0.0)
        ours = compute_advantages(rewards, AlgorithmConfig(advantage_scale=scale))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
