import json
import math
import threading
import time
from multiprocessing import Pipe

import pytest

from grpo_core.train import Verdict
from sweeps import step_judge
from sweeps.guard import StabilityGuard
from sweeps.rank_link import RankLink
from sweeps.sections import StabilityConfig
from sweeps.step_judge import StepJudge, replay

BAND = {"entropy": {"min": 0.5, "max": 1.0, "warmup_steps": 0, "patience": 2}}
EVALUATED = {"eval/accuracy": 0.5, "policy/entropy": 0.7}


class Controller:
    """The controller's ends of a rank's pipes."""

    def __init__(self, stability=None):
        self.line, events = Pipe()
        lifeline, self.lifeline = Pipe(duplex=False)
        # A grace longer than the tests: the process that would be ended is this one.
        self.link = RankLink(0, events, lifeline, grace_s=3600)
        self.judge = StepJudge(guard(stability or {}), self.link, "eval/accuracy")

    def received(self):
        return [self.line.recv()[:2] for _ in iter(lambda: self.line.poll(0), False)]


def guard(stability):
    return StabilityGuard(StabilityConfig.model_validate(stability))


@pytest.fixture
def controller():
    controller = Controller(BAND)
    yield controller
    for end in (controller.line, controller.lifeline):
        end.close()


def test_a_step_is_reported_and_goes_on(controller):
    assert controller.judge(1, {"policy/entropy": 0.7}) is None
    assert controller.received() == [("step", {"step": 1, "metrics": {"policy/entropy": 0.7}})]


def test_a_breach_prunes_after_the_step_was_reported(controller):
    assert controller.judge(1, {"policy/entropy": 0.3}) is None
    controller.line.send({"command": "stop"})
    verdict = controller.judge(2, {"policy/entropy": 0.25})
    assert [event[1]["step"] for event in controller.received()] == [1, 2]
    assert verdict.action == "prune"
    message = verdict.reason.pop("message")
    # Relative excess 0.5, as x / (1 + x).
    expected = {"rule": "entropy", "step": 2, "value": 0.25, "limit": 0.5, "constraint": pytest.approx(1 / 3)}
    assert verdict.reason == expected
    assert "0.25" in message
    json.dumps(verdict.reason)


def test_a_value_that_is_not_finite_has_the_whole_constraint(controller):
    verdict = controller.judge(1, {"loss/policy": math.nan})
    assert verdict.action == "prune"
    assert (verdict.reason["rule"], verdict.reason["constraint"]) == ("nonfinite", 1.0)


@pytest.mark.parametrize("answer", ["continue", "prune", "stop"])
def test_an_evaluated_step_waits_for_its_answer(controller, answer):
    reason = {"rule": "pruner", "step": 1}

    def respond():
        controller.line.recv()
        time.sleep(0.2)
        controller.line.send({"command": answer, "reason": reason})

    thread = threading.Thread(target=respond)
    thread.start()
    verdict = controller.judge(1, EVALUATED)
    thread.join()
    assert verdict == (None if answer == "continue" else Verdict(answer, reason))


def test_an_answer_that_never_comes_is_not_waited_for_for_long(controller, monkeypatch):
    monkeypatch.setattr(step_judge, "ANSWER_TIMEOUT_S", 0.2)
    started = time.monotonic()
    assert controller.judge(1, EVALUATED) is None
    assert 0.2 <= time.monotonic() - started < 1


def test_a_late_answer_counts_at_the_next_step_and_never_for_another_evaluation(controller, monkeypatch):
    monkeypatch.setattr(step_judge, "ANSWER_TIMEOUT_S", 0.2)
    controller.line.send({"command": "continue"})
    started = time.monotonic()
    assert controller.judge(2, EVALUATED) is None
    assert time.monotonic() - started >= 0.2
    controller.line.send({"command": "prune", "reason": {"rule": "pruner", "step": 2}})
    assert controller.judge(3, {"policy/entropy": 0.7}) == Verdict("prune", {"rule": "pruner", "step": 2})


@pytest.mark.parametrize("metrics", [{"policy/entropy": 0.7}, EVALUATED])
@pytest.mark.parametrize("end", ["line", "lifeline"])
def test_a_controller_that_is_gone_stops_the_trial(controller, metrics, end):
    getattr(controller, end).close()
    time.sleep(0.1)
    started = time.monotonic()
    verdict = controller.judge(7, metrics)
    assert (verdict.action, verdict.reason["rule"], verdict.reason["step"]) == ("stop", "controller_gone", 7)
    # With the line still open its answer is waited for no longer either.
    assert time.monotonic() - started < 1


def write_steps(path, entropies):
    lines = [
        json.dumps({"step": i, "time": 0.0, "metrics": {"policy/entropy": entropy, f"only/{i}": 1.0}})
        for i, entropy in enumerate(entropies, 1)
    ]
    path.write_text("".join(line + "\n" for line in lines) + '{"step": 99, "time": 1.0, "met')


def test_replay_lets_patience_go_on_where_it_stood(tmp_path):
    file = tmp_path / "metrics.jsonl"
    watcher = guard(BAND)
    assert replay(watcher, file) == (None, {"last_step": 0, "metrics": {}})
    write_steps(file, [0.7, 0.3])
    breach, recorded = replay(watcher, file)
    assert breach is None
    assert recorded == {"last_step": 2, "metrics": {"policy/entropy": 0.3, "only/1": 1.0, "only/2": 1.0}}
    assert watcher.check(3, {"policy/entropy": 0.3}).rule == "entropy"


def test_replay_finds_the_breach_that_was_not_reported(tmp_path):
    file = tmp_path / "metrics.jsonl"
    write_steps(file, [0.7, 0.3, 0.3])
    breach, recorded = replay(guard(BAND), file)
    assert (breach.rule, breach.step, recorded["last_step"]) == ("entropy", 3, 3)
