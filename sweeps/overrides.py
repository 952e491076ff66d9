"""`--set KEY=VALUE`: one key of a sweep file replaced from the command line."""

from typing import Any, get_origin

from sweeps import yaml_source
from sweeps.known_keys import field_at, known_keys, suggestion
from sweeps.mistakes import NOTHING, ConfigError, Path, Problem, dotted
from sweeps.sections import Dimension

OPTION = "--set"


def parse_override(text: str) -> tuple[Path, Any]:
    """Path and value of `KEY=VALUE`, the value read as YAML; raises ConfigError for a key that does not exist."""
    key, equals, value_text = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise _error(text, NOTHING, "not of the form KEY=VALUE; write for example train.num_steps=20")
    path = _split(key)
    _check_known(key, path)
    try:
        value = yaml_source.parse_value(value_text, OPTION)
    except ConfigError as error:
        raise _error(key, value_text, error.problems[0].message) from None
    # A shell has no quotes left to say that 2024 is a name.
    info = field_at(path)
    is_text = info is not None and info.annotation in (str, str | None)
    return path, value_text if is_text and value is not None and not isinstance(value, dict | list) else value


def put(data: dict[str, Any], path: Path, value: Any) -> None:
    """Sets the value at a path, making the mappings on the way."""
    for part in path[:-1]:
        if not isinstance(data.get(str(part)), dict):
            data[str(part)] = {}
        data = data[str(part)]
    data[str(path[-1])] = value


def _split(key: str) -> Path:
    """The path of a dotted key; a search-space key has dots of its own."""
    parts = key.split(".")
    if parts[0] != "search_space" or len(parts) < 3:
        return tuple(parts)
    if parts[-1] in Dimension.model_fields:
        return ("search_space", ".".join(parts[1:-1]), parts[-1])
    return ("search_space", ".".join(parts[1:]))


def _check_known(key: str, path: Path) -> None:
    if path[0] == "profiles":
        raise _error(key, NOTHING, "a profile is part of the file; set the key itself, without profiles.NAME")
    if path[0] == "search_space" and len(path) > 1:
        return
    for end in range(1, len(path) + 1):
        section = field_at(path[: end - 1])
        if section is not None and get_origin(section.annotation) is dict:
            return
        if dotted(path[:end]) not in known_keys():
            raise _error(key, NOTHING, f"unknown key; {suggestion(path[:end])}")


def _error(key: str, value: Any, message: str) -> ConfigError:
    return ConfigError([Problem(key, None, value, message, OPTION)])
