"""Every way out of a session leaves the engine stopped and the seat free."""

import asyncio
import gc
import os
import re
import sys
import threading
import warnings

import pytest
from torch.profiler import ProfilerAction

from kinetoscope import ArgumentError, RecorderError, StateError, profile, schedule
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from kinetoscope.collect.session.base_session import _KinetoProfile
from tests.support import warm_python
from tests.support.effort import times
from tests.support.noting_engine import NotingEngine

DONE = ["prepare", "start", "stop"]


class Broken(Exception):
    pass


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_in_the_profiled_code_still_gives_a_trace(error):
    engine, ready = NotingEngine(), []
    with pytest.raises(error), profile(engine=engine, on_trace_ready=ready.append):
        raise error
    assert engine.log == DONE
    assert len(ready) == 1
    assert ACTIVE_SESSIONS.current() is None


def test_the_programs_own_exception_is_not_replaced_by_the_handlers():
    with (
        pytest.warns(UserWarning, match="on_trace_ready failed: ZeroDivisionError"),
        pytest.raises(Broken),
        profile(engine=NotingEngine(), on_trace_ready=lambda session: 1 / 0),
    ):
        raise Broken


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_the_exception_of_a_handler_is_raised_after_the_session_is_done(error):
    engine = NotingEngine()

    def fail(session):
        session.trace
        raise error

    session = profile(
        engine=engine, schedule=schedule(wait=0, warmup=1, active=1, repeat=2), on_trace_ready=fail
    )
    session.start()
    session.step()
    with pytest.raises(error):
        session.step()
    assert engine.log == [*DONE, "build", "prepare"]
    session.step()
    with pytest.raises(error):
        session.step()
    session.stop()
    assert engine.log == [*DONE, "build"] * 2
    assert ACTIVE_SESSIONS.current() is None


def test_on_error_warn_turns_the_handlers_failure_into_a_warning():
    def fail(session):
        raise Broken("disk full")

    with (
        pytest.warns(
            UserWarning, match="on_trace_ready failed at step 0, profiling continues: Broken: disk full"
        ) as seen,
        profile(engine=NotingEngine(), on_trace_ready=fail, on_error="warn"),
    ):
        pass
    assert seen[0].filename == __file__


@pytest.mark.parametrize("call", ["prepare", "start"])
@pytest.mark.parametrize("error", [RecorderError("no room"), KeyboardInterrupt()])
def test_an_engine_that_cannot_begin_leaves_nothing_behind(call, error):
    engine = NotingEngine(fail={call: error})
    session = profile(engine=engine)
    with pytest.raises(type(error)):
        session.start()
    assert ACTIVE_SESSIONS.current() is None
    session.start()
    session.stop()
    assert engine.log[-3:] == DONE


def test_an_engine_that_cannot_stop_releases_the_active_session():
    session = profile(engine=NotingEngine(fail={"stop": RecorderError("lost")}))
    session.start()
    with pytest.raises(RecorderError, match="lost"):
        session.stop()
    assert ACTIVE_SESSIONS.current() is None


def test_stop_from_another_thread():
    engine = NotingEngine()
    session = profile(engine=engine, schedule=schedule(wait=0, warmup=1, active=3))
    session.start()
    session.step()
    stopper = threading.Thread(target=session.stop)
    stopper.start()
    stopper.join()
    session.step()
    session.stop()
    assert engine.log == DONE


def test_stop_inside_the_handler_ends_everything():
    engine = NotingEngine()
    session = profile(
        engine=engine,
        schedule=schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda session: session.stop(),
    )
    with session:
        for _ in range(6):
            session.step()
    assert engine.log == DONE


def test_stop_from_another_thread_while_the_handler_runs():
    engine = NotingEngine()

    def stop_elsewhere(session):
        stopper = threading.Thread(target=session.stop)
        stopper.start()
        stopper.join()

    with profile(
        engine=engine, schedule=lambda step: ProfilerAction.RECORD_AND_SAVE, on_trace_ready=stop_elsewhere
    ) as session:
        session.step()
        session.step()
    assert engine.log == DONE


def test_restart_inside_the_handler():
    engine = NotingEngine()

    def again(session):
        session.trace
        if len(engine.recordings) < 3:
            session.start()

    session = profile(engine=engine, on_trace_ready=again)
    session.start()
    for _ in range(4):
        session.stop()
    assert engine.log == [*DONE, "build"] * 3


def test_hundreds_of_starts_and_stops():
    # More than Python's limit of frames, if each left something that the next one calls.
    limit = sys.getrecursionlimit()
    many = times(500, 10_000)
    engine = NotingEngine()
    session = profile(engine=engine, on_trace_ready=lambda session: session.trace)
    sys.setrecursionlimit(400)
    try:
        for _ in range(many):
            session.start()
            session.stop()
    finally:
        sys.setrecursionlimit(limit)
    assert engine.log.count("start") == engine.log.count("stop") == many


