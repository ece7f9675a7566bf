"""Traces of several processes side by side: each says what it said alone, and nothing of one is taken for another's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinetoscope
from kinetoscope import Trace
from kinetoscope.combine.concatenate import concatenate
from kinetoscope.combine.processes import merge_processes
from kinetoscope.model.processes import Placement
from kinetoscope.trace.tables import TABLES
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.same_trace import assert_same
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder

BOOT = "0f3c time:[4026531834]"
# Columns that are moments, by how their names end.
MOMENTS = ("start_ns", "time_ns", "first_ns")
IDS = ("id", "parent")
PER_PROCESS = (
    "spans", "allocations", "steps", "cycles", "threads", "counters", "launches", "kernels", "copies", "ops", "lines",
)  # fmt: skip


# Shares of one stretch of time, rounded in the order of stacks, which a joined trace numbers anew.
SHARED_TIMES = ("python_self_ns", "python_ns", "blocked_self_ns", "blocked_ns")


def by_line(trace: Trace, column: str) -> dict[tuple, int]:
    """A time of each line."""
    return {
        (row["file"], row["line"], row["function"]): row[column] for row in trace.table("lines").to_pylist()
    }


def known(trace: Trace, **info) -> Trace:
    """The same trace, with more known of its run."""
    trace.info.update(info)
    return trace


def told(trace: Trace, table: str, moved_ns: int = 0, without: tuple[str, ...] = ()) -> list[dict]:
    """The rows of a table, its moments as they were before they were moved."""
    # Of spans the stream is a row, and streams that nothing runs on go with a selection.
    # The line of a gap is the one with most of it, of equal ones the first stack.
    dropped = {
        "spans": ("stream",),
        "lines": SHARED_TIMES,
        "steps": ("largest_gap_file", "largest_gap_line"),
    }.get(table, without)
    rows = trace.table(table).drop_columns(list(dropped)).to_pylist()
    for row in rows:
        for name, value in row.items():
            if value is not None and name.endswith(MOMENTS) and name != "lifetime_ns":
                row[name] = value - moved_ns
    # Lines that took the same come in the order of their frames, which a joined trace numbers anew.
    return sorted(rows, key=str) if table == "lines" else rows


def without(rows: list[dict], names: tuple[str, ...]) -> list[dict]:
    """Rows in an order of their own, less some columns."""
    return sorted(({key: row[key] for key in row if key not in names} for row in rows), key=str)


# ------------------------------------------------------------------------------------------------ each as it was alone


@settings(max_examples=examples(40))
@given(st.lists(any_traces(max_spans=8), min_size=1, max_size=3), st.data())
def test_every_process_says_what_it_said_alone(traces, data):
    offsets = data.draw(st.lists(st.integers(-500, 500), min_size=len(traces), max_size=len(traces)))
    for rank, trace in enumerate(traces):
        known(trace, rank=rank, process=100 + rank, profile_memory=1)
    joined = merge_processes(traces, offsets)
    # What lies before a recording, such as memory from before it, is not moved over its edge.
    assert min(joined.column("processes", "start_ns")) == 0
    for rank, trace in enumerate(traces):
        alone = joined.select_ranks([rank])
        moved_ns = offsets[rank] - min(offsets)
        for table in PER_PROCESS:
            assert told(alone, table, moved_ns) == told(trace, table), table
        for column in SHARED_TIMES:
            assert by_line(alone, column) == pytest.approx(by_line(trace, column), abs=2)
        modules = [row for row in told(joined, "modules", without=IDS) if row["rank"] == rank]
        # These are known of all processes or of none.
        shares = ("total_percent", "calls", "call_ns", "call_self_ns", "self_bytes", "bytes", "span")
        alone_modules = told(trace, "modules", without=IDS)
        assert without(modules, (*shares, *SHARED_TIMES)) == without(alone_modules, (*shares, *SHARED_TIMES))
        for column in SHARED_TIMES[:2]:
            of_path = ({row["path"]: row[column] for row in rows} for rows in (modules, alone_modules))
            assert next(of_path) == pytest.approx(next(of_path), abs=2)


@settings(max_examples=examples(25))
@given(st.lists(any_traces(max_spans=6), min_size=2, max_size=3))
def test_a_joined_trace_is_the_same_from_a_file(tmp_path_factory, traces):
    joined = merge_processes(traces, [100 * place for place in range(len(traces))])
    path = tmp_path_factory.mktemp("beside") / "joined.ktrace"
    joined.save(path)
    assert_same(kinetoscope.open(path), joined)


@settings(max_examples=examples(25))
@given(any_traces(max_spans=6), any_traces(max_spans=6), any_traces(max_spans=6))
def test_joining_in_two_goes_is_joining_in_one(first, second, third):
    for rank, trace in enumerate((first, second, third)):
        known(trace, rank=rank, process=100 + rank)
    at_once = merge_processes([first, second, third], [50, 0, 70])
    in_two = merge_processes([merge_processes([first, second], [50, 0]), third], [0, 70])
    for table in ("spans", "allocations", "steps", "threads"):
        assert told(at_once, table) == told(in_two, table), table
    assert at_once.column("processes", "start_ns").tolist() == in_two.column("processes", "start_ns").tolist()


# ---------------------------------------------------------------------------------------- what could be taken for another's


def two(first: TraceBuilder, second: TraceBuilder, *offsets: int) -> Trace:
    """Two processes side by side, of rank 0 and 1."""
    traces = [
        known(builder.build(), rank=rank, process=10 + rank) for rank, builder in enumerate((first, second))
    ]
    return merge_processes(traces, offsets or (0, 0))


def test_blocks_at_one_address_are_of_two_processes():
    builders = [TraceBuilder().know("profile_memory", 1) for _ in range(2)]
    builders[0].step(0, 0, 100).span("aten::empty", 10, 5).allocate(12, 0xA000, 64)
    builders[1].step(0, 0, 100).span("aten::zeros", 10, 5).allocate(12, 0xA000, 1000)
    builders[1].free(50, 0xA000)
    joined = two(*builders, 0, 1)
    blocks = joined.table("allocations").to_pylist()
    assert [(row["bytes"], row["rank"], row["lifetime_ns"], row["total_bytes"]) for row in blocks] == [
        (64, 0, None, 64),
        (1000, 1, 38, 1000),
        (-1000, 1, None, 0),
    ]
    assert [(row["rank"], row["peak_bytes"]) for row in joined.table("steps").to_pylist()] == [
        (0, 64),
        (1, 1000),
    ]


def test_backward_finds_the_forward_of_its_own_process():
    builders = []
    for name in ("Net", "Other"):
        builder = TraceBuilder()
        module = builder.module(name)
        builder.span("aten::linear", 10, 50, module=module, sequence=1)
        builders.append(builder.backward("LinearBackward0", 100, 20, sequence=1))
    rows = two(*builders).table("spans").to_pylist()
    backward = [row for row in rows if row["name"] == "LinearBackward0"]
    assert [(row["rank"], row["module"]) for row in backward] == [(0, "Net"), (1, "Other")]
    assert [rows[row["forward"]]["rank"] for row in backward] == [0, 1]


def test_steps_are_of_their_process_where_they_overlap():
    builders = []
    for first, at in ((7, 10), (3, 20)):
        builder = TraceBuilder().step(first, at, 100).step(first + 1, at + 100, 100)
        builders.append(builder.span("aten::add", at + 95, 2).span("aten::mul", at + 105, 2))
    joined = two(*builders)
    assert [(row["rank"], row["number"], row["operators"]) for row in joined.table("steps").to_pylist()] == [
        (0, 7, 1),
        (1, 3, 1),
        (0, 8, 1),
        (1, 4, 1),
    ]
    adds = [row for row in joined.table("spans").to_pylist() if row["name"].startswith("aten")]
    assert [(row["name"], row["rank"], row["step"]) for row in adds] == [
        ("aten::add", 0, 7),
        ("aten::mul", 0, 8),
        ("aten::add", 1, 3),
        ("aten::mul", 1, 4),
    ]
    # Steps that an optimizer ends are counted within their process too.
    builders = [TraceBuilder().annotation("Optimizer.step#SGD.step", at, 10) for at in (50, 90)]
    assert [row["number"] for row in two(*builders).table("steps").to_pylist()] == [0, 0]


def test_threads_and_modules_of_equal_numbers_stay_apart():
    builders = []
    for name in ("Net", "Other"):
        builder = TraceBuilder()
        builder.thread("main", os_tid=77, torch_tid=1)
        builders.append(builder.span("aten::add", 0, 5, module=builder.module(name)))
    joined = two(*builders)
    assert [(row["os_tid"], row["process"], row["rank"]) for row in joined.table("threads").to_pylist()] == [
        (77, 10, 0),
        (77, 11, 1),
    ]
    assert [(row["path"], row["process"]) for row in joined.table("modules").to_pylist()] == [
        ("Net", 10),
        ("Other", 11),
    ]
    assert len(joined.strings) == len(set(joined.strings))


def test_memory_before_a_window_is_live_in_its_process_only():
    builders = [TraceBuilder().know("profile_memory", 1) for _ in range(2)]
    for builder, size in zip(builders, (64, 1000), strict=True):
        builder.span("aten::empty", 0, 200).allocate(10, 0xA000, size)
    builders[1].free(20, 0xA000)
    later = two(*builders).window(100)
    assert [
        (row["bytes"], row["rank"], row["total_bytes"]) for row in later.table("allocations").to_pylist()
    ] == [(64, 0, 64)]
    assert later.column("processes", "start_ns").tolist() == [-100, -100]


def test_a_selection_of_ranks_leaves_the_other_processes_out():
    builders = [TraceBuilder().span(f"aten::op{rank}", 0, 5).counter("cpu", 3, rank) for rank in range(2)]
    alone = two(*builders).select_ranks([1])
    assert [row["process"] for row in alone.table("processes").to_pylist()] == [11]
    assert [entry["process"] for entry in alone.info["processes"]] == [11]
    assert [row["value"] for row in alone.table("counters").to_pylist()] == [1.0]
    assert alone.table("spans").column("name").to_pylist() == ["aten::op1"]


# ------------------------------------------------------------------------------------------------------------ the clock


def recorded(begin_ns: int, monotonic_ns: int | None, boot: str | None = BOOT, **info) -> Trace:
    """A trace that began at these moments of the machine's two clocks."""
    trace = TraceBuilder().span("aten::add", 5, 10).build()
    trace.info["start_realtime_ns"] = begin_ns
    clocks = {"start_monotonic_ns": monotonic_ns, "boot_id": boot}
    return known(trace, **{key: value for key, value in clocks.items() if value is not None}, **info)


