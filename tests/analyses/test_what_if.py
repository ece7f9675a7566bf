"""What a job of ranks would gain: what one of them gains counts only as far as the others wait for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinetoscope
from kinetoscope._errors import ArgumentError
from tests.support.effort import examples
from tests.support.ranks import run_ranks
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000
NEEDED_NS, TRANSFER_NS = 2 * MS, MS // 2
# What recording an operator and calling it takes.
FIXED_NS = 100


def job(slow_ns, tail_ns=None, steps=4, rounds=1):
    """Merged ranks: in each step a product, an all_reduce, and another product, each in a line of its own.

    Args:
        slow_ns: For each rank how much longer the first product takes than it needs, in line 50 of rank 0, 51 of rank 1 ...
        tail_ns: The same of that after the all_reduce, in line 90 and so on; None for nothing.
        steps: How many steps.
        rounds: How many times this is done in a step.
    """
    ranks, tail_ns = range(len(slow_ns)), tail_ns or [0] * len(slow_ns)
    builders = []
    for rank in ranks:
        builder = TraceBuilder()
        builder.know("process", 100 + rank).know("rank", rank).know("world_size", len(slow_ns))
        builder.know("start_monotonic_ns", 10**9).know("host", "one")
        builder.know("attainable", {"call": [[1, 1]], "matmul float32": [[2 * 64**3, NEEDED_NS]]})
        builder.thread("main")
        builder.thread("gloo")
        builders.append(builder)
    now = [0 for _ in ranks]
    for step in range(steps):
        began = list(now)
        for _ in range(rounds):
            for rank in ranks:
                now[rank] = product(builders[rank], now[rank], slow_ns[rank], 50 + rank)
            end = max(now) + TRANSFER_NS
            for rank in ranks:
                transfer(builders[rank], now[rank], end)
                now[rank] = product(builders[rank], end, tail_ns[rank], 90 + rank)
        for rank in ranks:
            builders[rank].step(step, began[rank], now[rank] - began[rank])
    return kinetoscope.merge([builder.build() for builder in builders])


def product(builder, at, slow_ns, line):
    """Adds a product, and returns when it ends."""
    shapes = builder.shapes([[64, 64], [64, 64]], ["float", "float"])
    stack = builder.stack(("src/prog.py", line, "f"))
    builder.span("aten::mm", at, NEEDED_NS + FIXED_NS + slow_ns, shapes=shapes, stack=stack)
    return at + NEEDED_NS + FIXED_NS + slow_ns


def transfer(builder, at, end):
    """Adds an all_reduce that its caller waits for."""
    sizes = builder.shapes([[4]], ["float"])
    builder.span("c10d::allreduce_", at, end - at, shapes=sizes)
    builder.annotation("gloo:all_reduce", at + 10, end - at - 10, thread=1, shapes=sizes)


def gain_of(trace, *mended):
    """How much a step gains, in microseconds."""
    found = trace.what_if(*mended)
    return round((found.step_ns - found.then_ns) / 1000)


def test_a_rank_that_is_not_the_last_to_arrive_gains_nothing():
    trace = job([1 * MS, 3 * MS])
    assert gain_of(trace, "prog.py:50") == 0
    assert trace.what_if("prog.py:50").alone_ns == pytest.approx(1 * MS, abs=10 * FIXED_NS)
    # The last one gains until the other one is.
    assert gain_of(trace, "hot-line:prog.py:51") == 2000
    assert gain_of(trace, "prog.py:51", "src/prog.py:50") == gain_of(trace, "aten::mm") == 3000
    assert trace.what_if().gain_percent == 0
    with pytest.raises(ArgumentError, match="nothing above the floor is of that name"):
        trace.what_if("prog.py:70")


def test_what_ranks_do_after_a_collective_delays_the_next_one():
    trace = job([0, 0], [2 * MS, 0], steps=8)
    # In the last step nobody waits for it: seven steps of the rank behind, and eight of its own.
    found = trace.what_if("prog.py:90")
    assert found.step_ns - found.then_ns == pytest.approx((7 + 8) / 2 / 8 * 2 * MS, abs=1000)


def test_waiting_for_others_is_no_time_to_gain():
    trace = job([0, 5 * MS])
    (row,) = [
        row
        for row in trace.account().rows
        if row["cause"] == "waiting for a collective" and row["time_ns"] > 10 * MS
    ]
    assert (row["entry"], row["operator"]) == ("waiting", "c10d::allreduce_")
    with pytest.raises(ArgumentError, match="nothing above the floor"):
        trace.what_if("waiting for a collective")


TIMES = st.lists(st.integers(0, 20).map(lambda one: one * MS // 4), min_size=3, max_size=3)


@settings(max_examples=examples(20), deadline=None)
@given(TIMES, TIMES, st.integers(1, 2), st.sets(st.integers(0, 2), min_size=1))
def test_the_job_without_the_slow_lines_takes_what_is_predicted(slow_ns, tail_ns, rounds, ranks):
    trace = job(slow_ns, tail_ns, rounds=rounds)
    slow = [
        f"prog.py:{line + rank}" for rank in ranks for line, ns in ((50, slow_ns), (90, tail_ns)) if ns[rank]
    ]
    mended = [[0 if rank in ranks else ns for rank, ns in enumerate(times)] for times in (slow_ns, tail_ns)]
    then = job(*mended, rounds=rounds).what_if().step_ns
    assert trace.what_if(*slow).then_ns == pytest.approx(then, abs=rounds * 10 * FIXED_NS)


def test_ranks_that_ran_nothing_together_are_looked_at_alone():
    trace = job([2 * MS, 3 * MS])
    for rank in range(2):
        alone = trace.select_ranks([rank]).what_if(f"prog.py:{50 + rank}")
        assert alone.alone_ns is None
        assert alone.step_ns - alone.then_ns == pytest.approx((2 + rank) * MS, abs=10 * FIXED_NS)


JOB = """
import threading
from torch.distributed.distributed_c10d import _get_default_store
x, store = torch.ones(64, 64), _get_default_store()
schedule = kinetoscope.schedule(wait=0, warmup=1, active=4, repeat=1)
with kinetoscope.profile(activities=CPU, schedule=schedule, record_shapes=True, with_stack=True) as prof:
    for step in range(5):
        if rank == 0:
            for _ in range(40):
                x @ x
            store.set(f"done {step}", "yes")
        else:
            store.get(f"done {step}")
            threading.Event().wait(0.02)
        dist.all_reduce(torch.ones(8))
        prof.step()
prof.trace.save(f"rank{rank}.ktrace")
"""


@pytest.mark.stress("how late a rank is depends on the machine")
def test_a_real_job_gains_nothing_from_the_rank_that_waits(tmp_path):
    run_ranks(JOB, tmp_path)
    with kinetoscope.merge([tmp_path / f"rank{rank}.ktrace" for rank in range(2)]) as trace:
        waiting, last = trace.what_if("aten::mm", "aten::matmul"), trace.what_if("a lock")
    assert waiting.alone_ns > 0
    assert waiting.step_ns - waiting.then_ns < waiting.alone_ns / 2
    assert last.step_ns - last.then_ns > 10 * MS
