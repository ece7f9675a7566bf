"""Opening, merging and comparing traces: the first bytes of a file, not its name, decide how it is read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, NamedTuple

from kinetoscope._errors import ArgumentError, FormatError, checked_whole
from kinetoscope._import_aside import import_aside
from kinetoscope.model import units
from kinetoscope.storage.byte_source import ByteSource
from kinetoscope.storage.live_recording import MAGIC
from kinetoscope.storage.unpacking import (
    FREE_BYTES,
    FREE_RATIO,
    PACKINGS,
    UnpackedText,
    default_memory_bytes,
)
from kinetoscope.trace.trace import Trace

if TYPE_CHECKING:
    from kinetoscope.comparison.budget import Budget, Limit, Outcome
    from kinetoscope.comparison.measures import Run, Scope
    from kinetoscope.comparison.result import Comparison
    from kinetoscope.comparison.verdict import Where

AnyTrace = Trace | str | os.PathLike[str]
Progress = Callable[[int, int | None, int], object]


ZIP_MAGIC = b"PK\x03\x04"
SQLITE_MAGIC = b"SQLite format 3\0"
# How memory snapshots of torch begin: a pickle of a dictionary, or JSON with one of its keys.
_SNAPSHOT = re.compile(
    rb'\x80[\x02-\x05]|\(d|\}[q(]|\{\s*"(segments|device_traces|allocator_settings|external_annotations)"'
)
# The objects of a snapshot take this many times the size of its file, about.
_SNAPSHOT_TIMES = 12
# The files of a folder or an archive that may be traces, by their names.
_TRACE_FILE = re.compile(
    r"^[^.].*\.(json|ktrace|recording|pickle|pkl|sqlite)(\.(gz|zst|xz|bz2))?$|^[^.].*\.zip$", re.IGNORECASE
)
_MOST_FILES, _MOST_NAMED = 4096, 5
_NSYS_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
# Words at the start of files of other tools, and what these files are.
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
    "recordings of this profiler (also of killed processes), .ktrace files, .tables folders, traces of Kineto and "
    "others in Chrome's JSON format, plain or compressed with gzip, zstd, xz or bzip2, SQLite exports of Nsight Systems, memory snapshots of torch, and ZIP archives and folders of these"
)


def open(  # noqa: A001  (the verb is `kinetoscope.open`)
    source: str | os.PathLike[str] | IO[bytes],
    *,
    progress: Progress | None = None,
    max_memory_bytes: int | None = None,
    max_uncompressed_bytes: int | None = None,
) -> Trace:
    """Open a trace. The content of the file decides how it is read, not its name.

    Recordings of this profiler, also of a process that was killed or is still running, and `.ktrace` files are mapped, not
    read. Folders that `save` wrote to a name that ends in `.tables` are read. Of the folder of an incident (see `leave_on`), the
    recordings of all ranks are one trace, whose `info` has the `incident`. JSON in Chrome's trace event format, as torch.profiler and
    many other tools write it, is read as a stream, plain or compressed with gzip, zstd, xz or bzip2. Of a ZIP archive or a folder, the
    traces are opened; those of the ranks of a job become one. SQLite exports of Nsight Systems (`nsys
    export --type sqlite`) and memory snapshots of torch (`torch.cuda.memory._dump_snapshot`) are read, too; no code of a pickle
    runs. What cannot be used, or does not fit, is a row of `losses`.

    Args:
        source: A path; where `fsspec` is installed, any URL that it supports (``s3://...``); or a file opened for reading
            bytes, which is read from its current position and stays open.
        progress: Called repeatedly while JSON is read, with the bytes read so far, the size of the file (None if unknown),
            and the number of events found so far. An exception that it raises stops the reading.
        max_memory_bytes: The memory limit for the events of a JSON file; events beyond it are only counted. For a `.ktrace`
            file, the limit for its columns; more is a `FormatError`. The default is half of the available memory. 0: no limit.
        max_uncompressed_bytes: The limit for decompressing a JSON file or a `.ktrace` file. The default is 200 times the
            file's size, at least 1 GiB.

    Returns:
        The trace. It is a context manager that closes the file at its end.

    Raises:
        ArgumentError: `source` cannot be opened, or a limit is negative.
        FormatError: The file does not contain a trace, is damaged, or has a newer version.
        MissingDependencyError: A URL was given and `fsspec` is not installed, or zstd and `pyarrow` is not.
        OSError: The file cannot be read.
    """
    import_aside()
    limits = {"max_memory_bytes": max_memory_bytes, "max_uncompressed_bytes": max_uncompressed_bytes}
    for name, limit in limits.items():
        if limit is not None:
            checked_whole(name, limit, 0, " bytes, or None")
    options = _Options(limits, progress)
    if isinstance(source, (str, os.PathLike)) and Path(source).is_dir():
        return _open_folder(Path(source), options)
    return _open_file(source, options)


class _Options(NamedTuple):
    limits: dict[str, int | None]
    progress: Progress | None
    in_archive: bool = False


def _open_file(source: str | os.PathLike[str] | IO[bytes], options: _Options) -> Trace:
    max_memory_bytes, max_uncompressed_bytes = options.limits.values()
    with ByteSource.of(source) as opened:
        head = opened.peek(len(MAGIC))
        if head.startswith(ZIP_MAGIC):
            return _open_zip(opened, head, options)
        if head == MAGIC:
            with _local_path(opened) as path:
                return _open_own(opened, path, head, options)
        if opened.peek(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
            return _open_sqlite(opened, max_memory_bytes)
        text = UnpackedText(opened, max_uncompressed_bytes)
        try:
            begin = text.head()
            if text.holds_tar():
                raise FormatError(
                    f"{opened.name}: a tar archive: unpack it (tar xf FILE), and open the folder"
                )
            if _SNAPSHOT.match(begin):
                return _open_snapshot(text, max_memory_bytes)
            if begin.startswith((b"{", b"[")):
                from kinetoscope.combine.graph_replays import attribute_replays
                from kinetoscope.formats.chrome.read import read_chrome_trace

                try:
                    read = read_chrome_trace(
                        text, max_memory_bytes=max_memory_bytes, progress=options.progress
                    )
                except FormatError as error:
                    if other_format := _other_format(text.beginning):
                        raise FormatError(f"{opened.name}: not a trace: {other_format}") from error
                    raise
                return Trace.of(attribute_replays(read))
        finally:
            text.close()
        if opened.name.lower().endswith(_NSYS_REPORTS):
            raise FormatError(
                f"{opened.name}: a report of Nsight Systems: run `nsys export --type sqlite {opened.name}`, and open what it writes"
            )
        raise FormatError(f"{opened.name}: {_what_it_is(head, begin)}; kinetoscope.open reads {CAN_OPEN}")


def _open_folder(folder: Path, options: _Options) -> Trace:
    from kinetoscope.storage.incident_files import incident_recordings
    from kinetoscope.storage.table_files import STORED_FILE

    if ranks := incident_recordings(folder):
        return open(ranks[0]) if len(ranks) == 1 else _with_incident(merge(ranks), ranks)
    if (folder / STORED_FILE).is_file():
        trace = _open_file(folder / STORED_FILE, options)
        trace.path = folder
        return trace
    files = [file for file in sorted(folder.iterdir()) if _TRACE_FILE.search(file.name) and file.is_file()]
    if not files:
        raise FormatError(
            f"{folder}: a folder, but not a trace: it has no files of traces, and no {STORED_FILE}, which save() writes into folders whose "
            "names end in .tables"
        )
    openers = [(file.name, partial(_open_file, file, options)) for file in files[:_MOST_FILES]]
    return _of_one_job(str(folder), openers)


def _open_zip(source: ByteSource, head: bytes, options: _Options) -> Trace:
    """Open a ZIP archive: a `.ktrace` file, or one with traces. Nothing is unpacked by the names in it."""
    import zipfile
    import zlib

    with _local_path(source) as path:
        try:
            with zipfile.ZipFile(path) as archive:
                members = [
                    member
                    for member in archive.infolist()
                    if _TRACE_FILE.search(PurePosixPath(member.filename).name) and not member.is_dir()
                ]
                if not members or "manifest.json" in archive.namelist():
                    return _open_own(source, path, head, options)
                if options.in_archive:
                    raise FormatError(f"{source.name}: an archive within an archive: unpack the outer one")
                size = sum(member.file_size for member in members)
                allowed = options.limits["max_uncompressed_bytes"]
                if allowed is None:
                    allowed = max(FREE_BYTES, FREE_RATIO * path.stat().st_size)
                if size > allowed:
                    raise FormatError(
                        f"{source.name}: its {len(members):,} files take {units.size(size)} unpacked: pass a larger max_uncompressed_bytes"
                    )

                def opened(member: zipfile.ZipInfo) -> Trace:
                    try:
                        with archive.open(member) as file:
                            return _open_file(file, options._replace(in_archive=True))
                    except (
                        zipfile.BadZipFile,
                        RuntimeError,
                        NotImplementedError,
                        zlib.error,
                        EOFError,
                    ) as error:
                        raise FormatError(
                            f"{source.name}: {member.filename} cannot be unpacked: {error}"
                        ) from error

                openers = [(member.filename, partial(opened, member)) for member in members[:_MOST_FILES]]
                trace = _of_one_job(source.name, openers)
        except zipfile.BadZipFile:
            return _open_own(source, path, head, options)
    trace.path = source.path
    return trace


def _of_one_job(where: str, openers: Sequence[tuple[str, Callable[[], Trace]]]) -> Trace:
    """Open the traces in a folder or archive: one trace, or one job's ranks merged; FormatError for anything else."""
    from kinetoscope.combine.ranks import merge_named

    traces, problems = {}, []
    for name, opener in openers:
        try:
            traces[name] = opener()
        except FormatError as error:
            problems.append(error)
    if not traces:
        raise problems[0]
    if len(traces) == 1:
        return next(iter(traces.values()))
    try:
        return merge_named(list(traces.values()), list(traces))
    except ArgumentError as error:
        names = ", ".join(list(traces)[:_MOST_NAMED]) + (", ..." if len(traces) > _MOST_NAMED else "")
        raise FormatError(
            f"{where}: its {len(traces):,} traces are not of the ranks of one job ({error}); open one of them: {names}"
        ) from error


def _open_snapshot(text: UnpackedText, max_memory_bytes: int | None) -> Trace:
    """Open a memory snapshot of torch, a pickle or JSON; no code of it runs."""
    from kinetoscope.formats.memory_snapshot import read_memory_snapshot

    limit = default_memory_bytes() if max_memory_bytes is None else max_memory_bytes
    blocks, size = [], 0
    for block in text:
        blocks.append(block)
        size += len(block)
        if limit and size * _SNAPSHOT_TIMES > limit:
            raise FormatError(
                f"{text.source.name}: to read this memory snapshot may take more than {units.size(limit)} of memory: pass a larger max_memory_bytes"
            )
    trace = Trace.of(read_memory_snapshot(b"".join(blocks), text.source.name, text.source.path))
    if text.source.path is None:
        trace.info["source"] = text.source.name
    return trace


def _open_sqlite(source: ByteSource, max_memory_bytes: int | None) -> Trace:
    from kinetoscope.combine.processes import merge_processes
    from kinetoscope.formats.nsight_systems import read_nsight_systems
    from kinetoscope.model.processes import MONOTONIC, Placement

    with _local_path(source) as path:
        parts = read_nsight_systems(path, max_memory_bytes=max_memory_bytes)
    one_clock = Placement(0, error_ns=0, clock=MONOTONIC)
    merged = parts[0] if len(parts) == 1 else merge_processes(parts, [one_clock] * len(parts))
    trace = Trace.of(merged)
    trace.path = source.path
    return trace


@contextmanager
def _local_path(source: ByteSource) -> Iterator[Path]:
    """A source's path or, if it has none, that of a temporary copy; errors name the source."""
    if source.path is not None:
        yield source.path
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
        path = Path(folder) / "copy"
        source.copy_to(path)
        try:
            yield path
        except FormatError as error:
            raise FormatError(str(error).replace(str(path), source.name)) from error


def _open_own(source: ByteSource, path: Path, head: bytes, options: _Options) -> Trace:
    if head == MAGIC:
        trace = _with_incident(Trace.from_recording(path), [path])
    else:
        from kinetoscope.storage.ktrace import read_ktrace

        trace = Trace.of(read_ktrace(path, **options.limits))
    if source.path is None:
        # Columns that are read later are read from the open file, which has no name then.
        trace.path = None
        trace.info["source"] = source.name
    return trace


def _with_incident(trace: Trace, paths: list[Path]) -> Trace:
    from kinetoscope.storage.incident_files import INFO, incident_facts

    if (facts := incident_facts(paths)) is not None:
        trace.info[INFO] = facts
    return trace


def _other_format(beginning: bytes) -> str:
    """Name the format of a JSON file that is not a trace, by its first bytes, and what reads it; empty if unknown."""
    for words, description in _OTHER_FORMATS:
        if all(word in beginning for word in words):
            return description
    return ""


def _what_it_is(head: bytes, begin: bytes) -> str:
    if not head:
        return "the file is empty"
    if head.startswith(b"PAR1"):
        return "a Parquet file contains one table and not a trace (read it with pandas, polars or DuckDB)"
    if head.startswith(b"ARROW1"):
        return "an Arrow file contains one table and not a trace (read it with pyarrow, pandas or polars)"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the text is UTF-16, but JSON must be UTF-8"
    if head != begin[: len(head)] and head.startswith(tuple(PACKINGS)):
        return f"its decompressed content is not a trace{'' if begin else ' (it is empty)'}"
    if MAGIC.startswith(head):
        return "the file ends after its first bytes"
    return "the file does not contain a trace"


def merge(traces: Sequence[Trace | str | os.PathLike[str]]) -> Trace:
    """Merge the traces of the ranks of one job into one trace, on one time axis.

    Everything that is counted within a process (steps, live memory, modules, links) is the same as in the trace of its rank
    alone. The column `rank` identifies the ranks, `select_ranks` extracts some again, and the table `processes` has for
    each how its clock was aligned with that of the first (`clock`) and the error of its times (`error_ns`):

    - `monotonic`: ranks on one machine share a clock, which their recordings contain (Linux). To within microseconds.
    - `barriers`: ranks that aligned their clocks (`profile(align_ranks=True)` or `align_clocks()`).
    - `collectives`: ranks that ran collectives while they recorded. No rank has the result of an all_reduce, all_gather,
      reduce_scatter or barrier before every rank has contributed, so each of these bounds the difference of two clocks
      from both sides; within the bounds, the ranks are assumed to have left it together. Calls are matched by step,
      group and order; traces without steps are only compared if they have the same calls from start to end.
    - `wall` or `unknown`: the clocks cannot be aligned, which is a row of `losses`. The wall clocks are used.

    For barriers and collectives the error is a bound, not an estimate: it holds if the difference of the clocks is a
    straight line in time with a drift of at most 1 in 1000, and if calls were matched correctly. If there is no such line,
    `info["processes"]` has by how much the bounds contradict each other (`violated_ns`), and `losses` has a row. The bound
    is for the times of what ran the collectives: kernels of devices, or threads of the host.

    Args:
        traces: The traces, or their paths or URLs; one for each rank. A merged trace of several processes counts as one. Join
            the cycles of one process first, with `kinetoscope.trace.concatenate`.

    Returns:
        A new trace with the ranks in ascending order; the given traces are unchanged. There is a warning if the traces do not
        seem to be of one job: different programs, different times, or some with a rank and some without.

    Raises:
        ArgumentError: There are no traces, or two are of one rank, of one process, or of jobs of different size.
        FormatError: A file is not a trace.
        OSError: A file cannot be read.
    """
    import_aside()
    from kinetoscope.combine.ranks import merge_named

    if isinstance(traces, (str, os.PathLike, Trace)):
        raise ArgumentError("pass a list of traces, one for each rank.")
    sources = list(traces)
    opened = [trace if isinstance(trace, Trace) else open(trace) for trace in sources]
    names = [
        f"trace {number}" if isinstance(source, Trace) else os.fspath(source)
        for number, source in enumerate(sources, start=1)
    ]
    return merge_named(opened, names)


def compare(
    base: AnyTrace | Sequence[AnyTrace],
    new: AnyTrace | Sequence[AnyTrace],
    *,
    percent: float = 1.0,
    least_ns: float = 10_000.0,
    confidence: float = 0.99,
    warm_up: int | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare two runs: what takes longer or less, how sure that is, and which counts changed.

    Each side is one recording or several of the same program. Record the sides in turn (A, B, A, B ...): recordings next to each
    other share the state of the machine, and are then compared in pairs. Modules are matched by path and class, operators by
    name, sizes and module, lines by their text or number in a function, kernels by name or, where a template was renamed, its structure.

    Args:
        base: A trace, its path or URL, or a list of these.
        new: The same of the other run.
        percent: The smallest difference of times that counts, in percent of a step.
        least_ns: The smallest difference of times that counts, in nanoseconds per step.
        confidence: The confidence, between 0 and 1, that a difference must reach.
        warm_up: How many of the first steps of each recording to leave out. None: those that compile or take longer than 1.5 times the
            usual, and at least one of three or more.
        seed: Of the random numbers with which steps are resampled; the same recordings have the same result.

    Returns:
        The comparison: `verdict`, `table()`, `to_text()`, `to_html()` and `to_json()`.

    Raises:
        ArgumentError: A side has no recording or no step that counts, or a number cannot be used.
        FormatError: A file is not a trace.
        OSError: A file cannot be read.
    """
    import_aside()
    from kinetoscope.comparison.result import Margins
    from kinetoscope.comparison.runs import compare_runs

    if warm_up is not None:
        checked_whole("warm_up", warm_up, 0, " steps, or None")
    margins = Margins(percent, least_ns, confidence)
    return compare_runs(_runs(base, "base", warm_up), _runs(new, "new", warm_up), margins, seed=seed)


def _runs(side: AnyTrace | Sequence[AnyTrace], name: str, warm_up: int | None) -> list[Run]:
    from kinetoscope.comparison.measures import run_of

    sources = [side] if isinstance(side, (str, os.PathLike, Trace)) else list(side)
    runs = []
    for number, item in enumerate(sources, start=1):
        if isinstance(item, Trace):
            label = (
                str(item.path) if item.path is not None else name if len(sources) == 1 else f"{name} {number}"
            )
            runs.append(run_of(item, label, warm_up, with_account=True))
        else:
            runs += measure_runs([item], warm_up=warm_up, with_account=True)
    return runs


def measure_runs(
    paths: Sequence[str | os.PathLike[str]],
    scopes: Sequence[Scope] = (),
    warm_up: int | None = None,
    *,
    with_account: bool = False,
) -> list[Run]:
    """Open traces, measure what they did in their steps, and close them.

    Args:
        paths: The paths or URLs of traces.
        scopes: Modules and operators to count separately.
        warm_up: How many of the first steps of each to leave out; see `compare`.
        with_account: Whether to compute the account of time, too.

    Raises:
        ArgumentError: All steps of a trace are left out.
        FormatError: A file is not a trace.
        OSError: A file cannot be read.
    """
    import_aside()
    from kinetoscope.comparison.measures import run_of

    runs = []
    for path in paths:
        with open(path) as trace:
            runs.append(run_of(trace, os.fspath(path), warm_up, scopes, with_account=with_account))
    return runs


def check_budget(
    budget: Budget,
    paths: Sequence[str | os.PathLike[str]],
    *,
    strict: bool = False,
    warm_up: int | None = None,
) -> Outcome:
    """Check the recordings of a run against a budget; source lines of exceeded limits are those of the first recording.

    Args:
        budget: The budget.
        paths: The paths or URLs of traces.
        strict: Whether results better than the budget by more than the margin fail, too.
        warm_up: How many of the first steps of each to leave out; see `compare`.

    Raises:
        ArgumentError: All steps of a trace are left out.
        FormatError: A file is not a trace.
        OSError: A file cannot be read.
    """
    import_aside()
    from kinetoscope.comparison.budget import check
    from kinetoscope.comparison.verdict import places_of

    def where(limit: Limit) -> list[Where]:
        with open(paths[0]) as trace:
            return places_of(trace, limit.count, limit.scope, budget.places)

    return check(budget, measure_runs(paths, budget.scopes, warm_up), strict=strict, where=where)
