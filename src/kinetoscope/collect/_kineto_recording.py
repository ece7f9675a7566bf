"""What torch's collector returned: a trace on demand, and the object that `prof.profiler` shows in its place."""

from __future__ import annotations

import functools
import json
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity

from kinetoscope._errors import RecorderError, StateError
from kinetoscope.collect._activities import name_of
from kinetoscope.collect._aside import Aside
from kinetoscope.collect._machine import boot
from kinetoscope.trace import catalog

if TYPE_CHECKING:
    from kinetoscope.collect._engine import RecordingRequest
    from kinetoscope.collect._kineto_columns import Tables
    from kinetoscope.collect._pauses import Pauses
    from kinetoscope.trace import Trace

# What the engine writes at its start and the trace does not keep: the monotonic clock less the one on the wall.
MONOTONIC_KEY = "monotonic_of_realtime_ns"
_LOSS_COLUMNS = ("what", "count", "where", "why")
_EVERYTHING = "every event of this recording"
_WHOLE = "the whole recording"
_WHY_TAKEN = (
    "torch.profiler ran while torch's own collector was recording for Kinetoscope, and took the events: "
    "use one of them at a time, or the native engine, which can run beside torch.profiler"
)
_WHY_UNKNOWN = (
    "torch writes `unknown` for a name with other characters than those of ASCII, and puts other characters in the place of "
    "quotes and backslashes. The native engine keeps them."
)

Loss = tuple[str, int, str, str]


class KinetoRecording:
    """What torch's collector returned, turned into a trace on demand."""

    engine = "kineto"

    def __init__(
        self,
        results: Any | None,
        request: RecordingRequest,
        pauses: Pauses,
        window_ns: int = 0,
        *,
        has_objects: bool = False,
    ) -> None:
        """Keep torch's results; None when somebody else has ended the collection and taken them.

        `has_objects` says whether torch has made its event objects.
        """
        self._results = results
        self._taken = results is None
        self._request = request
        self._pauses = pauses
        self._window_ns = window_ns
        self._has_objects = has_objects
        self._process = os.getpid()
        self._made: Aside[Trace] | None = None
        self._lock = threading.Lock()

    def trace(self) -> Trace:
        """The recording as a trace: torch writes, we read, both once. An interrupted call can be made again.

        Raises:
            StateError: The recording was discarded, or belongs to the process that forked this one.
        """
        with self._lock:
            if self._made is None:
                if self._results is None and not self._taken:
                    raise StateError("this recording was discarded: there is no trace of it.")
                self._made = Aside(functools.partial(self._build, self._results))
        return self._made.result()

    def face(self) -> ResultsFace | None:
        """What `prof.profiler` shows as torch's results; None where there are none."""
        if self._results is None:
            return None
        return ResultsFace(self._results, self, has_objects=self._has_objects)

    def discard(self) -> None:
        """Let go of torch's results; a trace already built stays whole."""
        self._results = None

    def _build(self, results: Any | None, may_start_threads: bool) -> Trace:
        """Read torch's text, and say what is missing."""
        from kinetoscope.collect._experimental import EVENT_METADATA
        from kinetoscope.collect._kineto_columns import note_event_metadata, restore_quotes
        from kinetoscope.trace import Trace
        from kinetoscope.trace._cycles import one_cycle
        from kinetoscope.trace._losses import loss_rows, pause_losses
        from kinetoscope.trace._storages import add_storages

        texts = {**self._request.info, **self._pauses.as_info()}
        info: dict[str, Any] = {key: json.loads(text) for key, text in texts.items()}
        info |= {
            "engine": self.engine,
            "torch_version": str(torch.__version__),
            "host": socket.gethostname(),
            "process": self._process,
            "parent_process": os.getppid(),
            **{key: json.loads(text) for key, text in boot().items()},
        }
        monotonic_of_realtime_ns = info.pop(MONOTONIC_KEY, None)
        tables: Tables = {}
        strings = [""]
        lost: list[Loss] = []
        if results is None:
            lost.append((_EVERYTHING, 1, _WHOLE, _WHY_TAKEN))
        else:
            try:
                read = self._read(results, may_start_threads)
            except RecorderError as error:
                lost.append((_EVERYTHING, 1, _WHOLE, str(error)))
                info["start_realtime_ns"] = int(results.trace_start_ns())
            else:
                tables, strings, told = self._columns(read)
                info = {**told, **info}
                lost += _losses(read, tables)
                if "start_realtime_ns" not in info:
                    info["start_realtime_ns"] = int(results.trace_start_ns())
                if self._has_objects:
                    strings = restore_quotes(tables, strings, results, info["start_realtime_ns"])
                if self._has_objects and self._setting(EVENT_METADATA):
                    note_event_metadata(tables, results.events(), info["start_realtime_ns"])
            strings, unseen = add_storages(tables, info, strings, info["start_realtime_ns"])
            lost += _rows(loss_rows({"skipped_storages": unseen}, stopped=True))
        lost += _rows(pause_losses(info.get("pauses")))
        if isinstance(monotonic_of_realtime_ns, int) and info.get("start_realtime_ns", 0) > 0:
            info["start_monotonic_ns"] = info["start_realtime_ns"] + monotonic_of_realtime_ns
        tables["losses"] = {name: [loss[place] for loss in lost] for place, name in enumerate(_LOSS_COLUMNS)}
        tables["cycles"] = one_cycle(info, max(self._window_ns, info.get("stop_ns", 0)))
        self._results = None
        return Trace.from_columns(tables, strings=strings, info=info)

    def _read(self, results: Any, may_start_threads: bool) -> Trace:
        """The trace as the file has it, without what was not asked for."""
        from kinetoscope.collect._kineto_columns import UNWRITABLE, leave_out, mark_transfers
        from kinetoscope.collect._kineto_text import read_objects, read_text

        text = read_text(results, may_start_threads=may_start_threads)
        if self._has_objects and UNWRITABLE in text["strings"]:
            text = read_objects(results) or text
        leave_out(
            text,
            self._request.activity_filters.get(ProfilerActivity.CPU),
            self._pauses.windows_ns("CPU"),
        )
        mark_transfers(text)
        read: Trace = catalog.resolve(catalog.CHROME_TRACE)(text)
        return read

    def _columns(self, read: Trace) -> tuple[Tables, list[str], dict[str, Any]]:
        """The columns, the strings and the metadata, with what is known of a live recording beyond its file."""
        from kinetoscope.collect import _kineto_columns

        tables = _kineto_columns.delivered(read)
        strings = read.strings
        if self._setting("capture_overload_names"):
            strings = _kineto_columns.split_overloads(tables, strings)
        if "threads" in tables:
            _kineto_columns.number_threads(tables)
        device = _kineto_columns.device_of([name_of(activity) for activity in self._request.activities])
        if device is not None and "streams" in tables:
            tables["streams"]["device_type"][:] = device
        told = {key: value for key, value in read.info.items() if key in _TOLD}
        return tables, strings, told

    def _setting(self, name: str) -> bool:
        """Whether an experimental setting of torch's is on."""
        from kinetoscope.collect._experimental import changed_settings

        return bool(changed_settings(self._request.experimental_config).get(name))


