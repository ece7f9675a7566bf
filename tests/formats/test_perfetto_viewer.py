"""Our Perfetto files in Perfetto's trace processor: every slice, nothing dropped, no errors."""

import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

import kinetoscope
from kinetoscope.formats.perfetto import write_perfetto
from kinetoscope.trace import Trace
from tests.support.perfetto import ask_perfetto, complaints, needs_perfetto
from tests.support.perfetto_expected import expected_slices
from tests.support.perfetto_traces import hostile, many_lanes, training
from tests.support.real_traces import different_traces
from tests.support.recorded import profile
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


# ------------------------------------------------------------------------------------------------ recordings and files


def assert_perfetto_has_all_of(trace: Trace, path: Path) -> None:
    """Check that Perfetto has exactly the slices, arguments, arrows and samples of the trace, and reports no errors."""
    write_perfetto(trace, path)
    early = min(0, int(trace.column("spans", "start_ns").min()))
    slices, args, arrows, samples, threads, lost = ask_perfetto(
        path,
        "select name, category, count(*), sum(dur % 1000003), sum(ts % 1000003) from slice"
        " where name != '[memory]' group by name, category",
        "select key, count(*), sum(length(string_value)), sum(int_value % 1000003) from args join slice using (arg_set_id)"
        " where key like 'debug.%' and slice.name != '[memory]' group by key",
        "select a.name, b.name, count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
        " group by a.name, b.name",
        "select name, count(*) from counter join counter_track t on t.id = track_id group by name",
        "select count(*) from slice where name = '[memory]'",
        "select name, value from stats where value != 0 and severity in ('error', 'data_loss')",
    )
    assert lost == []
    expected = expected_slices(trace)
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    shown: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for name, category, start_ns, duration_ns, values in expected:
        one = sums[name, category]
        one[0] += 1
        one[1] += duration_ns % 1_000_003
        one[2] += (start_ns - early) % 1_000_003
        for key, value in values.items():
            part = shown["debug." + key.replace(".", "_").replace("[", "_").replace("]", "_")]
            part[0] += 1
            part[1] += len(value) if isinstance(value, str) else 0
            part[2] += int(math.fmod(value, 1_000_003)) if isinstance(value, int) else 0
    assert {(name, category): tuple(rest) for name, category, *rest in slices} == {
        key: tuple(values) for key, values in sums.items()
    }
    assert {key: [count, length or 0, total or 0] for key, count, length, total in args} == dict(shown)
    assert threads == [[len(trace.columns("allocations"))]]
    assert {(one, two): count for one, two, count in arrows} == expected_arrows(trace)
    counters = trace.columns("counters")
    sampled = Counter(trace.strings[name] for name in counters["name"].tolist())
    assert {name: count for name, count in samples if "memory" not in name} == sampled
    in_use = sum(count for name, count in samples if name.endswith("memory in use"))
    assert in_use == len(trace.columns("allocations"))


def expected_arrows(trace: Trace) -> Counter[tuple[str, str]]:
    """Return the names of the slices at both ends of arrows, the earlier one first."""
    spans, launches = trace.columns("spans"), trace.columns("launches")
    start, name, forward = (spans[column].tolist() for column in ("start_ns", "name", "forward"))
    pairs = [(one, row) for row, one in enumerate(forward) if one >= 0]
    pairs += zip(launches["host"].tolist(), launches["device"].tolist(), strict=True)
    return Counter(
        (trace.strings[name[one]], trace.strings[name[two]])
        if start[one] <= start[two]
        else (trace.strings[name[two]], trace.strings[name[one]])
        for one, two in pairs
    )


@needs_perfetto
@pytest.mark.slow
@pytest.mark.parametrize("path", different_traces(), ids=lambda path: path.name.split(".")[0])
def test_perfetto_has_all_of_a_trace_of_an_accelerator(path, tmp_path):
    assert_perfetto_has_all_of(kinetoscope.open(path), tmp_path / "trace.pftrace")


@needs_perfetto
def test_perfetto_has_all_of_a_recording_with_everything_on(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    options = {"record_shapes": True, "with_stack": True, "with_modules": True, "profile_memory": True}
    with profile(**options, python_calls=True, module_spans=True) as session:
        for _ in range(3):
            with kinetoscope.record_function("loading"):
                batch = torch.randn(4, 8)
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    assert_perfetto_has_all_of(session.trace, tmp_path / "trace.pftrace")


@needs_perfetto
def test_perfetto_has_all_of_a_recording_whose_calls_are_rebuilt(tmp_path):
    model = torch.nn.Linear(8, 8)
    with profile(with_stack=True) as session:
        model(torch.randn(4, 8)).sum().backward()
    assert_perfetto_has_all_of(session.trace, tmp_path / "trace.pftrace")
