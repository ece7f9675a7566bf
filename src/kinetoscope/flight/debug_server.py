"""Handlers for torch's debug server (`torch.distributed.debug`, torch 2.13), in jobs that use it: `kinetoscope_status`, `_capture`, `_snapshot`.

A handler needs the GIL, so it does not answer while a job hangs in C code: for that there is `kinetoscope.flight.control`.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kinetoscope._after_import import AfterImport

if TYPE_CHECKING:
    from collections.abc import Callable

_DEBUG = "torch.distributed.debug"
_MOST_STEPS, _MOST_REASON = 100_000, 100


class RecorderControls(Protocol):
    """What is asked of the recorder."""

    def facts(self) -> dict[str, Any]:
        """The state as JSON values."""

    def capture(self, steps: int = ...) -> Path | str:
        """Record each of the next steps; returns why not, if so."""

    def snapshot(self, reason: str = ...) -> Path | None:
        """Copy the ring."""


class DebugServerHandlers:
    """Registers the handlers once the program has imported torch's debug server, which is not imported here."""

    def __init__(self, current: Callable[[], RecorderControls | None]) -> None:
        """Prepare; `current` returns the recorder of this process."""
        self._current = current
        self._registered = False
        self._import = AfterImport(_DEBUG, self.register)

    def wait(self) -> None:
        """Register them now or at that import, once."""
        if not self._registered:
            self._import.wait()

    def register(self) -> None:
        """Register them; where the installed torch has no such server, or another one has these names, nothing happens."""
        if self._registered:
            return
        self._registered = True
        try:
            from torch._C._distributed_c10d import _register_handler

            for name, answer in (
                ("status", self._status),
                ("capture", self._capture),
                ("snapshot", self._snapshot),
            ):
                handler = self._handler(answer)
                # torch frees it when Python has ended, which would abort the program.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))
                _register_handler(f"kinetoscope_{name}", handler)
        except Exception:  # noqa: BLE001  (a private part of torch: without it the job goes on as ever)
            return

    def _handler(
        self, answer: Callable[[RecorderControls, Any], tuple[int, dict[str, Any]]]
    ) -> Callable[[Any, Any], None]:
        """A handler as torch calls it, with a request and a response."""

        def handle(request: Any, response: Any) -> None:
            recorder = self._current()
            if recorder is None:
                code, content = (
                    503,
                    {"error": "nothing is recorded: the job has not called kinetoscope.leave_on"},
                )
            else:
                code, content = answer(recorder, request)
            response.set_content(json.dumps(content), "application/json")
            response.set_status(code)

        return handle

    @staticmethod
    def _status(recorder: RecorderControls, _request: Any) -> tuple[int, dict[str, Any]]:
        return 200, recorder.facts()

    @staticmethod
    def _capture(recorder: RecorderControls, request: Any) -> tuple[int, dict[str, Any]]:
        text = request.get_param("steps") or "5"
        if not text.isdecimal() or not 1 <= int(text) <= _MOST_STEPS:
            return 400, {"error": f"steps={text[:40]!r}: need a whole number from 1 to {_MOST_STEPS:,}"}
        outcome = recorder.capture(int(text))
        return (202, {"path": str(outcome)}) if isinstance(outcome, Path) else (409, {"error": outcome})

    @staticmethod
    def _snapshot(recorder: RecorderControls, request: Any) -> tuple[int, dict[str, Any]]:
        reason = (request.get_param("reason") or "snapshot")[:_MOST_REASON]
        path = recorder.snapshot(reason)
        return (
            (201, {"path": str(path)})
            if path is not None
            else (503, {"error": "the ring could not be copied"})
        )
