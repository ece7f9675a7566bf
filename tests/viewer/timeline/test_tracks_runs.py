import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.model.schema import SpanKind
from kinetoscope.viewer.server.routes import answer
from kinetoscope.viewer.timeline.tracks import joined
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

# A tree of nodes: 0 is around 1 and 2, 1 around 3, 3 around 4; 5 is another root, around 6.
TREE = np.array([-1, 0, 0, 1, 3, -1, 5], np.int32)


@st.composite
def nested_spans(draw):
    """Spans of two threads, in order and nested, as (thread, start, end, node)."""
    spans = []

    def fill(thread, start, end, depth):
        at = start
        while at < end and draw(st.booleans()):
            begin = draw(st.integers(at, end))
            over = draw(st.integers(begin, end))
            spans.append((thread, begin, over, draw(st.integers(-1, len(TREE) - 1))))
            if depth < 3:
                fill(thread, begin, over, depth + 1)
            at = max(over, begin + 1)

    for thread in (0, 3):
        fill(thread, 0, 40, 0)
    return sorted(spans, key=lambda span: (span[0], span[1], -span[2]))


def path(node):
    found = []
    while node >= 0:
        found.append(node)
        node = int(TREE[node])
    return found[::-1]


def joined_one_by_one(spans):
    """The runs, by going through the spans and keeping what is open."""
    runs, opened = [], []

    def close(keep, now):
        while len(opened) > keep:
            thread, level, start, end, node = opened.pop()
            runs.append((thread, level, start, end if now is None else min(end, now), node))

    thread = None
    for on, start, end, node in spans:
        if on != thread:
            close(0, None)
            thread = on
        wanted = path(node)
        same = 0
        while same < min(len(opened), len(wanted)) and opened[same][4] == wanted[same]:
            same += 1
        close(same, start)
        opened.extend([on, level, start, start, wanted[level]] for level in range(same, len(wanted)))
        for run in opened:
            run[3] = max(run[3], end)
    close(0, None)
    return sorted(runs)


@settings(max_examples=examples(200), deadline=None)
@given(nested_spans())
def test_runs_are_what_going_through_the_spans_finds(spans):
    if not spans:
        return
    columns = [np.array(column) for column in zip(*spans, strict=True)]
    thread, start, end, node = (
        column.astype(dtype) for column, dtype in zip(columns, ("i4", "i8", "i8", "i4"), strict=True)
    )
    runs = joined(thread, start, end, node, TREE)
    runs["end_ns"] = runs["start_ns"] + runs["duration_ns"]
    names = ("thread", "depth", "start_ns", "end_ns", "node")
    found = list(zip(*(runs[name].tolist() for name in names), strict=True))
    assert sorted(found) == joined_one_by_one(spans)
    assert [run[:2] for run in found] == sorted(run[:2] for run in found)
    for one, other in itertools.pairwise(found):
        assert one[:2] != other[:2] or one[3] <= other[2]


def rows_of(trace, sort):
    (track,) = [
        track
        for group in answer(trace, "tracks", {})["groups"]
        for track in group["tracks"]
        if track["sort"] == sort
    ]
    query = {"start": "0", "end": "1000", "width": "1000", "tracks": str(track["id"])}
    return [
        (row["row"], row["name"], row["start"], row["duration"])
        for row in answer(trace, "window", query).to_pylist()
    ]


def test_functions_come_from_stacks_and_the_lines_of_one_call_are_one_run():
    builder = TraceBuilder()
    main = ("/home/me/train.py", 5, "main")
    first = builder.stack(main, ("/home/me/net.py", 10, "forward"))
    second = builder.stack(main, ("/home/me/net.py", 12, "forward"))
    third = builder.stack(("/home/me/train.py", 6, "main"), ("/home/me/net.py", 30, "loss"))
    builder.span("a", 0, 10, stack=first).span("b", 20, 10, stack=second).span("c", 40, 10, stack=third)
    assert rows_of(builder.build(), "python") == [
        (0, "main (me/train.py)", 0.0, 50.0),
        (1, "forward (me/net.py)", 0.0, 30.0),
        (1, "loss (me/net.py)", 40.0, 10.0),
    ]


def test_a_collection_of_garbage_is_on_the_track_of_its_thread_beside_the_functions():
    builder = TraceBuilder()
    builder.span("a", 0, 10, stack=builder.stack(("a.py", 1, "main")))
    builder.span("Python GC", 20, 10, kind=SpanKind.PYTHON)
    trace = builder.build()
    assert [row[1] for row in rows_of(trace, "python")] == ["main (a.py)"]
    assert rows_of(trace, "thread") == [(0, "a", 0.0, 10.0), (0, "Python GC", 20.0, 10.0)]


def test_frames_that_only_pass_a_call_on_are_left_out():
    builder = TraceBuilder()
    file = "/lib/torch/nn/modules/module.py"
    stack = builder.stack(("a.py", 1, "main"), (file, 9, "Module._call_impl"), ("b.py", 2, "forward"))
    builder.span("a", 0, 10, stack=stack)
    assert [row[1] for row in rows_of(builder.build(), "python")] == ["main (a.py)", "forward (b.py)"]


def test_modules_have_a_row_each_and_backward_is_in_the_module_of_its_forward():
    builder = TraceBuilder()
    net = builder.module("Net")
    layer = builder.module("Linear", name="fc", parent=net)
    builder.span("aten::linear", 0, 10, module=layer, sequence=1)
    builder.span("aten::add_", 20, 10)
    builder.backward("AddmmBackward0", 50, 10, sequence=1)
    assert rows_of(builder.build(), "modules") == [
        (0, "Net", 0.0, 10.0),
        (0, "Net", 49.0, 12.0),
        (1, "fc", 0.0, 10.0),
        (1, "fc", 49.0, 12.0),
    ]


def test_a_range_around_everything_does_not_hide_what_runs_in_it():
    builder = TraceBuilder()
    main, inner = ("a.py", 1, "main"), ("b.py", 2, "forward")
    builder.annotation("everything", 0, 100, stack=builder.stack(main))
    builder.span("a", 10, 20, stack=builder.stack(main, inner))
    builder.runtime("cudaLaunchKernel", 15, 5)
    builder.span("b", 60, 10, stack=builder.stack(main))
    assert rows_of(builder.build(), "python") == [
        (0, "main (a.py)", 0.0, 100.0),
        (1, "forward (b.py)", 10.0, 20.0),
    ]
