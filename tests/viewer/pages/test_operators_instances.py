import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope._errors import ArgumentError
from kinetoscope.tables.host.places import histogram_edges
from kinetoscope.viewer.server.routes import answer
from tests.support.trace_builder import TraceBuilder


def trace():
    builder = TraceBuilder()
    fc = builder.module("Linear", name="fc", parent=builder.module("Net"))
    builder.step(3, 0, 50).step(4, 50, 50)
    builder.span("aten::mm", 10, 5, module=fc, shapes=builder.shapes([[2, 3], [3, 4]]))
    builder.span("aten::mm", 20, 15).span("aten::add", 22, 3).span("aten::mm", 60, 0)
    builder.backward("aten::mm", 70, 5, sequence=1)
    return builder.build()


def test_instances_come_longest_first_with_where_and_in_what_they_ran():
    limited = answer(trace(), "instances", {"name": "aten::mm", "kind": "operator"})
    rows = limited.table.to_pylist()
    assert limited.total == 3
    assert [(row["start_ns"], row["duration_ns"], row["self_ns"], row["step"]) for row in rows] == [
        (20, 15, 12, 3),
        (10, 5, 5, 3),
        (60, 0, 0, 4),
    ]
    assert (rows[1]["module"], rows[1]["shapes"]) == ("fc", "[[2, 3], [3, 4]]")
    assert rows[0]["module"] is None


def test_of_many_instances_the_longest_are_given_and_all_are_counted():
    limited = answer(trace(), "instances", {"name": "aten::mm", "limit": "2"})
    assert limited.table["duration_ns"].to_pylist() == [15, 5]
    assert limited.total == 4


def test_the_name_that_the_table_of_operators_gives_to_all_steps_finds_them():
    assert answer(trace(), "instances", {"name": "ProfilerStep*", "kind": "step"}).total == 2


def test_numbers_are_those_of_the_table_of_operators():
    traced = trace()
    for row in traced.table("ops").to_pylist():
        query = {"name": row["name"], "kind": row["kind"]}
        limited = answer(traced, "instances", query)
        assert limited.total == row["count"] == answer(traced, "histogram", query)["calls"]
        assert sum(limited.table["self_ns"].to_pylist()) == row["self_ns"]
        told = answer(traced, "histogram", query)
        assert (told["min_ns"], told["max_ns"]) == (row["min_ns"], row["max_ns"])


def test_a_histogram_counts_every_call_and_moments_by_themselves():
    told = answer(trace(), "histogram", {"name": "aten::mm", "kind": "operator"})
    assert told["edges_ns"][:2] == [0, 1]
    assert told["counts"][0] == 1
    assert sum(told["counts"]) == told["calls"] == 3
    assert (told["median_ns"], told["mean_ns"], told["total_ns"]) == (5, 20 / 3, 20)


def test_nothing_of_a_name_is_an_empty_histogram():
    told = answer(trace(), "histogram", {"name": "nobody"})
    assert (told["edges_ns"], told["counts"], told["calls"], told["mean_ns"]) == ([], [], 0, None)


@given(st.lists(st.one_of(st.integers(0, 30), st.integers(0, 2**62)), min_size=1))
def test_bars_hold_everything_and_their_edges_rise(durations):
    sorted_ns = np.sort(np.array(durations, np.int64))
    edges = histogram_edges(sorted_ns)
    assert (np.diff(edges) > 0).all()
    assert np.diff(np.searchsorted(sorted_ns, edges)).sum() == len(durations)
    assert 2 <= len(edges) <= 43


@pytest.mark.parametrize("query", [{}, {"name": "aten::mm", "kind": "nothing"}, {"name": "x", "limit": "-1"}])
def test_questions_that_make_no_sense_are_refused(query):
    with pytest.raises(ArgumentError):
        answer(trace(), "instances", query)
