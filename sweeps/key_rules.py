"""What can be wrong with the keys that a search space names: fields that do not exist, twins, conditions, coverage."""

import difflib

from sweeps.known_keys import SYNONYMS
from sweeps.mistakes import NOTHING, Mistake, show
from sweeps.search_space import ancestors, as_choices, conditions, path_of, points
from sweeps.sections import Dimension
from sweeps.train_fields import LABEL, SHORT_NAMES, field_of, has_sound_label, similar_keys


def key_mistakes(key: str, space: dict[str, Dimension]) -> list[Mistake]:
    """Why a key cannot be searched, or not beside the others."""
    path = ("search_space", key)
    if path_of(key) == "compute.num_ranks":
        return [
            Mistake(path, NOTHING, "belongs to the machine, not to the settings; set resources.processes_per_trial")
        ]
    if not has_sound_label(key):
        rule = (
            f"a label is one word of letters, digits, _ and -; write for example {key.partition(LABEL)[0]}{LABEL}gspo"
        )
        return [Mistake(path, NOTHING, rule)]
    if field_of(key) is None:
        near = similar_keys(SYNONYMS.get(key, key))
        fix = f"did you mean {' or '.join(near)}?" if near else f"use {', '.join(SHORT_NAMES)} or a path as optim.beta1"
        return [Mistake(path, NOTHING, f"not a field of train; {fix}")]
    twins = [other for other in space if other != key and path_of(other) == path_of(key)]
    for twin in twins:
        if list(space).index(key) > list(space).index(twin) and not _exclude(key, twin, space):
            rule = (
                f"the same field as search_space.{twin}; keep one of the two, or give them conditions (when) of which "
                "at most one holds"
            )
            return [Mistake(path, NOTHING, rule)]
    return []


def _exclude(one: str, other: str, space: dict[str, Dimension]) -> bool:
    """Whether the conditions of two keys want different values of one key, so that they never exist together."""
    first, second = conditions(one, space), conditions(other, space)
    return any(not any(value in second[key] for value in first[key]) for key in first.keys() & second.keys())


def condition_mistakes(key: str, space: dict[str, Dimension], ignored: frozenset[str]) -> list[Mistake]:
    """Conditions of a key that read no searched key, run in a circle, or never hold."""
    mistakes = []
    for parent, wanted in space[key].when.items():
        path = ("search_space", key, "when", parent)
        if parent in ignored:
            continue
        if parent not in space:
            same = next((other for other in space if path_of(other) == path_of(parent)), None)
            fix = f"write it {same}" if same else f"add {parent} to search_space, or drop the condition"
            mistakes.append(Mistake(path, NOTHING, f"a condition reads a searched key of this file; {fix}"))
        elif key in ancestors(parent, space):
            mistakes.append(Mistake(path, NOTHING, "the conditions run in a circle; drop one of them"))
        else:
            possible = points(parent, space[parent]) if field_of(parent) else None
            missing = [value for value in as_choices(wanted) if possible is not None and value not in possible]
            if missing or not as_choices(wanted):
                rule = (
                    f"search_space.{parent} never has that value; use one of {show(possible or space[parent].show())}"
                )
                mistakes.append(Mistake(path, missing[0] if len(missing) == 1 else wanted, rule))
    torn = [parent for parent, values in conditions(key, space).items() if not values]
    if torn and not mistakes:
        rule = f"never holds: with the conditions of its parents it wants two values of {torn[0]} at once; drop one"
        mistakes.append(Mistake(("search_space", key, "when"), NOTHING, rule))
    return mistakes


def cover_mistakes(covered: tuple[str, ...], space: dict[str, Dimension], ignored: frozenset[str]) -> list[Mistake]:
    """Entries of `study.cover` that are no key of the space, or none that can be covered."""
    path = ("study", "cover")
    mistakes = []
    for key in dict.fromkeys(key for key in covered if key not in ignored):
        if key not in space:
            same = next((other for other in space if path_of(other) == path_of(key)), None)
            near = [same] if same else difflib.get_close_matches(key, space, n=1)
            fix = f"write it {near[0]}" if near else "add it to search_space, or drop it"
            mistakes.append(Mistake(path, key, f"covers a searched key with listed values; {fix}"))
        elif space[key].values is None or space[key].when:
            rule = "covers a key with values and without a condition; list its values, or drop it"
            mistakes.append(Mistake(path, key, rule))
        elif covered.count(key) > 1:
            mistakes.append(Mistake(path, key, "listed more than once; list each key once"))
    return mistakes
