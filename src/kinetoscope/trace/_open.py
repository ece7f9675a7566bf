"""Opening whatever holds a trace: the first bytes of a file, not its name, say what it is."""

from __future__ import annotations

import builtins
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._errors import FormatError, MissingDependencyError
from kinetoscope.trace._schema import STORED
from kinetoscope.trace._trace import Trace

if TYPE_CHECKING:
    from typing import Any

RECORDING_MAGIC = b"KSCOPE\r\n"
ZIP_MAGIC = b"PK\x03\x04"
CAN_OPEN = "recordings of this profiler (also of killed processes) and .ktrace files"


def open(source: str | os.PathLike[str]) -> Trace:  # noqa: A001  (the verb is `kinetoscope.open`)
    """Open a trace.

    Args:
        source: The path of a recording, also of a process that was killed or still runs, or of a `.ktrace` file; or,
            where `fsspec` is installed, any URL it knows (``s3://...``).

    Returns:
        The trace. It is a context manager; leaving it lets go of the file.

    Raises:
        FormatError: The file holds no trace, is damaged, or is of a newer version.
        MissingDependencyError: A URL was given and `fsspec` is not installed.
        OSError: The file cannot be read.
    """
    text = os.fspath(source)
    if "://" in text:
        return _open_url(text)
    path = Path(text)
    with builtins.open(path, "rb") as file:
        head = file.read(8)
    if head == RECORDING_MAGIC:
        return Trace.from_recording(path)
    if head.startswith(ZIP_MAGIC):
        from kinetoscope.trace._file_reader import read_ktrace

        return read_ktrace(path)
    raise FormatError(f"{path}: {_what_it_is(head)}; kinetoscope.open reads {CAN_OPEN}")


def _what_it_is(head: bytes) -> str:
    """Say in words what the first bytes look like."""
    if not head:
        return "the file is empty"
    if head.startswith(b"PAR1"):
        return "a Parquet file holds one table and not a whole trace (read it with pandas, polars or DuckDB)"
    if head.lstrip().startswith((b"{", b"[")):
        return "JSON traces cannot be opened"
    if head.startswith(b"\x1f\x8b"):
        return "gzip files cannot be opened"
    if RECORDING_MAGIC.startswith(head):
        return "the file breaks off after its first bytes"
    return "the file holds no trace"


def _open_url(url: str) -> Trace:
    """Copy what a URL names into a temporary file, open that, and remove it when the trace is closed."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(
            f"{url}: opening a URL needs fsspec: install it with `pip install fsspec` (and the package for its protocol)"
        ) from error
    filesystem: Any
    filesystem, remote = fsspec.core.url_to_fs(url)
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        local = Path(folder) / "trace"
        filesystem.get_file(remote, str(local))
        try:
            trace = open(local)
        except FormatError as error:
            raise FormatError(str(error).replace(str(local), url)) from error
        # The copy disappears now, so what is still lazy has to be read now.
        for table in STORED:
            columns = trace.columns(table)
            for name in columns.given:
                columns[name]
    trace.path = None
    trace.info["source"] = url
    return trace
