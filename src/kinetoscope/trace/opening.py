"""Opening whatever holds a trace: the first bytes of a file, not its name, say what it is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.combine.ranks import merge_named
from kinetoscope.model.schema import STORED
from kinetoscope.storage.byte_source import ByteSource
from kinetoscope.storage.unpacking import GZIP_MAGIC, UnpackedText
from kinetoscope.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Progress = Callable[[int, int | None, int], object]


RECORDING_MAGIC = b"KSCOPE\r\n"
ZIP_MAGIC = b"PK\x03\x04"
# Words that files of other tools begin with, and what these are.
_OTHER_FORMATS = (
    (
        (b"speedscope.app/file-format-schema",),
        "a profile for speedscope, which kinetoscope writes and does not read: open it in speedscope",
    ),
    (
        (b'"meta"', b'"interval"', b'"processType"'),
        "a profile of the Firefox Profiler, which kinetoscope does not read: open it there",
    ),
    (
        (b'"schema"', b'"nodes"'),
        (
            'an execution trace, which has no times: `trace.table("execution", execution_trace=...)` joins it to the trace '
            "of the same run, and kinetoscope.formats.execution_trace.read.read_execution_trace reads it alone"
        ),
    ),
    (
        (b'"nodes"', b'"startTime"'),
        "a CPU profile of Chrome or Node.js, which kinetoscope does not read: open it in Chrome's developer tools",
    ),
)
CAN_OPEN = (
    "recordings of this profiler (also of killed processes), .ktrace files, .tables folders, and traces of Kineto and "
    "others in Chrome's JSON format, plain or packed by gzip or zstd"
)


def open(  # noqa: A001  (the verb is `kinetoscope.open`)
    source: str | os.PathLike[str] | IO[bytes],
    *,
    progress: Progress | None = None,
    max_memory_bytes: int | None = None,
    max_uncompressed_bytes: int | None = None,
) -> Trace:
    """Open a trace. What the file holds decides how it is read, not its name.

    Recordings of this profiler, also of a process that was killed or still runs, and `.ktrace` files are mapped and not
    read. Folders that `save` made of a name ending in `.tables` are read. JSON in Chrome's trace event format, as torch.profiler and many other tools write it, is read as a stream, plain
    or packed by gzip or zstd. What cannot be used of it, or does not fit, is a row of `losses`.

    Args:
        source: A path; where `fsspec` is installed, any URL it knows (``s3://...``); or a file opened for reading bytes,
            which is read from where it stands and stays open.
        progress: Called again and again while JSON is read, with the bytes of the file that have been read, those it has
            (None where nobody knows), and how many events were found so far. What it raises ends the reading.
        max_memory_bytes: How much memory the events of a JSON file may take; what comes after is only counted. For a
            `.ktrace` file, how much its columns may; more is a `FormatError` when it would be read. Without it half of the
            memory that is available. 0: no limit.
        max_uncompressed_bytes: How many bytes a packed JSON file or a `.ktrace` file is unpacked to at most. Without it 200
            times its size or 1 GiB, whichever is more.

    Returns:
        The trace. It is a context manager; leaving it lets go of the file.

    Raises:
        ArgumentError: `source` is nothing that can be opened, or a limit is negative.
        FormatError: The file holds no trace, is damaged, or is of a newer version.
        MissingDependencyError: A URL was given and `fsspec` is not installed, or zstd and `pyarrow` is not.
        OSError: The file cannot be read.
    """
    for name, limit in (
        ("max_memory_bytes", max_memory_bytes),
        ("max_uncompressed_bytes", max_uncompressed_bytes),
    ):
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ArgumentError(f"{name}={limit!r}: give a number of bytes that is not negative.")
    if isinstance(source, (str, os.PathLike)) and Path(source).is_dir():
        from kinetoscope.storage.table_files import read_tables

        return Trace.of(read_tables(Path(source)))
    with ByteSource.of(source) as found:
        head = found.peek(8)
        if head == RECORDING_MAGIC or head.startswith(ZIP_MAGIC):
            return _open_own(found, head, max_memory_bytes, max_uncompressed_bytes)
        text = UnpackedText(found, max_uncompressed_bytes)
        try:
            begin = text.head()
            if begin.startswith((b"{", b"[")):
                from kinetoscope.formats.chrome.read import read_chrome_trace

                try:
                    read = read_chrome_trace(text, max_memory_bytes=max_memory_bytes, progress=progress)
                except FormatError as error:
                    if known := _other_format(text.beginning):
                        raise FormatError(f"{found.name}: no trace: {known}") from error
                    raise
                return Trace.of(read)
        finally:
            text.close()
        raise FormatError(f"{found.name}: {_what_it_is(head, begin)}; kinetoscope.open reads {CAN_OPEN}")


def _open_own(
    source: ByteSource, head: bytes, max_memory_bytes: int | None, max_uncompressed_bytes: int | None
) -> Trace:
    """Open a file of this profiler: by its path, or else by that of a copy."""
    if source.path is not None:
        return _open_path(source.path, head, max_memory_bytes, max_uncompressed_bytes)
    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        local = Path(folder) / "trace"
        source.copy_to(local)
        try:
            trace = _open_path(local, head, max_memory_bytes, max_uncompressed_bytes)
        except FormatError as error:
            raise FormatError(str(error).replace(str(local), source.name)) from error
        # The copy disappears now, so what is still lazy has to be read now.
        for table in STORED:
            columns = trace.columns(table)
            for name in columns.given:
                columns[name]
    trace.path = None
    trace.info["source"] = source.name
    return trace


def _open_path(
    path: Path, head: bytes, max_memory_bytes: int | None, max_uncompressed_bytes: int | None
) -> Trace:
    """Open a recording or a `.ktrace` file."""
    if head == RECORDING_MAGIC:
        return Trace.from_recording(path)
    from kinetoscope.storage.ktrace import read_ktrace

    return Trace.of(
        read_ktrace(path, max_memory_bytes=max_memory_bytes, max_uncompressed_bytes=max_uncompressed_bytes)
    )


def _other_format(beginning: bytes) -> str:
    """What JSON is that holds no trace, by its first bytes, and what reads it; empty where it is nothing known."""
    for words, what in _OTHER_FORMATS:
        if all(word in beginning for word in words):
            return what
    return ""


def _what_it_is(head: bytes, begin: bytes) -> str:
    """Say in words what a file is by its first bytes, as they are and unpacked."""
    if not head:
        return "the file is empty"
    if head.startswith(b"PAR1"):
        return "a Parquet file holds one table and not a whole trace (read it with pandas, polars or DuckDB)"
    if head.startswith(b"ARROW1"):
        return "an Arrow file holds one table and not a whole trace (read it with pyarrow, pandas or polars)"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the text is in UTF-16, and JSON is read in UTF-8"
    if head != begin[: len(head)] and head.startswith((GZIP_MAGIC, b"\x28\xb5\x2f\xfd")):
        return f"what it unpacks to holds no trace{'' if begin else ' (nothing at all)'}"
    if RECORDING_MAGIC.startswith(head):
        return "the file breaks off after its first bytes"
    return "the file holds no trace"


# Putting the ranks of one job together on one clock.


def merge(traces: Sequence[Trace | str | os.PathLike[str]]) -> Trace:
    """Put the traces of the ranks of one job into one trace, on one axis of time.

    What is counted within a process (steps, live memory, modules, links) is what it is in the trace of its rank alone. The
    column `rank` tells the ranks apart, `select_ranks` takes some out again, and the table `processes` says of each by
    what its clock was brought to that of the first (`clock`) and by how much its times may be off (`error_ns`):

    - `monotonic`: ranks of one machine have one clock, which their recordings say (Linux). To within microseconds.
    - `barriers`: ranks that aligned their clocks (`profile(align_ranks=True)` or `align_clocks()`).
    - `collectives`: ranks that called each other while they recorded. Nobody has the result of an all_reduce, all_gather,
      reduce_scatter or barrier before everybody has given his part; so each of these bounds the difference of two clocks
      from both sides; within these bounds they are taken to have left them together. Calls are told apart by step,
      group and order; of traces without steps only such with the same calls from beginning to end are compared.
    - `wall` or `unknown`: nothing ties them together, and `losses` says so. Their clocks on the wall were believed.

    For barriers and collectives the error is a bound, not an estimate: whatever the clocks did, as long as their difference was a
    straight line in time with a drift of at most 1 in 1000, and calls were told apart rightly, no moment is further off. If
    there is no such line, `info["processes"]` says by how much the bounds contradict each other (`violated_ns`),
    and `losses` has a row. It holds for the times of what carried the calls out: kernels of devices, or threads of the host.

    Args:
        traces: The traces, or paths or URLs of them; one for each rank. A trace that was put together of several processes
            counts as one. The cycles of one process belong together first, see `kinetoscope.trace.concatenate`.

    Returns:
        A new trace, the ranks in rising order; the given ones are as before. A warning says where they do not look like
        those of one job: of different programs, recorded at different times, or some with a rank and some without.

    Raises:
        ArgumentError: There is none, or two are of one rank, of one process, or of jobs of different size.
        FormatError: A file is no trace.
        OSError: A file cannot be read.
    """
    if isinstance(traces, (str, os.PathLike, Trace)):
        raise ArgumentError("pass a list of traces, one for each rank.")
    given = list(traces)
    opened = [trace if isinstance(trace, Trace) else open(trace) for trace in given]
    names = [
        f"trace {place}" if isinstance(one, Trace) else os.fspath(one)
        for place, one in enumerate(given, start=1)
    ]
    return merge_named(opened, names)
