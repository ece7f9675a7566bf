"""Every Python call on the timeline: which calls, how they nest, what others that use the same hook see of it."""

from __future__ import annotations

import asyncio
import cProfile
import sys
import threading
import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import kinetoscope
from tests.support import warm_python
from tests.support.calls import Calls, file_of, name, recorded, rows_of, tree, within

HERE = __file__
CUT, BEGUN_BEFORE = 2, 4


def calls_in(trace: Any, outermost: str) -> list[tuple[str, Any]]:
    return within(tree(trace, file=HERE), outermost)


def leaf() -> int:
    return 1


def branch() -> int:
    return leaf() + leaf()


def names(trace: Any) -> list[str]:
    return [name(trace, row) for row in rows_of(trace)]


def test_calls_nest_as_they_ran() -> None:
    def program() -> None:
        branch()
        leaf()

    trace = recorded(program)
    assert calls_in(trace, "program") == [("branch", [("leaf", []), ("leaf", [])]), ("leaf", [])]
    row = next(row for row in rows_of(trace) if name(trace, row) == "leaf")
    frame = trace.column("stacks", "frame")[trace.column("spans", "own_stack")[row]]
    assert trace.column("frames", "line")[frame] == leaf.__code__.co_firstlineno
    assert not trace.losses


def test_operators_lie_in_the_calls_that_ran_them() -> None:
    x = torch.ones(3)

    def program() -> None:
        torch.neg(x)

    trace = recorded(program)
    spans = trace.columns("spans")
    operator = [trace.strings[text] for text in spans["name"]].index("aten::neg")
    around = [
        name(trace, row)
        for row in rows_of(trace)
        if spans["start_ns"][row] <= spans["start_ns"][operator]
        and spans["start_ns"][row] + spans["duration_ns"][row]
        >= spans["start_ns"][operator] + spans["duration_ns"][operator]
    ]
    assert around[-2:] == ["program", "torch.neg"]


def test_generators_are_a_call_each_time_they_run() -> None:
    def numbers() -> Iterator[int]:
        yield leaf()
        yield 2

    def program() -> None:
        for _ in numbers():
            branch()

    inside = calls_in(recorded(program), "program")
    assert [called for called, _ in inside] == ["numbers", "branch", "numbers", "branch", "numbers"]
    assert inside[0][1] == [("leaf", [])]


def test_values_sent_and_exceptions_thrown_into_a_generator_run_it() -> None:
    def echo() -> Iterator[Any]:
        while True:
            try:
                yield
            except KeyError:
                leaf()

    def program() -> None:
        running: Any = echo()
        next(running)
        running.throw(KeyError())
        running.send(1)
        running.close()

    inside = calls_in(recorded(program), "program")
    assert inside == [("echo", []), ("echo", [("leaf", [])]), ("echo", []), ("echo", [])]


def test_delegating_generators_nest() -> None:
    def inner() -> Iterator[int]:
        yield 1
        yield 2

    def outer() -> Iterator[int]:
        yield from inner()

    def program() -> None:
        list(outer())

    assert calls_in(recorded(program), "program") == 3 * [("outer", [("inner", [])])]


