"""Checkpoints of a run: whole or absent, their bytes proved before they are used, only safe formats read back."""

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from grpo_core.policy import BASE_FILE, Policy, merged_policy

VALUE_HEAD_FILE = "value_head.safetensors"
#: Size and CRC-32 of every other file of a checkpoint.
CHECKSUMS_FILE = "checksums.json"
_BYTES_PER_READ = 2**20


def save_checkpoint(
    run_dir: Path,
    step: int,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    keep: int,
    value_head: torch.nn.Module | None = None,
    also_keep: int | None = None,
) -> Path:
    """Writes `run_dir/checkpoints/step_NNNNNN` and removes all but the newest `keep` and the one of step `also_keep`.

    It is written beside its place, forced to disk and renamed into it, so that a folder of that name is complete.
    Raises OSError where the disk does not take it; older checkpoints then stay as they are.
    """
    folder = checkpoint_folder(run_dir, step)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    policy.save(unfinished / "policy")
    torch.save(optimizer.state_dict(), unfinished / "optimizer.pt")
    if value_head is not None:
        save_file(value_head.state_dict(), unfinished / VALUE_HEAD_FILE)
    (unfinished / "state.json").write_text(json.dumps({**state, "step": step}))
    files = [file for file in sorted(unfinished.rglob("*")) if file.is_file()]
    sums = {file.relative_to(unfinished).as_posix(): _checksum(file) for file in files}
    (unfinished / CHECKSUMS_FILE).write_text(json.dumps(sums, indent=1))
    for path in [*unfinished.rglob("*"), unfinished]:
        _force_to_disk(path)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    _force_to_disk(folder.parent)
    for old in all_checkpoints(run_dir)[:-keep]:
        if also_keep is None or old != checkpoint_folder(run_dir, also_keep):
            shutil.rmtree(old)
    return folder


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Where the checkpoint after `step` lies, or would lie."""
    return run_dir / "checkpoints" / f"step_{step:06d}"


def damage(checkpoint: Path) -> str | None:
    """What of a checkpoint is missing or was changed since it was written, in words; None for a sound one."""
    try:
        sums = json.loads((checkpoint / CHECKSUMS_FILE).read_text())
        for name, expected in sums.items():
            if _checksum(checkpoint / name) != expected:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(checkpoint)} is missing"
    except (OSError, ValueError, AttributeError) as error:
        return f"{CHECKSUMS_FILE}: {error}"
    return None


def newest_sound_checkpoint(run_dir: Path, last_step: int | None = None) -> Path | None:
    """The newest checkpoint that is as it was written, of `last_step` at most; None where there is none.

    Damaged ones on the way are renamed to `damaged_step_NNNNNN`, with a word of it on standard output.
    """
    for folder in reversed(all_checkpoints(run_dir)):
        if last_step is not None and folder > checkpoint_folder(run_dir, last_step):
            continue
        problem = damage(folder)
        if problem is None:
            return folder
        aside = folder.with_name(f"damaged_{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        print(f"{folder}: damaged ({problem}); it is kept as {aside.name}, and the run goes on from an earlier one")
    return None


def _checksum(file: Path) -> list[int]:
    """Size in bytes and CRC-32."""
    size = crc = 0
    with file.open("rb") as opened:
        while part := opened.read(_BYTES_PER_READ):
            size, crc = size + len(part), zlib.crc32(part, crc)
    return [size, crc]


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
