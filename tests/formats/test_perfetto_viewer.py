"""What Perfetto's own trace processor makes of our Perfetto files: every slice, nothing dropped, no errors."""

import pytest

from kinetoscope.formats.perfetto import write_perfetto
from tests.support.perfetto import ask_perfetto, complaints, needs_perfetto
from tests.support.perfetto_expected import expected_slices
from tests.support.perfetto_traces import hostile, many_lanes, training
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder


@needs_perfetto
@pytest.mark.parametrize("make", [training, hostile, many_lanes], ids=["training", "hostile", "many lanes"])
def test_perfetto_takes_every_slice(tmp_path, make):
    trace = make().build()
    write_perfetto(trace, tmp_path / "trace.pftrace")
    shown = len(expected_slices(trace)) + len(trace.columns("allocations"))
    assert complaints(tmp_path / "trace.pftrace") == (shown, [])


@needs_perfetto
def test_perfetto_sees_what_we_wrote(tmp_path):
    trace = training().build()
    write_perfetto(trace, tmp_path / "trace.pftrace.gz")
    slices, args, arrows, counters, threads, walls, metadata = ask_perfetto(
        tmp_path / "trace.pftrace.gz",
        "select name, ts, dur, category from slice where name != '[memory]' order by ts, dur desc",
        "select key, string_value, int_value, real_value from args join slice using (arg_set_id)"
        " where slice.name = 'sgemm' and key like 'debug.%'",
        "select a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in",
        "select name, ts, value from counter join counter_track t on t.id = track_id order by name, ts",
        "select process.name, pid, thread.name, tid from thread join process using (upid) where tid != 0 order by tid",
        "select clock_value - ts from clock_snapshot where clock_name = 'REALTIME'",
        "select name, str_value from metadata where name like 'cr-%note'",
    )
    assert [tuple(row) for row in slices] == sorted(
        ((name, start, duration, category) for name, category, start, duration, _ in expected_slices(trace)),
        key=lambda row: (row[1], -row[2]),
    )
    shown = {key.removeprefix("debug."): values for key, *values in args}
    assert shown["grid"] == ["[80,1,1]", None, None]
    assert shown["registers per thread"] == [None, 64, None]
    assert shown["est_ achieved occupancy %"] == [None, None, 37.5]
    assert sorted(map(tuple, arrows)) == [
        ("aten::linear", "AddmmBackward0"),
        ("cudaLaunchKernel", "sgemm"),
    ]
    assert [tuple(row) for row in counters] == [
        ("CPU memory in use", 1350, 64), ("CPU memory in use", 6500, 0),
        ("GPU power (W)", 50, 10), ("GPU power (W)", 100, 250.5),
        ("memory in use", 1360, 4096), ("queue", 70, 3),
    ]  # fmt: skip
    assert threads == [["python", 4242, "python", 4242], ["python", 4242, "autograd", 4243]]
    assert walls == [[START_REALTIME_NS]]
    assert [row[1] for row in metadata] == ['say "hi"']


@needs_perfetto
def test_perfetto_takes_a_hundred_thousand_neighbours(tmp_path):
    made = TraceBuilder()
    for row in range(100_000):
        made.span("op", row * 1_001, 1_001)
    write_perfetto(made.build(), tmp_path / "trace.pftrace")
    assert complaints(tmp_path / "trace.pftrace") == (100_000, [])