def test_sessions_make_no_reference_cycles():
    gc.collect()
    for _ in range(3):
        with profile(engine=NotingEngine()):
            pass
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        assert [item for item in gc.garbage if isinstance(item, (profile, NotingEngine))] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


# ------------------------------------------------------------------------------------------------------- decorator


def test_as_a_decorator_each_call_is_recorded():
    engine = NotingEngine()

    @profile(engine=engine, on_trace_ready=lambda session: session.trace)
    def work(a, *, b):
        """Adds."""
        return a + b

    assert (work(1, b=2), work(3, b=4)) == (3, 7)
    assert engine.log == [*DONE, "build"] * 2
    assert work.__doc__ == "Adds."


def test_as_a_decorator_of_things_that_run_later():
    engine = NotingEngine()
    session = profile(engine=engine, on_trace_ready=lambda session: session.trace)

    @session
    async def coroutine():
        engine.log.append("work")

    @session
    def generator():
        engine.log.append("work")
        got = yield 1
        return got

    @session
    async def async_generator():
        engine.log.append("work")
        yield 1

    async def all_of_them():
        await coroutine()
        async for _ in async_generator():
            pass

    asyncio.run(all_of_them())
    steps = generator()
    next(steps)
    with pytest.raises(StopIteration, match="5"):
        steps.send(5)
    assert engine.log == ["prepare", "start", "work", "stop", "build"] * 3


def test_a_session_decorates_functions_only():
    with pytest.raises(ArgumentError, match="can only decorate functions"):
        profile(engine=NotingEngine())(3)


@pytest.mark.parametrize(
    "options", ["engine='native'", "engine='kineto'", "engine='native', garbage_collection=True"]
)
def test_a_session_in_a_generator_that_does_not_end_is_left_at_exit(tmp_path, options):
    program = (
        "import torch, kinetoscope\n"
        "def steps():\n"
        f"    with kinetoscope.profile({options}, on_trace_ready=lambda prof: print(len(prof.events()) > 0)):\n"
        "        yield torch.ones(3) + 1\n"
        "        yield\n"
        "unfinished = steps()\n"
        "next(unfinished)\n"
    )
    done = warm_python.run("-c", program, cwd=tmp_path)
    # torch says that it has started, and one made for CUDA that there is no device.
    of_torch = re.compile(r"USDT|ERROR.*DeviceProperties")
    said = [line for line in done.stderr.splitlines() if not of_torch.match(line)]
    assert (done.returncode, done.stdout, said) == (0, "True\n", [])


# ------------------------------------------------------------------------------------------------------------ fork


def in_child(work) -> str:
    """What `work` returns in a forked child."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 and later warn of forks beside threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.write(write, str(work()).encode())
        except BaseException as error:  # noqa: BLE001
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        return pipe.read()


def everything(session):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session.step()
        session.stop()
        session.start()
        session.stop_trace()
    return f"{session._options.engine.log} {session.step_num} {[str(w.message)[:14] for w in caught]}"


def test_a_forked_child_leaves_the_parents_recording_alone():
    with profile(engine=NotingEngine()) as session:
        assert in_child(lambda: everything(session)) == "['prepare', 'start'] 0 ['step() was cal']"
        assert in_child(ACTIVE_SESSIONS.current) == "None"


def test_a_forked_child_is_told_to_record_itself():
    def read(session):
        try:
            return session.trace
        except StateError as error:
            return error

    said = "there is no trace yet: this process is a fork of process {}, which records; create a session here to record this one."
    with profile(engine=NotingEngine()) as session:
        assert in_child(lambda: read(session)) == said.format(os.getpid())


def test_a_forked_child_leaves_a_waiting_session_alone():
    with (
        pytest.warns(UserWarning, match="nothing was recorded"),
        profile(engine=NotingEngine(), schedule=schedule(wait=2, warmup=1, active=1)) as session,
    ):
        assert in_child(lambda: everything(session)) == "[] 0 ['step() was cal']"


def test_a_forked_child_may_record_with_a_session_of_its_own_or_an_idle_one():
    idle = profile(engine=NotingEngine())

    def record():
        with profile(engine=NotingEngine()) as own:
            own.step()
        with idle:
            idle.step()
        return own._options.engine.log + idle._options.engine.log

    with profile(engine=NotingEngine()):
        assert in_child(record) == str(DONE * 2)


# ------------------------------------------------------------------------------------------------------- low level


def test_the_low_level_session_is_driven_by_hand():
    engine = NotingEngine()
    session = _KinetoProfile(engine=engine)
    session.prepare_trace()
    assert ACTIVE_SESSIONS.current() is session
    session.start_trace()
    session.stop_trace()
    assert engine.log == DONE
    session.start()
    with pytest.warns(UserWarning, match="dropped"):
        session.stop()
    session.prepare_trace()
    session.stop_trace()
    assert ACTIVE_SESSIONS.current() is None
