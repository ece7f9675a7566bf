"""What holds for the parts of any trace: nothing counted twice, nothing lost, nothing derived otherwise than in the whole."""

from itertools import pairwise

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from kinetoscope.combine.concatenate import concatenate
from kinetoscope.model.kinds import is_call
from kinetoscope.model.schema import FLAG_BEGUN_BEFORE, FLAG_UNFINISHED, STORED
from kinetoscope.trace import open as open_trace
from tests.support.any_trace import END_NS, any_traces, changed
from tests.support.same_trace import assert_same, assert_shows_the_same

BYTES = ("bytes", "self_bytes", "device_bytes", "device_self_bytes")
moments = st.integers(1, END_NS)
two_moments = st.lists(moments, min_size=2, max_size=2, unique=True).map(sorted)


def without_selections(trace):
    trace.info.pop("selections")
    return trace


def windows(trace, *edges_ns):
    """The disjoint windows between some moments, leaving out what lies outside the trace."""
    edges = [0, *sorted({edge for edge in edges_ns if 0 < edge < trace.duration_ns}), None]
    return [trace.window(start, end) for start, end in pairwise(edges)]


def add_up(parts, column, *, calls=True):
    """The sum of a column of spans by name over several traces."""
    sums = {}
    for part in parts:
        spans = part.columns("spans")
        rows = np.flatnonzero(calls | ~is_call(spans["kind"]))
        for name, value in zip(spans["name"][rows].tolist(), spans[column][rows].tolist(), strict=True):
            sums[part.strings[name]] = sums.get(part.strings[name], 0) + value
    return {name: value for name, value in sums.items() if value}


@given(any_traces())
def test_the_window_of_everything_is_the_whole(trace):
    for part in (trace.window(), trace.window(0, 10**9), trace.window(0, max(1, trace.duration_ns))):
        assert part.info["selections"][0]["spans_left_out"] == 0
        assert part.info["selections"][0]["cut_spans"] == 0
        assert_same(without_selections(part), trace)


@given(any_traces(), moments, moments)
def test_times_in_disjoint_windows_add_up(trace, one, other):
    parts = windows(trace, one, other)
    for column in ("duration_ns", "self_ns"):
        assert add_up(parts, column) == add_up([trace], column)
    assert sum(len(part.columns("counters")) for part in parts) == len(trace.columns("counters"))
    events = [part.column("allocations", "time_ns") for part in parts]
    assert sum(int((times >= 0).sum()) for times in events) == len(trace.columns("allocations"))
    lasted = [part.duration_ns for part in parts[:-1]]
    assert sum(lasted) <= trace.duration_ns


@given(any_traces(), moments, moments)
def test_memory_in_disjoint_windows_is_that_of_the_whole(trace, one, other):
    # Memory that is allocated at the very moment at which its call ends and a window begins is in that window, and the call before it.
    assume(not {one, other} & set(trace.column("allocations", "time_ns").tolist()))
    parts = windows(trace, one, other)
    seen = [
        part.column("allocations", "total_bytes")[part.column("allocations", "time_ns") >= 0]
        for part in parts
    ]
    assert np.concatenate(seen).tolist() == trace.column("allocations", "total_bytes").tolist()
    for column in BYTES:
        # To which of several calls that partly overlap memory belongs is told by what of them is left.
        assert add_up(parts, column, calls=False) == add_up([trace], column, calls=False), column


@given(any_traces(), st.lists(moments, min_size=3, max_size=3, unique=True).map(sorted))
def test_a_window_of_a_window_is_a_window(trace, edges):
    first, second, last = edges
    trace.info["stop_ns"] = END_NS + 1
    outer = trace.window(first, last)
    inner, direct = outer.window(second - first), trace.window(second, last)
    assert_shows_the_same(inner, direct)
    assert inner.info["start_realtime_ns"] == direct.info["start_realtime_ns"]
    assert len(inner.info["selections"]) == 2