def test_coroutines_end_where_they_wait() -> None:
    async def waits(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
            leaf()

    async def both() -> None:
        await asyncio.gather(waits(2), waits(1))

    def program() -> None:
        asyncio.run(both())

    trace = recorded(program)
    rows = [row for row in rows_of(trace) if name(trace, row) == "waits"]
    # Each runs to its first wait, and once more after each.
    assert len(rows) == 5
    spans = trace.columns("spans")
    ends = spans["start_ns"] + spans["duration_ns"]
    assert all(ends[one] <= spans["start_ns"][other] for one, other in pairwise(rows))
    assert set(spans["lane"][rows]) == {0}


def test_exceptions_end_the_calls_they_leave() -> None:
    def fails() -> None:
        raise ValueError

    def passes_on() -> None:
        fails()

    def program() -> None:
        with pytest.raises(ValueError):
            passes_on()
        leaf()

    trace = recorded(program)
    assert calls_in(trace, "program") == [("passes_on", [("fails", [])]), ("leaf", [])]


def test_c_functions_are_calls_where_they_take_time_or_run_something() -> None:
    def program() -> None:
        sum(range(100_000))
        sorted([2, 1], key=lambda value: leaf() * value)
        for _ in range(50):
            isinstance(1, int)

    trace = recorded(program)
    seen = names(trace)
    assert seen.count("builtins.sum") == 1
    assert seen.count("builtins.sorted") == 1
    # Fifty are far below a microsecond, but for one that was interrupted.
    assert seen.count("builtins.isinstance") < 25
    row = rows_of(trace)[seen.index("builtins.sum")]
    assert file_of(trace, row) == ""
    assert trace.column("spans", "duration_ns")[row] >= 100_000
    assert len(calls_in(trace, "program")) == 2, "the key function runs inside sorted()"


def test_recursive_calls_are_nested_spans() -> None:
    def down(depth: int) -> None:
        if depth:
            down(depth - 1)

    def program() -> None:
        down(500)

    inside = calls_in(recorded(program), "program")
    for _ in range(501):
        ((called, inside),) = inside
        assert called == "down"
    assert inside == []


def test_a_call_has_the_stack_that_called_it() -> None:
    seen: list[list[tuple[str, int]]] = []

    def probe(value: int = 0) -> int:
        frame, stack = sys._getframe().f_back, []
        while frame is not None:
            stack.append((frame.f_code.co_qualname, frame.f_lineno))
            frame = frame.f_back
        seen.append(stack[::-1])
        return value

    def numbers() -> Iterator[int]:
        yield probe()
        try:
            yield probe()
        except ValueError:
            yield probe()

    def down(depth: int) -> int:
        probe()
        return down(depth - 1) if depth else probe()

    async def waits(others: int) -> None:
        probe()
        await asyncio.sleep(0)
        if others:
            await waits(others - 1)
        probe()

    class Left:
        def __enter__(self) -> None:
            probe()

        def __exit__(self, *_: object) -> bool:
            probe()
            return True

    def program() -> None:
        probe()
        down(5)
        for _ in range(3):
            probe(); probe()  # fmt: skip  # noqa: E702
        sorted([3, 1, 2], key=probe)
        first, second = numbers(), numbers()
        next(first)
        branch()
        next(second)
        next(first)
        first.throw(ValueError())
        list(second)
        with Left():
            down(1)
            raise ValueError
        for number in range(20):
            # The code object of each is freed, and its address used again.
            exec(f"def of_{number}():\n{chr(10) * number}    probe()\nof_{number}()", {"probe": probe})
        asyncio.run(waits(2))

    trace = recorded(program)
    stacks, frames = trace.columns("stacks"), trace.columns("frames")
    found = []
    for row in rows_of(trace):
        if name(trace, row) != "probe":
            continue
        stack, own = trace.column("spans", "own_stack")[row], []
        while stack >= 0:
            frame = stacks["frame"][stack]
            own.append((trace.strings[frames["function"][frame]], int(frames["line"][frame])))
            stack = stacks["parent"][stack]
        found.append(own[:0:-1])
    assert found == seen
    assert len(found) > 50


def test_calls_that_ran_already_begin_with_the_recording() -> None:
    calls = Calls()

    def outer() -> None:
        inner()
        leaf()

    def inner() -> None:
        calls.start()
        branch()

    outer()
    trace = calls.stop()
    assert calls_in(trace, "outer") == [("inner", [("branch", [("leaf", []), ("leaf", [])])]), ("leaf", [])]
    flags = {name(trace, row): int(trace.column("spans", "flags")[row]) for row in rows_of(trace)}
    assert flags["inner"] == flags["outer"] == BEGUN_BEFORE
    assert flags["branch"] == 0
    me = flags["test_calls_that_ran_already_begin_with_the_recording"]
    assert me == BEGUN_BEFORE | CUT, "it outlived the recording on both sides"


def test_calls_still_running_at_the_end_are_cut_there() -> None:
    calls = Calls()

    def stops() -> Any:
        leaf()
        return calls.stop()

    def program() -> Any:
        calls.start()
        return stops()

    trace = program()
    spans = trace.columns("spans")
    row = next(row for row in rows_of(trace) if name(trace, row) == "stops")
    assert spans["flags"][row] == CUT
    assert calls_in(trace, "stops") == [("leaf", [])]
    assert not trace.losses, "what was cut on purpose is no loss"
    assert sys.getprofile() is None


def test_our_own_calls_are_left_out() -> None:
    trace = recorded(branch)
    assert not [row for row in rows_of(trace) if "/kinetoscope/collect/" in file_of(trace, row)]


def test_what_our_own_code_calls_is_left_out() -> None:
    """Its start, stop and step call functions of Python and torch, which are no work of the program."""
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=2, repeat=1)
    with kinetoscope.profile(python_calls=True, with_stack=True, schedule=schedule) as session:
        for _ in range(3):
            branch()
            session.step()
    names = {event.key.rpartition("): ")[2] for event in session.events() if event.is_python_function}
    assert {"branch", "leaf"} <= names
    # The context managers of the session end in it.
    called = names - {"branch", "leaf", "<module>", "range", "test_what_our_own_code_calls_is_left_out"}
    around = {frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe())}
    assert called <= around


