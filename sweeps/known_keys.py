"""The keys that a sweep file knows, and what an unknown one probably means."""

import difflib
from functools import cache
from typing import get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sweeps.mistakes import Path, dotted
from sweeps.sections import Dimension, SweepConfig
from sweeps.train_fields import SHORT_NAMES, section_of

#: Fields of SweepConfig that loading fills in; a file cannot set them.
FILLED_IN = ("profile", "profile_reason", "source")

#: What other tools call a key, or what it is often called.
SYNONYMS = {
    "parameters": "search_space",
    "params": "search_space",
    "space": "search_space",
    "goal": "direction",
    "method": "sampler",
    "trials": "n_trials",
    "num_trials": "n_trials",
    "max_trials": "n_trials",
    "budget": "n_trials",
    "learning_rate": "lr",
    "epsilon": "clip_range",
    "clip_eps": "clip_range",
    "beta": "kl_coef",
    "delta": "dual_clip",
    "epsilon_high": "clip_range_high",
    "vf_coef": "value_coef",
    "lam": "gae_lambda",
    "lambda": "gae_lambda",
    "ppo_epochs": "updates_per_batch",
    "num_mini_batches": "num_minibatches",
    "lora_r": "rank",
    "algo": "name",
    "num_generations": "group_size",
    "epochs": "num_steps",
    "steps": "num_steps",
    "max_steps": "num_steps",
    "max_completion_length": "max_new_tokens",
    "batch_size": "completions_per_step",
    "model": "policy",
    "dataset": "task",
    "optimizer": "optim",
    "gpus": "processes_per_trial",
    "concurrency": "max_concurrent_trials",
    "early_terminate": "pruner",
    "guard": "stability",
    "low": "min",
    "high": "max",
    "distribution": "log",
}


@cache
def known_keys() -> tuple[str, ...]:
    """Every key path of a sweep file, sections included, as dotted text."""
    return tuple(key for key in (*_keys(SweepConfig, ""), "profiles") if key not in FILLED_IN)


def children(path: Path) -> tuple[str, ...] | None:
    """Names allowed under a path, None where the names are free (options, reward weights, profiles)."""
    if path[:1] == ("search_space",):
        return tuple(Dimension.model_fields) if len(path) == 2 else None
    prefix = f"{dotted(path)}." if path else ""
    names = [key.removeprefix(prefix) for key in known_keys() if key.startswith(prefix)]
    return tuple(name for name in names if "." not in name) or None


def suggestion(path: Path) -> str:
    """What to do about an unknown key: the place it probably belongs to, or the names that are legal there."""
    parent, name = path[:-1], str(path[-1])
    siblings = children(parent) or ()
    if path == ("profile",):
        return "choose a profile with --profile NAME"
    if path[0] in FILLED_IN:
        return "remove it; loading fills it in"
    wanted = SYNONYMS.get(name, name)
    close = [wanted] if wanted in siblings else difflib.get_close_matches(name, siblings, n=1, cutoff=0.75)
    if close:
        return f"did you mean {dotted((*parent, close[0]))}?"
    places = _ending_in(wanted, parent)
    if not places:
        leaves = list(dict.fromkeys(key.rpartition(".")[2] for key in known_keys()))
        near = difflib.get_close_matches(wanted, leaves, n=1, cutoff=0.75)
        places = _ending_in(near[0], parent) if near else []
    if places:
        return f"did you mean {' or '.join(places[:3])}?"
    return f"keys of {dotted(parent) or 'a sweep file'}: {', '.join(siblings)}" if siblings else "remove it"


def _ending_in(name: str, parent: Path) -> list[str]:
    """Known keys with this last name: those nearest to `parent` first, among them the one with a short name."""
    short = f"train.{SHORT_NAMES.get(name)}"

    def nearness(key: str) -> tuple[int, bool]:
        return sum(a == b for a, b in zip(key.split("."), parent, strict=False)), key == short

    return sorted((key for key in known_keys() if key.rpartition(".")[2] == name), key=nearness, reverse=True)


def _keys(model: type[BaseModel], prefix: str) -> list[str]:
    found = []
    for name, info in model.model_fields.items():
        key = f"{prefix}{info.alias or name}"
        found.append(key)
        section = None if get_origin(info.annotation) is dict else section_of(info.annotation)
        if section is not None:
            found += _keys(section, f"{key}.")
    return found


def field_at(path: Path) -> FieldInfo | None:
    """The pydantic field that a path of a sweep file means, None where there is none."""
    model: type[BaseModel] | None = SweepConfig
    info: FieldInfo | None = None
    for place, part in enumerate(path):
        if path[0] == "search_space" and place == 1:
            model, info = Dimension, None
            continue
        fields = {found.alias or name: found for name, found in model.model_fields.items()} if model else {}
        info = fields.get(str(part))
        if info is None:
            return None
        model = None if get_origin(info.annotation) is dict else section_of(info.annotation)
    return info
