"""The handler for the end of children waits while a recording is closed, and is heard afterwards."""

import functools
import signal
import threading

import pytest
import torch

import kinetoscope
from kinetoscope.collect.session.base_session import DeferredSignals
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


def test_the_trace_is_there_and_then_the_error(calls):
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