# What torch's file says of the run and the session does not.
_TOLD = frozenset(
    {"start_realtime_ns", "stop_ns", "deviceProperties", "devices", "distributedInfo", "record_shapes"}
)


def _losses(read: Trace, tables: Tables) -> list[Loss]:
    """What reading has lost, in rows of the table."""
    from kinetoscope.collect._kineto_columns import unwritable_ranges

    lost: list[Loss] = _rows(tables.pop("losses", {}))
    if unknown := unwritable_ranges(read):
        lost.append(("ranges whose name torch cannot write", unknown, "strings", _WHY_UNKNOWN))
    return lost


def _rows(columns: dict[str, Any]) -> list[Loss]:
    """The rows of a table of losses."""
    if not columns:
        return []
    return [
        (str(what), int(count), str(where), str(why))
        for what, count, where, why in zip(*(columns[name] for name in _LOSS_COLUMNS), strict=True)
    ]


class ResultsFace:
    """Stands where torch keeps its collector's `_ProfilerResult`: that one can be saved only once, and was, for the trace."""

    def __init__(self, results: Any, recording: KinetoRecording, *, has_objects: bool) -> None:
        """Speak for torch's results."""
        self._results = results
        self._recording = recording
        self._has_objects = has_objects

    def trace_start_ns(self) -> int:
        """When the recording began, in nanoseconds of the clock on the wall."""
        return int(self._results.trace_start_ns())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording in Chrome's format.

        Raises:
            StateError: The recording was discarded before it was read.
        """
        catalog.resolve("kinetoscope.formats.chrome:write_chrome_trace")(
            self._recording.trace(), os.fspath(path)
        )

    def events(self) -> Any:
        """torch's raw events.

        Raises:
            StateError: torch was not asked to make them.
        """
        return self._objects("events")()

    def experimental_event_tree(self) -> Any:
        """torch's tree of events.

        Raises:
            StateError: torch was not asked to make them.
        """
        return self._objects("experimental_event_tree")()

    def _objects(self, call: str) -> Any:
        """A call of torch's results that answers with event objects."""
        if not self._has_objects:
            raise StateError(
                f"prof.profiler.kineto_results.{call}() holds objects that torch was not asked to make, for making them takes "
                "time at each stop: give the session experimental_config=torch._C._profiler._ExperimentalConfig() to have "
                "them, or install(engine='kineto') for a program that is not to be changed. prof.events() and "
                "prof.trace.table('spans') tell the same."
            )
        return getattr(self._results, call)
