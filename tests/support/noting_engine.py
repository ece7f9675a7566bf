"""An engine that records nothing but the calls it gets, so that a session's decisions can be read off as a list."""

import json

from kinetoscope.collect import RecordingRequest
from kinetoscope.trace import Trace


class NotingRecording:
    """What the engine leaves: counts how often it was looked at and let go."""

    def __init__(self, log: list[str], request: RecordingRequest, make_trace) -> None:
        self.log = log
        self.request = request
        self._make_trace = make_trace
        self._trace = None
        self.discarded = 0

    def trace(self):
        if self._trace is None:
            self.log.append("build")
            self._trace = self._make_trace(self.request)
        return self._trace

    def discard(self) -> None:
        self.discarded += 1
        self.log.append("discard")


def plain_trace(request: RecordingRequest) -> Trace:
    """A trace in which nothing ran."""
    return Trace.from_columns(
        {}, strings=[""], info={key: json.loads(text) for key, text in request.info.items()}
    )


class NotingEngine:
    """Writes `prepare`, `start`, `stop` into `log`; `fail` names calls that shall raise."""

    name = "noting"

    def __init__(self, make_trace=plain_trace, fail: dict[str, BaseException] | None = None) -> None:
        self.log: list[str] = []
        self.requests: list[RecordingRequest] = []
        self.recordings: list[NotingRecording] = []
        self._make_trace = make_trace
        self._fail = fail or {}

    def prepare(self, request: RecordingRequest) -> None:
        self._note("prepare")
        self.requests.append(request)

    def start(self) -> None:
        self._note("start")

    def toggle(self, enable: bool, activities: frozenset) -> None:
        names = ",".join(sorted(activity.name for activity in activities))
        self._note(f"{'on' if enable else 'off'} {names}")

    def stop(self) -> NotingRecording:
        self._note("stop")
        self.recordings.append(NotingRecording(self.log, self.requests[-1], self._make_trace))
        return self.recordings[-1]

    def _note(self, call: str) -> None:
        self.log.append(call)
        if call in self._fail:
            raise self._fail.pop(call)
