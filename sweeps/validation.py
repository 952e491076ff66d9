"""Pydantic's errors as mistakes in a person's words, all of them in one pass.

Pydantic checks rules between sections only where every section is right. To name those mistakes too, what is wrong is
taken out of a copy and the rest is checked again; a rule that reads something taken out is not reported.
"""

import copy
import difflib
import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from sweeps.known_keys import children, field_at, suggestion
from sweeps.mistakes import NOTHING, Mistake, Path, dotted, show
from sweeps.sections import SweepConfig
from sweeps.train_fields import section_of, union_members

#: Stand-ins for what every study must have, so that checking can go on without it.
_PLACEHOLDERS: dict[Path, Any] = {
    ("study",): {"name": "unnamed", "n_trials": 1},
    ("study", "name"): "unnamed",
    ("study", "n_trials"): 1,
    ("search_space",): {},
}
_RULE_KEY = re.compile(r"([a-z_][\w.]*)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^:]*): ", re.DOTALL)
_READ_KEY = re.compile(r"([a-z_][\w.]*)=")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass
class Outcome:
    """The config, without its mistakes where there are any; None where nothing sensible is left."""

    config: SweepConfig | None = None
    mistakes: list[Mistake] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)

    def reads_removed(self, mistake: Mistake) -> bool:
        """Whether a mistake follows from something that was taken out for another one."""
        paths = (mistake.path, *mistake.reads)
        return any(path[: len(removed)] == removed for path in paths for removed in self.removed)


def validate(data: dict[str, Any]) -> Outcome:
    """Checks the data of a sweep file (profile and options applied) and names every mistake."""
    outcome = Outcome()
    data = _fill_empty_sections(copy.deepcopy(data))
    for mistake in _booleans_for_numbers(data, ()):
        outcome.mistakes.append(mistake)
        _take_out(data, mistake, outcome)
    for _ in range(100):
        try:
            outcome.config = SweepConfig.model_validate(data)
            return outcome
        except ValidationError as error:
            found = translate(error, data)
        outcome.mistakes += [mistake for mistake in found if not outcome.reads_removed(mistake)]
        num_before = len(outcome.removed)
        for mistake in found:
            _take_out(data, mistake, outcome)
        if len(outcome.removed) == num_before:
            break
    return outcome


def translate(error: ValidationError, data: dict[str, Any], base: Path = ()) -> list[Mistake]:
    """One mistake for each place that pydantic complains about; `base` is the path of `data` in a sweep file."""
    mistakes: dict[Path, Mistake] = {}
    for detail in error.errors(include_url=False):
        loc = tuple(detail["loc"])
        path = loc if detail["type"] == "missing" else _existing(data, loc)
        value: Any = NOTHING if detail["type"] == "missing" else look_up(data, path)
        if detail["type"] == "value_error":
            mistake = _from_rule(detail, data, path, value)
        else:
            if detail["type"] == "extra_forbidden" and isinstance(value, dict | list):
                value = NOTHING
            mistake = Mistake(path, value, _explain(detail, (*base, *path), value))
        mistakes.setdefault(mistake.path, mistake)
    return list(mistakes.values())


def look_up(data: Any, path: Path) -> Any:
    """The value at a path of nested mappings and lists, NOTHING where there is none."""
    for part in path:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return NOTHING
    return data


def _from_rule(detail: ErrorDetails, data: dict[str, Any], path: Path, value: Any) -> Mistake:
    """Our validators say `key=value: rule; fix`, the key relative to their section, or `rule; fix` of one field."""
    text = str(detail.get("ctx", {}).get("error", detail["msg"]))
    named = _RULE_KEY.match(text)
    if named is None:
        return Mistake(path, value, text)
    key_path = (*path, *named[1].split("."))
    found = look_up(data, key_path)
    rule = text[named.end() :]
    reads = tuple((*path, *name.split(".")) for name in _READ_KEY.findall(rule))
    return Mistake(key_path, named[2].strip("'\"") if found is NOTHING else found, rule, reads)


