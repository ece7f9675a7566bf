"""How programs end, and what is told before."""

import pytest

from tests.support import warm_python

PROGRAM = """
import os, signal, sys
from kinetoscope.flight.triggers import Endings
{before}
endings = Endings(lambda error: print("told", type(error).__name__), lambda: print("told of exit", flush=True))
endings.watch()
{then}
"""


def run(then, before=""):
    done = warm_python.run("-c", PROGRAM.format(before=before, then=then))
    return done.returncode, done.stdout.split("\n")[:-1], done.stderr


def test_an_exception_that_nothing_catches():
    code, told, wrong = run("raise ValueError('no')")
    assert (code, told) == (1, ["told ValueError"])
    assert wrong.endswith("ValueError: no\n")


def test_an_interrupt_is_no_crash():
    assert run("raise KeyboardInterrupt")[1] == []


def test_sigterm_still_ends_the_program():
    code, told, _ = run("os.kill(os.getpid(), signal.SIGTERM); signal.pause()")
    assert (code, told) == (-15, ["told of exit"])


def test_the_programs_own_handler_is_called():
    before = "signal.signal(signal.SIGTERM, lambda number, frame: print('own', number, flush=True))"
    code, told, _ = run("os.kill(os.getpid(), signal.SIGTERM)", before)
    assert (code, told) == (0, ["told of exit", "own 15"])


def test_an_ignored_signal_stays_ignored():
    code, told, _ = run(
        "os.kill(os.getpid(), signal.SIGTERM)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    )
    assert (code, told) == (0, [])


def test_a_fork_tells_nothing():
    code, told, _ = run(
        "if os.fork():\n    print(os.wait()[1], flush=True)\nelse:\n    os.kill(os.getpid(), signal.SIGTERM)"
    )
    assert (code, told) == (0, ["15"])


@pytest.mark.parametrize("then", ["raise ValueError", "os.kill(os.getpid(), signal.SIGTERM); signal.pause()"])
def test_after_stop_nothing_is_told(then):
    assert run(f"endings.stop()\n{then}")[1] == []
