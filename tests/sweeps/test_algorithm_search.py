"""The algorithm as a searched key: conditional knobs, one field under several labels, every algorithm tried once."""

from pathlib import Path

import pytest
import yaml

from grpo_core.presets import PRESETS
from sweeps.config import load_sweep
from sweeps.lint import lint
from sweeps.mistakes import ConfigError
from sweeps.search_space import apply_params, covered_params, default_params
from sweeps.sections import SweepConfig
from sweeps.study import SweepStudy
from sweeps.study_folder import StudyFolder, write_json

SPACES = sorted((Path(__file__).parents[2] / "search_spaces").glob("*.yaml"))
ALGORITHMS = next(path for path in SPACES if path.name == "algorithms.yaml")


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_every_file_of_search_spaces_is_free_of_findings(path, profile):
    config = load_sweep(path, profile=profile if "profiles" in yaml.safe_load(path.read_text()) else None)
    assert lint(config) == []


def test_every_algorithm_is_covered_with_its_own_knobs():
    config = load_sweep(ALGORITHMS, profile="cpu")
    covered = covered_params(config)
    assert [params["algorithm.name"] for params in covered] == list(PRESETS)
    by_name = {params["algorithm.name"]: params for params in covered}
    assert by_name["gspo"] == {"algorithm.name": "gspo", "lr": 1e-4, "clip_range/gspo": 3e-4}
    assert by_name["dapo"]["algorithm.clip_range_high"] == 0.28
    assert by_name["ppo"]["algorithm.value_coef"] == 0.5 and "algorithm.value_coef" not in by_name["grpo"]
    for name, params in by_name.items():
        algorithm = apply_params(config.train, params).algorithm
        preset = PRESETS[name]
        shared = {"entropy_coef": 0.02, "updates_per_batch": 2}
        assert {knob: getattr(algorithm, knob) for knob in preset} == {
            **preset,
            **{k: shared[k] for k in shared & preset.keys()},
        }
    drawn = apply_params(config.train, {"algorithm.name": "gspo", "clip_range/gspo": 5e-4, "lr": 1e-4})
    assert drawn.algorithm.clip_range == 5e-4


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_whatever_a_study_draws_is_a_config_with_each_key_under_its_condition(path, tmp_path):
    config = load_sweep(path, ["study.n_trials=24"], profile="cpu" if path.stem != "smoke" else None)
    folder = StudyFolder(tmp_path / "s")
    folder.path.mkdir(parents=True)
    study = SweepStudy(config, folder)
    for _, _, params in run(study, folder, 24):
        algorithm = apply_params(config.train, params).algorithm
        if path == ALGORITHMS:
            assert ("clip_range/gspo" in params, "clip_range" in params) == (
                algorithm.name == "gspo",
                algorithm.name not in ("gspo", "cispo"),
            )
            assert (algorithm.clip_range <= 1e-3) == (algorithm.name == "gspo")
    study.close()


def test_options_reach_a_labelled_key():
    config = load_sweep(ALGORITHMS, ["search_space.clip_range/gspo.max=2e-3"], profile="cpu")
    assert config.search_space["clip_range/gspo"].max == 2e-3


def small(**changes) -> SweepConfig:
    given = {
        "study": {
            "name": "s",
            "n_trials": 6,
            "cover": ["algorithm.name"],
            "sampler": {"name": "random", "seed": 7},
            **changes.pop("study", {}),
        },
        "search_space": {
            "algorithm.name": {"values": ["grpo", "gspo", "cispo"]},
            "clip_range": {"min": 0.1, "max": 0.3, "when": {"algorithm.name": "grpo"}},
            "clip_range/gspo": {"min": 1e-4, "max": 1e-3, "log": True, "when": {"algorithm.name": "gspo"}},
        },
        "train": {"warm_start": {"num_steps": 5}, "algorithm": {"updates_per_batch": 2}},
        **changes,
    }
    return SweepConfig.model_validate(given)


def run(study: SweepStudy, folder: StudyFolder, number: int) -> list[tuple[int, str, dict]]:
    """Draws and ends trials until the study holds `number` of them."""
    drawn = []
    while study.num_attempts < number and (draw := study.draw()) is not None:
        trial = folder.trial(draw.number)
        trial.path.mkdir(parents=True, exist_ok=True)
        write_json(trial.path / "params.json", draw.record())
        outcome = {"number": draw.number, "state": "complete", "objective": 0.5, "constraint": 0.0}
        write_json(trial.path / "outcome.json", outcome)
        study.tell(outcome)
        drawn.append((draw.number, draw.source, draw.params))
    return drawn


def test_covered_settings_come_first_each_once_also_across_a_restart(tmp_path):
    config, folder = small(), StudyFolder(tmp_path / "s")
    folder.path.mkdir(parents=True)
    study = SweepStudy(config, folder)
    first = run(study, folder, 2)
    study.close()
    again = SweepStudy(config, folder)
    rest = run(again, folder, 6)
    again.close()
    assert first[0] == (0, "defaults", default_params(config))
    assert [(source, params["algorithm.name"]) for _, source, params in first + rest][:3] == [
        ("defaults", "grpo"),
        ("cover", "gspo"),
        ("cover", "cispo"),
    ]
    assert [source for _, source, _ in rest[1:]] == ["sampler"] * 3
    assert len({number for number, _, _ in first + rest}) == 6
    assert all(("clip_range" in params) == (params["algorithm.name"] == "grpo") for _, _, params in first + rest)


