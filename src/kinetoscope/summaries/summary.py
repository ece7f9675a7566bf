"""The summary of one rank: its steps, its collectives, what ran and how long, its memory, its findings, its losses.

A summary is one row of a Parquet file. Each section is a column with a list of records, so the summaries of a thousand ranks are a
thousand rows, and any reader of Parquet can unnest them. Its size does not depend on the length of the recording: what is left out is
counted in the section `losses`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kinetoscope._errors import FormatError
from kinetoscope.analyses.findings import as_dict, examine
from kinetoscope.analyses.line_tree import times_of_lines
from kinetoscope.combine.ranks import MEETING_COLLECTIVES, clock_marks
from kinetoscope.ledger.breakdown import breakdown
from kinetoscope.ledger.ledger import raw_ledger
from kinetoscope.ledger.parts import busiest_places
from kinetoscope.model.arrow import integers, number_array, rows_to_arrow, text_array, to_arrow, to_numpy
from kinetoscope.model.dictionary import tables_of
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import device_work_spans, operator_spans
from kinetoscope.model.losses import Loss, losses_of
from kinetoscope.model.processes import process_runs, reading_error_ns
from kinetoscope.model.rows import Rows, mask_of
from kinetoscope.storage.atomic_write import is_stream, write_atomically
from kinetoscope.summaries import SUFFIX
from kinetoscope.summaries.sketch import Sketches
from kinetoscope.tables.device.collectives import collectives
from kinetoscope.tables.memory.peak import device_peaks
from kinetoscope.tables.step_kinds import operators_of_kinds
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace

MOST_STEPS = 4_096
"""A summary holds at most this many steps, the last ones."""
MOST_COLLECTIVES = 16_384
"""A summary holds at most this many collectives, the last ones."""
MOST_NAMES = 400
"""A summary has at most this many operators, kernels and modules each, those with most time."""
MOST_LINES = 400
"""A summary has at most this many lines of the program, those with most time."""
MOST_FINDINGS = 20
MOST_OF_KIND = 64
"""A summary has at most this many operators of a kind of steps, those with most time."""
POINT_TO_POINT = ("send", "recv")

FORMAT = 7
_FORMAT_KEY = b"kinetoscope.summary"
_CHECKSUM_KEY = b"kinetoscope.checksum"
# The value of a key follows it in the metadata of a Parquet file, after two bytes that say its type and length.
_CHECKSUM = re.compile(re.escape(_CHECKSUM_KEY) + rb"..([0-9a-f]{64})", re.DOTALL)
_NO_CHECKSUM = b"0" * 64
_REPLACE = "summarize the trace of this rank again, or leave the file out."
_IDENTITY = (
    "rank", "world_size", "process", "start_monotonic_ns", "clock_error_ns", "start_realtime_ns", "duration_ns", "host", "device",
    "boot_id", "source",
)  # fmt: skip

SECTIONS = tables_of("summary")
COLUMNS = (*_IDENTITY, *SECTIONS)
_TEXTS = [
    f"{section.name}.list.element.{column.name}"
    for section in SECTIONS.values()
    for column in section.columns
    if column.type == "category"
]


def summary_of(trace: Trace, source: str | None = None) -> pa.Table:
    """Reduce a trace to the summary of each of its ranks.

    Args:
        trace: The trace of one rank, or of several.
        source: Where the whole trace is; None for the file that it was read from.

    Returns:
        A table with one row for each rank: `rank` (null outside of a job), `world_size`, `host`, `process`, `device`, where the clock is
        (`boot_id`, `start_monotonic_ns`, `clock_error_ns`, `start_realtime_ns`), `duration_ns`, `source`, and the sections of `SECTIONS` as lists.
    """
    ranks = sorted({rank for rank in trace.column("processes", "rank").tolist() if rank >= 0})
    if len(ranks) < 2:
        return _of_rank(trace, source)
    return pa.concat_tables([_of_rank(trace.select_ranks([rank]), source) for rank in ranks])


def summarized(source: str) -> dict[int | None, bytes]:
    """Reduce the trace of a path or URL to the file of each of its ranks, None outside of a job.

    Raises:
        FormatError: The source is no trace.
        OSError: It cannot be read.
    """
    with open_trace(source) as trace:
        job_table = summary_of(trace)
    ranks = job_table["rank"].to_pylist()
    return {rank: file_of(job_table.slice(row, 1)) for row, rank in enumerate(ranks)}


def file_name(rank: int | None) -> str:
    """The name of the summary of a rank in a folder; outside of a job, of rank 0."""
    return f"rank-{rank or 0:05d}{SUFFIX}"


def save_summaries(trace: Trace, target: Path, source: str) -> list[Path]:
    """Write the summary of a trace.

    Args:
        trace: The trace of one rank, or of several.
        target: A `.parquet` file for all its ranks, or a folder, which is made if needed, for a file of each.
        source: Where the whole trace is; empty if nowhere.

    Returns:
        What was written.

    Raises:
        OSError: A file cannot be written.
    """
    job_table = summary_of(trace, source)
    files = {target: job_table}
    if target.suffix != SUFFIX:
        ranks = job_table["rank"].to_pylist()
        files = {target / file_name(rank): job_table.slice(row, 1) for row, rank in enumerate(ranks)}
    for path, summary in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file_of(summary))
    return [*files]


def file_of(summary: pa.Table) -> bytes:
    """Summaries as a Parquet file."""
    marked = summary.replace_schema_metadata({_FORMAT_KEY: str(FORMAT), _CHECKSUM_KEY: _NO_CHECKSUM})
    with pa.BufferOutputStream() as file:
        pq.write_table(marked, file, compression="zstd")
        content = bytearray(file.getvalue())
    # It covers the whole file, with zeros in its own place.
    checksum = hashlib.sha256(content).hexdigest().encode()
    (match,) = _CHECKSUM.finditer(content)
    content[slice(*match.span(1))] = checksum
    return bytes(content)


def _has_changed(content: bytes) -> bool:
    """Whether a file is not as `file_of` made it; False where it has no checksum."""
    matches = list(_CHECKSUM.finditer(content))
    if len(matches) != 1:
        return bool(matches)
    begin, end = matches[0].span(1)
    without = content[:begin] + _NO_CHECKSUM + content[end:]
    return hashlib.sha256(without).hexdigest().encode() != content[begin:end]


def is_summary(path: str | os.PathLike[str]) -> bool:
    """Whether a file has summaries, and not another table."""
    try:
        return _FORMAT_KEY in (pq.read_schema(path).metadata or {})
    except (OSError, ValueError, pa.ArrowException):
        return False


def read(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> pa.Table:
    """Read summaries from a Parquet file; texts of sections are dictionaries.

    Args:
        path: The file.
        columns: Only these columns; None for all.

    Raises:
        FormatError: It is no such file, or of another version.
        OSError: It cannot be read.
    """
    # Not by its path, which pyarrow looks up in a file system first: there may be a thousand files.
    if is_stream(Path(path)):
        raise FormatError(
            f"{os.fspath(path)}: not a regular file: pass a file that `kinetoscope summarize` wrote"
        )
    content = Path(path).read_bytes()
    if _has_changed(content):
        raise FormatError(
            f"{os.fspath(path)} is damaged, or was written anew by another program: its checksum does not match; {_REPLACE}"
        )
    try:
        return _parsed(content, os.fspath(path), columns)
    except FormatError:
        raise
    # What pyarrow raises for damaged files depends on the damage: any of its errors, of texts, of numbers, of memory.
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError) as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise FormatError(
            f"{os.fspath(path)} is damaged, or no Parquet file ({reason}): {_REPLACE}"
        ) from None


def _parsed(content: bytes, name: str, columns: Sequence[str] | None) -> pa.Table:
    buffer = pa.py_buffer(content)
    described = pq.read_metadata(pa.BufferReader(buffer))
    version = (described.metadata or {}).get(_FORMAT_KEY, b"")
    if not version.isdigit():
        raise FormatError(f"{name} is no summary: `kinetoscope summarize` makes one from a trace.")
    if int(version) != FORMAT:
        raise FormatError(
            f"{name} is a summary of version {int(version)}, and this release reads version {FORMAT}: "
            "summarize the trace again, with this release."
        )
    if not _CHECKSUM.search(content):
        raise FormatError(f"{name} is damaged: it has no checksum; {_REPLACE}")
    with pq.ParquetFile(buffer, metadata=described, read_dictionary=_TEXTS) as file:
        missing = {*(columns or COLUMNS)} - {*file.schema_arrow.names}
        if missing:
            raise FormatError(f"{name} is damaged: it has no column {min(missing)!r}; {_REPLACE}")
        table = file.read(columns=columns, use_threads=False)
    return table.replace_schema_metadata({_FORMAT_KEY: version})


def _of_rank(trace: Trace, source: str | None) -> pa.Table:
    lost = losses_of(trace.columns("losses"))
    info = trace.run_info.processes[0] if len(trace.run_info.processes) == 1 else trace.run_info
    devices = busiest_places(trace).values()
    device = max(devices, key=lambda times: times.working_ns).device if devices else ""
    calls = collectives(trace)
    sections = {
        "steps": _steps(trace, device, lost),
        "step_kinds": _step_kinds(trace),
        "collectives": _collectives(trace, calls, lost),
        "groups": _groups(trace, calls),
        "clock_marks": _as_rows("clock_marks", clock_marks(trace)),
        "sketches": _sketches(trace, lost),
        "lines": _lines(trace, lost),
        "memory": _memory(trace),
        "findings": _findings(trace),
    }
    sections["losses"] = rows_to_arrow(SECTIONS["losses"], [vars(loss) for loss in lost])
    numbers: dict[str, tuple[int | None, type[np.integer[Any]]]] = {
        "rank": (info.rank, np.int32),
        "world_size": (info.world_size, np.int32),
        "process": (info.process, np.int64),
        "start_monotonic_ns": (trace.run_info.start_monotonic_ns, np.int64),
        "clock_error_ns": (reading_error_ns(trace), np.int64),
        "start_realtime_ns": (trace.run_info.start_realtime_ns, np.int64),
        "duration_ns": (trace.duration_ns, np.int64),
    }
    where = _place_of(trace) if source is None else source
    columns = {
        name: number_array(np.array([value or 0], dtype=kind), absent=np.array([value is None]))
        for name, (value, kind) in numbers.items()
    }
    for name, text in (("host", info.host), ("device", device), ("boot_id", info.boot_id), ("source", where)):
        columns[name] = text_array([text])
    return pa.table(columns | {name: _as_list(table) for name, table in sections.items()})


def _place_of(trace: Trace) -> str:
    """The file or URL that a trace was read from; a path is absolute, because summaries are read from other folders."""
    where = str(trace.path or trace.run_info.source)
    return os.path.abspath(where) if where and "://" not in where else where


def _as_list(table: pa.Table) -> pa.Array:
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in table.schema.types]
    columns = zip(table.columns, kinds, strict=True)
    arrays = [column.cast(kind).combine_chunks() for column, kind in columns]
    records = pa.StructArray.from_arrays(arrays, table.column_names)
    return pa.ListArray.from_arrays(number_array(np.array([0, table.num_rows], dtype=np.int32)), records)


def _as_rows(section: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Rows of a section, each with a value for each column."""
    table = SECTIONS[section]
    return rows_to_arrow(table, [dict(zip(table.column_names, row, strict=True)) for row in rows])


