"""Sessions that record a device at the same time share torch's one collector, and each has the work of its own time."""

import random
import threading
import warnings

import pytest
import torch

import kinetoscope
from kinetoscope import ProfilerActivity
from tests.gpu.conftest import activity_of

# Each has a kernel of its own, so that a trace says which were launched in it.
WORK = ("mul", "neg", "exp", "abs", "add", "sub")


def activities(device):
    return [ProfilerActivity.CPU, activity_of(device)]


def session(device, **options):
    return kinetoscope.profile(activities=activities(device), **options)


class Program:
    """Launches kernels of known operators."""

    def __init__(self, device):
        self.x = torch.ones(16, 16, device=device)
        for name in WORK:
            self.run(name)
        torch.accelerator.synchronize()

    def run(self, name, times=3):
        for _ in range(times):
            getattr(torch, name)(self.x, *([0.5] if name in ("mul", "add", "sub") else []))


def launched(trace):
    """How often each operator launched a kernel."""
    counts = {}
    for row in trace.table("launches").to_pylist():
        if row["device_kind"] == "kernel":
            name = (row["operator"] or "").removeprefix("aten::")
            counts[name] = counts.get(name, 0) + 1
    return counts


def codes(trace):
    return {row["code"] for row in trace.losses}


@pytest.fixture(autouse=True)
def _no_change_of_engine():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*torch's own collector|devices are not recorded")
        yield


def test_a_session_within_another_one_has_its_own_work(device):
    program = Program(device)
    with session(device) as outer:
        program.run("mul")
        with session(device) as inner:
            program.run("neg")
            with kinetoscope.profile(activities=[ProfilerActivity.CPU]) as host:
                program.run("exp")
        program.run("add")
        torch.accelerator.synchronize()
    assert launched(outer.trace) == {"mul": 3, "neg": 3, "exp": 3, "add": 3}
    assert launched(inner.trace) == {"neg": 3, "exp": 3}
    assert launched(host.trace) == {}
    for one in (outer, inner):
        assert one.trace.info["engine"] == "native"
        assert one.trace.complete, one.trace.losses


def test_one_that_is_read_while_another_goes_on_says_what_the_other_missed(device):
    program = Program(device)
    with session(device) as outer:
        program.run("mul")
        with session(device) as inner:
            program.run("neg")
        assert launched(inner.trace) == {"neg": 3}
        program.run("add")
        torch.accelerator.synchronize()
    assert launched(outer.trace) == {"mul": 3, "neg": 3, "add": 3}
    assert inner.trace.complete, inner.trace.losses
    assert codes(outer.trace) == {"devices_interrupted"}


@pytest.mark.parametrize("engine", ["auto", "kineto"])
def test_one_that_is_read_after_the_next_has_begun_has_its_work_where_it_was(device, engine):
    program = Program(device)
    with session(device, engine=engine) as first:
        program.run("mul")
        torch.accelerator.synchronize()
    with session(device, engine=engine) as second:
        program.run("neg")
        torch.accelerator.synchronize()
        assert launched(first.trace) == {"mul": 3}
    assert launched(second.trace) == {"neg": 3}
    for one in (first, second):
        assert one.trace.complete, one.trace.losses


def test_sessions_overlap_on_any_thread(device):
    program = Program(device)
    first, second = session(device), session(device)
    first.start()
    program.run("mul")
    starting = threading.Thread(target=second.start)
    starting.start()
    starting.join()
    program.run("neg")
    stopping = threading.Thread(target=first.stop)
    stopping.start()
    stopping.join()
    program.run("exp")
    torch.accelerator.synchronize()
    second.stop()
    assert launched(first.trace) == {"mul": 3, "neg": 3}
    assert launched(second.trace) == {"neg": 3, "exp": 3}
    assert first.trace.complete, first.trace.losses
    assert second.trace.complete, second.trace.losses


