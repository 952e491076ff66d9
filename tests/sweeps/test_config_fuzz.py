"""Whatever stands in a file or an option, loading gives a config that works, or ConfigError."""

import copy
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweeps import yaml_source
from sweeps.config import ConfigError, load_sweep
from sweeps.lint import lint
from sweeps.search_space import apply_params, default_params

VALID: dict[str, Any] = {
    "study": {
        "name": "s",
        "n_trials": 4,
        "timeout": "4h",
        "objective": {"metric": "eval/accuracy", "direction": "maximize"},
        "sampler": {"name": "tpe", "seed": 1, "options": {}},
        "pruner": {"name": "hyperband", "min_steps": 10},
        "cover": ["algorithm.name"],
    },
    "search_space": {
        "group_size": {"values": [4, 8, 16]},
        "clip_range": {"min": 0.1, "max": 0.3, "step": 0.1},
        "lr": {"min": 3e-5, "max": 3e-3, "log": True},
        "algorithm.name": {"values": ["grpo", "dapo"]},
        "algorithm.kl_coef": {"min": 0.0, "max": 1.0, "when": {"algorithm.name": "dapo"}},
        "reward_scale": {"min": 0.5, "max": 2.0, "when": {"algorithm.name": ["grpo"]}},
        "reward_scale/dapo": {"values": [1.0, 4.0], "when": {"algorithm.name": "dapo"}},
    },
    "stability": {"nonfinite": "stop", "entropy": {"min": 0.5, "max": 1.0}, "reward_collapse": {"drop": 0.5}},
    "train": {
        "num_steps": 60,
        "algorithm": {"group_size": 8},
        "optim": {"lr": 1e-4},
        "task": {"reward_weights": {"a": 1}},
    },
    "profiles": {"cpu": {"train": {"seed": 1}}},
    "resources": {"processes_per_trial": 1},
}
oddities = st.sampled_from(
    [
        None,
        True,
        "",
        "off",
        "1e-5",
        0,
        -1,
        10**18,
        1e308,
        1e-308,
        float("inf"),
        float("nan"),
        [],
        {},
        [None],
        {"": {}},
        "a.b",
    ]
)
odd_values = oddities | st.lists(oddities, max_size=3) | st.dictionaries(st.text(max_size=5), oddities, max_size=2)


def places(data: Any, path: tuple = ()) -> list[tuple]:
    keys = data.keys() if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    return [path, *(place for key in keys for place in places(data[key], (*path, key)))]


def load_any(folder: Path, content: bytes, options: tuple[str, ...] = ()) -> None:
    """Loads what may be anything: a config that works, or ConfigError with a text, and nothing else."""
    path = folder / "any.yaml"
    path.write_bytes(content)
    try:
        config = load_sweep(path, options, profile=None)
    except ConfigError as error:
        assert error.problems and all(problem.message for problem in error.problems)
        assert len(str(error).splitlines()) >= len(error.problems)
        return
    lint(config)
    apply_params(config.train, default_params(config))


anything = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@anything
@given(
    content=st.binary(max_size=200)
    | st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,?\n\t 01.e~<", max_size=120).map(str.encode)
)
def test_no_text_raises_anything_but_a_config_error(tmp_path, content):
    load_any(tmp_path, content)


@anything
@given(changes=st.lists(st.tuples(st.sampled_from(places(VALID)), odd_values), min_size=1, max_size=3), data=st.data())
def test_no_odd_value_raises_anything_but_a_config_error(tmp_path, changes, data):
    document: Any = copy.deepcopy(VALID)
    for path, value in changes:
        if not path:
            continue
        parent = document
        for key in path[:-1]:
            parent = (
                parent[key]
                if isinstance(parent, dict | list)
                and key in (parent if isinstance(parent, dict) else range(len(parent)))
                else {}
            )
        if isinstance(parent, dict):
            parent[path[-1]] = value
    load_any(tmp_path, yaml_source.dump(document).encode())


@anything
@given(
    key=st.sampled_from([".".join(map(str, place)) for place in places(VALID)]) | st.text(max_size=20),
    value=st.text(alphabet="ab:-[]{}&*!'\"01.e~ ", max_size=20),
)
def test_no_option_raises_anything_but_a_config_error(tmp_path, key, value):
    load_any(tmp_path, yaml_source.dump(VALID).encode(), (f"{key}={value}",))