def test_threads_that_run_already_and_threads_that_begin_later() -> None:
    begin, done, end = threading.Event(), threading.Event(), threading.Event()

    def early() -> None:
        begin.wait()
        branch()
        done.set()
        end.wait()

    def late() -> None:
        branch()

    first = threading.Thread(target=early)
    first.start()
    with Calls() as calls:
        begin.set()
        done.wait()
        second = threading.Thread(target=late)
        second.start()
        second.join()
    end.set()
    first.join()
    for called in ("early", "late"):
        assert calls_in(calls.trace, called) == [("branch", [("leaf", []), ("leaf", [])])]
    flags = {
        name(calls.trace, row): int(calls.trace.column("spans", "flags")[row]) for row in rows_of(calls.trace)
    }
    assert flags["early"] == BEGUN_BEFORE | CUT
    assert flags["late"] == 0
    assert threading.getprofile() is None


def test_threads_without_the_threading_module_are_seen_from_their_first_operator_on() -> None:
    import _thread

    done = threading.Event()
    x = torch.ones(2)

    def bare() -> None:
        torch.neg(x)
        branch()
        done.set()

    with Calls() as calls:
        _thread.start_new_thread(bare, ())
        done.wait()
    assert calls_in(calls.trace, "bare") == [("branch", [("leaf", []), ("leaf", [])])]


def test_another_thread_stops() -> None:
    def program() -> Any:
        calls = Calls().start()
        branch()
        stopper = threading.Thread(target=calls.stop)
        stopper.start()
        stopper.join()
        assert sys.getprofile() is None
        return calls.trace

    trace = program()
    assert ("branch", [("leaf", []), ("leaf", [])]) in calls_in(trace, "program")


# From Python 3.12 on several tools can see calls at once.
one_at_a_time = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="this Python has places for several tools"
)
several_at_once = pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has one place for tools")


@one_at_a_time
def test_a_profile_function_of_others_is_left_alone() -> None:
    def theirs(*_: object) -> None:
        return None

    sys.setprofile(theirs)
    try:
        with pytest.warns(UserWarning, match="another profile function"), Calls() as calls:
            branch()
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert rows_of(calls.trace) == []
    assert "another profile function" in calls.trace.info["calls_missing"]


@several_at_once
def test_a_profile_function_of_others_runs_beside_us() -> None:
    heard: list[str] = []

    def program() -> None:
        sys.setprofile(lambda frame, event, argument: heard.append(frame.f_code.co_name))
        try:
            branch()
        finally:
            sys.setprofile(None)

    trace = recorded(program)
    assert heard.count("leaf") == 4
    assert ("branch", [("leaf", []), ("leaf", [])]) in calls_in(trace, "program")
    assert "calls_missing" not in trace.info


@several_at_once
@pytest.mark.parametrize("first", ["cProfile", "ours"])
def test_cprofile_runs_beside_us(first: str) -> None:
    profiler = cProfile.Profile()
    if first == "cProfile":
        profiler.enable()
    with Calls() as calls:
        if first == "ours":
            profiler.enable()
        branch()
        profiler.disable()
        branch()
    assert "call_threads_lost" not in calls.trace.info
    assert names(calls.trace).count("branch") == 2
    assert [
        entry.callcount
        for entry in profiler.getstats()
        if not isinstance(entry.code, str) and entry.code.co_name == "branch"
    ] == [1]


