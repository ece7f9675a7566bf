"""What the native recorder sees and survives: threads, forks, compile, rings, exits."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import warm_python
from tests.support.effort import times
from tests.support.programs import PROGRAMS
from tests.support.recorded import named, profile


def test_every_thread_is_recorded() -> None:
    def work(count: int) -> None:
        x = torch.ones(3)
        for _ in range(count):
            x = torch.neg(x)

    with profile() as prof:
        threads = [
            threading.Thread(target=work, args=(count,), name=f"worker {count}") for count in (10, 20, 30)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        work(5)
    trace = prof.trace
    counts: dict[int, int] = {}
    for row in named(trace, "aten::neg"):
        thread_row = int(trace.column("spans", "thread")[row])
        counts[thread_row] = counts.get(thread_row, 0) + 1
    assert sorted(counts.values()) == [5, 10, 20, 30]
    assert trace.complete


def test_a_thread_that_backs_propagates_there() -> None:
    model = nn.Linear(4, 4)
    loss = model(torch.ones(2, 4)).sum()
    with profile() as prof:
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    assert len(named(prof.trace, "AddmmBackward0")) == 1


def test_ranges_closed_out_of_order() -> None:
    first, second = torch.profiler.record_function("first"), torch.profiler.record_function("second")
    with profile() as prof:
        first.__enter__()
        second.__enter__()
        torch.ones(1)
        first.__exit__(None, None, None)
        torch.zeros(1)
        second.__exit__(None, None, None)
    trace = prof.trace
    assert trace.complete
    self_ns = trace.column("spans", "self_ns")
    assert (self_ns >= 0).all()
    assert len(named(trace, "first")) == len(named(trace, "second")) == 1


def test_a_range_ended_by_another_thread_has_its_end() -> None:
    handle = torch.ops.profiler._record_function_enter_new("handed over", None)
    with profile() as prof:
        handle = torch.ops.profiler._record_function_enter_new("handed over", None)
        thread = threading.Thread(
            target=torch.ops.profiler._record_function_exit._RecordFunction, args=(handle,)
        )
        thread.start()
        thread.join()
        torch.ones(1)
    trace = prof.trace
    (row,) = named(trace, "handed over")
    flags = int(trace.column("spans", "flags")[row])
    assert flags & 1, "not marked as ended elsewhere"
    assert not flags & 2, "taken for unfinished"
    assert trace.complete


def test_stop_inside_an_open_range_says_what_is_unfinished() -> None:
    prof = profile()
    prof.start()
    with torch.profiler.record_function("open"):
        torch.ones(1)
        prof.stop()
    trace = prof.trace
    (row,) = named(trace, "open")
    assert int(trace.column("spans", "flags")[row]) & 2
    assert [loss["code"] for loss in trace.losses] == ["unfinished_spans"]


def test_compiled_frames_are_not_lost() -> None:
    from torch._dynamo.testing import CompileCounter

    def frames(recorded: bool) -> int:
        torch._dynamo.reset()
        counter = CompileCounter()
        model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend=counter, fullgraph=True)
        x = torch.ones(2, 4)
        if recorded:
            with profile(record_shapes=True, profile_memory=True):
                model(x)
                model(x)
        model(x)
        return int(counter.frame_count)

    assert frames(recorded=True) == frames(recorded=False) == 1


def test_results_and_random_numbers_are_unchanged() -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.rand(5, 4)).sum().backward()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    plain = train()
    with profile(record_shapes=True, profile_memory=True):
        watched = train()
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))


def _child_trains(queue: Any, prof: Any) -> None:
    x = torch.ones(3)
    for _ in range(10):
        x = torch.neg(x)
    with profile() as own:
        torch.ones(2)
    queue.put([len(named(own.trace, "aten::ones")), prof.current_action.name])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_parent_alone_and_can_record_itself(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with profile(path=tmp_path / "parent.recording") as prof:
        torch.cos(torch.ones(1))
        child = context.Process(target=_child_trains, args=(queue, prof))
        child.start()
        child.join()
        torch.cos(torch.ones(1))
    assert child.exitcode == 0
    assert queue.get()[0] == 1
    trace = prof.trace
    assert len(named(trace, "aten::cos")) == 2
    assert "aten::neg" not in trace.strings


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_data_loader_workers() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
    with profile() as prof:
        batches = [torch.cos(batch) for (batch,) in loader]
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert len(named(prof.trace, "aten::cos")) == 3
    assert prof.trace.complete


def test_a_ring_is_bounded_and_says_what_it_overwrote(tmp_path: Path) -> None:
    path = tmp_path / "ring.recording"
    x = torch.ones(1)
    with profile(path=path, ring_bytes=2 << 20) as prof, torch.profiler.record_function("around"):
        for _ in range(120_000):
            x = torch.neg(x)
    trace = prof.trace
    kept = len(named(trace, "aten::neg"))
    (overwritten,) = [loss["count"] for loss in trace.losses if loss["code"] == "recycled_spans"]
    assert kept + overwritten >= 120_000
    assert kept <= (2 << 20) // 24
    assert path.stat().st_size < 12 << 20
    assert not trace.complete


def test_hundreds_of_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    # In a process of its own: what other tests have left to be freed is none of its business.
    program = f"""
import gc, os, resource
import torch
from kinetoscope import ProfilerActivity, profile

x, many = torch.ones(1), {times(400, 9_500)}

def sessions(count):
    for _ in range(count):
        with profile(activities=[ProfilerActivity.CPU], engine="native") as prof:
            torch.neg(x)
        prof.__dict__.clear()

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

sessions({times(200, 500)})
gc.collect()
before, files = resident_bytes(), len(os.listdir("/proc/self/fd"))
sessions(many)
gc.collect()
# A thread takes recordings down; at most 16 wait for it.
assert len(os.listdir("/proc/self/fd")) <= files + 18
grown = resident_bytes() - before
assert grown < max(4 << 20, many * 1_760), grown
"""
    done = warm_python.run("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_start_and_stop_beside_running_threads() -> None:
    going = True

    def spin() -> None:
        x = torch.ones(2)
        while going:
            x = torch.neg(x)

    threads = [threading.Thread(target=spin) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(times(8, 80)):
            with profile(profile_memory=True) as prof:
                torch.cos(torch.ones(1))
            assert len(named(prof.trace, "aten::cos")) == 1
    finally:
        going = False
        for thread in threads:
            thread.join()


def test_memory_is_freed_by_other_threads_and_after_the_session() -> None:
    with profile(profile_memory=True) as prof:
        kept = torch.ones(1000)
        given = [torch.ones(500)]
        thread = threading.Thread(target=given.clear)
        thread.start()
        thread.join()
    del kept
    trace = prof.trace
    sizes = trace.column("allocations", "bytes")
    assert sorted(sizes[sizes > 0].tolist())[-2:] == [2000, 4000]
    live = trace.column("allocations", "total_bytes")
    assert int(live[-1]) == 4000


# The compiler looks at it where a graph goes on after a break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf.*")
def test_programs_run_again_without_profiler() -> None:
    for make in PROGRAMS.values():
        make()()


def test_threads_carry_the_names_that_python_gave_them() -> None:
    done = threading.Event()
    worked = threading.Event()

    def work() -> None:
        torch.ones(1)
        worked.set()
        done.wait()

    thread = threading.Thread(target=work, name="my loader")
    with profile() as prof:
        torch.ones(1)
        thread.start()
        worked.wait()
    done.set()
    thread.join()
    # Others may run that an earlier test's library started.
    assert {"MainThread", "my loader"} <= set(prof.trace.columns("threads")["name"])