def _last(table: pa.Table, most: int, what: str, lost: list[Loss]) -> pa.Table:
    """The last rows of a table; what is left out is a loss."""
    over = table.num_rows - most
    if over <= 0:
        return table
    lost.append(Loss.of("summary_limit", over, what=what))
    return table.slice(over)


def _steps(trace: Trace, device: str, lost: list[Loss]) -> pa.Table:
    rows = breakdown(trace)
    of_device = np.array([name == device for name in rows["device"].to_pylist()], dtype=bool)
    columns = {name: integers(rows[name]) for name in SECTIONS["steps"].column_names if name != "kind"}
    columns["kind"] = integers(rows["step_kind"])
    counted = np.flatnonzero(of_device & ~to_numpy(rows["start_up"]))
    return _last(to_arrow(SECTIONS["steps"], columns, counted), MOST_STEPS, "steps", lost)


def _step_kinds(trace: Trace) -> pa.Table:
    rows: list[tuple[Any, ...]] = []
    for kind, operators in enumerate(operators_of_kinds(trace)):
        most = sorted(operators.items(), key=lambda entry: -entry[1][0] * entry[1][1])[:MOST_OF_KIND]
        rows += [(kind, name, *of_call) for name, of_call in most]
    return _as_rows("step_kinds", rows)


