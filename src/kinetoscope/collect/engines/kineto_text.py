"""Read the JSON text of torch's collector while torch writes it.

torch exports a recording as a JSON file. It can do so only once, does not report failures, and holds the GIL meanwhile. So we pass
it a named pipe, from which our reader parses on a thread that does not need the GIL: parsing needs no disk space and no additional
time. If a pipe cannot be used, torch writes to a temporary file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.profiler

from kinetoscope._errors import RecorderError

# The largest pipe buffer that Linux allows by default; the larger it is, the less the two threads wait for each other.
_PIPE_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_POLL_S = 0.0005
_INSTANT_WITH_DURATION = b'"ph":"X","cat":"cpu_instant_event"'
_INSTANT = b'"ph":"i","cat":"cpu_instant_event"'


def read_text(results: Any, *, may_start_threads: bool = True) -> dict[str, Any]:
    """Let torch write its recording, which it can do only once, and parse it.

    Args:
        results: torch's `_ProfilerResult`.
        may_start_threads: Whether threads can be started.

    Returns:
        The result of `_core.ChromeReader.finish`.

    Raises:
        RecorderError: torch could not write its text, or it cannot be parsed.
    """
    from kinetoscope.formats.chrome.read import new_reader

    reader = new_reader()
    with _folder() as folder:
        path = folder / "trace.json"
        if not (may_start_threads and _follow(results, reader, path)):
            results.save(str(path))
            _feed(reader, path)
    try:
        finished: dict[str, Any] = reader.finish()
        return finished
    except ValueError as error:
        raise RecorderError(
            f"torch's collector could not write what it recorded ({error}); torch may have printed more to stderr."
        ) from error


def read_objects(results: Any) -> dict[str, Any] | None:
    """Parse the text that torch's Python code writes from event objects: slow, but names of ranges are unchanged.

    Returns:
        As `read_text`; None if this release of torch cannot write it, or if that fails.
    """
    try:
        from torch.profiler._chrome_trace_export import export_chrome_trace
    except ImportError:
        return None
    from kinetoscope.formats.chrome.read import new_reader

    reader = new_reader()
    with _folder() as folder:
        path = folder / "objects.json"
        try:
            export_chrome_trace(results, str(path), None)
            with path.open("rb") as file:
                for line in file:
                    # This writer writes instant events as if they had a duration.
                    reader.feed(line.replace(_INSTANT_WITH_DURATION, _INSTANT))
            finished: dict[str, Any] = reader.finish()
            return finished
        except Exception:  # noqa: BLE001  (whatever goes wrong in torch: there is the other text)
            return None


def kineto_status() -> str:
    """Describe how recordings of torch's collector are read on this machine, for `kinetoscope doctor`.

    Raises:
        RecorderError: No folder is writable.
    """
    from kinetoscope.collect.request.torch_settings import has_setting

    if not torch.profiler.kineto_available():
        return "not built into this torch: engine='kineto' records operators only"
    with _folder() as folder:
        objects = (
            "without torch's event objects"
            if has_setting("trace_only")
            else "torch makes its event objects too"
        )
        return f"read while torch writes it, in {folder.parent}; {objects}"


def _follow(results: Any, reader: Any, path: Path) -> bool:
    """Parse from a named pipe while torch writes into it; False, before torch writes anything, if that is not possible."""
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        os.mkfifo(unfinished, 0o600)
        # Some releases of torch write to a temporary name and rename it. Here both names are links to the same pipe.
        os.link(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        return False
    text = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finished, announce = os.pipe()
    parsed: Future[None] = Future()

    def parse() -> None:
        try:
            parsed.set_result(reader.follow(text, finished))
        except Exception as error:  # noqa: BLE001  (raised below)
            parsed.set_exception(error)

    parser = threading.Thread(target=parse, name="kinetoscope follows kineto", daemon=True)
    try:
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(text, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        with contextlib.suppress(RuntimeError):
            parser.start()
        # Until the parser has released the GIL, which torch holds until its last byte is read.
        while not reader.following and parser.is_alive():
            time.sleep(_POLL_S)
        if parsed.done() or not parser.is_alive():
            # No thread could be started, or it cannot read.
            path.unlink()
            unfinished.unlink()
            return False
        try:
            results.save(str(path))
        finally:
            os.write(announce, b"\0")
            parser.join()
    finally:
        for descriptor in (text, finished, announce):
            os.close(descriptor)
    if (failure := parsed.exception()) is not None:
        raise RecorderError(f"what torch's collector recorded could not be read ({failure}).") from failure
    return True


def _feed(reader: Any, path: Path) -> None:
    """Pass a file to the reader in blocks; a missing file is left to its `finish`."""
    # If torch could not write, the file is missing or empty, of which the reader's `finish` raises an error.
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            reader.feed(block)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="kinetoscope-", ignore_cleanup_errors=True)
    except OSError as error:
        raise RecorderError(
            "what torch's collector recorded cannot be read: it writes to a file, and no folder is writable "
            f"({error}). Set TMPDIR to a writable folder."
        ) from error
    with folder as name:
        yield Path(name)
