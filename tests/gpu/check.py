"""Correctness, speed and memory of the training core on one GPU, in one table: `python -m tests.gpu.check`.

Needs torch, transformers, accelerate and pydantic, no weights from anywhere: the models are randomly initialised, of
Qwen2's shape with 0.5 billion weights. Takes under 4 minutes. `--device cpu --tiny` runs the same on a CPU in less than
one, with a model of toy size; its seconds say nothing. Exit code 1 where a limit is not met, 2 without a GPU.
"""

import argparse
import copy
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

sys.path.insert(0, str(Path(__file__).parents[2]))

from grpo_core.batches import build_batch, forward_inputs
from grpo_core.config import TrainConfig
from grpo_core.group_attention import use_group_attention
from grpo_core.group_forward import GroupForward
from grpo_core.policy import Policy
from grpo_core.ranks import close_ranks, open_ranks
from grpo_core.rollouts import Rollouts, sample_groups
from grpo_core.run_setup import build_learner
from grpo_core.update import update_policy
from tests.gpu.plain import plain_logprobs, plain_sampling, plain_update

#: bfloat16 keeps 8 bits of a number: rounding of relative size 2^-9 in each of some hundred steps moves a
#: log-probability by about a hundredth, the same in sampler and trainer only in part.
BFLOAT16_MEAN_LIMIT, FLOAT32_LIMIT = 0.02, 1e-4
NUM_REPEATS = 3


@dataclass(frozen=True)
class Size:
    shape: dict[str, Any]
    num_prompts: int
    group_size: int
    prompt_tokens: int
    new_tokens: int


FULL = Size(
    {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    | {"intermediate_size": 4864, "vocab_size": 151_936},
    *(8, 8, 96, 128),
)
TINY = Size(
    {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"intermediate_size": 128, "vocab_size": 512},
    *(2, 4, 12, 16),
)


@dataclass(frozen=True)
class Row:
    """A line of the table; without a limit it is for information."""

    name: str
    value: float
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the value is within its limit; a NaN is not."""
        return self.at_most is None or self.value <= self.at_most


def main() -> None:
    """Runs all checks and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.check", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of toy size")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no CUDA device; --device cpu --tiny checks what can be checked without one", file=sys.stderr)
        raise SystemExit(2)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    device, size = torch.device(given.device), TINY if given.tiny else FULL
    rows = [*correctness(device, size), *speed_and_memory(device, size)]
    for row in rows:
        verdict = "" if row.at_most is None else f"at most {row.at_most:g}: {'met' if row.is_met else 'NOT MET'}"
        print(f"{row.name:<56}{row.value:>14.6g}  {verdict}")
    if given.json:
        given.json.write_text(json.dumps([{**vars(row), "is_met": row.is_met} for row in rows], indent=2))
    raise SystemExit(0 if all(row.is_met for row in rows) else 1)


def random_policy(device: torch.device, size: Size) -> Policy:
    """A policy with random weights in float32; its last token is the EOS, which is as rare as any other."""
    shape = Qwen2Config(**size.shape, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).to(device).eval()
    # Larger than random weights come, so that entropy is that of a trained model's and not of a uniform one.
    model.get_input_embeddings().weight.data.mul_(4.0)
    use_group_attention(model)
    tokenizer: Any = None
    return Policy(model, tokenizer, eos_ids=(2,), pad_id=0)


def sample(policy: Policy, size: Size, device: torch.device, in_half: bool) -> Rollouts:
    """A rollout batch of the size, the same prompts each time."""
    draws = torch.Generator(device).manual_seed(1)
    prompts = random_prompts(size).tolist()
    config = TrainConfig.model_validate({"rollout": {"max_new_tokens": size.new_tokens}}).rollout
    with torch.autocast(device.type, torch.bfloat16, enabled=in_half):
        return sample_groups(policy, prompts, size.group_size, config, generator=draws)


def random_prompts(size: Size) -> Tensor:
    """`[P, Tp]`, without special tokens."""
    draws = torch.Generator().manual_seed(2)
    shape = (size.num_prompts, size.prompt_tokens)
    return torch.randint(3, size.shape["vocab_size"], shape, generator=draws)


