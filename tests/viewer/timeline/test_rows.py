import numpy as np
from hypothesis import given, settings

from kinetoscope.model.schema import SpanKind
from kinetoscope.viewer.server.routes import answer
from kinetoscope.viewer.timeline.rows import span_tracks
from kinetoscope.viewer.timeline.tracks import timeline
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.rich_trace import rich_trace
from tests.support.trace_builder import TraceBuilder


def tracks_of(trace):
    return [track for group in answer(trace, "tracks", {})["groups"] for track in group["tracks"]]


@settings(max_examples=examples(20), deadline=None)
@given(any_traces())
def test_every_span_is_on_one_row_and_items_of_a_row_do_not_overlap(trace):
    spans = trace.columns("spans")
    seen = np.zeros(len(spans), int)
    for track in timeline(trace):
        rows = track.rows
        for row in range(track.first, track.first + track.count):
            low, high = rows.edges[row : row + 2]
            start, duration = rows.start_ns[low:high], np.diff(rows.sum_ns[low : high + 1])
            assert high > low
            assert (duration >= 0).all()
            assert (start[1:] >= start[:-1] + duration[:-1]).all()
            if rows.spans is not None:
                of_row = rows.spans[low:high]
                seen[of_row] += 1
                assert (spans["start_ns"][of_row] == start).all()
                assert (spans["duration_ns"][of_row] == duration).all()
    assert (seen == 1).all()
    ids = [track["id"] for track in tracks_of(trace)]
    assert len(set(ids)) == len(ids)


@settings(max_examples=examples(20), deadline=None)
@given(any_traces())
def test_the_place_of_a_span_is_where_its_row_has_it(trace):
    laid = span_tracks(trace)
    every = np.arange(len(trace.columns("spans")))
    track, row = laid.places(every)
    for span, one, at in zip(every.tolist(), track.tolist(), row.tolist(), strict=True):
        found = {track.id: track for track in timeline(trace)}[one]
        low, high = found.rows.edges[found.first + at : found.first + at + 2]
        assert span in found.rows.spans[low:high]
    assert [values.tolist() for values in laid.places(np.array([-1]))] == [[-1], [-1]]


def test_tracks_come_in_the_order_of_steps_threads_and_streams_and_say_what_they_are():
    builder = TraceBuilder()
    builder.thread("idle")
    builder.thread("busy")
    stack = builder.stack(("train.py", 3, "main"))
    builder.step(0, 0, 100, thread=1)
    builder.span("aten::add", 5, 10, thread=0)
    builder.span("aten::mm", 5, 50, thread=1, stack=stack, module=builder.module("Net"))
    builder.kernel("gemm", 20, 30, stream=builder.stream(20))
    builder.kernel("other", 20, 30, stream=builder.stream(7))
    found = answer(builder.build(), "tracks", {})
    (group,) = found["groups"]
    assert [(track["sort"], track["label"]) for track in group["tracks"]] == [
        ("steps", "Steps"),
        ("thread", "busy"),
        ("python", "busy · Python"),
        ("modules", "busy · modules"),
        ("thread", "idle"),
        ("stream", "stream 7"),
        ("stream", "stream 20"),
    ]
    assert found["duration_ns"] == 100
    assert group["tracks"][-1]["device"] == "cuda:0"
    assert all(track["rows"] == track["spans"] == 1 for track in group["tracks"])


def test_steps_found_from_the_optimizer_have_a_track_without_spans():
    builder = TraceBuilder()
    builder.annotation("Optimizer.step#SGD.step", 10, 5).annotation("Optimizer.step#SGD.step", 30, 5)
    trace = builder.build()
    (steps,) = [track for track in tracks_of(trace) if track["sort"] == "steps"]
    assert steps["spans"] == len(trace.columns("steps")) == 2
    table = answer(trace, "window", {"start": "0", "end": "40", "width": "100", "tracks": str(steps["id"])})
    assert table["name"].to_pylist() == ["ProfilerStep#0", "ProfilerStep#1"]
    assert table["kind"].to_pylist() == ["step", "step"]
    assert table["span"].to_pylist() == [-1, -1]


def test_recorded_calls_have_tracks_of_their_own():
    builder = TraceBuilder()
    builder.span("main", 0, 100, kind=SpanKind.PYTHON).span("Net", 10, 50, kind=SpanKind.MODULE)
    builder.span("aten::add", 20, 10)
    tracks = tracks_of(builder.build())
    assert [(track["sort"], track["spans"], track["runs"]) for track in tracks] == [
        ("thread", 1, False),
        ("python", 1, False),
        ("modules", 1, False),
    ]


def test_a_trace_of_nothing_has_no_tracks():
    trace = TraceBuilder().build()
    assert answer(trace, "tracks", {})["groups"] == []
    assert answer(trace, "window", {"start": "0", "end": "1", "width": "10"}).num_rows == 0


def test_a_rich_trace_is_told_with_its_beginning():
    found = answer(rich_trace(), "tracks", {})
    assert found["start_realtime_ns"] == 1_700_000_000_000_000_000
    assert found["groups"][0]["process"] == 4242


def test_the_median_step_is_one_of_the_kind_with_most_time():
    builder = TraceBuilder()
    for number in range(9):
        evaluates = number % 3 == 2
        builder.step(number, number * 1000, 900 if evaluates else 100 + number)
        builder.span("aten::softmax" if evaluates else "aten::mm", number * 1000, 80)
    assert answer(builder.build(), "tracks", {})["median_step"] == [5000, 5900]


def test_the_median_step_leaves_start_up_out():
    builder = TraceBuilder()
    for number, duration in enumerate((900, 100, 300, 200)):
        builder.step(number, 1000 * number, duration)
    assert answer(builder.build(), "tracks", {})["median_step"] == [3000, 3200]
    assert answer(TraceBuilder().step(0, 0, 100).build(), "tracks", {})["median_step"] is None
