from grpo_core.metric_names import OPTIM_ROLLBACKS
from reports.curves import curve_figures
from reports.diagnosis import diagnose
from reports.rollback_marks import rolled_back, shrunk

from .small_study import curve, study, trial

RETURNED = {
    "eval/accuracy": curve([0.2, 0.5, 0.4, 0.3, 0.2, 0.5], first=10, every=10),
    OPTIM_ROLLBACKS: curve([1.0], first=50),
}
CONFIG = {"train": {"rollback": {"metric": "eval/accuracy", "after_drops": 3, "lr_factor": 0.5, "max_times": 2}}}


def test_a_return_is_marked_on_the_curve_at_its_step() -> None:
    found = study(trial(0, 0.5), trial(1, 0.5, curves=RETURNED), config=CONFIG)
    [figure] = [each for each in curve_figures(found) if each.name == "curve-eval-accuracy"]
    [mark] = [trace for trace in figure.data if trace["marker"].get("symbol") == "triangle-left"]
    assert (mark["x"], mark["y"], mark["meta"]["trial"]) == ([50], [0.2], 1)
    assert "back to the best checkpoint</b>, learning rate times 0.5" in mark["hovertemplate"]


def test_the_diagnosis_tells_of_it_and_what_to_change() -> None:
    found = study(trial(0, 0.5), trial(1, 0.5, curves=RETURNED), config=CONFIG)
    finding = rolled_back(found)
    assert finding is not None and finding in diagnose(found)
    assert finding.symptom == "Trial 1 went back to the best checkpoint, 1 time in all (◁ in the charts)."
    assert finding.cause.startswith("eval/accuracy fell 3 evaluations in a row")
    assert rolled_back(study(trial(0, 0.5))) is None


def test_a_shrunken_micro_batch_is_told_with_the_setting_that_fits() -> None:
    changes = {"optim.micro_batch_size": 16, "rollout.chunk_size": 64}
    finding = shrunk(study(trial(0, 0.5), trial(3, 0.5, changes=changes)))
    assert finding is not None
    assert finding.symptom == "Trial 3 ran out of memory and went on with optim.micro_batch_size 16."
    assert finding.change.startswith("Set optim.micro_batch_size: 16")
    assert shrunk(study(trial(0, 0.5))) is None
