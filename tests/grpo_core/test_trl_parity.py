"""The same tensors through TRL's own loss code and ours."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from grpo_core.config import AlgorithmConfig
from grpo_core.losses import policy_loss

MAX_LENGTH = 11
OURS = {
    "grpo": {"aggregation": "sequence_mean"},
    "bnpo": {"aggregation": "token_mean"},
    "dapo": {"aggregation": "token_mean"},
    "dr_grpo": {"aggregation": "constant", "constant_length": MAX_LENGTH},
    "cispo": {"name": "cispo", "ratio_cap": 5.0},
}


def trl_loss(loss_type, level, beta, tensors):
    """Value and gradient of TRL's `_compute_loss`, in evaluation mode: one batch, no accumulation."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    logprobs = tensors["logprobs"].clone().requires_grad_()
    same = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=5.0 if loss_type == "cispo" else 0.28,
        use_vllm=False,
        model=SimpleNamespace(training=False),
        max_completion_length=MAX_LENGTH,
        _entropy_bonus_enabled=False,
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
    }
    loss = GRPOTrainer._compute_loss(same, None, inputs)
    loss.backward()
    return loss.detach(), logprobs.grad


def our_loss(loss_type, level, beta, tensors):
    knobs = {"clip_range": 0.2, "clip_range_high": 0.28, "kl_coef": beta, "ratio_level": level, **OURS[loss_type]}
    logprobs = tensors["logprobs"].clone().requires_grad_()
    loss, _ = policy_loss(
        logprobs,
        tensors["old"],
        tensors["advantages"],
        tensors["mask"],
        AlgorithmConfig(**knobs),
        ref_logprobs=tensors["ref"] if beta else None,
    )
    loss.backward()
    return loss.detach(), logprobs.grad


def random_tensors(seed):
    draws = torch.Generator().manual_seed(seed)
    logprobs = -3 * torch.rand(6, MAX_LENGTH, generator=draws)
    return {
        "logprobs": logprobs,
        "old": logprobs + 0.3 * torch.randn(6, MAX_LENGTH, generator=draws),
        "ref": logprobs + 0.3 * torch.randn(6, MAX_LENGTH, generator=draws),
        "advantages": torch.randn(6, generator=draws),
        "mask": torch.arange(MAX_LENGTH) < torch.randint(1, MAX_LENGTH + 1, (6, 1), generator=draws),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize(
    # A sequence ratio only where each sequence counts once: TRL keeps it `[B, 1]`, ours carries it per token.
    ("loss_type", "level"),
    [*((loss_type, "token") for loss_type in OURS), ("grpo", "sequence")],
)
def test_loss_and_gradient_equal_those_of_trl(loss_type, level, beta, seed):
    tensors = random_tensors(seed)
    (theirs, their_gradient), (ours, our_gradient) = (
        each(loss_type, level, beta, tensors) for each in (trl_loss, our_loss)
    )
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6, abs=1e-6)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-5, atol=1e-6)


def test_masked_completions_leave_our_denominator_and_not_that_of_trl():
    """Intended: an overlong completion that is masked out does not dilute the others."""
    tensors = random_tensors(0)
    tensors["mask"][0] = False
    ours = our_loss("grpo", "token", 0.0, tensors)[0]
    theirs = trl_loss("grpo", "token", 0.0, tensors)[0]
    assert ours.item() == pytest.approx(theirs.item() * 6 / 5, rel=1e-5)
    assert our_loss("bnpo", "token", 0.0, tensors)[0].item() == pytest.approx(
        trl_loss("bnpo", "token", 0.0, tensors)[0].item(), rel=1e-5
    )
