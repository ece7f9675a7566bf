"""The recording of one test, which the fixture `kinetoscope_trace` hands out."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import kinetoscope
from kinetoscope._errors import StateError
from kinetoscope.model.steps import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kinetoscope.collect import profile
    from kinetoscope.trace import Trace


class RecordedTest:
    """The recording of one test; it ends when the trace is first read.

    Whatever a `kinetoscope.Trace` has, this has too: `kinetoscope_trace.table("ops")` ends the recording and reads it.
    What the test does afterwards is not recorded and not limited.
    """

    def __init__(self, settings: Mapping[str, bool], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """Prepare a recording; it begins with `begin`."""
        self._settings = settings
        self._clock = clock
        self._began_ns = self._ended_ns = 0
        self._session: profile | None = None
        self._trace: Trace | None = None
        self._block = False
        self._next_step = 0

    def begin(self) -> None:
        """Start to record.

        Raises:
            MissingDependencyError: There is no torch.
            RecorderError: Nothing can be recorded here.
            StateError: Something else is recording in this process.
        """
        session = kinetoscope.profile(**self._settings, oom_report=False)  # type: ignore[arg-type]
        session.start()
        self._session = session
        self._began_ns = self._ended_ns = self._clock()

    def end(self) -> None:
        """Stop recording, if that was not done before."""
        session, self._session = self._session, None
        if session is not None:
            self._ended_ns = self._clock()
            session.stop()
            self._trace = session.trace

    def discard(self) -> None:
        """Stop without a trace, and discard an existing one."""
        session, self._session = self._session, None
        trace, self._trace = self._trace, None
        if session is not None:
            session.stop()
        if trace is not None:
            trace.close()

    @property
    def ran_ns(self) -> int:
        """How long the test ran while it was recorded; starting and ending the recording is not part of that."""
        return self._ended_ns - self._began_ns

    @property
    def trace(self) -> Trace:
        """The trace; reading it first stops the recording.

        Raises:
            StateError: The test is not being run, or the recorded block has not ended.
        """
        if self._block and self._session is not None:
            raise StateError("kinetoscope_trace is read inside its own `with` block: leave the block first")
        self.end()
        if self._trace is None:
            raise StateError(
                "this test has no trace: a test is recorded only while its function runs, and only if it has the argument"
                " kinetoscope_trace"
            )
        return self._trace

    def __enter__(self) -> Self:
        """Restart the recording, so that the trace contains only this block.

        Raises:
            StateError: There was such a block before, or the trace was read.
        """
        if self._trace is not None or self._block:
            raise StateError("this test was already recorded; only one recording per test")
        self.discard()
        self._next_step = 0
        self.begin()
        self._block = True
        return self

    def __exit__(self, *_error: object) -> None:
        """End the recording."""
        self.end()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Mark what runs in a `with` block as one step of training; steps are numbered from 0."""
        number, self._next_step = self._next_step, self._next_step + 1
        with kinetoscope.record_function(f"{MARK}{number}"):
            yield

    def __getattr__(self, name: str) -> Any:
        """Find everything else in the trace."""
        if name.startswith("__"):
            raise AttributeError(f"the trace of a test has no attribute {name!r}")
        return getattr(self.trace, name)

    def __repr__(self) -> str:
        """Show the state."""
        if self._session is not None:
            return "<kinetoscope_trace: recording>"
        return f"<kinetoscope_trace: {self._trace!r}>"
