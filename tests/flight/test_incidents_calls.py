"""Functions that are called with incidents."""

import contextvars
import threading
from pathlib import Path

import pytest

from kinetoscope.flight.incidents import IncidentCalls

PATH = Path("rank0.recording")


def test_each_function_gets_each_recording_on_another_thread_in_the_context_of_its_caller():
    run = contextvars.ContextVar("run", default="none")
    run.set("mine")
    got = []
    calls = IncidentCalls()
    for _ in range(2):
        calls.add(lambda path: got.append((path, run.get(), threading.current_thread().name)))
    calls.tell(PATH, "slow")
    calls.tell(None, "slow")
    calls.finish()
    assert got == [(PATH, "mine", "kinetoscope-incidents")] * 2


def test_a_program_that_crashes_waits_and_others_do_not():
    may_end, got = threading.Event(), []
    calls = IncidentCalls()
    calls.add(lambda path: (may_end.wait(60), got.append(path)))
    calls.tell(PATH, "slow")
    assert got == []
    may_end.set()
    calls.tell(PATH, "crash")
    assert got == [PATH, PATH]
    calls.finish()


def test_an_exception_is_a_warning_and_the_next_function_is_called():
    got = []
    calls = IncidentCalls()
    calls.add(lambda _path: 1 / 0)
    calls.add(got.append)
    with pytest.warns(UserWarning, match="was not passed on: ZeroDivisionError"):
        calls.tell(PATH, "crash")
    assert got == [PATH]
    calls.finish()


def test_without_functions_there_is_no_thread():
    before = threading.active_count()
    calls = IncidentCalls()
    calls.tell(PATH, "crash")
    calls.finish()
    assert threading.active_count() == before
