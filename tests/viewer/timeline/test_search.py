import numpy as np
import pytest
from hypothesis import given, settings

from kinetoscope._errors import ArgumentError
from kinetoscope.viewer.server.routes import answer
from kinetoscope.viewer.timeline.rows import span_tracks
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder


def trace():
    builder = TraceBuilder()
    stack = builder.stack(("train.py", 3, "Adder.forward"))
    builder.span("aten::add", 40, 5).span("aten::Add_", 10, 20, stack=stack).span("aten::mm", 5, 2)
    builder.kernel("add_kernel", 30, 9)
    return builder.build()


def found(**query):
    limited = answer(trace(), "search", {name.rstrip("_"): text for name, text in query.items()})
    return limited.table.to_pylist(), limited.total


def test_search_finds_spans_and_runs_in_order_of_time_whatever_their_capitals():
    rows, total = found(text="ADD")
    assert [(row["name"], row["kind"], row["start_ns"]) for row in rows] == [
        ("aten::Add_", "operator", 10),
        ("Adder.forward (train.py)", "python", 10),
        ("add_kernel", "kernel", 30),
        ("aten::add", "operator", 40),
    ]
    assert total == 4
    assert [row["span"] for row in rows][1] == -1


def test_a_name_that_is_no_valid_text_is_found_as_it_is_shown():
    spans = TraceBuilder().span("part \udda0", 0, 5).build()
    rows = answer(spans, "search", {"text": "DDA0"}).table.to_pylist()
    assert [row["name"] for row in rows] == ["part \\u{dda0}"]


def test_the_next_ones_are_found_from_a_moment_on():
    rows, total = found(text="add", from_="11", limit="1")
    assert ([row["name"] for row in rows], total) == (["add_kernel"], 4)


@pytest.mark.parametrize("text", ["", "nowhere"])
def test_text_in_no_name_is_not_found(text):
    assert found(text=text) == ([], 0)


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "1.5"}, {"limit": "1e9"}, {"from_": "soon"}])
def test_options_that_make_no_sense_are_refused(query):
    with pytest.raises(ArgumentError):
        found(text="a", **query)


@settings(max_examples=examples(20), deadline=None)
@given(any_traces())
def test_every_hit_says_where_it_is(trace):
    limited = answer(trace, "search", {"text": "a"})
    rows = limited.table.to_pylist()
    spans = [row["span"] for row in rows if row["span"] >= 0]
    names = trace.table("spans")["name"].to_pylist()
    assert sorted(spans) == [row for row, name in enumerate(names) if "a" in name.casefold()]
    track, row = span_tracks(trace).places(np.array(spans, np.int64))
    assert [(hit["track"], hit["row"]) for hit in rows if hit["span"] >= 0] == list(
        zip(track.tolist(), row.tolist(), strict=True)
    )
    assert limited.total == len(rows)