def test_recordings_of_one_machine_are_placed_by_its_monotonic_clock():
    first = recorded(START_REALTIME_NS, 5_000, process=1, clock_checks={"largest_error_ns": 40})
    # The clock on the wall was set back by an hour between the two.
    second = recorded(
        START_REALTIME_NS - 3_600_000_000_000, 2_000, process=2, clock_checks={"largest_error_ns": 3000}
    )
    joined = merge_processes([first, second])
    rows = joined.table("processes").to_pylist()
    assert [(row["process"], row["start_ns"], row["clock"], row["error_ns"]) for row in rows] == [
        (1, 3_000, "monotonic", 0),
        (2, 0, "monotonic", 4_000),
    ]
    assert joined.info["start_monotonic_ns"] == 2_000
    assert joined.info["start_realtime_ns"] == START_REALTIME_NS - 3_000
    assert joined.complete
    assert joined.duration_ns == 3_015
    assert [entry["offset_ns"] for entry in joined.info["processes"]] == [0, -3_000]


@pytest.mark.parametrize(
    ("monotonic_ns", "boot"),
    [
        pytest.param(2_000, "another time:[4026531834]", id="another-boot"),
        pytest.param(2_000, None, id="no-boot"),
        pytest.param(None, BOOT, id="no-clock"),
    ],
)
def test_other_recordings_are_placed_by_the_clock_on_the_wall_and_it_is_said(monotonic_ns, boot):
    joined = merge_processes(
        [recorded(START_REALTIME_NS, 5_000), recorded(START_REALTIME_NS + 700, monotonic_ns, boot)]
    )
    assert joined.column("processes", "start_ns").tolist() == [0, 700]
    assert joined.table("processes").column("error_ns").to_pylist() == [0, None]
    assert [(loss["code"], loss["count"]) for loss in joined.losses] == [("uncompared_clocks", 1)]


