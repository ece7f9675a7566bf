"""The history of many builds: where a series changed, and how that is shown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import ArgumentError
from kinetoscope.comparison.history import (
    STEP,
    Build,
    History,
    build_of,
    build_of_comparison,
    change_points,
    same_mean_p,
)
from kinetoscope.comparison.measures import run_of
from kinetoscope.comparison.runs import compare_runs
from tests.comparison.test_runs import built
from tests.support.effort import times
from tests.support.strict_json import read_strictly
from tests.support.trace_builder import TraceBuilder


def noisy(seed, *parts, noise=0.01):
    """A series of segments, each with a level and a length."""
    random = np.random.default_rng(seed)
    return np.concatenate([level * random.normal(1, noise, length) for level, length in parts])


def history(values, **options):
    return History([Build(f"build-{at}", {STEP: value}) for at, value in enumerate(values)], **options)


def test_levels_are_divided_where_they_change():
    values = noisy(1, (1e6, 30), (1.05e6, 20), (0.9e6, 25))
    assert change_points(values, 0.01) == [30, 50]
    first, second = history(values).changes
    assert (first.build, second.build) == ("build-30", "build-50")
    assert first.percent == pytest.approx(5, abs=0.7)
    assert second.percent == pytest.approx(-100 * 0.15 / 1.05, abs=0.7)


def test_series_that_do_not_change_are_seldom_divided():
    random = np.random.default_rng(2)
    tries = times(200, 5000)
    assert sum(bool(change_points(random.normal(100, 1, 40), 0.01)) for _ in range(tries)) <= 0.02 * tries


def test_a_single_outlier_is_no_change():
    values = noisy(3, (1e6, 40))
    values[20] *= 3
    assert change_points(values, 0.01) == []


def test_exact_counts_change_without_noise():
    assert change_points(np.array([5.0] * 4 + [6.0] * 3), 0.01) == [4]
    assert change_points(np.full(20, 7.0), 0.01) == []


@given(
    values=st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=12),
    others=st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=12),
)
def test_the_probability_is_one(values, others):
    assert 0 <= same_mean_p(np.array(values), np.array(others)) <= 1


def test_the_probability_is_that_of_students_test():
    # "Student's sleep data", on which every book and package shows this test.
    one = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
    other = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    assert same_mean_p(one, other) == pytest.approx(0.07919, abs=5e-6)


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


def test_a_history_is_shown_as_text_html_and_json():
    builds = [
        Build(f"<b>{at}", {STEP: 1e6 + at % 3, "operators": 5 + (at >= 6)} if at != 2 else {})
        for at in range(12)
    ]
    found = History(builds)
    text = found.to_text().splitlines()
    assert text[0] == "12 builds, ordered by name"
    assert [line.split() for line in text[2:4]] == [
        ["series", "from", "build", "before", "after", "change"],
        ["operators", "<b>6", "5", "6", "+20", "%", "p", "=", "0"],
    ]
    plot = text[text.index("operators") + 1 :]
    assert len(plot) == 8
    assert all("|" in line for line in plot[1:-1])
    values = read_strictly(found.to_json())
    assert [(one["series"], one["build"], one["place"]) for one in values["changes"]] == [
        ("operators", "<b>6", 6)
    ]
    page = found.to_html()
    assert "<b>6" not in page
    assert page.count("<svg") == 2
    assert "stroke-dasharray" in page


@pytest.mark.parametrize(
    ("options", "said"),
    [({"confidence": 1.0}, "confidence=1.0"), ({"names": ("steps",)}, "there is no series 'steps'")],
)
def test_what_cannot_be_used_is_refused(options, said):
    with pytest.raises(ArgumentError, match=said):
        history(noisy(1, (1.0, 10)), **options)


def test_a_history_needs_some_builds():
    with pytest.raises(ArgumentError, match="3 builds cannot be searched"):
        history([1.0, 1.0, 1.0])


def test_the_fastest_steps_of_each_kind_are_those_of_a_build():
    builder, at_ns = TraceBuilder(), 1_000_000
    for number in range(40):
        name, took = ("aten::conv2d", 30_000_000) if number % 10 == 9 else ("aten::mm", 10_000_000)
        builder.step(number, at_ns, took).span(name, at_ns, took)
        at_ns += took
    build = build_of([run_of(builder.build(), warm_up=0)], "1")
    assert build.values[STEP] == pytest.approx(0.9 * 10e6 + 0.1 * 30e6)
