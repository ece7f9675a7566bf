"""When memory runs out under a session: the report that is written before the exception goes on."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from kinetoscope.collect._warn import warn_user
from kinetoscope.trace import catalog

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetoscope.trace import Trace

# How torch's allocator of the host says it, on every system.
_HOST_SAYS = re.compile(r"DefaultCPUAllocator: (not enough memory|can't allocate memory)")
_HOST_WANTED = re.compile(r"tried to allocate (\d+) bytes")
_DEVICE_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_DEVICE_NUMBER = re.compile(r"\b(?:GPU|device) (\d+)\b")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception says that memory ran out: torch's of a device or of the host, or Python's own."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and _HOST_SAYS.search(str(error)) is not None


def report_out_of_memory(
    trace: Callable[[], Trace], oom_report: Path | Literal[False] | None, recording: Path | None
) -> None:
    """Write the report if an exception that is being handled right now says that memory ran out.

    The exception itself stays what it is, with a note where the report is. A report that cannot be written is a
    warning, where warnings are errors a note as well.

    Args:
        trace: Gives the trace that ends with the failure.
        oom_report: Where the text goes, as `_arguments.checked_report` returns it; the page goes beside it.
        recording: The file of the recording, beside which a report of our naming goes; else the working directory.
    """
    error = sys.exc_info()[1]
    if error is None or oom_report is False or not is_out_of_memory(error):
        return
    try:
        text_path, page_path = _places(oom_report, recording)
        write = catalog.resolve("kinetoscope.formats.memory_report:write_memory_report")
        write(
            trace(),
            text_path,
            page_path,
            failure=f"{type(error).__name__}: {error}",
            where=_where(error),
            wanted_bytes=_wanted_bytes(str(error)),
            device=_device(error),
        )
        error.add_note(f"kinetoscope: what held the memory is told in {text_path} and {page_path}")
    except Exception as failure:  # noqa: BLE001  (whatever it is, the program's own exception matters more)
        told = f"the report on the lack of memory could not be written: {type(failure).__name__}: {failure}"
        try:
            warn_user(told)
        except Warning:
            error.add_note(f"kinetoscope: {told}")


def _places(oom_report: Path | None, recording: Path | None) -> tuple[Path, Path]:
    """The files of the text and of the page."""
    if oom_report is not None:
        text = oom_report if oom_report.suffix else oom_report.with_suffix(".txt")
    elif recording is not None:
        text = recording.with_name(f"{recording.stem}.oom.txt")
    else:
        text = Path.cwd() / f"kinetoscope-oom-{os.getpid()}-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    page = text.with_name(f"{text.stem}.memory.html")
    return text.absolute(), page.absolute()


def _where(error: BaseException) -> str | None:
    """The innermost line of the program that the exception came through, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    own = [frame for frame in frames if not frame.filename.startswith((_OWN, _TORCH, "<frozen"))]
    frame = (own or frames)[-1]
    return f"{frame.filename}({frame.lineno}): {frame.name}" + (f"    {frame.line}" if frame.line else "")


def _wanted_bytes(message: str) -> int | None:
    """How much was asked for, as far as the message tells."""
    if found := _HOST_WANTED.search(message):
        return int(found[1])
    if found := _DEVICE_WANTED.search(message):
        return int(float(found[1]) * _UNITS[found[2]])
    return None


def _device(error: BaseException) -> str | None:
    """Whose memory ran out, as far as the exception tells."""
    if not isinstance(error, torch.OutOfMemoryError):
        return "cpu"
    number = _DEVICE_NUMBER.search(str(error))
    kind = next((name for name in ("xpu", "mps", "hpu", "mtia") if name in str(error).lower()), "cuda")
    return f"{kind}:{number[1]}" if number else kind