def test_traces_without_any_clock_begin_together():
    joined = merge_processes([recorded(0, None, None), recorded(START_REALTIME_NS, None, None)])
    assert joined.column("processes", "start_ns").tolist() == [0, 0]
    assert list(joined.columns("processes")["clock"]) == ["unknown", "unknown"]


def test_a_clock_that_runs_slower_is_stretched_and_nesting_stays():
    fast, slow = TraceBuilder(), TraceBuilder()
    fast.span("aten::add", 0, 10)
    for start in range(0, 3_000, 3):
        slow.span("aten::add", start, 3).span("aten::mul", start + 1, 1)
    joined = merge_processes(
        [fast.build(), slow.build()], [Placement(0), Placement(1_000, drift=1e-3, error_ns=7)]
    )
    spans = joined.columns("spans")
    rows = spans["thread"] == 1
    end = (spans["start_ns"] + spans["duration_ns"])[rows].max()
    assert (spans["start_ns"][rows].min(), end) == (1_000, 4_003)
    assert spans["depth"][rows].tolist() == [0, 1] * 1_000
    assert not spans["lane"].any()
    assert joined.table("processes").column("error_ns").to_pylist() == [None, 7]


# ------------------------------------------------------------------------------------------------------------ what is told


def test_losses_and_metadata_say_whose_they_are():
    first = (
        TraceBuilder()
        .span("aten::add", 0, 5)
        .lose("dropped_spans", 2)
        .know("command_line", ["train.py", "-x", "a b"])
    )
    second = TraceBuilder().span("aten::add", 0, 5).know("parent_process", 10).know("seed", 3)
    joined = two(first, second)
    assert "(process 10)" in joined.losses[0]["where"]
    rows = joined.table("processes").to_pylist()
    assert [(row["process"], row["parent"], row["name"], row["command"]) for row in rows] == [
        (10, None, "train.py", "train.py -x 'a b'"),
        (11, 10, "python", ""),
    ]
    assert [row["spans"] for row in rows] == [1, 1]
    assert joined.info["processes"][1]["seed"] == 3
    assert "seed" not in joined.info
    assert joined.table("spans").column("rank").to_pylist() == [0, 1]


