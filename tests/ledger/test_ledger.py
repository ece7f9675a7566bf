"""One trace, opened by every door: a quantity that two of them show has one value and one name."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.analyses.account import account_of, accounts
from kinetoscope.analyses.findings import examine
from kinetoscope.analyses.hot_lines import HOT_LINE
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.step_difference import step_difference
from kinetoscope.comparison.measures import run_of
from kinetoscope.ledger.parts import PARTS, REQUEST_PARTS, part_names, step_time
from kinetoscope.model.nesting import GARBAGE_COLLECTION
from kinetoscope.model.schema import SampleState
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.host.units_of_work import Unit
from tests.support.any_trace import any_traces
from tests.support.trace_builder import TraceBuilder

WAITS = {
    Cause.COLLECTIVE: "communication_ns",
    Cause.COPY: "copy_ns",
    Cause.DATA: "data_wait_ns",
    Cause.PROCESSOR: "processor_wait_ns",
}


STEP_NS = 10_000_000
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HOST = (
    "aten::mm",
    "aten::relu",
    "c10d::allreduce_",
    LOADER,
    GARBAGE_COLLECTION,
    "gloo:all_reduce",
    "cudaStreamSynchronize",
)
DEVICE = ("gemm", NCCL, "Memcpy HtoD (Pageable -> Device)")


@st.composite
def training(draw):
    """Steps of a loop in which everything happens that a part is for, on the host or with a device."""
    builder = TraceBuilder()
    main, other = builder.thread(), builder.thread("worker")
    stream = builder.stream(7) if draw(st.booleans()) else None
    stack, shapes = builder.stack(("train.py", 3, "train")), builder.shapes([[64, 64], [64, 64]])
    steps = draw(st.integers(2, 6))
    for step in range(steps):
        begin = step * STEP_NS
        builder.step(step, begin, STEP_NS)
        for place in range(draw(st.integers(0, 8))):
            start, length = begin + place * STEP_NS // 8, draw(st.integers(1, STEP_NS // 8))
            name, thread = draw(st.sampled_from(HOST)), draw(st.sampled_from([main, main, other]))
            if name.startswith("cuda"):
                builder.runtime(name, start, length, thread=main)
            elif name.startswith(("aten", "c10d")):
                known = shapes if draw(st.booleans()) else -1
                builder.span(name, start, length, thread=thread, stack=stack, shapes=known)
            else:
                builder.annotation(name, start, length, thread=main if name == LOADER else thread)
        for place in range(draw(st.integers(0, 4)) if stream is not None else 0):
            start, name = begin + place * STEP_NS // 4, draw(st.sampled_from(DEVICE))
            add = builder.copy if name.startswith("Memcpy") else builder.kernel
            add(name, start, draw(st.integers(1, STEP_NS // 4)), stream=stream)
        state = draw(st.sampled_from([SampleState.RUNNING, SampleState.BLOCKED]))
        waited_ns = draw(st.sampled_from([-1, 0, STEP_NS // 10, STEP_NS // 2, 2 * STEP_NS]))
        builder.sample(
            begin + STEP_NS, stack, period_ns=STEP_NS, thread=main, state=state, waited_ns=waited_ns
        )
    return builder.build()


def totals(rows):
    """The sum of each part over some rows, without those of no time."""
    return {name: total for name in PARTS if (total := sum(row[name] for row in rows))}


@given(st.one_of(training(), training(), any_traces()))
def test_tables_findings_and_comparison_have_one_time_for_each_part(trace):
    loop = Loop(trace)
    if loop.unit is not Unit.STEP:
        return
    steps = [row for row in trace.table("steps").to_pylist() if not row["start_up"]]
    ledger = next(one for one in accounts(trace) if one.process == loop.process)
    numbers = set(ledger.work.numbers[ledger.counted].tolist())
    steps = [
        row for row in steps if row["span"] in set(trace.columns("steps")["span"][loop.work.row].tolist())
    ]
    device = ledger.activity.device
    place = "cpu" if device is None else device.name
    every = totals(steps)
    starts = {row["start_ns"] for row in steps}
    breakdown = [
        row for row in trace.table("breakdown").to_pylist()
        if row["device"] == place and not row["start_up"] and row["step"] in numbers and row["start_ns"] in starts
    ]  # fmt: skip
    assert totals(breakdown) == every
    (shares,) = (one for one in step_time(trace) if (one.process, one.device) == (loop.process, place))
    assert {name: time_ns for name, time_ns in zip(PARTS, shares.parts_ns, strict=True) if time_ns} == every
    report = examine(trace)
    assert shares.duration_ns == loop.duration_ns == report.duration_ns == sum(every.values())
    assert loop.whole_ns == report.whole_ns
    assert loop.duration_ns - loop.whole_ns in (0, every.get("processor_wait_ns", 0))
    words = dict(zip(PARTS, part_names(device is None), strict=True))
    by_words = {words[name]: time_ns for name, time_ns in every.items()}
    assert {name: int(times.sum()) for name, times in loop.parts.items() if times.any()} == by_words
    compared = run_of(trace, warm_up=0).populations["part"]
    sums = Counter()
    for row, time_ns in zip(compared.row.tolist(), compared.time_ns.tolist(), strict=True):
        sums[compared.keys[row][0]] += int(time_ns)
    assert +sums == by_words
    assert int(run_of(trace, warm_up=0).step_ns.sum()) == loop.duration_ns
    kinds = [kind for kind in account_of(trace).kinds if kind.process == loop.process]
    assert sum(kind.duration_ns for kind in kinds) == loop.duration_ns
    rows = [row for kind in kinds for row in account_of(trace).rows_of(kind)]
    for cause, part in WAITS.items():
        waited_ns = sum(
            row["time_ns"] for row in rows if (row["entry"], row["cause"]) == ("waiting", cause.words)
        )
        assert waited_ns == every.get(part, 0), cause


@given(st.one_of(training(), training(), any_traces()))
def test_floor_and_what_is_above_are_the_time_and_gains_no_more(trace):
    account, report = account_of(trace), examine(trace)
    for kind in account.kinds:
        rows = account.rows_of(kind)
        assert sum(row["time_ns"] for row in rows) == kind.duration_ns
        floor_ns = sum(row["needed_ns"] for row in rows)
        assert kind.floor_ns in (None, floor_ns)
        assert kind.above_ns == kind.duration_ns - floor_ns - kind.entry_ns["unknown"]
        assert all(0 <= row["needed_ns"] <= row["time_ns"] for row in rows)
    assert sum(finding.gain_ns or 0 for finding in report.findings) <= max(report.whole_ns, 0)
    of_lines = [finding.gain_ns for finding in report.findings if finding.code == HOT_LINE.code]
    process = Loop(trace).process
    above_ns = [
        int((one.duration_ns - one.floor_ns)[one.counted].sum())
        for one in accounts(trace)
        if one.process == process
    ]
    assert sum(of_lines) <= sum(above_ns)


@given(st.one_of(training(), training(), any_traces()))
def test_a_step_that_is_compared_has_the_parts_of_its_row(trace):
    loop = Loop(trace)
    if loop.unit is not Unit.STEP or len(loop.work) < 2:
        return
    rows = [row for row in step_difference(trace).to_pylist() if row["kind"] == "part"]
    times = {row["name"]: row["time_ns"] for row in rows if row["time_ns"]}
    each = [
        {name: int(part[place]) for name, part in loop.parts.items() if part[place]}
        for place, number in enumerate(loop.work.numbers.tolist())
        if rows and number == rows[0]["step"]
    ]
    assert times in each or not each


@given(any_traces())
def test_requests_are_as_long_as_their_parts(trace):
    for row in trace.table("requests").to_pylist():
        assert sum(row[name] for name in REQUEST_PARTS) == row["duration_ns"]
