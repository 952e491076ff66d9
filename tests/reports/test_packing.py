"""Packed traces hold the very points of the traces of single trials."""

from pathlib import Path
from typing import Any

import pytest

from reports.curves import curve_figures
from reports.packing import packed
from reports.parallel import parallel_figure
from reports.records import read_study
from reports.slices import slice_figures, stability_figures
from reports.trial_groups import describe

from .study_fixture import write_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return read_study(write_study(tmp_path_factory.mktemp("runs"), num_trials=16, num_steps=60))


@pytest.fixture(scope="module")
def hovers(study) -> dict[int, str]:
    return {trial.number: describe(study, trial) for trial in study.trials}


def figures_of(study) -> list[Any]:
    return [*curve_figures(study), *slice_figures(study), *stability_figures(study), parallel_figure(study)]


def unpacked(trace: dict[str, Any], hovers: dict[int, str]) -> list[dict[str, Any]]:
    """The traces of single trials, as report.js shows them."""
    meta = trace.get("meta", {})
    if "trials" not in meta:
        return [trace]
    start, found = 0, []
    for place, (number, length) in enumerate(meta["trials"]):
        is_gap = len(meta["trials"]) > 1 and "lines" in trace["mode"]
        end = start + length - is_gap
        one: dict[str, Any] = {**trace, "meta": {"group": meta["group"], "trial": number}}
        for name in ("x", "y", "text", "textposition"):
            if name in trace:
                one[name] = trace[name][start:end]
        if trace["mode"] == "markers":
            one["marker"] = {**trace["marker"], "color": trace["marker"]["color"][start:end]}
        if "error_y" in trace:
            one["error_y"] = {**trace["error_y"], "array": trace["error_y"]["array"][start:end]}
        if "smoothed" in meta:
            one["meta"]["smoothed"] = meta["smoothed"][start:end]
        if "hovertemplate" in trace:
            text = trace["hovertemplate"].replace("%{hovertext}", hovers[number])
            one["hovertemplate"] = text.replace("%{customdata}", meta["notes"][place] if "notes" in meta else "")
        found.append(one)
        start += length
    return found


def plain(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace with what belongs to its points written out for each."""
    trace = {**trace, "marker": dict(trace.get("marker", {}))}
    for holder, name in ((trace, "text"), (trace, "textposition"), (trace["marker"], "color")):
        if name in holder and not isinstance(holder[name], list):
            holder[name] = [holder[name]] * len(trace["x"])
    return trace


def test_every_point_colour_and_hover_text_comes_back(study, hovers):
    for figure in figures_of(study):
        again = [one for trace in packed(figure.data, hovers) for one in unpacked(trace, hovers)]
        assert list(map(plain, again)) == list(map(plain, figure.data)), figure.name


def test_there_are_as_many_traces_as_looks(study, hovers):
    reward = next(figure for figure in curve_figures(study) if figure.name == "curve-reward-mean")
    assert len(reward.data) == 22
    # Lines: failed, pruned, complete, defaults, best; marks: failed and pruned.
    assert len(packed(reward.data, hovers)) <= 7


def test_lines_of_two_trials_are_not_joined(study, hovers):
    reward = next(figure for figure in curve_figures(study) if figure.name == "curve-reward-mean")
    line = max(packed(reward.data, hovers), key=lambda trace: len(trace["meta"]["trials"]))
    ends = [sum(length for _, length in line["meta"]["trials"][: place + 1]) - 1 for place in range(3)]
    assert [line["y"][end] for end in ends] == [None] * 3


def test_a_hover_text_stands_once_in_the_page(tmp_path: Path):
    from reports.page import build_report

    page = build_report(write_study(tmp_path, num_trials=16, num_steps=60)).read_text()
    figures = page[page.index('id="figures"') :]
    assert figures.count("\\u003cb\\u003eTrial 5\\u003c/b\\u003e") == 1
