"""The supervised warm start: worked solutions imitated before RL, once for all trials, cached by content."""

import fcntl
import hashlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_core.config import TrainConfig
from grpo_core.policy import Policy, load_policy
from grpo_core.seeds import derived_seed, shuffled
from grpo_core.tasks import Task, load_task

#: Raise it when training or the tiny model's shape changes, so that older caches are not taken for the new result.
CACHE_VERSION = 1
PROGRESS_EVERY = 10
MAX_GRAD_NORM = 1.0


def ensure_warm_start(config: TrainConfig, on_progress: Callable[[dict[str, Any]], None] | None = None) -> Path | None:
    """Folder of the warm-started policy, trained if it is not in the cache yet; None when the config asks for none.

    `on_progress` gets `{"step", "num_steps", "loss"}` now and then. Two processes that want the same one at the same
    time train it once.
    """
    if config.warm_start.num_steps == 0:
        return None
    task = load_task(config.task)
    folder = cache_folder() / "warm_start" / _content_key(config, task)
    if (folder / "config.json").exists():
        return folder
    with _locked(folder.with_suffix(".lock")):
        if not (folder / "config.json").exists():
            # Adapters come after the warm start, so that runs with and without them share it.
            policy = load_policy(config.policy.model_copy(update={"lora": None}), task)
            imitate(policy, task, config, on_progress)
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            policy.save(unfinished)
            unfinished.rename(folder)
    return folder


def cache_folder() -> Path:
    """Where results shared by studies are kept: GRPO_SWEEPS_CACHE, or grpo-sweeps under the user's cache folder."""
    given = os.environ.get("GRPO_SWEEPS_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "grpo-sweeps"


def imitate(
    policy: Policy, task: Task, config: TrainConfig, on_progress: Callable[[dict[str, Any]], None] | None = None
) -> None:
    """Trains `policy` in place on worked solutions: cross-entropy of the completion's tokens, EOS included."""
    settings = config.warm_start
    # Weights are shared by all trials, so the machine's own number of threads costs no trial its repeatability.
    threads = torch.get_num_threads()
    torch.set_num_threads(max(threads, len(os.sched_getaffinity(0))))
    model: torch.nn.Module = policy.model
    model.to("cuda" if torch.cuda.is_available() and config.compute.device != "cpu" else "cpu")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.99), weight_decay=0.0)
    for step, texts in enumerate(_batches(task, config), start=1):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * rate_factor(step, settings.num_steps)
        loss = _imitation_loss(policy, texts)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_progress and (step % PROGRESS_EVERY == 0 or step == settings.num_steps):
            on_progress({"step": step, "num_steps": settings.num_steps, "loss": float(loss.detach())})
    model.to("cpu")
    torch.set_num_threads(threads)


def rate_factor(step: int, num_steps: int) -> float:
    """Share of the peak rate at step 1 … num_steps: a rise over the first tenth, then a cosine to 0."""
    rise = max(1, num_steps // 10)
    if step <= rise:
        return step / rise
    return (1 + math.cos(math.pi * (step - rise) / max(num_steps - rise, 1))) / 2


def _batches(task: Task, config: TrainConfig) -> Iterator[list[tuple[str, str]]]:
    """Prompt and worked solution of each problem, batch by batch, in an order that no trial's seed changes."""
    size, num_problems = config.warm_start.batch_size, len(task.train)
    order: list[int] = []
    for step in range(config.warm_start.num_steps):
        places = range(step * size, (step + 1) * size)
        batch = []
        for place in places:
            epoch, index = divmod(place, num_problems)
            if index == 0 or not order:
                order = shuffled(num_problems, "warm start", epoch)
            problem = task.train[order[index]]
            phrasing = random.Random(derived_seed("phrasing", place))
            batch.append((task.prompt(problem), task.warm_start_completion(problem, phrasing)))
        yield batch


def _imitation_loss(policy: Policy, texts: list[tuple[str, str]]) -> Tensor:
    eos = policy.tokenizer.eos_token_id
    pairs = [
        (policy.encode_prompt(prompt), [*policy.tokenizer(solution, add_special_tokens=False)["input_ids"], eos])
        for prompt, solution in texts
    ]
    longest = max(len(prompt) + len(solution) for prompt, solution in pairs)
    ids = torch.full((len(pairs), longest), policy.pad_id)
    labels = torch.full((len(pairs), longest), -100)
    for row, (prompt, solution) in enumerate(pairs):
        end = len(prompt) + len(solution)
        ids[row, :end] = torch.tensor(prompt + solution)
        labels[row, len(prompt) : end] = torch.tensor(solution)
    # Padding is on the right here: causal attention keeps it from every token that counts.
    device = policy.model.device
    logits = policy.model(input_ids=ids.to(device), use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten().to(device))


def _content_key(config: TrainConfig, task: Task) -> str:
    """Names the result by all that makes it: the settings, the policy, and the texts of the first batch."""
    given = {
        "version": CACHE_VERSION,
        "task": config.task.model_dump(mode="json"),
        "policy": config.policy.model_dump(mode="json", exclude={"lora"}),
        "warm_start": config.warm_start.model_dump(mode="json"),
        "words": task.words,
        "texts": next(_batches(task, config)),
    }
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    return f"{config.task.name}-{digest[:16]}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
