"""Out of memory during a session: the report that is written before the exception propagates."""

from __future__ import annotations

import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from kinetoscope._errors import ArgumentError
from kinetoscope._import_aside import import_aside
from kinetoscope.collect.process.user_warnings import warn_user

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


# Messages of torch's host allocator on Linux, macOS and Windows.
_HOST_SAYS = re.compile(r"DefaultCPUAllocator: (not enough memory|can't allocate memory)")
_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_DEVICE_NUMBER = re.compile(r"\b(?:GPU|device) (\d+)\b")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_OWN = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception is an out-of-memory error: of torch's device or host allocators, or Python's `MemoryError`."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and _HOST_SAYS.search(str(error)) is not None


def report_out_of_memory(
    trace: Callable[[], Trace], oom_report: Path | Literal[False] | None, recording: Path | None
) -> None:
    """Write the report if the exception being handled is an out-of-memory error.

    The exception gets a note with the report's path. If the report cannot be written, that is a
    warning; if warnings are turned into errors, it is a note on the exception instead.

    Args:
        trace: Returns the trace of the recording that ended with the failure.
        oom_report: The path of the text report, as in `RecordingOptions`; the HTML page is written next to it.
        recording: The recording's file, if it has a path. Without `oom_report` the report is written next to it, or else in
            the working directory.
    """
    error = sys.exc_info()[1]
    if error is None or oom_report is False or not is_out_of_memory(error):
        return
    try:
        text_path, page_path = _places(oom_report, recording)
        _write_report(trace(), error, text_path, page_path)
        error.add_note(f"kinetoscope: what held the memory is reported in {text_path} and {page_path}")
    except Exception as failure:  # noqa: BLE001  (whatever it is, the program's own exception matters more)
        message = f"the out-of-memory report could not be written: {type(failure).__name__}: {failure}"
        try:
            warn_user(message)
        except Warning:
            error.add_note(f"kinetoscope: {message}")


def _write_report(trace: Trace, error: BaseException, text_path: Path, page_path: Path) -> None:
    import_aside("kinetoscope.viewer.server.report")
    from kinetoscope.display.out_of_memory import failure_lines, memory_lines
    from kinetoscope.storage.atomic_write import write_atomically
    from kinetoscope.viewer.server.report import write_memory_page

    failure = failure_lines(
        trace,
        failure=f"{type(error).__name__}: {error}",
        where=_where(error),
        requested_bytes=_requested_bytes(str(error)),
    )
    device = _device(error)
    try:
        held = memory_lines(trace, device)
    except ArgumentError:
        # Allocations of the device that ran out of memory were not recorded.
        device = None
        held = memory_lines(trace, device)
    write_atomically(text_path, "\n".join([*failure, "", *held, ""]).encode("utf-8", "backslashreplace"))
    write_memory_page(trace, page_path, device, notice="\n".join(line for line in failure if line))


def _places(oom_report: Path | None, recording: Path | None) -> tuple[Path, Path]:
    if oom_report is not None:
        text = oom_report if oom_report.suffix else oom_report.with_suffix(".txt")
    elif recording is not None:
        text = recording.with_name(f"{recording.stem}.oom.txt")
    else:
        text = Path.cwd() / f"kinetoscope-oom-{os.getpid()}-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    page = text.with_name(f"{text.stem}.memory.html")
    return text.absolute(), page.absolute()


def _where(error: BaseException) -> str | None:
    """Return the innermost frame of the traceback that is neither ours nor torch's, or else the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    program_frames = [frame for frame in frames if not frame.filename.startswith((_OWN, _TORCH, "<frozen"))]
    frame = (program_frames or frames)[-1]
    return f"{frame.filename}({frame.lineno}): {frame.name}" + (f"    {frame.line}" if frame.line else "")


def _requested_bytes(message: str) -> int | None:
    match = _WANTED.search(message)
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


def _device(error: BaseException) -> str | None:
    """Return the device that ran out of memory, such as `cuda:0`, or `cuda` if the message has no device number."""
    if not isinstance(error, torch.OutOfMemoryError):
        return "cpu"
    number = _DEVICE_NUMBER.search(str(error))
    kind = next((name for name in ("xpu", "mps", "hpu", "mtia") if name in str(error).lower()), "cuda")
    return f"{kind}:{number[1]}" if number else kind
