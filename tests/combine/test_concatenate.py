"""Several traces of one process put together: nothing of any row is lost, and what is the same is there once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import Trace
from kinetoscope.combine.concatenate import concatenate
from kinetoscope.model.schema import STORED
from tests.support.trace_builder import TraceBuilder, trace_of

BASE_NS = 1_700_000_000_000_000_000
WHOSE = {"process": 4242, "rank": None}
NAMES = ("aten::add", "aten::mm", "aten::relu", "mine")


def recorded(builder: TraceBuilder, begin_ns: int = 0, number: int | None = None, **info) -> Trace:
    """Builds a trace that began so long after the first one, as cycle `number` of its session."""
    for key, value in info.items():
        builder.know(key, value)
    if number is not None:
        builder.know("cycle", {"number": number})
    parts = builder.recording()
    parts["start_realtime_ns"] = BASE_NS + begin_ns
    return trace_of(parts)


def shown(trace: Trace, table: str = "spans"):
    return trace.table(table).to_pylist()


# --------------------------------------------------------------------------------------------------- every row is kept


@st.composite
def cycles_of_one_process(draw):
    """Traces of one model on a few threads; each builder meets threads, modules and names in an order of its own."""
    threads = draw(st.lists(st.sampled_from([70, 71, 72]), min_size=1, max_size=3, unique=True))
    traces, begin_ns, sequence = [], 0, 0
    for number in range(draw(st.integers(1, 4))):
        builder = TraceBuilder()
        for text in draw(st.permutations(NAMES)):
            builder.string(text)
        rows = [
            builder.thread(f"t{tid}", os_tid=tid, torch_tid=tid - 69)
            for tid in draw(st.permutations(threads))
        ]
        net = builder.module("Net")
        fc = builder.module("Linear", name="fc", parent=net)
        for _ in range(draw(st.integers(0, 12))):
            line = draw(st.integers(1, 3))
            sequence += 1
            builder.span(
                draw(st.sampled_from(NAMES)),
                draw(st.integers(0, 60)),
                draw(st.integers(0, 40)),
                thread=draw(st.sampled_from(rows)),
                module=draw(st.sampled_from([-1, net, fc])),
                stack=draw(st.sampled_from([-1, builder.stack(("a.py", line, "f"), ("b.py", 2, "g"))])),
                shapes=draw(st.sampled_from([-1, builder.shapes([[line]])])),
                sequence=sequence,
                scope=draw(st.sampled_from([0, 7])),
            )
        for _ in range(draw(st.integers(0, 4))):
            address = draw(st.integers(1, 3)) * 64
            at_ns = draw(st.integers(0, 100))
            if draw(st.booleans()):
                builder.allocate(at_ns, address, 8 * address, thread=draw(st.sampled_from(rows)))
            else:
                builder.free(at_ns, address, thread=draw(st.sampled_from(rows)))
        traces.append((recorded(builder, begin_ns, number, profile_memory=1), begin_ns))
        begin_ns += 200 + draw(st.integers(0, 100))
    return traces


def without_rows(row, names, offset_ns=0):
    """A row with the rows it refers to replaced by what stands there, and without what may differ."""
    row = dict(row)
    for key in ("parent", "forward", "span"):
        if row.get(key) is not None:
            row[key] = (names[row[key]]["name"], names[row[key]]["start_ns"])
    for key in ("id", "cycle", "match", "thread"):
        row.pop(key, None)
    for key in ("start_ns", "time_ns"):
        if key in row:
            row[key] += offset_ns
    return row


@given(cycles_of_one_process())
def test_every_span_and_every_allocation_looks_as_it_did(made):
    joined = concatenate([trace for trace, _ in made])
    for table in ("spans", "allocations"):
        expected = []
        for trace, offset_ns in made:
            spans = [row | {"start_ns": row["start_ns"] + offset_ns} for row in shown(trace)]
            expected += [without_rows(row, spans, offset_ns) for row in shown(trace, table)]
        spans = shown(joined)
        found = [without_rows(row, spans) for row in shown(joined, table)]
        key = repr
        assert sorted(found, key=key) == sorted(expected, key=key)


@given(cycles_of_one_process())
def test_the_rules_of_a_trace_hold_for_it(made):
    joined = concatenate([trace for trace, _ in made])
    spans = joined.columns("spans")
    order = np.lexsort((-spans["duration_ns"], spans["start_ns"], spans["thread"]))
    assert order.tolist() == list(range(len(spans)))
    assert (spans["parent"] < np.arange(len(spans))).all()
    assert (spans["self_ns"] >= 0).all()
    for name, table in STORED.items():
        columns = joined.columns(name)
        for column in table.columns:
            if column.unit.startswith("row of ") and not column.derived and len(columns):
                target = column.unit.removeprefix("row of ")
                size = len(joined.strings) if target == "strings" else len(joined.columns(target))
                assert -1 <= columns[column.name].min() <= columns[column.name].max() < size, (
                    name,
                    column.name,
                )
    assert len(joined.strings) == len(set(joined.strings))
    # The time of a span lies in its cycle, and each cycle has the spans that its trace had.
    assert [row["spans"] for row in shown(joined, "cycles")] == [
        len(trace.columns("spans")) for trace, _ in made
    ]


@given(cycles_of_one_process())
def test_it_does_not_matter_how_they_are_grouped(made):
    traces = [trace for trace, _ in made]
    at_once = concatenate(traces)
    step_by_step = traces[0]
    for trace in traces[1:]:
        step_by_step = concatenate([step_by_step, trace])
    for table in ("spans", "allocations", "cycles", "threads", "losses"):
        assert shown(step_by_step, table) == shown(at_once, table)
    assert step_by_step.info["stop_ns"] == at_once.info["stop_ns"]


@given(made=cycles_of_one_process())
def test_a_saved_one_reads_back_the_same(made, tmp_path_factory):
    import kinetoscope

    joined = concatenate([trace for trace, _ in made])
    path = tmp_path_factory.mktemp("joined") / "all.ktrace"
    joined.save(path)
    with kinetoscope.open(path) as again:
        for table in ("spans", "allocations", "cycles"):
            assert shown(again, table) == shown(joined, table)


# ------------------------------------------------------------------------------------------------------ what is merged


def test_the_same_threads_modules_and_stacks_are_one():
    def cycle(begin_ns, number):
        builder = TraceBuilder()
        main = builder.thread("main", os_tid=70)
        net = builder.module("Net")
        fc = builder.module("Linear", name="fc", parent=net)
        stack = builder.stack(("train.py", 3, "main"))
        builder.span("aten::mm", 0, 10, thread=main, module=fc, stack=stack, shapes=builder.shapes([[2]]))
        return recorded(builder, begin_ns, number)

    joined = concatenate([cycle(0, 0), cycle(1000, 1), cycle(2000, 2)])
    assert {name: len(joined.columns(name)) for name in ("threads", "modules", "stacks", "frames", "shapes")} == {
        "threads": 1, "modules": 2, "stacks": 1, "frames": 1, "shapes": 1,
    }  # fmt: skip
    assert [(row["start_ns"], row["cycle"], row["module"]) for row in shown(joined)] == [
        (0, 0, "fc"), (1000, 1, "fc"), (2000, 2, "fc"),
    ]  # fmt: skip


def test_threads_that_share_a_number_only_are_kept_apart():
    def cycle(torch_tid, begin_ns):
        builder = TraceBuilder()
        builder.thread("worker", os_tid=70, torch_tid=torch_tid)
        return recorded(builder.span("aten::add", 0, 10), begin_ns)

    assert len(concatenate([cycle(1, 0), cycle(2, 500)]).columns("threads")) == 2


def test_a_clock_that_was_set_back_does_not_mix_the_cycles():
    first = recorded(TraceBuilder().span("one", 0, 100), 0, 0)
    second = recorded(TraceBuilder().span("two", 0, 100), -5_000_000, 1)
    joined = concatenate([first, second])
    assert [(row["name"], row["start_ns"], row["depth"]) for row in shown(joined)] == [
        ("one", 0, 0),
        ("two", 100, 0),
    ]


def test_a_block_that_outlives_its_cycle_is_not_mistaken_for_another():
    first = TraceBuilder()
    first.allocate(5, 0x40, 256)
    second = TraceBuilder()
    second.allocate(5, 0x40, 64)
    second.free(9, 0x40)
    joined = concatenate([recorded(first, 0, 0), recorded(second, 1000, 1)])
    rows = [
        (row["time_ns"], row["bytes"], row["lifetime_ns"], row["total_bytes"])
        for row in shown(joined, "allocations")
    ]
    assert rows == [(5, 256, None, 256), (1005, 64, 4, 64), (1009, -64, None, 0)]


def test_the_time_between_two_cycles_belongs_to_no_step():
    def cycle(begin_ns, number):
        builder = TraceBuilder().annotation("Optimizer.step#SGD.step", 40, 10)
        return recorded(builder.annotation("Optimizer.step#SGD.step", 90, 10), begin_ns, number)

    steps = shown(concatenate([cycle(0, 0), cycle(10_000, 1)]), "steps")
    assert [row["duration_ns"] for row in steps] == [50, 50, 50, 50]


# -------------------------------------------------------------------------------------------- numbers, info and losses


def test_cycles_keep_their_numbers_and_first_steps():
    traces = [
        recorded(TraceBuilder().step(step, 0, 50).span("aten::add", 60, 5), at_ns, number)
        for number, step, at_ns in [(2, 14, 0), (3, 20, 1000)]
    ]
    assert shown(concatenate(traces), "cycles") == [
        {"number": 2, "start_ns": 0, "duration_ns": 65, "first_step": 14, "steps": 1, "spans": 2, **WHOSE},
        {"number": 3, "start_ns": 1000, "duration_ns": 65, "first_step": 20, "steps": 1, "spans": 2, **WHOSE},
    ]


@pytest.mark.parametrize("numbers", [(0, 0), (None, 0), (5, 5)])
def test_traces_of_several_sessions_are_numbered_anew(numbers):
    joined = concatenate(
        [recorded(TraceBuilder().span("x", 0, 1), 100 * n, number) for n, number in enumerate(numbers)]
    )
    assert joined.column("cycles", "number").tolist() == [0, 1]
    assert [row["cycle"] for row in shown(joined)] == [0, 1]


def test_a_trace_of_another_origin_counts_as_a_cycle():
    plain = Trace.from_columns({"spans": {"duration_ns": [5]}, "threads": {"os_tid": [1]}}, strings=[""])
    assert [row["cycle"] for row in shown(plain)] == [None]
    assert [row["cycle"] for row in shown(concatenate([plain, plain]))] == [0, 1]


def test_what_differs_between_cycles_is_told_for_each():
    first = recorded(TraceBuilder().span("x", 0, 10), 0, 0, trace_id="A", host="h")
    second = recorded(TraceBuilder().span("x", 0, 10), 100, 1, trace_id="B", host="h", note=1)
    info = concatenate([first, second]).info
    assert (info["host"], info["trace_id"], info["note"]) == ("h", "B", 1)
    assert info["start_realtime_ns"] == BASE_NS
    assert info["stop_ns"] == 110
    assert info["cycles"] == [
        {"trace_id": "A", "number": 0, "start_ns": 0, "duration_ns": 10},
        {"trace_id": "B", "note": 1, "number": 1, "start_ns": 100, "duration_ns": 10},
    ]


def test_losses_are_added_up_with_their_cycles():
    traces = [
        recorded(TraceBuilder().span("x", 0, 1).lose("dropped_spans", 3), 0, 0),
        recorded(TraceBuilder().span("x", 0, 1), 100, 1),
        recorded(TraceBuilder().span("x", 0, 1).lose("dropped_spans", 4), 200, 2),
    ]
    (loss,) = concatenate(traces).losses
    assert (loss["code"], loss["count"], loss["where"]) == ("dropped_spans", 7, "spans (cycles 0, 2)")
    killed = recorded(TraceBuilder().span("x", 0, 1).killed(), 300, 3)
    assert not concatenate([*traces, killed]).info["complete"]


# ------------------------------------------------------------------------------------------------------------ bad input
