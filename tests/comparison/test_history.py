"""The history of many builds."""

import pytest

from kinetoscope import ArgumentError
from kinetoscope.comparison.history import (
    STEP,
    Build,
    History,
    build_of,
    build_of_comparison,
)
from kinetoscope.comparison.measures import run_of
from kinetoscope.comparison.runs import compare_runs
from tests.comparison.test_runs import built
from tests.support.strict_json import read_strictly
from tests.support.trace_builder import TraceBuilder


def test_builds_are_what_recordings_and_comparisons_measured():
    runs = [run_of(built(seed)) for seed in range(2)]
    build = build_of(runs, "7")
    assert build.values[STEP] == pytest.approx(10e6, rel=0.02)
    assert build.values["operators"] == 2
    comparison = compare_runs(runs[:1], runs[1:])
    again = build_of_comparison(read_strictly(comparison.to_json()), "7")
    assert again is not None
    assert again.values["operators"] == 2
    assert again.values[STEP] == pytest.approx(comparison.whole.new_ns)
    assert build_of_comparison({"traceEvents": []}, "7") is None


def history(values, **options):
    return History([Build(f"build-{place}", {STEP: value}) for place, value in enumerate(values)], **options)


def test_history_shows_step_times_and_counts_that_differ():
    builds = [
        Build(f"<b>{place}", {STEP: 1e6, "operators": 5 + (place >= 2), "kernels": 7} if place != 1 else {})
        for place in range(4)
    ]
    shown = History(builds)
    assert list(shown.series) == [STEP, "operators"]
    text = shown.to_text().splitlines()
    assert text[0] == "4 builds, ordered by name"
    assert [line.split() for line in text[2:]] == [
        ["build", "time", "of", "a", "step", "change", "operators", "change"],
        ["<b>0", "1", "ms", "5"],
        ["<b>1", "–", "–"],
        ["<b>2", "1", "ms", "6"],
        ["<b>3", "1", "ms", "6"],
    ]
    assert read_strictly(shown.to_json())["builds"][3]["values"]["kernels"] == 7
    page = shown.to_html()
    assert "<b>3" not in page
    assert page.count("<svg") == 2


def test_change_is_from_the_build_before():
    lines = history([4e6, 4.4e6, 4.4e6, 2.2e6]).to_text().splitlines()[3:]
    assert [line.split("ms")[1].strip() for line in lines] == ["", "+10 %", "", "-50 %"]
    counts = [Build("1", {"operators": 0}), Build("2", {"operators": 3})]
    assert History(counts).to_text().endswith("from 0")


def test_narrow_text_names_the_columns_it_leaves_out():
    builds = [Build(str(place), {STEP: 1e6, "operators": place, "kernels": place}) for place in range(2)]
    lines = History(builds).to_text(width=40).splitlines()
    assert all(len(line) <= 40 for line in lines[:-1])
    assert "kernels" in lines[-1]


def test_unknown_series_is_refused():
    with pytest.raises(ArgumentError, match="there is no series 'steps'"):
        history([1.0, 2.0], names=("steps",))


def test_a_history_needs_two_builds():
    with pytest.raises(ArgumentError, match="1 build cannot be compared"):
        history([1.0])


def test_the_fastest_steps_of_each_kind_are_those_of_a_build():
    builder, at_ns = TraceBuilder(), 1_000_000
    for number in range(40):
        name, took = ("aten::conv2d", 30_000_000) if number % 10 == 9 else ("aten::mm", 10_000_000)
        builder.step(number, at_ns, took).span(name, at_ns, took)
        at_ns += took
    build = build_of([run_of(builder.build(), warm_up=0)], "1")
    assert build.values[STEP] == pytest.approx(0.9 * 10e6 + 0.1 * 30e6)
