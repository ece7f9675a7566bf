"""When a step begins and ends where the host issues it ahead of the devices, and what reads that."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinetoscope
from kinetoscope.analyses.findings import examine
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.overview import Overview
from kinetoscope.analyses.trace_blocks import ahead_sentence
from kinetoscope.comparison.measures import run_of
from kinetoscope.ledger.parts import PARTS
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.device.work import device_work
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.step_extents import start_up_steps, step_extents
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

US, MS = 1_000, 1_000_000


class Program:
    """Steps of a host that launches kernels in its own time, on devices that run them in order."""

    def __init__(self, *, devices=1, streams=1, ahead_ns=10**15, rank=-1):
        self.builder, self.ahead_ns = TraceBuilder(), ahead_ns
        if rank >= 0:
            self.builder.know("distributedInfo", {"rank": rank, "world_size": 2, "backend": "nccl"})
        self.streams = [
            self.builder.stream(7 + number, device=device)
            for device in range(devices)
            for number in range(streams)
        ]
        self.free_ns = [0] * len(self.streams)
        self.host_ns = self.correlation = self.number = 0

    def launch(self, name, time_ns, *, kernels=1, cost_ns=100 * US, stream=0):
        """Launches a kernel, or several as a graph, and waits first where the device is far behind."""
        self.host_ns = max(self.host_ns, self.free_ns[stream] - self.ahead_ns)
        self.correlation += 1
        called = "cudaLaunchKernel" if kernels == 1 else "cudaGraphLaunch"
        self.builder.span("aten::mm", self.host_ns, cost_ns)
        self.builder.runtime(called, self.host_ns + 1, cost_ns // 2, correlation=self.correlation)
        start_ns = max(self.free_ns[stream], self.host_ns + cost_ns)
        for _ in range(kernels):
            self.builder.kernel(
                name, start_ns, time_ns, stream=self.streams[stream], correlation=self.correlation
            )
            start_ns += time_ns
        self.free_ns[stream] = start_ns
        self.host_ns += cost_ns

    def wait(self):
        """Waits for all devices."""
        done_ns = max(*self.free_ns, self.host_ns + 1)
        self.builder.runtime("cudaDeviceSynchronize", self.host_ns, done_ns - self.host_ns)
        self.host_ns = done_ns

    def step(self, body):
        """Runs a step."""
        begin_ns = self.host_ns
        body(self)
        self.builder.step(self.number, begin_ns, self.host_ns - begin_ns)
        self.number += 1

    def run(self, steps, body, *, wait_every=0):
        """Runs steps and waits after every so many of them, at the end of the step; builds the trace."""
        for number in range(steps):
            waits = wait_every and number % wait_every == wait_every - 1
            self.step(lambda program, waits=waits: (body(program), program.wait() if waits else None))
        self.wait()
        return self.builder.build()


def ten_kernels(host_ns, kernel_ns):
    def body(program):
        for number in range(10):
            program.launch(
                f"gemm_{number}", kernel_ns, cost_ns=host_ns // 10, stream=number % len(program.streams)
            )

    return body


def marks_ms(trace):
    return [round(one / MS, 1) for one in trace.column("steps", "duration_ns").tolist()]


def extents_ms(trace):
    return [round(one / MS, 1) for one in step_extents(trace).duration_ns.tolist()]


@pytest.mark.parametrize(
    ("host_ns", "wait_every"),
    [(12 * MS, 0), (4 * MS, 1)],
    ids=["the_host_is_the_bottleneck", "each_step_waits_for_the_device"],
)
def test_steps_that_end_after_their_device_work_are_as_marked(host_ns, wait_every):
    trace = Program().run(8, ten_kernels(host_ns, 1 * MS), wait_every=wait_every)
    assert not step_extents(trace).is_ahead.any()
    for name in ("start_ns", "duration_ns"):
        assert trace.table("steps")[name].to_pylist() == trace.column("steps", name).tolist()
    assert Overview(trace).steps.ahead_ns == 0


@pytest.mark.parametrize(
    ("devices", "streams", "wait_every", "step_ms"),
    [(1, 1, 0, 10.0), (1, 1, 4, 10.0), (1, 1, 2, 10.0), (1, 2, 0, 5.0), (2, 1, 0, 5.0)],
    ids=["no_wait", "wait_every_four_steps", "wait_every_two_steps", "two_streams", "two_devices"],
)
def test_a_step_that_the_host_issues_ahead_takes_what_its_device_work_takes(
    devices, streams, wait_every, step_ms
):
    trace = Program(devices=devices, streams=streams).run(
        8, ten_kernels(1 * MS, 1 * MS), wait_every=wait_every
    )
    assert min(marks_ms(trace)) == 1.0
    assert extents_ms(trace) == pytest.approx([step_ms] * 8, abs=0.21)
    assert step_extents(trace).is_ahead.all()
    (ahead,) = ahead_sentence(Overview(trace).steps)["values"]
    assert ahead == (Overview(trace).steps.ahead_ns, "ns")


def test_a_step_of_a_cuda_graph_ends_with_the_last_kernel_of_the_graph():
    trace = Program().run(5, lambda program: program.launch("graphed", 500 * US, kernels=50, cost_ns=MS))
    assert extents_ms(trace) == [26.0, 25.0, 25.0, 25.0, 25.0]


def test_steps_in_which_a_queue_fills_take_as_long_as_later_ones():
    trace = Program(ahead_ns=300 * MS).run(
        20, lambda program: program.launch("gemm", 40 * MS, cost_ns=3 * MS)
    )
    assert marks_ms(trace)[0] == 3.0
    assert extents_ms(trace) == [43.0] + [40.0] * 19
    assert not start_up_steps(trace).any()


def test_each_process_is_ahead_of_its_own_devices_only(tmp_path):
    paths = []
    for rank, host_ns in enumerate((1 * MS, 12 * MS)):
        paths.append(tmp_path / f"rank{rank}.ktrace")
        Program(rank=rank).run(8, ten_kernels(host_ns, 1 * MS)).save(paths[-1])
    with kinetoscope.merge(paths) as trace:
        extents, process = step_extents(trace), trace.column("steps", "process_row")
        assert extents.is_ahead.tolist() == (process == 0).tolist()
        assert extents.duration_ns[process == 0] / MS == pytest.approx([10.0] * 8, abs=0.11)
        assert extents.duration_ns[process == 1].tolist() == [12 * MS] * 8


def test_work_launched_before_the_recording_is_of_no_step():
    program = Program()
    program.builder.kernel("earlier", 0, 5 * MS, stream=program.streams[0])
    program.free_ns[0] = 5 * MS
    trace = program.run(8, ten_kernels(1 * MS, 1 * MS))
    assert step_extents(trace).start_ns[0] == 5 * MS
    assert extents_ms(trace) == [10.0] * 8


def test_every_door_says_the_same_length_of_a_step_issued_ahead():
    trace = Program().run(8, ten_kernels(1 * MS, 1 * MS))
    expected = step_extents(trace).duration_ns.tolist()
    assert trace.table("steps")["duration_ns"].to_pylist() == expected
    assert trace.table("breakdown")["duration_ns"].to_pylist() == expected
    assert list(Overview(trace).steps.shown_ns) == expected
    assert run_of(trace).step_ns.tolist() == expected
    assert trace.table("step_kinds")["total_ns"].to_pylist() == [sum(expected)]
    assert examine(trace).whole_ns == sum(expected)


def test_hosts_that_issue_equal_device_work_at_other_rates_compare_as_equal():
    runs = [run_of(Program().run(8, ten_kernels(host_ns, 1 * MS))) for host_ns in (4 * MS, 1 * MS)]
    base, new = (run.step_ns[run.counted] for run in runs)
    assert base.tolist() == new.tolist() == [10 * MS] * 7


def test_a_kernel_with_a_fifth_of_the_device_work_has_a_fifth_of_step_time():
    def body(program):
        program.launch("A", 500 * US, kernels=10, cost_ns=500 * US)
        program.launch("B", 500 * US, kernels=40, cost_ns=500 * US)

    loop = Loop(Program().run(5, body))
    name = loop.trace.strings.index("A")
    rows = loop.device.kernels[loop.trace.column("spans", "name")[loop.device.kernels] == name]
    assert loop.share(loop.typical_ns(rows)) == pytest.approx(20, abs=0.5)
    assert loop.per_step(loop.launched_kernels) == 50


LAUNCH = st.tuples(st.integers(1, 8), st.integers(0, 3), st.integers(1, 4))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.lists(LAUNCH, max_size=4), min_size=1, max_size=10),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 4),
    st.sampled_from([0, 5 * MS, 10**15]),
)
def test_extents_do_not_overlap_and_hold_all_work_of_steps(steps, devices, streams, wait_every, ahead_ns):
    program = Program(devices=devices, streams=streams, ahead_ns=ahead_ns)
    for number, launches in enumerate(steps):

        def body(program, launches=launches, number=number):
            program.host_ns += 10 * US
            for time_ms, stream, kernels in launches:
                program.launch("gemm", time_ms * MS, kernels=kernels, stream=stream % len(program.streams))
            if wait_every and number % wait_every == 0:
                program.wait()

        program.step(body)
    trace = program.builder.build()
    extents, work = step_extents(trace), device_work(trace)
    assert (extents.start_ns[1:] >= extents.end_ns[:-1]).all()
    assert (extents.duration_ns >= 0).all()
    if extents.is_ahead.any():
        assert (starters(trace).call[work.rows] >= 0).all()
        every = Intervals.of(extents.start_ns, extents.end_ns)
        assert every.within(work.start_ns, work.end_ns).sum() == (work.end_ns - work.start_ns).sum()
    rows = trace.table("steps").to_pylist()
    assert [sum(row[part] for part in PARTS) for row in rows] == extents.duration_ns.tolist()
    loop = Loop(trace)
    if extents.is_ahead.any() and loop.device is not None:
        names = trace.column("spans", "name")[loop.device.kernels]
        taken_ns = trace.column("spans", "duration_ns")[loop.device.kernels]
        assert (
            sum(taken_ns[names == one].sum() for one in np.unique(names)) <= devices * streams * loop.whole_ns
        )


def test_a_gap_of_the_host_outside_of_the_extent_is_no_gap_of_the_step():
    def body(program):
        program.launch("kernel", 40 * MS)
        program.host_ns += 5 * MS
        program.launch("kernel", 40 * MS)

    rows = Program().run(4, body).table("steps").to_pylist()
    # The first step begins with the host; the device is the bottleneck of all others, and its steps are when the host has long left theirs.
    assert [row["largest_gap_ns"] for row in rows] == [5 * MS, 0, 0, 0]
    assert all(row["duration_ns"] >= 80 * MS for row in rows)
