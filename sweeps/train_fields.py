"""The fields of `TrainConfig` as dotted paths: what exists, and what kind of value each takes."""

import difflib
import re
import types
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from grpo_core.config import TrainConfig

#: Names that need no path in a search space.
SHORT_NAMES = {
    "group_size": "algorithm.group_size",
    "clip_range": "algorithm.clip_range",
    "reward_scale": "algorithm.reward_scale",
    "lr": "optim.lr",
}
#: Between a search-space key and its label; a character that Optuna and MLflow take in names and no path has.
LABEL = "/"
_LABEL_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class TrainField:
    """One field that a search space can vary: its dotted `path`, `kind`, and whether it may be null."""

    path: str
    kind: Literal["integer", "number", "boolean", "text", "mapping"]
    choices: tuple[Any, ...] = ()
    """The values of a field that knows only a few."""


@cache
def train_fields() -> dict[str, TrainField]:
    """Every leaf field of `TrainConfig` by its dotted path."""
    return {path: _describe(path, info) for path, info in leaf_fields(TrainConfig).items()}


def leaf_fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Fields of a pydantic tree that are no section themselves, by dotted path of the names a person writes."""
    found: dict[str, FieldInfo] = {}
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        section = section_of(info.annotation)
        if section is None:
            found[path] = info
        else:
            found |= leaf_fields(section, f"{path}.")
    return found


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The pydantic model in an annotation such as `EntropyBand | None`, or None."""
    return next(
        (part for part in union_members(annotation) if isinstance(part, type) and issubclass(part, BaseModel)), None
    )


def union_members(annotation: Any) -> list[Any]:
    """The types that an annotation accepts, one by one; a Literal or a generic stays whole."""
    if get_origin(annotation) is Annotated:
        return union_members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [part for argument in get_args(annotation) for part in union_members(argument)]
    return [annotation]


def path_of(key: str) -> str:
    """The dotted TrainConfig path that a search-space key means, its label left out: `clip_range/gspo` is a clip range.

    A label tells keys of one field apart that are drawn from other ranges under other conditions.
    """
    name = key.partition(LABEL)[0]
    return SHORT_NAMES.get(name, name)


def has_sound_label(key: str) -> bool:
    """Whether a search-space key has no label, or one that every tracking store takes as part of a name."""
    _, slash, label = key.partition(LABEL)
    return not slash or _LABEL_NAME.fullmatch(label) is not None


def field_of(key: str) -> TrainField | None:
    """The field that a search-space key means, or None; `task.reward_weights.<part>` is a number too."""
    path = path_of(key)
    found = train_fields().get(path)
    if found is None and "." in path:
        parent, _, leaf = path.rpartition(".")
        mapping = train_fields().get(parent)
        if leaf and mapping is not None and mapping.kind == "mapping":
            return TrainField(path, "number")
    return found if found is None or found.kind != "mapping" else None


def similar_keys(key: str, count: int = 3) -> list[str]:
    """Search-space keys that a person may have meant by `key`, best first."""
    names = [*SHORT_NAMES, *(path for path in train_fields() if path not in SHORT_NAMES.values())]
    leaf = key.rpartition(".")[2]
    same_leaf = [name for name in names if name.rpartition(".")[2] == leaf]
    by_leaf = {name.rpartition(".")[2]: name for name in reversed(names)}
    close = difflib.get_close_matches(key, names, n=count, cutoff=0.6)
    close += [by_leaf[match] for match in difflib.get_close_matches(leaf, by_leaf, n=count, cutoff=0.7)]
    return same_leaf[:count] or list(dict.fromkeys(close))[:count]


def get_value(train: TrainConfig, path: str) -> Any:
    """The value of `train` at a dotted path; None where a mapping or an absent section on the way has none."""
    value: Any = train
    for part in path.split("."):
        if value is None:
            return None
        value = value.get(part) if isinstance(value, dict) else getattr(value, part)
    return value


def _describe(path: str, info: FieldInfo) -> TrainField:
    parts = union_members(info.annotation)
    choices = tuple(choice for part in parts if get_origin(part) is Literal for choice in get_args(part))
    if any(part is dict or get_origin(part) is dict for part in parts):
        return TrainField(path, "mapping")
    if bool in parts:
        return TrainField(path, "boolean", (True, False))
    if float in parts:
        return TrainField(path, "number")
    return TrainField(path, "integer") if int in parts else TrainField(path, "text", choices)
