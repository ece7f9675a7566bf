"""The numbers of steps: in rings, in later cycles, in cuts, and in jobs that are resumed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import kinetoscope
from kinetoscope import ArgumentError, Trace
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from tests.support import warm_python
from tests.support.recorded import CPU, named, profile

RING_BYTES = 1_000_000
X = torch.ones(1)


def numbers(trace: Trace) -> list[int]:
    found: list[int] = trace.column("steps", "number").tolist()
    return found


def operators_of_steps(trace: Trace) -> list[int]:
    """How many negations began in each step."""
    of_step = trace.column("spans", "step")[named(trace, "aten::neg")]
    return [int((of_step == row).sum()) for row in range(len(trace.columns("steps")))]


def negate(times: int) -> None:
    for _ in range(times):
        torch.neg(X)


def train(steps: int, optimizers: int = 1) -> None:
    """Make steps of 20 operators, each of which optimizers end in turn."""
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(optimizers)]
    each = [torch.optim.SGD([parameter], lr=0.1) for parameter in parameters]
    for _ in range(steps):
        negate(20)
        each[0].step()
        if optimizers == 2:
            each[1].step()


def test_in_a_ring_calls_of_step_are_marked() -> None:
    with profile(ring_bytes=RING_BYTES, samples=False) as prof:
        for _ in range(3_000):
            negate(20)
            prof.step()
    trace = prof.trace
    found = numbers(trace)
    assert any(loss["code"] == "recycled_spans" for loss in trace.losses)
    # The last call began a step that has nothing in it.
    assert found == list(range(3_001 - len(found), 3_001))
    assert len(found) > 100
    assert operators_of_steps(trace) == [20] * (len(found) - 1) + [0]
    # Of the first one that is left, the beginning is known. Any other may have waited for a processor.
    assert trace.column("steps", "duration_ns")[0] < trace.duration_ns / 4


def test_marks_of_steps_do_not_fill_the_dictionary_of_a_ring() -> None:
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=100_000)
    with profile(schedule=schedule, ring_bytes=200_000, samples=False) as prof:
        for _ in range(12_000):
            torch.neg(X)
            prof.step()
    found = numbers(prof.trace)
    assert not any(loss["code"] == "limited_dictionary" for loss in prof.trace.losses)
    assert len(found) > 100
    assert found == list(range(12_001 - len(found), 12_001))


@pytest.mark.parametrize("optimizers", [1, 2])
def test_steps_from_the_optimizer_have_their_numbers_in_a_ring(optimizers: int) -> None:
    with profile(ring_bytes=RING_BYTES, samples=False) as prof:
        train(6_000, optimizers)
    trace = prof.trace
    found = numbers(trace)
    assert any(loss["code"] == "recycled_spans" for loss in trace.losses)
    assert found == list(range(6_000 - len(found), 6_000))
    assert len(found) > 100
    # The first step that is left in part is none.
    assert set(operators_of_steps(trace)) == {20}
    table = trace.table("steps")
    assert not any(table.column("start_up").to_pylist())
    # Nor does it begin before what the ring has left.
    assert trace.column("steps", "start_ns")[0] > trace.column("spans", "start_ns").min() > 0


def test_a_ring_that_overwrote_nothing_has_every_step() -> None:
    with profile(ring_bytes=8 << 20, samples=False) as prof:
        train(20)
    assert numbers(prof.trace) == list(range(20))


def test_steps_of_a_ring_keep_their_numbers_in_cuts_and_files(tmp_path: Path) -> None:
    with profile(ring_bytes=RING_BYTES, samples=False) as prof:
        train(3_000)
    last = numbers(prof.trace)[-4:]
    part = prof.trace.select_steps(last)
    assert numbers(part) == last
    steps = part.columns("steps")
    begin, end = int(steps["start_ns"][1]), int(steps["start_ns"][2] + steps["duration_ns"][2])
    assert numbers(part.window(begin, end)) == last[1:3]
    prof.trace.save(tmp_path / "x.ktrace")
    with kinetoscope.open(tmp_path / "x.ktrace") as again:
        assert numbers(again) == numbers(prof.trace)


def test_step_numbers_continue_in_later_cycles() -> None:
    schedule = kinetoscope.schedule(wait=1, warmup=1, active=2, repeat=3)
    with kinetoscope.profile(activities=CPU, schedule=schedule, acc_events=True) as prof:
        for _ in range(14):
            negate(1)
            prof.step()
    assert [numbers(trace) for trace in prof.cycles] == [[2, 3], [6, 7], [10, 11]]
    assert numbers(prof.cycles.together()) == [2, 3, 6, 7, 10, 11]


@pytest.mark.parametrize("engine", ["native", "kineto"])
def test_a_resumed_job_says_which_step_begins(engine: Any) -> None:
    schedule = kinetoscope.schedule(wait=1, warmup=1, active=3, repeat=1)
    with kinetoscope.profile(activities=CPU, schedule=schedule, engine=engine) as prof:
        prof.step(5_000)
        for _ in range(5):
            negate(1)
            prof.step()
    # The schedule counts calls.
    assert numbers(prof.trace) == [5_001, 5_002, 5_003]
    assert prof.step_num == 6


def test_a_step_can_have_any_number_from_0() -> None:
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=4, repeat=1)
    with profile(schedule=schedule) as prof:
        for number in (7, 0, 2**53, None):
            prof.step(number)
            negate(1)
    assert sorted(numbers(prof.trace)) == [0, 7, 2**53, 2**53 + 1]


@pytest.mark.parametrize("number", [-1, 1.0, "7", True])
def test_an_invalid_step_number_is_refused(number: Any) -> None:
    prof = profile()
    with pytest.raises(ArgumentError, match=r"number=.* is not valid: need a whole number >= 0, or nothing"):
        prof.step(number)
    assert (prof.step_num, ACTIVE_SESSIONS.current()) == (0, None)


def test_in_a_ring_without_calls_of_step_nothing_is_marked() -> None:
    with profile(ring_bytes=8 << 20, samples=False) as prof:
        negate(3)
    assert numbers(prof.trace) == []


def test_without_a_ring_or_a_schedule_no_steps_are_marked() -> None:
    with profile(samples=False) as prof:
        for _ in range(3):
            negate(1)
            prof.step()
    assert numbers(prof.trace) == []


def test_a_killed_ring_has_the_numbers_of_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "x.recording"
    program = f"""
import os, signal
import torch
import kinetoscope
from tests.collect.session.test_profile_step_numbers import CPU, RING_BYTES, train
kinetoscope.profile(activities=CPU, engine="native", ring_bytes=RING_BYTES, samples=False, path={str(path)!r}).start()
train(3_000)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = warm_python.run("-c", program, cwd=Path(__file__).parents[3])
    assert killed.returncode == -signal.SIGKILL
    found = numbers(kinetoscope.open(path))
    assert len(found) > 100
    assert found == list(range(3_000 - len(found), 3_000))
