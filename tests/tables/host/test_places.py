"""Operators told apart by place, and how long the spans of one name took."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope._errors import ArgumentError
from kinetoscope.tables.host.ops import WAYS
from kinetoscope.tables.host.places import PLACES, durations, spans_of
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder


def trained():
    builder = TraceBuilder()
    net = builder.module("Net")
    first, second = (builder.module("Linear", name=name, parent=net) for name in ("a", "b"))
    user = builder.stack(("train.py", 3, "main"), ("model.py", 7, "forward"))
    small, large = builder.shapes([[2, 3]]), builder.shapes([[20, 30]])
    builder.span("aten::mm", 0, 10, module=first, stack=user, shapes=small)
    builder.span("aten::mm", 10, 30, module=second, stack=user, shapes=large)
    builder.span("aten::mm", 40, 5, module=second, shapes=large)
    builder.span("aten::add", 50, 0)
    return builder.build()


@pytest.mark.parametrize(
    ("by", "places"),
    [
        ("shape", {"[[20, 30]]": 35, "[[2, 3]]": 10}),
        ("module", {"b": 35, "a": 10}),
        ("line", {"model.py(7): forward": 40, None: 5}),
        ("stack", {"model.py(7): forward ← train.py(3): main": 40, None: 5}),
    ],
)
def test_operators_are_added_up_by_place(by, places):
    found = trained().table("ops", by=by, where={"name": "aten::mm"}).to_pylist()
    assert {row["place"]: row["self_ns"] for row in found} == places


def test_operators_are_grouped_by_name_or_by_any_place():
    assert ("name", *PLACES) == WAYS


def test_by_name_there_is_no_place():
    assert "place" not in trained().table("ops", by="name").column_names


@pytest.mark.parametrize("options", [{"by": "color"}, {"of": "all"}, {"by": None}, {"by": ["line"]}])
def test_other_ways_are_refused_with_those_there_are(options):
    with pytest.raises(ArgumentError, match="is not valid: use one of (name, shape|work, calls)"):
        trained().table("ops", **options)


@settings(max_examples=examples(30), deadline=None)
@given(any_traces(max_spans=20), st.sampled_from(WAYS))
def test_spans_of_a_row_are_found_again(trace, by):
    for row in trace.table("ops", by=by).to_pylist():
        place = {} if by == "name" else {"by": by, "place": row["place"]}
        rows = spans_of(trace, row["name"], row["kind"], **place)
        assert len(rows) == row["count"]
        assert sum(
            trace.table("histogram", span=row["name"], kind=row["kind"], **place)["count"].to_pylist()
        ) == len(rows)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=30))
def test_every_duration_is_in_its_range(lengths):
    builder = TraceBuilder()
    for number, length in enumerate(lengths):
        builder.span("aten::mm", number * 10**7, length)
    trace = builder.build()
    bars = trace.table("histogram", span="aten::mm").to_pylist()
    for bar in bars:
        assert bar["count"] == sum(bar["from_ns"] <= length < bar["below_ns"] for length in lengths)
    assert sum(bar["count"] for bar in bars) == len(lengths)
    assert trace.table("histogram").to_pylist() == bars
    found = durations(trace, np.arange(len(lengths)))
    assert (found["calls"], found["total_ns"]) == (len(lengths), sum(lengths))
    assert (found["min_ns"], found["max_ns"]) == ((min(lengths), max(lengths)) if lengths else (None, None))


def test_a_histogram_of_a_place_or_kind_needs_a_name():
    for options in ({"kind": "operator"}, {"by": "line"}, {"place": "a"}):
        with pytest.raises(ArgumentError, match="needs the name of the spans"):
            trained().table("histogram", **options)
    with pytest.raises(ArgumentError, match="place='a' needs by="):
        trained().table("histogram", span="aten::mm", place="a")
    with pytest.raises(ArgumentError, match="kind='thing' is not valid: use one of operator"):
        trained().table("histogram", span="aten::mm", kind="thing")
    with pytest.raises(ArgumentError, match=f"by='name' is not valid: use one of {', '.join(PLACES)}"):
        trained().table("histogram", span="aten::mm", by="name")


def test_instances_are_the_spans_of_a_row_longest_first():
    trace = trained()
    every = trace.table("instances").to_pylist()
    assert [row["duration_ns"] for row in every] == [30, 10, 5, 0]
    found = trace.table("instances", span="aten::mm", by="module", place="b", from_ns=5, below_ns=31)
    assert found.select(["span", "duration_ns", "module", "shapes"]).to_pylist() == [
        {"span": 1, "duration_ns": 30, "module": "b", "shapes": "[[20, 30]]"},
        {"span": 2, "duration_ns": 5, "module": "b", "shapes": "[[20, 30]]"},
    ]
    assert trace.table("instances", span="aten::mm", limit=1)["span"].to_pylist() == [1]
    assert trace.table("instances", span="aten::mm", below_ns=30)["span"].to_pylist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "operator"}, "needs the name of the spans"),
        ({"span": "aten::mm", "limit": -1}, "limit=-1 is not valid"),
        ({"span": "aten::mm", "from_ns": "soon"}, "from_ns='soon' is not valid"),
        ({"span": "aten::mm", "below_ns": 1.5}, "below_ns=1.5 is not valid"),
    ],
)
def test_instances_that_cannot_be_asked_for_are_refused(options, said):
    with pytest.raises(ArgumentError, match=said):
        trained().table("instances", **options)
