"""A handler for `on_trace_ready`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetoscope._errors import StateError
from kinetoscope.collect.process.rank import in_process_group, own_rank


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str],
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> Callable[[Any], None]:
    """Build an `on_trace_ready` handler that writes each finished trace into a folder.

    Args:
        dir_name: The folder; it is made, with its parents, when the first trace is written.
        worker_name: First part of the file names; None means host name, process id and, in a process group, the rank,
            as `host_4711_rank3`. It is read when a file is written, so that forked workers do not share a name.
        use_gzip: Compress the files.
        use_python_export: Has no effect; torch chooses one of its two writers by it, and there is one here.

    Returns:
        A callable that takes the session and writes `{worker}.{time in ns}.pt.trace.json`, with `.gz` if compressed.
        It raises StateError when the folder cannot be made.
    """

    def write_trace(session: Any) -> None:
        folder = Path(dir_name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"the trace cannot be written: folder {os.fspath(folder)!r} cannot be created ({error}). "
                "Pass tensorboard_trace_handler a folder that can be created."
            ) from error
        # Unique among the processes of the job.
        rank = f"_rank{own_rank()}" if in_process_group() else ""
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}{rank}"
        suffix = ".json.gz" if use_gzip else ".json"
        session.export_chrome_trace(str(folder / f"{worker}.{time.time_ns()}.pt.trace{suffix}"))

    return write_trace