@several_at_once
def test_another_tool_that_takes_our_place_is_left_alone_and_the_loss_is_said() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    with Calls() as calls:
        branch()
        (place,) = [place for place in range(6) if monitoring.get_tool(place) == "kinetoscope"]
        monitoring.free_tool_id(place)
        monitoring.use_tool_id(place, "theirs")
        branch()
    try:
        assert monitoring.get_tool(place) == "theirs"
    finally:
        monitoring.free_tool_id(place)
    assert calls.trace.info["call_threads_lost"] == 1
    # Python 3.12 keeps the callbacks of a tool whose place is freed, later ones do not.
    assert names(calls.trace).count("branch") in (1, 2)


@one_at_a_time
def test_cprofile_that_starts_during_a_recording_gets_its_tool_id() -> None:
    profiler = cProfile.Profile()
    with Calls() as calls:
        branch()
        profiler.enable()
        branch()
        profiler.disable()
    assert calls.trace.info["call_threads_lost"] == 1
    assert [row["count"] for row in calls.trace.losses if "Python calls" in row["what"]] == [1]
    assert "branch" in names(calls.trace)
    assert "branch" in {
        entry.code.co_name for entry in profiler.getstats() if not isinstance(entry.code, str)
    }


def test_a_trace_function_sees_what_it_always_sees() -> None:
    seen: list[str] = []

    def trace_function(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is leaf.__code__:
            seen.append(event)
        return trace_function

    def program() -> None:
        before = sys.gettrace()
        sys.settrace(trace_function)
        try:
            leaf()
        finally:
            sys.settrace(before)

    trace = recorded(program)
    assert seen == ["call", "line", "return"]
    assert ("leaf", []) in calls_in(trace, "program")


@several_at_once
def test_no_tool_is_registered_without_being_asked_for() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]

    def ours() -> list[int]:
        return [place for place in range(6) if monitoring.get_tool(place) == "kinetoscope"]

    with Calls():
        assert len(ours()) == 1
    with Calls(python_calls=False) as calls:
        assert ours() == []
        branch()
    assert rows_of(calls.trace) == []


@one_at_a_time
def test_nothing_is_installed_without_being_asked_for() -> None:
    import ctypes

    get = ctypes.pythonapi.PyThreadState_Get
    get.restype = ctypes.c_void_p

    def words() -> list[int]:
        return list((ctypes.c_uint64 * 40).from_address(get()))

    # Python does not tell of a profile function in C, so its place in the thread's state is found by trial.
    without = words()
    with Calls():
        installed = words()
    places = [at for at, word in enumerate(installed) if word > 4096 and without[at] == words()[at] == 0]
    assert places
    with Calls(python_calls=False) as calls:
        during = words()
        hook = threading.getprofile()
        branch()
    assert [during[at] for at in places] == [0] * len(places)
    assert hook is None
    assert rows_of(calls.trace) == []


def test_the_self_test_of_calls_passes_and_a_failing_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from kinetoscope.collect.engines import native

    assert native.calls_problem() == ""
    monkeypatch.setattr(native, "_calls_work", False)
    monkeypatch.setattr(native, "check_calls", lambda recorder: "the calls of a module read nonsense")
    with pytest.warns(UserWarning, match="not recorded: the calls of a module read nonsense"):
        calls = Calls(module_spans=True)
    with calls:
        branch()
    assert rows_of(calls.trace) == []
    assert "calls_missing" in {loss["code"] for loss in calls.trace.losses}
    monkeypatch.undo()
    # A failure is no verdict: the next session tries again.
    with Calls(module_spans=True) as again:
        branch()
    assert rows_of(again.trace) != []


@pytest.mark.parametrize("hook", ["setprofile", "settrace"])
def test_hooks_of_the_program_for_threads_are_not_those_of_the_self_test(tmp_path: Path, hook: str) -> None:
    program = (
        "import threading, torch, kinetoscope\n"
        f"threading.{hook}(lambda *arguments: None)\n"
        "def inner(): torch.ones(1).sin()\n"
        "for turn in range(2):\n"
        "    with kinetoscope.profile(engine='native', python_calls=True) as prof:\n"
        "        for _ in range(20): inner()\n"
        "    trace = prof.trace\n"
        "    names = [trace.strings[name] for name in trace.columns('spans')['name'].tolist()]\n"
        "    print(names.count('inner'), [loss['code'] for loss in trace.losses])\n"
        f"    threading.{hook}(None)\n"
    )
    done = warm_python.run("-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "20 []\n20 []\n", "")