def _explain(detail: ErrorDetails, path: Path, value: Any) -> str:
    """Rule and fix of an error that pydantic found by a field's type."""
    kind, context = detail["type"], detail.get("ctx", {})
    info = field_at(path)
    if kind == "extra_forbidden":
        return f"unknown key; {suggestion(path)}"
    if kind == "missing":
        return f"missing; add `{path[-1]}: …` to {dotted(path[:-1]) or 'the file'}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        names = children(path)
        return f"wants a mapping; {'use the keys ' + ', '.join(names) if names else 'write key: value below it'}"
    if kind in ("tuple_type", "list_type"):
        return f"wants a list; write {show([value]) if isinstance(value, str | int | float) else '[a, b]'}"
    if isinstance(path[-1], int) and path[0] == "search_space":
        return "wants a finite number, text, true, false or null; write one of these"
    limits = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most", "multiple_of": "a multiple of"}
    for name, words in limits.items():
        if name in context:
            return f"must be {words} {context[name]:g}; {_hint(info) or f'use {words} {context[name]:g}'}"
    if kind == "finite_number":
        return f"must be finite; {_hint(info) or 'use an ordinary number'}"
    choices = _choices(info)
    if choices:
        close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.7)
        also = "a whole number above 0, or " if _takes(info, int) else ""
        meant = f"did you mean {close[0]}? " if close else ""
        return f"not one of the choices; {meant}use {also}{' or '.join(choices) if also else ', '.join(choices)}"
    if kind == "int_from_float" and isinstance(value, float):
        return f"wants a whole number; use {int(value // 1)} or {int(value // 1) + 1}"
    wanted = next((words for accepted, words in _KINDS.items() if _takes(info, accepted)), None)
    if wanted == "text" and isinstance(value, int | float):
        return f'wants text; put it in quotes: "{show(value)}"'
    if wanted is not None:
        return f"wants {wanted}; {_hint(info) or f'write {wanted}'}"
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}; {_hint(info) or 'correct the value'}"


def _takes(info: FieldInfo | None, kind: type) -> bool:
    return info is not None and kind in union_members(info.annotation)


def _choices(info: FieldInfo | None) -> list[str]:
    members = [] if info is None else union_members(info.annotation)
    return [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]


def _hint(info: FieldInfo | None) -> str:
    if info is None or info.default in (PydanticUndefined, None) or isinstance(info.default, BaseModel | dict):
        return ""
    return f"the default is {show(info.default)}"


def _existing(data: Any, loc: Path) -> Path:
    """The part of pydantic's location that is in the data: behind it come names of union members."""
    path: Path = ()
    for part in loc:
        if look_up(data, (*path, part)) is NOTHING:
            break
        path = (*path, part)
    return path


def _take_out(data: dict[str, Any], mistake: Mistake, outcome: Outcome) -> None:
    """Removes what a mistake is about, or fills in what is missing, where either is possible."""
    path = mistake.path[:2] if mistake.path[:1] == ("search_space",) else mistake.path
    parent = look_up(data, path[:-1])
    if look_up(data, path) is NOTHING and path in _PLACEHOLDERS and isinstance(parent, dict):
        parent[path[-1]] = copy.deepcopy(_PLACEHOLDERS[path])
        outcome.removed.append(path)
        return
    if look_up(data, path) is NOTHING:
        # A default that clashes with a key of the file, or a key that its section lacks.
        path = next((other for other in mistake.reads if look_up(data, other) is not NOTHING), path[:-1])
        parent = look_up(data, path[:-1])
    if path and isinstance(parent, dict) and path[-1] in parent:
        del parent[path[-1]]
        outcome.removed.append(path)


def _fill_empty_sections(data: dict[str, Any], path: Path = ()) -> dict[str, Any]:
    """A section whose keys are all commented out reads as null; it means an empty section, as one left out does."""
    if not path:
        data = {"study": {}, "search_space": {}, **data}
    for key, value in data.items():
        info = field_at((*path, key))
        if info is None:
            continue
        optional = _takes(info, type(None))
        if value is None and not optional and (section_of(info.annotation) or (path == () and key == "search_space")):
            data[key] = {}
        elif isinstance(value, dict):
            _fill_empty_sections(value, (*path, key))
    return data


def _booleans_for_numbers(data: dict[str, Any], path: Path) -> list[Mistake]:
    """Pydantic reads true as 1; a person who writes `num_steps: true` means something else."""
    found = []
    for key, value in data.items():
        info = field_at((*path, key))
        if isinstance(value, dict):
            found += _booleans_for_numbers(value, (*path, key))
        elif isinstance(value, bool) and (_takes(info, int) or _takes(info, float)) and not _takes(info, bool):
            wanted = "a whole number" if _takes(info, int) else "a number"
            found.append(Mistake((*path, key), value, f"wants {wanted}; {_hint(info) or f'write {wanted}'}"))
    return found
