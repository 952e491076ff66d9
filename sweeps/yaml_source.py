"""YAML text as plain data that remembers the line of every key.

Scalars follow the core schema of YAML 1.2, since YAML 1.1 reads `1e-5` as a string, `off` as false, `010` as 8 and
`12:30` as 750. Here they are a number, the word `off`, 10, and the string `12:30`.
"""

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from sweeps.mistakes import NOTHING, ConfigError, Path, Problem, dotted

MAX_BYTES = 1_000_000
MAX_NODES = 10_000
MAX_DEPTH = 50
MAX_INTEGER = 2**63

_CORE = "tag:yaml.org,2002:"
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT = re.compile(r"^(?:[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_DIGITS = list("-+0123456789.")


def _add_core_schema(target: Any) -> None:
    target.yaml_implicit_resolvers = {}
    target.add_implicit_resolver(f"{_CORE}null", _NULL, ["~", "n", "N", ""])
    target.add_implicit_resolver(f"{_CORE}bool", _BOOL, list("tTfF"))
    target.add_implicit_resolver(f"{_CORE}int", _INT, _DIGITS)
    target.add_implicit_resolver(f"{_CORE}float", _FLOAT, _DIGITS)
    target.add_implicit_resolver(f"{_CORE}merge", re.compile(r"^<<$"), ["<"])


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2."""


class _Dumper(yaml.SafeDumper):
    """Writes text that `parse` reads back to the same data."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_add_core_schema(_Loader)
_add_core_schema(_Dumper)


@dataclass(frozen=True)
class Source:
    """What a file says: `data`, the 1-based line of every key path, and the mistakes of its YAML."""

    data: dict[str, Any]
    lines: dict[Path, int]
    problems: list[Problem]


def read(path: str | FilePath) -> Source:
    """The content of a YAML file; raises ConfigError where there is no mapping to be had from it."""
    name = str(path)

    def fail(message: str) -> ConfigError:
        return ConfigError([Problem("", None, NOTHING, message, source=name)])

    try:
        info = FilePath(path).stat()
        if stat.S_ISDIR(info.st_mode):
            raise fail("this is a folder; name the YAML file in it")
        if not stat.S_ISREG(info.st_mode):
            raise fail("not a regular file; name a YAML file")
        if info.st_size > MAX_BYTES:
            raise fail(f"{info.st_size} bytes are too many for a sweep file; use at most {MAX_BYTES}")
        text = FilePath(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise fail(f"not UTF-8 at byte {error.start}; save the file as UTF-8 text") from None
    except FileNotFoundError:
        raise fail("no such file; check the path") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise fail(f"cannot be read ({reason}); check path and permissions") from None
    return parse(text, name)


def parse(text: str, name: str = "") -> Source:
    """The mapping in a YAML text; raises ConfigError where the text is not one YAML mapping."""
    root = _compose(text, name)
    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag == f"{_CORE}null"):
        raise ConfigError([Problem("", None, NOTHING, "empty; a sweep file needs study, search_space and train", name)])
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1
        message = "the top level is not a mapping; start with `study:`, `search_space:` and `train:`"
        raise ConfigError([Problem("", line, NOTHING, message, name)])
    builder = _Builder(name)
    data = builder.build(root, ())
    return Source(data, builder.lines, builder.problems)


def parse_value(text: str, name: str) -> Any:
    """The value of one `--set KEY=VALUE`; raises ConfigError where it is not YAML."""
    root = _compose(text, name)
    if root is None:
        return None
    builder = _Builder(name)
    value = builder.build(root, ())
    if builder.problems:
        raise ConfigError([Problem(p.key, None, p.value, p.message, name) for p in builder.problems])
    return value


def dump(data: Any) -> str:
    """YAML text of JSON-like data, which `parse` reads back to the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120)


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        what = ", ".join(part for part in (error.context, error.problem) if part)
        hint = "indent with spaces, not tabs" if "\\t" in what else "check indentation, colons and quotes there"
        problem = Problem("", line, NOTHING, f"not valid YAML ({what}); {hint}", name)
    except yaml.YAMLError as error:
        position = getattr(error, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
        reason = getattr(error, "reason", None) or str(error)
        problem = Problem("", line, NOTHING, f"not valid YAML ({reason}); remove the character", name)
    except RecursionError:
        problem = Problem("", None, NOTHING, f"nested too deep; use at most {MAX_DEPTH} levels", name)
    raise ConfigError([problem])


@dataclass
class _Builder:
    """Turns nodes into data, collecting lines and mistakes; bounds what aliases can blow up."""

    name: str
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_nodes: int = 0

    def fail(self, path: Path, node: yaml.Node, value: Any, message: str) -> None:
        self.problems.append(Problem(dotted(path), node.start_mark.line + 1, value, message, self.name))

    def stop(self, path: Path, node: yaml.Node, message: str) -> ConfigError:
        return ConfigError([Problem(dotted(path), node.start_mark.line + 1, NOTHING, message, self.name)])

    def build(self, node: yaml.Node, path: Path) -> Any:
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            raise self.stop(
                path[:1], node, f"more than {MAX_NODES} values once aliases are expanded; use fewer aliases"
            )
        if len(path) > MAX_DEPTH:
            raise self.stop(path[:1], node, f"nested too deep, or an alias to itself; use at most {MAX_DEPTH} levels")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        if node.tag not in (f"{_CORE}map", f"{_CORE}seq"):
            self.fail(path, node, node.tag, "tags are not used here; remove the tag")
        if isinstance(node, yaml.SequenceNode):
            for place, item in enumerate(node.value):
                self.lines[(*path, place)] = item.start_mark.line + 1
            return [self.build(item, (*path, place)) for place, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode), "a node is a scalar, a sequence or a mapping"
        return self.mapping(node, path)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first_line: dict[str, int] = {}
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_CORE}merge":
                merged += self.merged_pairs(value_node, path, 0)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.fail(path, key_node, NOTHING, "a key is a list or a mapping; use a plain word as key")
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in first_line:
                rule = f"duplicate key, already given in line {first_line[key]}; keep one of the two"
                self.fail((*path, key), key_node, NOTHING, rule)
                continue
            first_line[key] = line
            self.lines[(*path, key)] = line
            data[key] = self.build(value_node, (*path, key))
        for key_node, value_node in merged:
            key = key_node.value
            if isinstance(key_node, yaml.ScalarNode) and key not in data:
                self.lines[(*path, key)] = key_node.start_mark.line + 1
                data[key] = self.build(value_node, (*path, key))
        return data

    def merged_pairs(self, node: yaml.Node, path: Path, depth: int) -> list[tuple[yaml.Node, yaml.Node]]:
        """Key and value nodes that `<<: node` brings, the earlier ones winning."""
        if depth > MAX_DEPTH:
            raise self.stop(path, node, "a merge key reaches itself; remove it")
        if isinstance(node, yaml.MappingNode):
            return list(self.expanded(node, path, depth))
        if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.MappingNode) for item in node.value):
            return [pair for item in node.value for pair in self.expanded(item, path, depth)]
        self.fail((*path, "<<"), node, NOTHING, "merges a mapping or a list of mappings; use `<<: *name`")
        return []

    def expanded(self, node: yaml.MappingNode, path: Path, depth: int) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        inner: list[tuple[yaml.Node, yaml.Node]] = []
        for key_node, value_node in node.value:
            self.num_nodes += 1
            if self.num_nodes > MAX_NODES:
                raise self.stop(path[:1], node, f"more than {MAX_NODES} values once merged; use fewer merge keys")
            if key_node.tag == f"{_CORE}merge":
                inner += self.merged_pairs(value_node, path, depth + 1)
            else:
                yield key_node, value_node
        yield from inner

    def scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text, tag = node.value, node.tag.removeprefix(_CORE)
        if tag == "null":
            return None
        if tag == "bool" and _BOOL.match(text):
            return text.lower() == "true"
        if tag == "int" and _INT.match(text):
            return self.integer(node, path)
        if tag == "float" and _FLOAT.match(text):
            return float(text.lower().replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
        if tag not in ("str", "merge"):
            self.fail(path, node, text, f"tagged {node.tag}, which is not used here; remove the tag")
        return text

    def integer(self, node: yaml.ScalarNode, path: Path) -> int:
        text = node.value.replace("_", "")
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        if len(text) > 30 or abs(int(text, base)) >= MAX_INTEGER:
            self.fail(path, node, text, "a whole number this long fits no setting; use less than 2**63")
            return 0
        return int(text, base)