def correctness(device: torch.device, size: Size) -> list[Row]:
    """Sampler against trainer in both types, and our gradient against that of plain rows in float32."""
    rows = []
    policy = random_policy(device, size)
    forward = GroupForward(policy.model)
    for name, in_half in (("float32", False), ("bfloat16", True)):
        rollouts = sample(policy, size, device, in_half)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=in_half):
            predicted = forward(**forward_inputs(rollouts))
        off = (predicted.logprobs - rollouts.logprobs)[rollouts.completion_mask].abs()
        rows.append(
            Row(f"sampler - trainer, {name}, mean", float(off.mean()), BFLOAT16_MEAN_LIMIT if in_half else None)
        )
        rows.append(Row(f"sampler - trainer, {name}, largest", float(off.max()), None if in_half else FLOAT32_LIMIT))
    rollouts = sample(policy, size, device, False)
    weights = torch.randn(rollouts.logprobs.shape, generator=torch.Generator().manual_seed(3)).to(device)
    ours = gradient(policy.model, lambda: forward(**forward_inputs(rollouts)).logprobs * weights)
    plain = gradient(policy.model, lambda: plain_logprobs(policy.model, rollouts) * weights)
    rows.append(
        Row("gradient against plain rows, float32, relative", float((ours - plain).norm() / plain.norm()), 1e-4)
    )
    return rows


def gradient(model: PreTrainedModel, terms: Callable[[], Tensor]) -> Tensor:
    """Gradient of the sum of `terms()`, all weights in one vector."""
    model.zero_grad(set_to_none=True)
    terms().sum().backward()
    found = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    model.zero_grad(set_to_none=True)
    return found


def speed_and_memory(device: torch.device, size: Size) -> list[Row]:
    """A step in bfloat16 beside the plain way, in turns: seconds, peak memory, and calls that wait for the GPU."""
    count = size.num_prompts * size.group_size
    config = TrainConfig.model_validate(
        {
            "rollout": {"completions_per_step": count, "max_new_tokens": size.new_tokens},
            "algorithm": {"group_size": size.group_size, "updates_per_batch": 1},
            "optim": {"lr": 1e-6, "micro_batch_size": count},
            "compute": {"device": device.type, "precision": "bfloat16"},
        }
    )
    accelerator, ranks = open_ranks(config.compute)
    policy = random_policy(device, size)
    peer = copy.deepcopy(policy.model)
    peer.set_attn_implementation("sdpa")
    optimizer = torch.optim.AdamW(peer.parameters(), lr=1e-6, fused=True)
    learner = build_learner(policy, config, accelerator, ranks)
    rollouts = sample(policy, size, device, True)
    advantages = torch.randn(count, generator=torch.Generator().manual_seed(4)).to(device)
    batch = build_batch(rollouts, advantages, False)
    prompts = random_prompts(size).to(device)
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "sampling": (
            lambda: sample(policy, size, device, True),
            lambda: plain_sampling(peer, prompts, size.group_size, size.new_tokens),
        ),
        "update": (
            lambda: update_policy(learner, batch, config),
            lambda: plain_update(peer, optimizer, rollouts, advantages),
        ),
    }
    rows = []
    for name, (ours, plain) in pairs.items():
        turns = [(measured(ours, device), measured(plain, device)) for _ in range(NUM_REPEATS + 1)][1:]
        for which, side in (("ours", 0), ("plain", 1)):
            rows.append(Row(f"{name}, {which}, s", statistics.median(turn[side][0] for turn in turns)))
            rows.append(Row(f"{name}, {which}, peak MB", max(turn[side][1] for turn in turns)))
        rows.append(Row(f"{name}, plain / ours", rows[-2].value / rows[-4].value))
        rows.append(Row(f"{name}, calls that wait for the GPU, ours", num_waits(ours, device)))
    rows.append(Row("tokens sampled a second, ours", int(rollouts.completion_mask.sum()) / rows[0].value))
    close_ranks(ranks)
    return rows


def measured(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds of `work` and its peak of allocated memory, 10^6 bytes; 0 on a CPU."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - started, torch.cuda.max_memory_allocated() / 1e6 if on_gpu else 0.0


def num_waits(work: Callable[[], object], device: torch.device) -> int:
    """How often `work` waits for the GPU; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        work()
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


if __name__ == "__main__":
    main()