def test_covered_settings_are_not_pruned_for_falling_behind(tmp_path):
    config, folder = (
        small(study={"pruner": {"name": "threshold", "options": {"lower": 0.4}}}),
        StudyFolder(tmp_path / "s"),
    )
    folder.path.mkdir(parents=True)
    study = SweepStudy(config, folder)
    run(study, folder, 1)
    covered = study.draw()
    assert covered.source == "cover" and not study.report(covered.number, 20, 0.0)
    study.draw()
    drawn = study.draw()
    assert drawn.source == "sampler" and study.report(drawn.number, 20, 0.0)
    study.close()


@pytest.mark.parametrize(
    ("study", "space", "expected"),
    [
        (
            {"cover": ["algorithm.baseline"]},
            {},
            "study.cover=algorithm.baseline: covers a searched key with listed values",
        ),
        ({"cover": ["clip_range"]}, {}, "study.cover=clip_range: covers a key with values and without a condition"),
        (
            {"cover": ["algorithm.nam"]},
            {},
            "study.cover=algorithm.nam: covers a searched key with listed values; write it",
        ),
        ({"cover": ["algorithm.clip_range"]}, {}, "with listed values; write it clip_range"),
        (
            {"cover": ["algorithm.name"] * 2},
            {},
            "study.cover=algorithm.name: listed more than once;",
        ),
        ({"cover": "algorithm.name"}, {}, "study.cover=algorithm.name: wants a list; write [algorithm.name]"),
        ({"n_trials": 2}, {}, "study.n_trials=2: 2 settings and trial 0 are more than n_trials; raise it to 3 or more"),
        (
            {},
            {"clip_range/gspo": {"min": 1e-3, "max": 1e-2, "when": {"algorithm.name": "gspo"}}},
            "search_space.clip_range/gspo: the covered trial with algorithm.name=gspo runs algorithm.clip_range=0.0003",
        ),
        (
            {},
            {"clip_range/gspo": {"min": 1e-4, "max": 1e-3, "when": {"algorithm.name": ["gspo", "grpo"]}}},
            "search_space.clip_range/gspo: the same field as search_space.clip_range; keep one of the two, or give",
        ),
        (
            {},
            {"algorithm.name": {"values": ["grpo", "grop"]}},
            "not an algorithm; use one of grpo, dr_grpo, dapo, gspo,",
        ),
        (
            {"cover": ["group_size", "rollout.completions_per_step"]},
            {"group_size": {"values": [8, 16]}, "rollout.completions_per_step": {"values": [120, 128]}},
            "search_space.group_size=16: with rollout.completions_per_step=120: ",
        ),
        ({"cover": ["group_size"]}, {"group_size": {"valuez": [4]}}, "search_space.group_size.valuez: unknown key"),
        ({"cover": ["group_size"]}, {"group_size": {"values": []}}, "search_space.group_size.values=[]: no values;"),
    ],
)
def test_mistakes_about_covered_and_labelled_keys(tmp_path, study, space, expected):
    given = small().dump()
    given.pop("profile"), given.pop("profile_reason"), given.pop("source")
    given["study"] |= study
    given["search_space"] |= space
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(given))
    with pytest.raises(ConfigError) as caught:
        load_sweep(file)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ("{name: ppp}", "train.algorithm.name=ppp: not an algorithm; use one of grpo, dr_grpo, dapo, gspo, ppo"),
        ("{name: grpo, vf_coef: 0.5}", "train.algorithm.vf_coef"),
        ("{name: grpo, baseline: value}", "a value head judges each token; use credit: token"),
        ("{name: ppo, value_coef: 0}", "the value head of baseline value would never learn"),
        ("{name: ppo, gae_lambda: 1.5}", "train.algorithm.gae_lambda=1.5: must be at most 1"),
        ("{overlong_penalty: 1.0, overlong_buffer_tokens: 64}", "not shorter than rollout.max_new_tokens=64"),
        ("{kl_target: 0.1}", "it multiplies kl_coef, which is 0"),
        ("{dual_clip: 1.1}", "not above the upper clip"),
        ("{updates_per_batch: 4, num_minibatches: 3}", "use one of 1, 2, 4"),
        ("{group_size: 64, updates_per_batch: 4, num_minibatches: 4}", "can't be cut so; use one of 1, 2"),
    ],
)
def test_a_knob_that_cannot_be_is_named_before_anything_starts(tmp_path, knobs, expected):
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "study: {name: s, n_trials: 4}\nsearch_space: {lr: {min: 1e-5, max: 1e-4}}\n"
        f"train:\n  optim: {{lr: 5e-5}}\n  algorithm: {knobs}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_sweep(file)
    assert expected in str(caught.value)
    assert "sweep.yaml:5: " in str(caught.value)
