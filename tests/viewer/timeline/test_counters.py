import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope._errors import ArgumentError
from kinetoscope.viewer.server.routes import answer, respond
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder


def counters(trace):
    return {
        track["label"]: track
        for group in answer(trace, "tracks", {})["groups"]
        for track in group["tracks"]
        if track["sort"] == "counter"
    }


def values(trace, label, start, end, width):
    query = {
        "track": str(counters(trace)[label]["id"]),
        "start": str(start),
        "end": str(end),
        "width": str(width),
    }
    columns = ["time", "low", "high", "last"]
    return [tuple(row.values()) for row in answer(trace, "counter", query).select(columns).to_pylist()]


def trace():
    builder = TraceBuilder().span("aten::empty", 0, 100)
    for time_ns, value in ((0, 5.0), (10, 7.0), (12, 1.0), (14, 3.0), (50, 9.0)):
        builder.counter("process_rss_bytes", time_ns, value)
    builder.counter("power", 3, float("nan"))
    builder.allocate(10, 1, 100, device=(1, 0))
    builder.allocate(20, 2, 50, device=(1, 0))
    builder.free(30, 1, device=(1, 0))
    builder.allocate(30, 1, 7)
    return builder.build()


def test_each_counter_has_a_track_with_its_unit_and_extremes():
    told = counters(trace())
    assert {label: (track["unit"], track["low"], track["high"]) for label, track in told.items()} == {
        "memory in use · host": ("bytes", 7.0, 7.0),
        "memory in use · cuda:0": ("bytes", 50.0, 150.0),
        "process_rss_bytes": ("bytes", 1.0, 9.0),
    }
    assert told["memory in use · cuda:0"]["device"] == "cuda:0"


def test_a_pixel_has_the_lowest_the_highest_and_the_last_value():
    assert values(trace(), "process_rss_bytes", 0, 60, 6) == [
        (0.0, 5.0, 5.0, 5.0),
        (10.0, 1.0, 7.0, 3.0),
        (50.0, 9.0, 9.0, 9.0),
    ]


def test_the_value_that_holds_when_a_window_begins_comes_first():
    assert values(trace(), "process_rss_bytes", 20, 40, 6) == [(14.0, 3.0, 3.0, 3.0)]
    assert values(trace(), "memory in use · cuda:0", 25, 100, 10) == [
        (20.0, 150.0, 150.0, 150.0),
        (30.0, 50.0, 50.0, 50.0),
    ]
    assert values(trace(), "memory in use · host", 0, 10, 3) == []


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(-5, 5)), min_size=1, max_size=30),
    st.integers(-10, 50),
    st.integers(1, 60),
    st.integers(1, 9),
)
def test_a_window_says_of_each_pixel_what_its_values_are(samples, start, length, width):
    builder = TraceBuilder()
    for time_ns, value in samples:
        builder.counter("x", time_ns, float(value))
    ordered = sorted(samples)
    edges = np.ceil(start + np.arange(width + 1) * float(length) / width)
    expected = [(time, value, value, value) for time, value in ordered if time < start][-1:]
    for low, high in itertools.pairwise(edges):
        mine = [(time, value) for time, value in ordered if low <= time < high]
        if mine:
            of_pixel = [value for _, value in mine]
            expected.append((mine[0][0], min(of_pixel), max(of_pixel), of_pixel[-1]))
    found = values(builder.build(), "x", start, start + length, width)
    # Values of one moment come in any order.
    assert [row[:3] for row in found[1:]] == [row[:3] for row in expected[1:]]
    assert [row[0] for row in found] == [row[0] for row in expected]


def test_rows_of_several_tracks_are_concatenated():
    one = trace()
    known = counters(one)
    labels = ["process_rss_bytes", "memory in use · cuda:0"]
    tracks = [known[label]["id"] for label in labels]
    window = {"start": "0", "end": "60", "width": "6"}
    found = answer(one, "counter", {"track": ",".join(map(str, tracks)), **window}).to_pylist()
    assert [tuple(row.values())[1:] for row in found] == [
        row for label in labels for row in values(one, label, 0, 60, 6)
    ]
    assert [row["track"] for row in found] == sorted((row["track"] for row in found), key=tracks.index)


@pytest.mark.parametrize("track", ["", "0", "999999", "x"])
def test_a_track_that_is_no_counter_is_refused(track):
    with pytest.raises(ArgumentError, match="no such counter"):
        answer(trace(), "counter", {"track": track, "start": "0", "end": "1", "width": "1"})


def test_values_that_are_no_numbers_are_left_out():
    assert respond([("", trace())], "api/0/tracks", {}).status == 200
    assert "power" not in counters(trace())
