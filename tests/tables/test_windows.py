"""Which steps count: those whose time is that of a step of the loop."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.tables.windows import filling_steps, start_up_steps
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def loop(host_ns, device_ns, *, ahead_ns, waits=()):
    """The trace of steps that each launch one kernel, and whose host then gets as far ahead of the device as it may.

    Args:
        host_ns: What each step takes on the host where it does not wait.
        device_ns: How long each kernel runs.
        ahead_ns: The host waits where the device would be done only so long after it.
        waits: The steps at whose end the host waits until the device is done.
    """
    builder = TraceBuilder()
    stream = builder.stream(7)
    now_ns = done_ns = 0
    for number, (own_ns, kernel_ns) in enumerate(zip(host_ns, device_ns, strict=True)):
        begin_ns = now_ns
        now_ns = max(now_ns, done_ns - ahead_ns)
        builder.span("aten::mm", now_ns, own_ns // 2)
        builder.runtime("cudaLaunchKernel", now_ns, own_ns // 4, correlation=number + 1)
        start_ns = max(done_ns, now_ns + own_ns // 4)
        builder.kernel("gemm", start_ns, kernel_ns, stream=stream, correlation=number + 1)
        done_ns, now_ns = start_ns + kernel_ns, now_ns + own_ns
        if number in waits:
            builder.runtime("cudaStreamSynchronize", now_ns, max(done_ns - now_ns, 1))
            now_ns = max(now_ns, done_ns) + 1
        builder.step(number, begin_ns, now_ns - begin_ns)
    return builder.build()


def test_steps_that_only_fill_the_queue_of_a_device_do_not_count():
    trace = loop([3 * MS] * 20, [40 * MS] * 20, ahead_ns=300 * MS)
    left_out = start_up_steps(trace)
    count = int(left_out.sum())
    assert left_out[:count].all()
    assert 7 <= count <= 10
    counted = trace.table("steps").filter(~left_out)["duration_ns"].to_pylist()
    # The first of them may begin before the queue is quite full.
    assert counted[1:] == [40 * MS] * (19 - count)
    assert 30 * MS < counted[0] <= 40 * MS
    assert trace.table("steps")["start_up"].to_pylist() == left_out.tolist()
    assert [row["start_up"] for row in trace.table("breakdown").to_pylist()] == left_out.tolist()


@pytest.mark.parametrize(
    "more",
    [
        # The host is the limit.
        {"host_ns": [50 * MS] * 12, "device_ns": [40 * MS] * 12, "ahead_ns": 300 * MS},
        # It waits in every step.
        {"host_ns": [3 * MS] * 12, "device_ns": [40 * MS] * 12, "ahead_ns": 300 * MS, "waits": range(12)},
        # It waits in every fourth step: what the others seem to gain is paid there.
        {"host_ns": [3 * MS] * 12, "device_ns": [40 * MS] * 12, "ahead_ns": 300 * MS, "waits": (3, 7, 11)},
        # The queue is not full before the recording ends.
        {"host_ns": [3 * MS] * 6, "device_ns": [40 * MS] * 6, "ahead_ns": 300 * MS},
    ],
)
def test_all_steps_count_where_the_queue_is_not_filled_once(more):
    assert not start_up_steps(loop(**more)).any()


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 60)), min_size=1, max_size=25),
    st.integers(10, 400),
    st.sets(st.integers(0, 24)),
)
def test_what_is_left_out_comes_first_and_its_device_takes_longer_than_its_host(steps, ahead, waits):
    host, device = ([one[at] * MS for one in steps] for at in (0, 1))
    trace = loop(host, device, ahead_ns=ahead * MS, waits=waits)
    left_out = filling_steps(trace)
    count = int(left_out.sum())
    assert left_out[:count].all()
    assert count == 0 or count <= len(steps) - 3
    assert trace.column("steps", "duration_ns")[:count].sum() < sum(device[:count]) or count == 0