def _collectives(trace: Trace, rows: pa.Table, lost: list[Loss]) -> pa.Table:
    """Those of the collectives whose transfers were recorded."""
    start_ns, duration_ns, step = (
        integers(rows[name]) for name in ("transfer_start_ns", "transfer_ns", "step")
    )
    carried = np.flatnonzero((start_ns >= 0) & (duration_ns >= 0))
    carried = carried[np.argsort(start_ns[carried], kind="stable")]
    one_group = all(len(run.process_groups) < 2 for run in process_runs(trace))
    groups = [
        group or ranks or ("" if one_group else None)
        for group, ranks in zip(rows["group"].to_pylist(), rows["group_ranks"].to_pylist(), strict=True)
    ]
    names = rows["name"].to_pylist()
    count_of: dict[tuple[Any, ...], int] = {}
    number = np.zeros(len(names), dtype=np.int32)
    for row in carried.tolist():
        key = (step[row], groups[row], names[row])
        number[row] = count_of.get(key, 0)
        count_of[key] = number[row] + 1
    columns: dict[str, Any] = {
        "step": step,
        "group": groups,
        "name": names,
        "number": number,
        "leaves_together": np.fromiter((name in MEETING_COLLECTIVES for name in names), bool, len(names)),
        "peer": _peers(rows),
        "bytes": integers(rows["bytes"]),
        "start_ns": start_ns,
        "duration_ns": duration_ns,
        "exposed_ns": integers(rows["exposed_ns"]),
    }
    # All are numbered before the first ones are left out: other ranks number theirs alike.
    return _last(to_arrow(SECTIONS["collectives"], columns, carried), MOST_COLLECTIVES, "collectives", lost)


