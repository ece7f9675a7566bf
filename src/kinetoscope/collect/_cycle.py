"""One finished recording of a session, with the metadata that came too late for its file."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinetoscope.collect._engine import Recording
    from kinetoscope.trace import Trace


class Cycle:
    """A recording that is turned into a trace when somebody asks."""

    def __init__(self, recording: Recording, info: Mapping[str, str], *, worth_reading: bool) -> None:
        """Keep the recording; `info` are JSON texts whose values join the trace's own."""
        self._recording = recording
        self._info = dict(info)
        self._worth_reading = worth_reading
        self._trace: Trace | None = None
        self._lock = threading.Lock()

    @property
    def worth_reading(self) -> bool:
        """Whether something would be lost that nobody has looked at yet."""
        return self._worth_reading and self._trace is None

    def trace(self) -> Trace:
        """The trace, built on the first call."""
        with self._lock:
            if self._trace is None:
                trace = self._recording.trace()
                trace.info.update(_values(self._info))
                self._trace = trace
            return self._trace

    def add_info(self, info: Mapping[str, str]) -> None:
        """Let JSON texts join the trace, built or not."""
        with self._lock:
            self._info.update(info)
            if self._trace is not None:
                self._trace.info.update(_values(info))

    def discard(self) -> None:
        """Forget the recording and its files."""
        self._recording.discard()


def _values(info: Mapping[str, str]) -> dict[str, Any]:
    """What JSON texts mean."""
    return {key: json.loads(text) for key, text in info.items()}
