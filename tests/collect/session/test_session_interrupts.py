"""An interrupt at any line of a session: afterwards stop() ends it, and the next session records."""

import linecache
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch

import kinetoscope.collect
from kinetoscope import ProfilerActivity, StateError, profile, schedule
from kinetoscope.collect.engines.native import native_engine_status
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from kinetoscope.collect.sources import ranges
from tests.support.effort import times
from tests.support.noting_engine import NotingEngine
from tests.support.torch_release import TORCH

ROOM = Path(kinetoscope.collect.__file__).parent
INTERRUPTED = {
    str(ROOM / name)
    for name in (
        "session/profile.py",
        "session/base_session.py",
        "session/cycle.py",
        "session/source_window.py",
        "engines/kineto.py",
        "sources/ranges.py",
    )
}


class Interrupt(BaseException):
    pass


class ExactEngine(NotingEngine):
    """Refuses what a recorder would refuse: to start twice, or to stop what does not run."""

    on = 0

    def start(self):
        if ExactEngine.on:
            raise StateError("recording already")
        super().start()
        ExactEngine.on = 1

    def stop(self):
        if not ExactEngine.on:
            raise StateError("not recording")
        ExactEngine.on = 0
        return super().stop()


class ExactObserver:
    """Knows whether it runs; being stopped while it does not is harmless, as with torch's."""

    on = 0

    def start(self):
        if ExactObserver.on:
            raise StateError("observing already")
        ExactObserver.on = 1

    def stop(self):
        ExactObserver.on = 0

    cleanup = stop


class InterruptAt:
    """Raises at the n-th line that is run in one of the interrupted files."""

    def __init__(self, line: int) -> None:
        self.left = line
        self.done = False

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def _call(self, frame, event, arg):
        return self._line if frame.f_code.co_filename in INTERRUPTED else None

    def _line(self, frame, event, arg):
        if event == "line":
            self.left -= 1
            # Leaving a `with` is a line event too, before the lock is released, and so is, from Python 3.12 on, a `try`
            # in front of its block; a real signal does not come there.
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if self.left <= 0 and not self.done and not line.lstrip().startswith(("with ", "try:")):
                self.done = True
                raise Interrupt
        return self._line


def program(engine, sessions, **more):
    """Two cycles and the end of a third; the session is handed out before anything can go wrong with it."""
    session = profile(
        **more,
        engine=engine,
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda session: session.trace,
    )
    sessions.append(session)
    with session:
        for _ in range(5):
            session.step()


def interrupt_everywhere(make_engine, check, stride=1, **more):
    """Runs the program once for every line it runs, interrupted there; returns how many there were."""
    line = 1
    while True:
        sessions = []
        at = InterruptAt(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with at:
                    program(make_engine(), sessions, **more)
            except Interrupt:
                pass
            if not at.done:
                return line
            for session in sessions:
                if session._ever_started:
                    session.stop()
            assert ACTIVE_SESSIONS.current() is None, line
            assert not isinstance(torch.profiler.itt._itt, ranges._RecordedLibrary), line
            check(line)
        line += stride


class SignalAt(InterruptAt):
    """Sends the process an interrupt at the n-th line from where stop() begins to end the run."""

    begun = False

    def _call(self, frame, event, arg):
        self.begun |= frame.f_code is profile._end.__code__
        return super()._call(frame, event, arg) if self.begun else None

    def _line(self, frame, event, arg):
        try:
            return super()._line(frame, event, arg)
        except Interrupt:
            signal.raise_signal(signal.SIGINT)
            return self._line


@pytest.mark.parametrize("steps", [0, 2, 5], ids=["waiting", "warm-up", "recording"])
@pytest.mark.parametrize("leave", [False, True], ids=["stop", "with"])
@pytest.mark.filterwarnings("ignore:nothing was recorded")
def test_an_interrupted_stop_leaves_nothing_recording(steps, leave):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # The lines of stop() are those of leaving the block: each of the two has every other one, in `make stress` all.
        for line in range(1 + leave, 1000, times(2, 1)):
            session = profile(engine=ExactEngine(), schedule=schedule(wait=1, warmup=3, active=9))
            session.start()
            for _ in range(steps):
                session.step()
            at = SignalAt(line)
            try:
                with at:
                    session.__exit__(None, None, None) if leave else session.stop()
                interrupted = False
            except KeyboardInterrupt:
                interrupted = True
            assert interrupted == at.done, line
            assert (ExactEngine.on, ACTIVE_SESSIONS.current(), session._run) == (0, None, None), line
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, line
            if not at.done:
                break
        assert line > 20
    finally:
        signal.signal(signal.SIGINT, before)


def test_with_an_engine_that_is_exact_about_its_state():
    def check(line):
        assert not ExactEngine.on, line
        engine = ExactEngine()
        with profile(engine=engine):
            pass
        assert engine.log == ["prepare", "start", "stop"], line

    # 399 of the 406 lines that it runs, most of them more than once, are also those of the next test.
    assert interrupt_everywhere(ExactEngine, check, stride=times(13, 1)) > 300


def test_with_an_observer_that_is_exact_about_its_state_and_all_cycles_kept():
    def check(line):
        assert not ExactEngine.on, line
        assert not ExactObserver.on, line

    more = {
        "execution_trace_observer": ExactObserver(),
        "acc_events": True,
        "custom_trace_id_callback": lambda: "id",
    }
    # Most lines run in several cycles: `make stress` stops at each of them each time.
    assert interrupt_everywhere(ExactEngine, check, stride=times(7, 1), **more) > 300


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            "kineto",
            marks=pytest.mark.skipif(
                TORCH < (2, 12),
                reason="an interrupt between preparing and starting leaves the collector of torch before 2.12 prepared, "
                "which fails every profiler after it, torch's own included",
            ),
        ),
        "native",
    ],
)
def test_with_an_engine_that_records(engine):
    if engine == "native" and not (status := native_engine_status()).available:
        pytest.skip(f"the native engine cannot serve here: {status.reason}")

    def check(line):
        with profile(engine=engine, activities=[ProfilerActivity.CPU]) as session:
            torch.ones(3) + 1
        trace = session.trace
        counted = Counter(trace.strings[name] for name in trace.columns("spans")["name"].tolist())
        assert counted["aten::add"] == 1, line

    assert interrupt_everywhere(lambda: engine, check, stride=times(23, 1)) > 300