def test_one_session_pauses_its_devices_and_another_does_not(device):
    program = Program(device)
    with session(device) as outer, session(device) as inner:
        program.run("mul")
        inner.toggle_collection_dynamic(False, activities(device))
        program.run("neg")
        inner.toggle_collection_dynamic(True, activities(device))
        program.run("exp")
        torch.accelerator.synchronize()
    assert launched(outer.trace) == {"mul": 3, "neg": 3, "exp": 3}
    assert launched(inner.trace) == {"mul": 3, "exp": 3}
    assert outer.trace.complete, outer.trace.losses
    assert codes(inner.trace) == {"collection_paused"}


@pytest.mark.parametrize("seed", range(6))
def test_each_of_several_has_what_was_launched_in_its_time(device, seed):
    program, chance = Program(device), random.Random(seed)
    sessions = [session(device) for _ in range(chance.randint(2, 4))]
    bounds = [sorted(chance.sample(range(len(WORK) + 1), 2)) for _ in sessions]
    for moment in range(len(WORK) + 1):
        for one, (begin, end) in zip(sessions, bounds, strict=True):
            if end == moment:
                one.stop()
                if chance.random() < 0.3:
                    assert one.trace is not None
            if begin == moment:
                one.start()
        if moment < len(WORK):
            program.run(WORK[moment])
            torch.accelerator.synchronize()
    for one, (begin, end) in zip(sessions, bounds, strict=True):
        assert launched(one.trace) == dict.fromkeys(WORK[begin:end], 3), (begin, end, one.trace.losses)
        assert codes(one.trace) <= {"devices_interrupted"}


def test_the_cycles_of_a_schedule_within_another_session(device):
    program = Program(device)
    seen = []
    plan = kinetoscope.schedule(wait=1, warmup=1, active=1, repeat=2)
    scheduled = session(device, schedule=plan, on_trace_ready=lambda one: seen.append(launched(one.trace)))
    with session(device) as outer, scheduled as inner:
        for name in WORK:
            program.run(name)
            torch.accelerator.synchronize()
            inner.step()
    assert seen == [{WORK[2]: 3}, {WORK[5]: 3}]
    assert codes(outer.trace) == {"devices_interrupted"}
    assert {WORK[2], WORK[5]} <= set(launched(outer.trace)) <= set(WORK)


def test_within_torchs_own_profiler_the_host_is_recorded(device):
    program = Program(device)
    with torch.profiler.profile(activities=activities(device)) as theirs:
        with pytest.warns(UserWarning, match="devices are not recorded"), session(device) as ours:
            program.run("mul")
        torch.accelerator.synchronize()
    assert "aten::mul" in {row["name"] for row in ours.trace.table("ops").to_pylist()}
    assert launched(ours.trace) == {}
    assert codes(ours.trace) == {"devices_not_recorded"}
    assert sum(event.key == "aten::mul" for event in theirs.key_averages()) == 1


def test_memory_within_a_session_that_has_the_collector(device):
    program = Program(device)
    with session(device) as outer:
        program.run("mul")
        with (
            pytest.warns(UserWarning, match="device memory is not recorded"),
            session(device, profile_memory=True) as inner,
        ):
            program.run("neg")
        torch.accelerator.synchronize()
    assert launched(outer.trace) == {"mul": 3, "neg": 3}
    assert launched(inner.trace) == {"neg": 3}


def test_a_session_within_one_that_records_with_kineto(device):
    program = Program(device)
    with session(device, profile_memory=True, engine="kineto") as outer:
        program.run("mul")
        with pytest.warns(UserWarning, match="devices are not recorded"), session(device) as inner:
            program.run("neg")
        torch.accelerator.synchronize()
    assert launched(outer.trace) == {"mul": 3, "neg": 3}
    assert codes(inner.trace) == {"devices_not_recorded"}
    assert "aten::neg" in {row["name"] for row in inner.trace.table("ops").to_pylist()}
