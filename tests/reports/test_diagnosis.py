import pytest

from reports import learning_findings, stop_findings
from reports.diagnosis import RULES, diagnose

from .small_study import curve, pruned, study, trial


def with_params(**changed):
    return {"group_size": 8, "clip_range": 0.2, "reward_scale": 1.0, "lr": 1e-4, **changed}


def test_a_healthy_study_has_no_finding():
    healthy = {
        "rollout/truncated_frac": curve([0.01] * 60),
        "groups/dead_frac": curve([0.2] * 60),
        "optim/grad_norm": curve([0.4] * 60),
        "policy/clip_frac": curve([0.05] * 60),
        "eval/accuracy": curve([0.2, 0.45, 0.5, 0.5], first=15, every=15),
    }
    assert diagnose(study(trial(0, 0.5, 0.02, curves=healthy))) == []


def test_every_rule_copes_with_an_empty_study():
    assert [rule(study()) for rule in RULES] == [None] * len(RULES)


def test_entropy_over_the_band_is_laid_to_the_setting_that_separates():
    finding = stop_findings.entropy_stops(
        study(
            trial(0, 0.4, params=with_params(lr=1e-4)),
            trial(1, 0.5, params=with_params(lr=3e-4)),
            pruned(2, step=9, params=with_params(lr=2e-3)),
            pruned(3, step=15, params=with_params(lr=1e-3)),
        )
    )
    assert finding is not None
    assert finding.symptom == "The entropy ran over the upper limit in 2 trials (stopped at step 9 and 15)."
    assert finding.cause == "lr of 1e-3 or more: so it was in 2 of these 2 trials, and in 0 of the 2 complete ones."
    assert finding.change.endswith("in the search space, lower lr.max to about 1e-3.")


def test_entropy_under_the_band_asks_for_the_opposite():
    finding = stop_findings.entropy_stops(study(trial(0, 0.4), pruned(1, value=0.4)))
    assert finding is not None
    assert "fell under the lower limit" in finding.symptom
    assert finding.change.startswith("Raise algorithm.entropy_coef")


@pytest.mark.parametrize(
    ("rule", "finding"),
    [
        ("reward_collapse", stop_findings.reward_collapse),
        ("nonfinite", stop_findings.not_finite),
        ("grad_norm", stop_findings.gradient_norm),
        ("length", stop_findings.other_rules),
    ],
)
def test_each_guard_rule_has_its_finding(rule: str, finding):
    assert finding(study(trial(0, 0.4), pruned(7, rule=rule))) is not None
    assert finding(study(trial(0, 0.4), pruned(7, rule="entropy"))) is None


def test_failed_trials_point_to_the_log():
    crash = {"rule": "crash", "step": 3, "message": "rank 0 ended by signal 9 (SIGKILL)"}
    finding = stop_findings.failed_trials(study(trial(11, state="failed", reason=crash)))
    assert finding is not None
    assert finding.symptom == "1 trial failed (11): rank 0 ended by signal 9 (SIGKILL)"
    assert "trials/0011/trial.log" in finding.change


def test_t11_truncation_is_told_from_a_bad_policy():
    curves = {"rollout/truncated_frac": curve([1.0] * 10), "reward/mean": curve([0.0] * 10)}
    finding = learning_findings.truncation(study(trial(0, 0.0, curves=curves)))
    assert finding is not None
    assert finding.symptom == "100% of the completions reach the limit of 64 tokens, and no trial gets any reward."
    assert finding.change.startswith("Raise rollout.max_new_tokens (now 64)")


@pytest.mark.parametrize(("entropy", "words"), [(0.52, "close to the lower"), (0.75, None), (1.2, "beyond the upper")])
def test_entropy_of_the_base_policy_near_the_band(entropy: float, words: str | None):
    finding = learning_findings.entropy_near_limit(study(preflight={"policy/entropy": entropy}))
    assert (finding is None) if words is None else (finding is not None and words in finding.symptom)


@pytest.mark.parametrize(("reward", "word"), [(0.1, "hard"), (0.9, "easy")])
def test_dead_groups_are_too_hard_or_too_easy(reward: float, word: str):
    curves = {"groups/dead_frac": curve([0.1, 0.1, 0.1, 0.8]), "reward/mean": curve([reward] * 4)}
    finding = learning_findings.dead_groups(study(trial(0, 0.5, curves=curves)))
    assert finding is not None
    assert f"too {word} for a group of 8" in finding.cause


def test_best_at_the_edge_names_the_side():
    finding = learning_findings.best_at_edge(study(trial(0, 0.5, params=with_params(lr=2.9e-3, group_size=4))))
    assert finding is not None
    assert finding.change == "Extend the range: lower the min of group_size and raise the max of lr."


def test_still_rising_and_past_its_peak():
    rising = trial(0, 0.5, 0.02, curves={"eval/accuracy": curve([0.2, 0.3, 0.4, 0.5], first=15, every=15)})
    assert learning_findings.still_rising(study(rising)) is not None
    assert learning_findings.past_its_peak(study(rising)) is None
    fallen = trial(0, 0.4, 0.02, curves={"eval/accuracy": curve([0.2, 0.5, 0.45, 0.4], first=15, every=15)})
    finding = learning_findings.past_its_peak(study(fallen))
    assert finding is not None
    assert finding.symptom == "The best trial was better at step 30 (0.50) than at its end (0.40)."
    assert learning_findings.still_rising(study(fallen)) is None


def test_clip_that_never_clips():
    def clipped(fraction: float):
        return study(trial(0, 0.5, curves={"policy/clip_frac": curve([fraction] * 8)}))

    assert learning_findings.clip_never_used(clipped(0.01)) is None
    finding = learning_findings.clip_never_used(clipped(0.0))
    assert finding is not None
    assert finding.symptom.startswith("clip_range is searched, but hardly any ratio is ever clipped")


@pytest.mark.parametrize(("accuracy", "found"), [(0.19, True), (0.30, False), (0.05, True)])
def test_no_learning_when_the_gain_is_not_proven(accuracy: float, found: bool):
    preflight = {"eval/accuracy": 0.17, "eval/accuracy_se": 0.02}
    assert (learning_findings.no_learning(study(trial(0, accuracy, 0.02), preflight=preflight)) is not None) is found


@pytest.mark.parametrize(("test", "found"), [(0.48, False), (0.40, True)])
def test_a_winner_by_luck_scores_less_on_test(test: float, found: bool):
    final = {"winner": {"eval/accuracy": test, "eval/accuracy_se": 0.015}}
    assert (learning_findings.selection_luck(study(trial(0, 0.5, 0.02), final=final)) is not None) is found


def test_updates_that_are_always_clipped():
    finding = stop_findings.gradient_norm(study(trial(0, 0.5, curves={"optim/grad_norm": curve([4.0] * 10)})))
    assert finding is not None
    assert finding.symptom == "In the best trial 100% of the updates are cut to optim.max_grad_norm=1.0."
