"""The handler for the end of children waits while a recording is closed, and is heard afterwards."""

import functools
import signal
import threading

import pytest
import torch

import kinetoscope
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from kinetoscope.collect.session.failures import DeferredSignals
from tests.support.noting_engine import NotingEngine


@pytest.fixture
def calls():
    """What the program's handler was called with; it fails."""
    called = []

    def handler(number, frame):
        called.append((number, frame is not None))
        raise RuntimeError("worker is killed")

    before = signal.signal(signal.SIGCHLD, handler)
    yield called
    signal.signal(signal.SIGCHLD, before)


def test_the_handler_is_called_once_afterwards_and_its_error_is_kept(calls):
    handler = signal.getsignal(signal.SIGCHLD)
    with DeferredSignals() as held:
        signal.raise_signal(signal.SIGCHLD)
        signal.raise_signal(signal.SIGCHLD)
        assert calls == []
    assert calls == [(signal.SIGCHLD, True)]
    assert str(held.error) == "worker is killed"
    assert signal.getsignal(signal.SIGCHLD) is handler


def test_without_a_signal_or_a_handler_or_in_another_thread_nothing_happens(calls):
    with DeferredSignals() as held:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    with DeferredSignals():
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    signal.signal(signal.SIGCHLD, print)
    seen = []

    def elsewhere():
        with DeferredSignals():
            seen.append(signal.getsignal(signal.SIGCHLD))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [print]
    assert (calls, held.error) == ([], None)


def test_a_handler_that_was_put_over_ours_meanwhile_reaches_the_programs(calls):
    with DeferredSignals():
        ours = signal.getsignal(signal.SIGCHLD)
        signal.signal(signal.SIGCHLD, functools.partial(ours))
    with pytest.raises(RuntimeError, match="worker is killed"):
        signal.raise_signal(signal.SIGCHLD)
    assert len(calls) == 1


class Signalled(NotingEngine):
    """A child ends just when it stops."""

    def stop(self):
        signal.raise_signal(signal.SIGCHLD)
        return super().stop()


def test_the_trace_is_complete_before_the_error_is_raised(calls):
    session = kinetoscope.profile(engine=Signalled())
    session.start()
    torch.ones(2)
    with pytest.raises(RuntimeError, match="worker is killed"):
        session.stop()
    assert session.trace is not None


def test_the_programs_own_error_stays_the_programs(calls):
    def fails():
        with kinetoscope.profile(engine=Signalled()):
            raise KeyError("own")

    with (
        pytest.warns(UserWarning, match="the handler of a signal failed: RuntimeError: worker is killed"),
        pytest.raises(KeyError, match="own"),
    ):
        fails()


class Alarmed(NotingEngine):
    """An alarm of the program goes off in the middle of one of its calls."""

    def __init__(self, call):
        super().__init__()
        self._call = call

    def _note(self, what):
        super()._note(what)
        if what == self._call:
            signal.raise_signal(signal.SIGALRM)


@pytest.fixture
def alarm():
    """Raises what the program would, of a kind that our own calls raise, too."""

    def handler(number, frame):
        raise TimeoutError("the batch took too long")

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("call", ["prepare", "start", "stop"])
def test_an_alarm_in_a_step_is_raised_and_the_cycle_is_recorded(alarm, call):
    engine = Alarmed(call)
    session = kinetoscope.profile(
        engine=engine, schedule=kinetoscope.schedule(wait=1, warmup=1, active=1, repeat=1), on_error="warn"
    )
    session.start()
    raised = 0
    for _ in range(4):
        try:
            session.step()
        except TimeoutError:
            raised += 1
    session.stop()
    assert raised == 1
    assert engine.log == ["prepare", "start", "stop"]
    assert session.trace is not None


@pytest.mark.parametrize("call", ["prepare", "start"])
def test_an_alarm_in_start_is_raised_and_leaves_nothing_taken(alarm, call):
    session = kinetoscope.profile(engine=Alarmed(call))
    with pytest.raises(TimeoutError, match="too long"):
        session.start()
    assert ACTIVE_SESSIONS.current() is None


def test_stopping_a_session_that_is_prepared_and_does_not_record_leaves_nothing_taken():
    session = kinetoscope.profile(
        engine=NotingEngine(), schedule=kinetoscope.schedule(wait=5, warmup=1, active=1)
    )
    session.start()
    session.prepare_trace()
    with pytest.warns(UserWarning, match="nothing was recorded"):
        session.stop()
    assert ACTIVE_SESSIONS.current() is None
