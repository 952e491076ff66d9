import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reports.page import build_report
from reports.records import read_study
from reports.trial_groups import describe

from .algorithm_study import write_algorithm_study
from .study_fixture import entropy_reason, final_record, sample, write, write_study

pytestmark = pytest.mark.browser


@dataclass
class Opened:
    """A page in the browser, with what it said and asked for."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def open_page(browser) -> Callable[..., Opened]:
    def open_file(path: Path, **options) -> Opened:
        opened = Opened(browser.new_page(**options))
        page = opened.page
        page.on("console", lambda message: opened.messages.append(message.text))
        page.on("pageerror", lambda error: opened.messages.append(str(error)))
        page.on("request", lambda request: opened.requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function(
            "[...document.querySelectorAll('.chart')].every((each) => each.querySelector('.main-svg'))"
        )
        return opened

    return open_file


@pytest.fixture(scope="module")
def page(report: Path, open_page):
    """The report of the finished study, as a person sees it after opening it."""
    return open_page(report).page


def num_traces(page) -> list[int]:
    return page.evaluate(
        "[...document.querySelectorAll('.chart')].map((each) => each.querySelectorAll('.trace, .bars').length)"
    )


@pytest.mark.parametrize(
    "options",
    [{"viewport": {"width": 1400, "height": 900}}, {"viewport": {"width": 500, "height": 900}, "color_scheme": "dark"}],
    ids=["wide", "narrow dark"],
)
def test_every_chart_is_drawn_without_an_error_and_without_the_network(report: Path, open_page, options):
    opened = open_page(report, **options)
    assert opened.messages == []
    assert opened.requests == [report.as_uri()]
    drawn = num_traces(opened.page)
    assert len(drawn) == 13
    assert min(drawn) > 0
    width = opened.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1]


@pytest.mark.parametrize("width", [1280, 400])
def test_algorithms_are_compared_at_any_width(tmp_path: Path, open_page, width: int):
    opened = open_page(build_report(write_algorithm_study(tmp_path)), viewport={"width": width, "height": 900})
    page = opened.page
    assert opened.messages == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    names = page.locator("#algorithms tbody th").all_inner_texts()
    assert len(names) == 8
    assert min(num_traces(page)) > 0
    assert page.locator('[data-chart="algorithms-reward-mean"] .legendtext').all_text_contents() == names
    edges = page.evaluate(
        """() => {
            const chart = document.querySelector('[data-chart="parallel"]');
            const texts = [...chart.querySelectorAll(".annotation-text")];
            return [chart, ...texts].map((each) => each.getBoundingClientRect().left);
        }"""
    )
    assert len(edges) > 8 and min(edges) == edges[0], "names beside the first upright are whole"


def test_reasons_are_shown_below_the_curves_and_on_hover(page):
    reasons = page.inner_text(".reasons")
    assert "is above 1.0 for 3 steps in a row" in reasons
    assert "is behind the other trials" in reasons
    page.locator('[data-chart="curve-policy-entropy"]').scroll_into_view_if_needed()
    box = page.locator('[data-chart="curve-policy-entropy"]').evaluate(
        """(chart) => {
            const mark = chart.data.find((trace) => trace.mode === "markers+text");
            const { left, top } = chart.getBoundingClientRect();
            const { xaxis, yaxis } = chart._fullLayout;
            return [left + xaxis._offset + xaxis.l2p(mark.x[0]), top + yaxis._offset + yaxis.l2p(mark.y[0])];
        }"""
    )
    page.mouse.move(box[0], box[1])
    page.wait_for_selector('[data-chart="curve-policy-entropy"] .hoverlayer .hovertext')
    assert "pruned" in page.text_content('[data-chart="curve-policy-entropy"] .hoverlayer')


def test_legend_hides_a_group_in_all_curves(page):
    visible = """(group) => Object.values(document.querySelectorAll('[data-chart^="curve-"]')).flatMap((chart) =>
        chart.data.filter((trace) => trace.meta.group === group && trace.visible !== false)).length"""
    assert page.evaluate(visible, "pruned") > 0
    page.uncheck('input[data-group="pruned"]')
    assert page.evaluate(visible, "pruned") == 0
    assert page.evaluate(visible, "best") == 4
    page.check('input[data-group="pruned"]')
    assert page.evaluate(visible, "pruned") > 0


def test_table_sorts_by_number_both_ways_with_empty_cells_last(page):
    head = page.locator("table.sortable th", has_text="lr")
    cells = "[...document.querySelectorAll('table.sortable tbody tr')].map((row) => Number(row.cells[7].dataset.value))"
    head.click()
    rising = page.evaluate(cells)
    assert rising == sorted(rising)
    head.click()
    assert page.evaluate(cells) == rising[::-1]


def test_markup_in_what_a_model_wrote_does_not_run(tmp_path: Path, open_page):
    folder = write_study(tmp_path, num_trials=2, num_steps=12)
    attack = "</script><script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>"
    answer = {"text": attack, "reward": 0.0, "ended": True}
    write(folder / "final.json", final_record(0.5, samples=[{**sample(0), "question": attack, "base": answer}]))
    outcome = json.loads((folder / "trials/0001/outcome.json").read_text())
    reason = {**entropy_reason(12, 1.1), "message": attack}
    write(folder / "trials/0001/outcome.json", {**outcome, "state": "pruned", "reason": reason})
    opened = open_page(build_report(folder))
    assert opened.page.evaluate("window.stolen") is None
    assert opened.messages == []
    assert attack in opened.page.inner_text("#rollouts")


def test_a_highlighted_trial_stands_alone_in_front(report: Path, open_page):
    page = open_page(report).page
    study = read_study(report.parent)
    number = next(trial.number for trial in study.trials if trial.state == "complete" and trial is not study.best)
    page.select_option("#highlight", str(number))
    page.uncheck("#smooth")
    last, opacities = page.evaluate(
        """() => {
            const data = document.querySelector('[data-chart="curve-reward-mean"]').data;
            return [data.at(-1), data.map((trace) => trace.opacity)];
        }"""
    )
    assert last["y"] == pytest.approx(study.trials[number].curves["reward/mean"].values, rel=1e-5)
    assert last["line"]["width"] == 4
    assert set(last["hovertext"]) == {describe(study, study.trials[number])}
    assert opacities[-1] == 1 and set(opacities[:-1]) == {0.15}