@given(any_traces(), two_moments)
def test_spans_within_a_window_are_what_they_were(trace, edges):
    first, last = edges
    trace.info["stop_ns"] = END_NS + 1
    part = trace.window(first, last)
    spans, cut = trace.table("spans").to_pylist(), part.table("spans").to_pylist()
    inside = [
        span for span in spans
        if first <= span["start_ns"] and (span["start_ns"] + span["duration_ns"] <= last or last >= trace.duration_ns)
        and (span["start_ns"] < last or last >= trace.duration_ns)
    ]  # fmt: skip
    flags = part.column("spans", "flags") & (FLAG_BEGUN_BEFORE | FLAG_UNFINISHED)
    whole = [span for span, flag in zip(cut, flags.tolist(), strict=True) if not flag]
    names = {span["id"]: span["name"] for span in spans}, {span["id"]: span["name"] for span in cut}
    for before, after in zip(inside, whole, strict=True):
        for name in before:
            if name in ("id", "start_ns", "cycle", "thread"):
                continue
            if name in ("parent", "caller"):
                assert names[0].get(before[name]) == names[1].get(after[name]), name
            elif name == "forward":
                assert after[name] is None or names[0][before[name]] == names[1][after[name]]
            elif (name == "step" and after[name] is None) or (
                name in (*BYTES, "device_ns", "device_self_ns") and before["kind"] in ("python", "module")
            ):
                pass  # the step is not in the window; calls that partly overlap share the rest by what of them is left
            elif name in ("device_ns", "device_self_ns"):
                assert after[name] <= before[name]
            else:
                assert before[name] == after[name], name
        assert after["start_ns"] == before["start_ns"] - first


@given(any_traces(), two_moments)
def test_a_part_is_in_order_and_refers_to_rows_it_has(trace, edges):
    first, last = edges
    trace.info["stop_ns"] = END_NS + 1
    for part in (trace.window(first, last), trace.window(first, last, device="launch")):
        spans = part.columns("spans")
        order = np.lexsort((-spans["duration_ns"], spans["start_ns"], spans["thread"]))
        keys = [tuple(spans[name][row] for name in ("thread", "start_ns", "duration_ns")) for row in order]
        assert keys == [
            tuple(spans[name][row] for name in ("thread", "start_ns", "duration_ns"))
            for row in range(len(spans))
        ]
        assert (np.diff(part.column("allocations", "time_ns")) >= 0).all()
        for name, table in STORED.items():
            for column in table.columns:
                values = part.column(name, column.name)
                if column.unit.startswith("row of "):
                    target = column.unit.removeprefix("row of ")
                    length = len(part.strings) if target == "strings" else len(part.columns(target))
                    assert not len(values) or (values.min() >= -1 and values.max() < length), (
                        name,
                        column.name,
                    )
        parent = spans["parent"]
        assert (parent < np.arange(len(parent))).all()


@given(any_traces(), two_moments)
def test_a_saved_window_opens_as_it_was(tmp_path_factory, trace, edges):
    first, last = edges
    trace.info["stop_ns"] = END_NS + 1
    path = tmp_path_factory.mktemp("window") / "x.ktrace"
    part = trace.window(first, last)
    part.save(path)
    with open_trace(path) as again:
        assert_same(part, again)


@given(any_traces(), st.sets(st.sampled_from([1, 2, 3]), min_size=1))
def test_steps_and_their_spans_are_those_of_the_whole(trace, numbers):
    steps = {"number": [1, 2, 2, 3], "start_ns": [5, 25, 30, 70], "duration_ns": [20, 20, 30, 30]}
    trace = changed(trace, steps=steps | {"span": [-1] * 4, "source": [0] * 4})
    for device in ("launch", "time"):
        part = trace.select_steps(numbers, device=device)
        assert part.column("steps", "number").tolist() == [
            number for number in steps["number"] if number in numbers
        ]
        kept = [step for step, number in enumerate(steps["number"]) if number in numbers]
        assert part.column("steps", "duration_ns").tolist() == [steps["duration_ns"][step] for step in kept]
        # Whatever began in one of the steps is there, and still in that step.
        began = np.isin(trace.column("spans", "step"), kept)
        if device == "launch":
            began &= trace.column("spans", "stream") < 0
        names = sorted(trace.strings[name] for name in trace.column("spans", "name")[began])
        spans = part.columns("spans")
        inside = (spans["step"] >= 0) & (spans["flags"] & FLAG_BEGUN_BEFORE == 0)
        if device == "launch":
            inside &= spans["stream"] < 0
        assert sorted(part.strings[name] for name in spans["name"][inside]) == names


@given(any_traces(max_spans=6), moments)
def test_windows_of_several_cycles_add_up_too(trace, edge):
    later = changed(trace)
    later.info["start_realtime_ns"] += 1000
    joined = concatenate([trace, later])
    parts = windows(joined, edge, 1000 + edge)
    for column in ("duration_ns", "self_ns"):
        assert add_up(parts, column) == add_up([joined], column)
    assert_shows_the_same(without_selections(joined.window()), joined)


@given(any_traces(), two_moments, st.sampled_from(["time", "launch"]))
def test_what_encloses_comes_first_and_no_self_time_is_negative(trace, edges, device):
    assume(edges[0] < trace.duration_ns)
    spans = trace.window(*edges, device=device).columns("spans")
    row = np.arange(len(spans["parent"]))
    assert (spans["parent"] < row).all()
    assert (spans["caller"] < row).all()
    assert (spans["self_ns"] >= 0).all()
