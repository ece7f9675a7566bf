"""Handlers for torch's debug server (`torch.distributed.debug`, torch 2.13), in jobs that use it: `kinetoscope_status`, `_capture`, `_snapshot`.

A handler needs the GIL, so it does not answer while a job hangs in C code: for that there is `kinetoscope.flight.control`.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from kinetoscope._after_import import AfterImport
from kinetoscope.flight.control.in_job import Controllable, steps_problem

Current = Callable[[], Controllable | None]
Answer = tuple[int, dict[str, Any]]

_DEBUG = "torch.distributed.debug"
_MOST_REASON = 100


@cache
def register_handlers(current: Current) -> None:
    """Register the handlers once the program has imported torch's debug server, which is not imported here.

    Args:
        current: Returns the recorder of this process.
    """
    AfterImport(_DEBUG, partial(_register, current)).wait()


def _register(current: Current) -> None:
    """Register them; where the installed torch has no such server, or another one has these names, nothing happens."""
    try:
        from torch._C._distributed_c10d import _register_handler

        for name, answer in (("status", _status), ("capture", _capture), ("snapshot", _snapshot)):
            handler = partial(_handle, current, answer)
            # torch frees it when Python has ended, which would abort the program.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handler))
            _register_handler(f"kinetoscope_{name}", handler)
    except Exception:  # noqa: BLE001  (a private part of torch: without it the job goes on as ever)
        return


def _handle(
    current: Current, answer: Callable[[Controllable, Any], Answer], request: Any, response: Any
) -> None:
    recorder = current()
    code, content = 503, {"error": "nothing is recorded: the job has not called kinetoscope.leave_on"}
    if recorder is not None:
        code, content = answer(recorder, request)
    response.set_content(json.dumps(content), "application/json")
    response.set_status(code)


def _status(recorder: Controllable, _request: Any) -> Answer:
    return 200, recorder.facts()


def _capture(recorder: Controllable, request: Any) -> Answer:
    text = request.get_param("steps") or "5"
    steps: Any = int(text) if text.isdecimal() else text
    if problem := steps_problem(steps):
        return 400, {"error": problem}
    outcome = recorder.capture(steps)
    return (202, {"path": str(outcome)}) if isinstance(outcome, Path) else (409, {"error": outcome})


def _snapshot(recorder: Controllable, request: Any) -> Answer:
    path = recorder.snapshot((request.get_param("reason") or "snapshot")[:_MOST_REASON])
    return (503, {"error": "the ring could not be copied"}) if path is None else (201, {"path": str(path)})