def _peers(rows: pa.Table) -> NDArray[np.int32]:
    """The other sides of sends and receives, as ranks of the job; -1 for other collectives, and where that is not known."""
    peers = np.full(rows.num_rows, -1, dtype=np.int32)
    columns = (rows[name].to_pylist() for name in ("name", "peer", "group_ranks"))
    for row, (name, peer, group_ranks) in enumerate(zip(*columns, strict=True)):
        if name in POINT_TO_POINT and peer is not None and group_ranks:
            ranks = json.loads(group_ranks)
            if peer < len(ranks):
                peers[row] = ranks[peer]
    return peers


def _groups(trace: Trace, calls: pa.Table) -> pa.Table:
    groups: dict[str, tuple[str, str, int]] = {
        group.name: ("", json.dumps(group.ranks), len(group.ranks))
        for run in process_runs(trace)
        for group in run.process_groups
        if group.name and group.ranks
    }
    names = ("group", "group_description", "group_ranks", "group_size")
    stated = zip(*(calls[column].to_pylist() for column in names), strict=True)
    for name, description, ranks, size in dict.fromkeys(stated):
        if name or ranks:
            count = len(json.loads(ranks)) if ranks else size or -1
            groups[name or ranks] = (description or "", ranks or "", count)
    return _as_rows("groups", [(name, *group) for name, group in groups.items()])


