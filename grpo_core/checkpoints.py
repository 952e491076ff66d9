"""Checkpoints of a run: whole or absent, the newest found by name, only safe formats read back."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from grpo_core.policy import BASE_FILE, Policy, merged_policy

VALUE_HEAD_FILE = "value_head.safetensors"


def save_checkpoint(
    run_dir: Path,
    step: int,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    keep: int,
    value_head: torch.nn.Module | None = None,
) -> Path:
    """Writes `run_dir/checkpoints/step_NNNNNN` and removes all but the newest `keep`.

    It is written beside its place and renamed into it, so that a folder of that name is always complete.
    """
    folder = run_dir / "checkpoints" / f"step_{step:06d}"
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    policy.save(unfinished / "policy")
    torch.save(optimizer.state_dict(), unfinished / "optimizer.pt")
    if value_head is not None:
        save_file(value_head.state_dict(), unfinished / VALUE_HEAD_FILE)
    (unfinished / "state.json").write_text(json.dumps({**state, "step": step}))
    for file in unfinished.rglob("*"):
        if file.is_file():
            with file.open("rb") as written:
                os.fsync(written.fileno())
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    for old in all_checkpoints(run_dir)[:-keep]:
        shutil.rmtree(old)
    return folder


def all_checkpoints(run_dir: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step_*"))


def newest_checkpoint(run_dir: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return next(iter(reversed(all_checkpoints(run_dir))), None)


def checkpoint_policy_folder(checkpoint: Path) -> Path:
    """The policy in a checkpoint: a folder that `from_pretrained` loads, or adapters for `load_policy`."""
    return checkpoint / "policy"


def load_state(checkpoint: Path) -> dict[str, Any]:
    """The state saved beside the weights; `step` is the last one done."""
    state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text())
    return state


def load_optimizer(checkpoint: Path, optimizer: torch.optim.Optimizer) -> None:
    """Sets `optimizer` to its state at the checkpoint."""
    optimizer.load_state_dict(torch.load(checkpoint / "optimizer.pt", weights_only=True))


def load_value_head(checkpoint: Path, value_head: torch.nn.Module | None) -> None:
    """Sets `value_head`, where there is one, to its weights at the checkpoint."""
    if value_head is not None:
        value_head.load_state_dict(load_file(checkpoint / VALUE_HEAD_FILE))


def export_policy(checkpoint: Path, folder: Path) -> None:
    """Writes the policy of a checkpoint to `folder`, where `AutoModelForCausalLM.from_pretrained` loads it.

    Adapters are merged into their base. Raises ValueError when `folder` is already there with something in it, or the
    base of adapters can't be had.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder}: not empty; name a new folder")
    policy_folder = checkpoint_policy_folder(checkpoint)
    if (policy_folder / BASE_FILE).exists():
        merged_policy(policy_folder).save(folder)
    else:
        shutil.copytree(policy_folder, folder, dirs_exist_ok=True)