def test_a_process_without_a_rank_does_not_get_that_of_another():
    first, second = (
        TraceBuilder().span("aten::add", 0, 5).build(),
        TraceBuilder().span("aten::mul", 0, 5).build(),
    )
    known(first, rank=3, process=10)
    known(second, process=11)
    assert merge_processes([first, second], [0, 0]).table("spans").column("rank").to_pylist() == [3, None]


def test_cycles_of_processes_keep_their_numbers():
    parts = []
    for rank in range(2):
        cycles = [
            TraceBuilder().step(number, 0, 50).know("cycle", {"number": number}).build() for number in (2, 5)
        ]
        cycles[1].info["start_realtime_ns"] += 1_000
        parts.append(known(concatenate(cycles), rank=rank, process=10 + rank))
    joined = merge_processes(parts, [0, 100])
    rows = joined.table("cycles").to_pylist()
    assert [(row["rank"], row["number"], row["first_step"], row["start_ns"]) for row in rows] == [
        (0, 2, 2, 0),
        (0, 5, 5, 1_000),
        (1, 2, 2, 100),
        (1, 5, 5, 1_100),
    ]
    assert joined.table("spans").column("cycle").to_pylist() == [2, 5, 2, 5]


def test_the_one_process_of_a_trace_is_told_like_any():
    trace = known(TraceBuilder().span("aten::add", 0, 5).build(), rank=2)
    (row,) = trace.table("processes").to_pylist()
    assert (row["process"], row["rank"], row["threads"], row["spans"], row["error_ns"]) == (4242, 2, 1, 1, 0)


def test_the_given_traces_are_as_before():
    trace, other = (TraceBuilder().span("aten::add", 0, 5).build() for _ in range(2))
    before = trace.column("spans", "start_ns").copy()
    merge_processes([trace, other], [100, 0]).column("spans", "start_ns")[:] = 7
    assert np.array_equal(trace.column("spans", "start_ns"), before)
    assert set(TABLES) >= set(PER_PROCESS)