def _sketches(trace: Trace, lost: list[Loss]) -> pa.Table:
    spans, strings = trace.columns("spans"), trace.strings
    paths = trace.column("modules", "path")
    work = device_work_spans(trace)
    rows = operator_spans(trace).rows
    step = np.append(trace.column("steps", "number"), -1)[spans["step"][rows]]
    module = spans["module"][rows]
    by_step = Groups.by([module, step])
    per_step = by_step.sums(spans["self_ns"][rows])
    kinds: dict[str, tuple[Rows, Rows, Sequence[str]]] = {
        "operator": (spans["name"][rows], spans["self_ns"][rows], strings),
        "kernel": (spans["name"][work.rows], spans["duration_ns"][work.rows], strings),
        "module": (module[by_step.first], per_step, list(paths)),
    }
    tables = []
    for kind, (key, values, texts) in kinds.items():
        sketches, left_out = _sketched(key.astype(np.int64), values.astype(np.int64))
        if left_out:
            lost.append(Loss.of("summary_limit", left_out, what=f"{kind}s"))
        group, bucket, count, total_ns = vars(sketches).values()
        names = {"kind": [kind] * len(group), "name": [str(texts[number]) for number in group.tolist()]}
        numbers = {"bucket": bucket, "count": count, "total_ns": total_ns}
        tables.append(to_arrow(SECTIONS["sketches"], names | numbers))
    return pa.concat_tables(tables)


def _lines(trace: Trace, lost: list[Loss]) -> pa.Table:
    """What lines of the program take in a step, of the process that worked most."""
    ledgers = [ledger for ledger in raw_ledger(trace) if ledger.counted.any()]
    if not ledgers:
        return _as_rows("lines", [])
    longest = max(ledgers, key=lambda ledger: int(ledger.duration_ns[ledger.counted].sum()))
    steps = int(longest.counted.sum())
    rows = [
        (line.file, line.line, line.function, part, time_ns // steps)
        for (line, part), time_ns in times_of_lines(longest).items()
    ]
    if len(rows) > MOST_LINES:
        lost.append(Loss.of("summary_limit", len(rows) - MOST_LINES, what="lines"))
    return _as_rows("lines", sorted(rows, key=lambda row: -row[-1])[:MOST_LINES])


def _sketched(key: Rows, values: Rows) -> tuple[Sketches, int]:
    """The sketches of the keys with most time, and how many keys are left out."""
    length = int(key.max(initial=-1)) + 1
    sums = Groups(key, length).sums(values)
    present = np.unique(key[key >= 0])
    largest = present[np.argsort(-sums[present], kind="stable")[:MOST_NAMES]]
    chosen = mask_of(largest, length + 1)
    return Sketches.of(np.where(chosen[key], key, -1), values), len(present) - len(largest)


def _memory(trace: Trace) -> pa.Table:
    peaks = device_peaks(trace) if memory_recorded(trace) else []
    rows = [vars(peak) | {"reserved_bytes": peak.reserved_bytes or -1} for peak in peaks]
    return rows_to_arrow(SECTIONS["memory"], rows)


def _findings(trace: Trace) -> pa.Table:
    rows = as_dict(examine(trace), MOST_FINDINGS)["findings"]
    no_number = {"gain_ns": -1, "line": -1}
    return rows_to_arrow(
        SECTIONS["findings"],
        [row | {name: none for name, none in no_number.items() if row[name] is None} for row in rows],
    )
