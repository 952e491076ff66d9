import pytest

from reports.outcome import counts, figure_rows, setting_rows, tuning_gain, verdict

from .small_study import pruned, study, trial

PREFLIGHT = {"eval/accuracy": 0.17, "eval/accuracy_se": 0.015, "eval/accuracy_greedy": 0.0, "num_problems": 256}
FINAL = {
    "split": "test",
    "num_problems": 512,
    "samples_per_problem": 4,
    "base": {"eval/accuracy": 0.17, "eval/accuracy_se": 0.0153, "eval/accuracy_greedy": 0.01},
    "winner": {"eval/accuracy": 0.52, "eval/accuracy_se": 0.0204, "eval/accuracy_greedy": 0.8},
    "difference": {"mean": 0.35, "se": 0.0306},
    "samples": [],
}


def test_winner_is_named_with_test_figures_and_intervals():
    found = verdict(study(trial(0, 0.3, 0.01), trial(1, 0.5, 0.01), final=FINAL, preflight=PREFLIGHT))
    assert found.kind == "winner"
    assert found.headline == (
        "Trial 1 is best: eval accuracy 0.52 ± 0.04 on test vs 0.17 ± 0.03 for the warm-started policy, "
        "difference +0.35 [0.29, 0.41]."
    )


def test_without_a_warm_start_the_base_policy_is_called_so():
    found = study(trial(0, 0.5, 0.01), final=FINAL, config={"train": {"warm_start": {"num_steps": 0}}})
    assert "for the base policy" in verdict(found).headline


def test_without_test_figures_the_validation_ones_are_given():
    found = verdict(study(trial(0, 0.5, 0.01), preflight=PREFLIGHT))
    assert "0.50 ± 0.02 on validation vs 0.17 ± 0.03 for the warm-started policy" in found.headline
    assert "not measured on the test problems" in found.headline


def test_s22_leaders_whose_intervals_overlap_are_called_a_tie():
    found = verdict(study(trial(0, 0.3, 0.01), trial(1, 0.5, 0.02), trial(2, 0.49, 0.02), final=FINAL))
    assert found.kind == "tie"
    assert found.headline.startswith("Tie between 2 trials, of which trial 1 scored highest: ")
    assert "overlaps with that of trial 2" in found.details[0]


@pytest.mark.parametrize(
    ("best", "se", "text"),
    [
        (0.50, 0.01, "by +0.20 [0.17, 0.23]."),
        (0.32, 0.01, "by +0.02 [-0.01, 0.05]. The interval includes 0, so the gain is not proven."),
    ],
)
def test_gain_over_the_defaults(best: float, se: float, text: str):
    gain = tuning_gain(study(trial(0, 0.3, 0.01, source="defaults"), trial(1, best, se)))
    assert gain is not None and gain.endswith(text)


def test_gain_is_none_where_the_defaults_win_or_did_not_complete():
    assert "found nothing better" in (tuning_gain(study(trial(0, 0.5, source="defaults"), trial(1, 0.4))) or "")
    stopped = study(pruned(0, step=9, source="defaults"), trial(1, 0.4))
    assert "did not complete: pruned at step 9" in (tuning_gain(stopped) or "")


def test_running_study_says_how_far_it_is():
    found = verdict(study(trial(0, 0.5, 0.01), trial(1, state="running"), is_running=True))
    assert found.kind == "running"
    assert (
        found.headline == "Running, 1 of 2 trials done. Best so far: trial 0, eval accuracy 0.50 ± 0.02 on validation."
    )


def test_all_pruned_is_said_with_the_rules():
    found = verdict(study(pruned(0), pruned(1), pruned(2, rule="grad_norm")))
    assert found.kind == "none"
    assert found.headline == "All 3 trials were pruned (2 by entropy and 1 by grad_norm), so there is no winner."


def test_all_failed_and_none_started():
    crash = {"rule": "crash", "step": 3, "message": "rank 0 ended by signal 9"}
    failed = study(trial(0, state="failed", reason=crash))
    assert verdict(failed).headline == "All 1 trial failed, so there is no winner. The first: rank 0 ended by signal 9."
    refused = study(controller={"state": "failed", "message": "preflight: entropy 1.4 is above 1.0."})
    assert verdict(refused).headline == "No trial has started: preflight: entropy 1.4 is above 1.0."


def test_a_study_that_ended_early_says_so():
    done = {"state": "done", "message": "the time budget of 4 h is spent"}
    found = study(trial(0, 0.5), controller=done, config={"study": {"n_trials": 16}})
    assert verdict(found).details[-1] == "The study ended with 1 of 16 trials done (the time budget of 4 h is spent)."


def test_settings_of_the_best_trial_beside_the_defaults():
    params = {"group_size": 16, "clip_range": 0.2, "reward_scale": 1.5, "lr": 3e-4}
    rows = setting_rows(study(trial(0, 0.3, source="defaults"), trial(1, 0.5, params=params)))
    assert [(row.name, row.best, row.default, row.searched, row.changed) for row in rows] == [
        ("group_size", "16", "8", "4, 8, 16", True),
        ("clip_range", "0.2", "0.2", "0.1 to 0.3", False),
        ("reward_scale", "1.5", "1", "0.5 to 2", True),
        ("lr", "3e-4", "1e-4", "3e-5 to 3e-3, log", True),
    ]


def test_figures_on_test_and_validation():
    found = study(trial(0, 0.3, 0.01, source="defaults"), trial(1, 0.5, 0.01), final=FINAL, preflight=PREFLIGHT)
    assert [(row.policy, row.split, row.sampled, row.greedy) for row in figure_rows(found)] == [
        ("best (trial 1)", "512 test", "0.52 ± 0.04", "0.80"),
        ("warm-started", "512 test", "0.17 ± 0.03", "0.01"),
        ("difference, paired", "512 test", "+0.35 [0.29, 0.41]", "\N{EN DASH}"),
        ("best (trial 1)", "256 validation", "0.50 ± 0.02", "\N{EN DASH}"),
        ("defaults (trial 0)", "256 validation", "0.30 ± 0.02", "\N{EN DASH}"),
        ("warm-started", "256 validation", "0.17 ± 0.03", "0.00"),
    ]


def test_counts_by_outcome_and_rule():
    rows = dict(counts(study(trial(0, 0.5), pruned(1), pruned(2, rule="pruner"), trial(3, state="interrupted"))))
    assert rows["Complete"] == "1"
    assert rows["Pruned"] == "2: 1 by entropy and 1 by pruner"
    assert rows["Interrupted"] == "1"
    assert rows["Wall time"] == "40 s"
    assert rows["Time in trials"] == "2 min 40 s"
