"""Read exports of NVIDIA Nsight Systems: the SQLite files of `nsys export --type sqlite`.

NVIDIA documents the schema (Nsight Systems, "SQLite Export Schema Reference"). Tables and columns come and go between releases, so each is
optional, and a table may have a version behind its name (`NVTX_EVENTS_V2`). Times are nanoseconds since the session began. A serialized thread id has the process in bits 24 to 47 and the thread in bits 0 to
23. A call of CUDA's API and what it started on a device have the same correlation id within their process.

There are no operators, modules or Python stacks in these files, except for the NVTX ranges of `torch.autograd.profiler.emit_nvtx` (`nsys profile
--pytorch=autograd-nvtx`), which become operators.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from kinetoscope._errors import FormatError
from kinetoscope.formats.chrome.read_links import find_launches, pair_arrows
from kinetoscope.formats.chrome.read_tracks import STREAM_COLUMNS
from kinetoscope.model.groups import Groups
from kinetoscope.model.losses import Loss, loss_columns
from kinetoscope.model.names import device_name
from kinetoscope.model.rows import Rows, as_columns, places_of
from kinetoscope.model.run_info import NSIGHT
from kinetoscope.model.schema import (
    FLAG_ASYNC,
    FLAG_INSTANT,
    FLAG_UNFINISHED,
    SCOPE_BACKWARD,
    SCOPE_USER,
    DeviceType,
    SpanKind,
)
from kinetoscope.model.steps import MARK
from kinetoscope.model.strings import StringTable
from kinetoscope.model.trace_data import TraceData
from kinetoscope.storage.unpacking import default_memory_bytes

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_NVTX = "NVTX_EVENTS"
_MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
# Calls of libraries that are shown as ranges, and their category.
_LIBRARIES = {"OSRT_API": "osrt", "CUBLAS_EVENTS": "cublas", "CUDNN_EVENTS": "cudnn"}
_READ = {_KERNELS, _COPIES, _FILLS, _GRAPHS, _CALLS, _NVTX, _MEMORY, *_LIBRARIES}
# Events that are not read, and whose names begin so.
_EVENTS = re.compile(
    r"CUPTI_ACTIVITY_KIND_|.*_EVENTS$|GPU_METRICS|GENERIC_EVENTS|.*_API$|ETW_|NET_|COMPOSITE_EVENTS|SCHED_EVENTS"
)
# These repeat calls of the API, or name what others refer to.
_NOT_MISSED = {
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS",
    "ENUM_GPU_METRICS", "TARGET_INFO_GPU_METRICS", "DIAGNOSTIC_EVENT",
}  # fmt: skip
# Which tables have the devices, with their number, name and memory; the second one is that of releases before 2021.2.
_DEVICE_TABLES = (
    ("TARGET_INFO_GPU", "id", "name", "totalMemory"),
    ("TARGET_INFO_CUDA_GPU", "deviceId", "name", "globalMemorySize"),
)
_PUSH_POP, _START_END, _MARK, _DOMAIN = 59, 60, 34, 75
_COPY_NAMES = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
_MEMORY_NAMES = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
_DEVICE_MEMORY = (2, 3, 5)
_UNKNOWN = -1
# Later ones would overflow where times are added up.
_LAST_NS = 1 << 61
_LAST_INT32 = (1 << 31) - 1
# Approximate memory for reading a row.
_ROW_BYTES = 400
_VERSION = re.compile(r"_v\d{4,}$")
_DRIVER = re.compile("cu(?!da)")
_TABLE_VERSION = re.compile(r"_V(\d{1,9})$", re.IGNORECASE)
_OPERATOR = re.compile(
    r"(?P<name>[\w.]+::[\w.]+|\w+Backward\d*)(, seq = (?P<sequence>\d{1,18}))?, op_id = \d+"
)


def read_nsight_systems(path: Path, *, max_memory_bytes: int | None = None) -> list[TraceData]:
    """Read an export.

    Args:
        path: The SQLite file.
        max_memory_bytes: See `kinetoscope.open`.

    Returns:
        A trace for each process, on one time axis, the one with most device work first; what these files lack is in `losses`.

    Raises:
        FormatError: It is not such a file, or damaged.
    """
    limit = default_memory_bytes() if max_memory_bytes is None else max_memory_bytes
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            return _Export(connection, path, limit // _ROW_BYTES).traces()
    except sqlite3.Error as error:
        raise FormatError(f"{path}: the SQLite file could not be read: {error}") from error


class _Export:
    def __init__(self, connection: sqlite3.Connection, path: Path, most_rows: int) -> None:
        self._connection, self._path = connection, path
        connection.execute("PRAGMA trusted_schema = OFF")
        listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        # A name without a version refers to the table with the highest one.
        self._names = sorted((name for (name,) in listed), key=_version)
        self._tables = {_TABLE_VERSION.sub("", name): name for name in self._names}
        self._columns = {
            table: {row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(name)})")}
            for table, name in self._tables.items()
        }
        if "StringIds" not in self._columns or not _READ.intersection(self._columns):
            raise FormatError(
                f"{path}: a SQLite database, but not an export of Nsight Systems: those have the table StringIds and tables of events "
                "(nsys export --type sqlite)"
            )
        self._left = most_rows
        self._limited = most_rows > 0
        self._beyond = self._bad_times = 0
        self._string_ids = dict(self._select("id, value", "StringIds"))

    def traces(self) -> list[TraceData]:
        events = {name: self._events(name) for name in _WANTED}
        memory = self._numbers(_MEMORY, _OF_MEMORY)
        starts = [columns["start"] for columns in events.values() if len(columns["start"])]
        if not starts:
            raise FormatError(f"{self._path}: the export of Nsight Systems has no events")
        base_ns = min(int(start.min()) for start in starts)
        if len(memory["start"]):
            base_ns = min(base_ns, int(memory["start"].min()))
        end_ns = max(int(columns["end"].max()) for columns in events.values() if len(columns["end"]))
        of_process = {name: _process_of(columns) for name, columns in events.items()}
        weight: Counter[int] = Counter()
        for name, pids in of_process.items():
            distinct, counts = np.unique(pids, return_counts=True)
            for pid, count in zip(distinct.tolist(), counts.tolist(), strict=True):
                weight[pid] += count * (1 << 32 if name == _KERNELS else 1)
        traces: list[TraceData] = []
        for pid in sorted(weight, key=lambda each: (-weight[each], each)):
            process = _Process(self, base_ns, end_ns)
            for name, columns in events.items():
                chosen = of_process[name] == pid
                process.add(name, {key: values[chosen] for key, values in columns.items()})
            chosen = _process_of(memory) == pid
            process.add_memory({key: values[chosen] for key, values in memory.items()})
            losses = [] if traces else self._losses()
            traces.append(process.trace(self._info(pid, base_ns, end_ns), losses, self._path))
        return traces

    def _select(self, columns: str, table: str, more: str = "") -> sqlite3.Cursor:
        return self._connection.execute(f"SELECT {columns} FROM {_quoted(self._tables[table])} {more}")

    def rows(self, table: str, *columns: str, where: str = "") -> list[Any]:
        """The values of some columns in every row; none if the file lacks one of these columns."""
        if not set(columns) <= self._columns.get(table, set()):
            return []
        return self._select(", ".join(columns), table, where).fetchall()

    def text(self, number: int) -> str:
        """A string of the file by its id; empty for one that is not there."""
        return str(self._string_ids.get(number, ""))

    def texts_of(self, rows: Rows) -> list[str]:
        """The texts of NVTX events, which are in the row itself or in the table of strings."""
        inline, ids = (
            dict(self._select(f"rowid, {name}", _NVTX, f"WHERE {name} IS NOT NULL"))
            if name in self._columns[_NVTX]
            else {}
            for name in ("text", "textId")
        )
        return [
            str(inline.get(row) or self.text(ids.get(row, _UNKNOWN)) or "unnamed") for row in rows.tolist()
        ]

    def _numbers(self, table: str, wanted: tuple[str, ...], where: str = "") -> dict[str, Rows]:
        """Columns of a table as whole numbers, -1 where there is none, in order of time."""
        stored = self._columns.get(table, set())
        if "start" not in stored:
            return {name: np.zeros(0, np.int64) for name in (*wanted, "row")}
        chosen = [
            f"COALESCE(CAST({_quoted(name)} AS INTEGER), {_UNKNOWN})" if name in stored else str(_UNKNOWN)
            for name in wanted
        ]
        (total,) = self._select("COUNT(*)", table, where).fetchone()
        most = min(total, self._left) if self._limited else total
        self._left -= most
        self._beyond += total - most
        rows = self._select(f"{', '.join(chosen)}, rowid", table, f"{where} ORDER BY start LIMIT {most}")
        blocks = (np.array(block, np.int64) for block in iter(lambda: rows.fetchmany(100_000), []))
        values = np.concatenate([np.zeros((0, len(chosen) + 1), np.int64), *blocks])
        return {name: values[:, index] for index, name in enumerate((*wanted, "row"))}

    def _events(self, table: str) -> dict[str, Rows]:
        where = f"WHERE eventType IN ({_PUSH_POP}, {_START_END}, {_MARK})" if table == _NVTX else ""
        events = self._numbers(table, ("start", "end", *_WANTED[table]), where)
        usable = (events["start"] >= 0) & (events["start"] < _LAST_NS) & (events["end"] < _LAST_NS)
        if table != _NVTX:
            usable &= events["end"] >= events["start"]
        self._bad_times += int((~usable).sum())
        return {name: values[usable] for name, values in events.items()}

    def _info(self, pid: int, base_ns: int, end_ns: int) -> dict[str, Any]:
        info: dict[str, Any] = {"process": pid, "stop_ns": end_ns - base_ns, "recorded_by": NSIGHT}
        if name := dict(self.rows("PROCESSES", "pid", "name")).get(pid):
            info["process_name"] = Path(str(name)).name
        for (epoch_ns,) in self.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")[:1]:
            if isinstance(epoch_ns, int) and 0 < epoch_ns < _LAST_NS:
                info["start_realtime_ns"] = epoch_ns + base_ns
        export_facts = dict(self.rows("META_DATA_EXPORT", "name", "value"))
        keys = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
        info |= {key.lower(): str(export_facts[key]) for key in keys if export_facts.get(key) is not None}
        if host := dict(self.rows("TARGET_INFO_SYSTEM_ENV", "name", "value")).get("Hostname"):
            info["host"] = str(host)
        if devices := self._devices(pid):
            kind = device_name(DeviceType.CUDA, -1)
            info["devices"] = [{"type": kind, "index": gpu["id"], "name": gpu["name"]} for gpu in devices]
            info["deviceProperties"] = devices
        return info

    def _devices(self, pid: int) -> list[dict[str, Any]]:
        for table, *wanted in _DEVICE_TABLES:
            if set(wanted[:2]) <= (has := self._columns.get(table, set())):
                rows = self._select(", ".join(name if name in has else "NULL" for name in wanted), table)
                break
        else:
            return []
        models = {number: (str(name), memory) for number, name, memory in rows if isinstance(number, int)}
        numbers: list[tuple[Any, Any]] = [(number, number) for number in models]
        owned = self.rows("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId", "pid")
        numbers = sorted({(cuda, gpu) for cuda, gpu, owner in owned if owner == pid}) or numbers
        return [
            {"id": cuda, "name": models[gpu][0]}
            | ({"totalGlobalMem": models[gpu][1]} if isinstance(models[gpu][1], int) else {})
            for cuda, gpu in numbers
            if isinstance(cuda, int) and gpu in models
        ]

    def _losses(self) -> list[Loss]:
        losses = [Loss.of("nsight_lacks_torch")]
        if self._beyond:
            losses.append(Loss.of("beyond_memory_limit", self._beyond))
        if self._bad_times:
            losses.append(Loss.of("bad_times", self._bad_times))
        tables_read = {self._tables.get(table) for table in _READ}
        for name in sorted(self._names):
            table = _TABLE_VERSION.sub("", name)
            if (
                _EVENTS.match(table)
                and table not in _NOT_MISSED
                and not table.startswith("ENUM_")
                and name not in tables_read
            ):
                (count,) = self._connection.execute(f"SELECT COUNT(*) FROM {_quoted(name)}").fetchone()
                if count:
                    losses.append(Loss.of("nsight_tables", count, where=name))
        if _GRAPHS in self._tables and (count := self._select("COUNT(*)", _GRAPHS).fetchone()[0]):
            losses.append(Loss.of("nsight_graphs", count))
        levels = dict(self.rows("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "id", "label"))
        diagnostics = Counter(self.rows("DIAGNOSTIC_EVENT", "text", "severity"))
        losses += [
            Loss.of("nsight_warnings", count, why=str(text)[:500])
            for (text, severity), count in diagnostics.items()
            if re.search("warn|error", str(levels.get(severity)), re.IGNORECASE)
        ]
        return losses


_OF_CALLS = ("globalTid", "nameId", "correlationId")
_ON_DEVICE = ("globalPid", "deviceId", "contextId", "streamId", "correlationId", "graphNodeId")
_WANTED = {
    _KERNELS: (*_ON_DEVICE, "demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
    _GRAPHS: (*_ON_DEVICE, "graphId"),
    _COPIES: (*_ON_DEVICE, "bytes", "copyKind", "srcKind", "dstKind"),
    _FILLS: (*_ON_DEVICE, "bytes", "memKind"),
    **dict.fromkeys((_CALLS, *_LIBRARIES), _OF_CALLS),
    _NVTX: ("globalTid", "eventType", "domainId"),
}  # fmt: skip
_OF_MEMORY = (
    "start",
    "globalPid",
    "deviceId",
    "address",
    "bytes",
    "memKind",
    "memoryOperationType",
    "correlationId",
)
_DEVICE_KINDS = {
    _KERNELS: SpanKind.KERNEL,
    _GRAPHS: SpanKind.KERNEL,
    _COPIES: SpanKind.MEMCPY,
    _FILLS: SpanKind.MEMSET,
}


class _Process:
    def __init__(self, export: _Export, base_ns: int, end_ns: int) -> None:
        self._export, self._base_ns, self._end_ns = export, base_ns, end_ns
        self._strings = StringTable([""])
        self._thread_names = dict(export.rows("ThreadNames", "globalTid", "nameId"))
        self._threads: dict[tuple[str, int, int], int] = {}
        self._streams: dict[tuple[int, int], int] = {}
        self._arguments: dict[str, int] = {}
        self._parts: list[dict[str, Rows]] = []
        self._kernels: list[dict[str, Rows]] = []
        self._copies: list[dict[str, Rows]] = []
        self._count = 0
        self._allocations: dict[str, Any] = {}

    def add(self, table: str, rows: dict[str, Rows]) -> None:
        """Add the rows of a table of events."""
        if not len(rows["start"]):
            return
        if table in _DEVICE_KINDS:
            self._add_device_work(table, rows)
        elif table == _NVTX:
            self._add_ranges(rows)
        elif table == _CALLS:
            kind = _mapped((rows["nameId"],), lambda name: _DRIVER.match(self._export.text(name)) is not None)
            kind = np.where(kind, SpanKind.DRIVER, SpanKind.RUNTIME)
            self._add_calls(rows, kind, correlation=rows["correlationId"])
        else:
            self._add_calls(rows, SpanKind.USER_ANNOTATION, category=self._strings.row(_LIBRARIES[table]))

    def _add_calls(self, rows: dict[str, Rows], kind: Rows | int, **more: Rows | int) -> None:
        scope = SCOPE_USER if kind is SpanKind.USER_ANNOTATION else 0
        thread, name = self._host_threads(rows["globalTid"]), self._names(rows["nameId"])
        self._add_spans(rows, thread=thread, name=name, kind=kind, scope=scope, **more)

    def _add_spans(self, rows: dict[str, Rows], **columns: Rows | int) -> None:
        """Add spans with the times of rows; a column may be one value of all rows."""
        times = {"start_ns": rows["start"] - self._base_ns, "duration_ns": rows["end"] - rows["start"]}
        count = len(rows["start"])
        self._parts.append(
            {
                name: np.broadcast_to(np.asarray(values, np.int64), count)
                for name, values in (_DEFAULTS | times | columns).items()
            }
        )
        self._count += count

    def _names(self, ids: Rows) -> Rows:
        return _mapped(
            (ids,), lambda number: self._strings.row(_VERSION.sub("", self._export.text(number)) or "unknown")
        )

    def _host_threads(self, serialized: Rows) -> Rows:
        def row(thread: int) -> int:
            name = self._export.text(self._thread_names.get(thread, _UNKNOWN))
            return self._threads.setdefault((name, thread & 0xFFFFFF, 0), len(self._threads))

        return _mapped((serialized,), row)

    def _add_device_work(self, table: str, rows: dict[str, Rows]) -> None:
        def thread_row(device: int, number: int) -> int:
            return self._threads.setdefault((f"stream {number}", number, 1 + device), len(self._threads))

        stream_keys = (rows["deviceId"], rows["streamId"])
        stream = _mapped(stream_keys, lambda *key: self._streams.setdefault(key, len(self._streams)))
        facts = {
            "span": np.arange(len(stream)) + self._count,
            "context": rows["contextId"],
            "graph_node": rows["graphNodeId"],
        }
        if table == _KERNELS:
            name = self._names(np.where(rows["demangledName"] >= 0, rows["demangledName"], rows["shortName"]))
            facts |= {
                f"{part}_{axis.lower()}": rows[f"{part}{axis}"]
                for part in ("grid", "block")
                for axis in "XYZ"
            }
            static, dynamic = rows["staticSharedMemory"], rows["dynamicSharedMemory"]
            facts["registers"] = rows["registersPerThread"]
            facts["shared_bytes"] = np.where(static < 0, -1, static + np.maximum(dynamic, 0))
            self._kernels.append(facts)
        elif table == _GRAPHS:
            name = _mapped((rows["graphId"],), lambda number: self._strings.row(f"CUDA graph {number}"))
            self._kernels.append(facts | {"graph": rows["graphId"]})
        else:
            name = self._copy_names(table, rows)
            self._copies.append(facts | {"bytes": rows["bytes"]})
        self._add_spans(
            rows,
            thread=_mapped(stream_keys, thread_row),
            name=name,
            kind=_DEVICE_KINDS[table],
            stream=stream,
            correlation=rows["correlationId"],
        )

    def _copy_names(self, table: str, rows: dict[str, Rows]) -> Rows:
        """Names as CUPTI's other readers write them: `Memcpy HtoD (Pageable -> Device)`."""

        def named(kind: int) -> str:
            return _MEMORY_NAMES.get(kind, "Unknown")

        if table == _FILLS:
            return _mapped((rows["memKind"],), lambda kind: self._strings.row(f"Memset ({named(kind)})"))
        return _mapped(
            (rows["copyKind"], rows["srcKind"], rows["dstKind"]),
            lambda kind, source, target: self._strings.row(
                f"Memcpy {_COPY_NAMES.get(kind, 'Unknown')} ({named(source)} -> {named(target)})"
            ),
        )

    def _add_ranges(self, rows: dict[str, Rows]) -> None:
        """Add NVTX ranges and marks; those of torch's `emit_nvtx` become operators."""
        are_domains = f"WHERE eventType = {_DOMAIN} AND text IS NOT NULL"
        domain_names = dict(self._export.rows(_NVTX, "domainId", "text", where=are_domains))
        sort = rows["eventType"]
        is_mark = sort == _MARK
        unfinished = (rows["end"] < rows["start"]) & ~is_mark
        end = np.where(unfinished, np.maximum(self._end_ns, rows["start"]), rows["end"])
        row_of_text: dict[str, int] = {}
        text_rows = [
            row_of_text.setdefault(text, len(row_of_text)) for text in self._export.texts_of(rows["row"])
        ]
        name, kind, scope, sequence = np.array([self._range(text) for text in row_of_text], np.int64)[
            text_rows
        ].T

        def described(domain: int) -> int:
            if not (domain_name := domain_names.get(domain)):
                return -1
            return self._arguments.setdefault(json.dumps({"domain": str(domain_name)}), len(self._arguments))

        self._add_spans(
            {"start": rows["start"], "end": np.where(is_mark, rows["start"], end)},
            thread=self._host_threads(rows["globalTid"]),
            name=name,
            kind=kind,
            scope=scope,
            sequence=sequence,
            flags=(sort == _START_END) * FLAG_ASYNC | is_mark * FLAG_INSTANT | unfinished * FLAG_UNFINISHED,
            arguments=_mapped((rows["domainId"],), described),
            category=self._strings.row("nvtx"),
        )

    def _range(self, text: str) -> tuple[int, int, int, int]:
        operator = _OPERATOR.match(text)
        if operator is None:
            kind = SpanKind.STEP if text.startswith(MARK) else SpanKind.USER_ANNOTATION
            return self._strings.row(text), kind, SCOPE_USER, -1
        name = operator["name"]
        kind, scope = (SpanKind.OPERATOR, 0) if "::" in name else (SpanKind.BACKWARD, SCOPE_BACKWARD)
        return self._strings.row(name), kind, scope, int(operator["sequence"] or -1)

    def add_memory(self, rows: dict[str, Rows]) -> None:
        """Add device memory that was allocated and freed."""
        device = (
            np.isin(rows["memKind"], _DEVICE_MEMORY)
            & np.isin(rows["memoryOperationType"], (0, 1))
            & (rows["start"] >= 0)
        )
        rows = {name: values[device & (rows["start"] < _LAST_NS)] for name, values in rows.items()}
        if not len(rows["start"]):
            return
        freed = rows["memoryOperationType"] == 1
        size = np.maximum(rows["bytes"], 0)
        self._allocations = {
            "time_ns": rows["start"] - self._base_ns,
            "address": rows["address"].astype(np.uint64),
            "bytes": np.where(freed, 0, size),
            "freed_bytes": np.where(freed, size, 0),
            "device_type": np.full(len(freed), DeviceType.CUDA),
            "device_index": np.clip(rows["deviceId"], -1, 127),
            "correlation": rows["correlationId"],
        }

    def trace(self, info: dict[str, Any], losses: list[Loss], path: Path) -> TraceData:
        """Put the rows together."""
        spans = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        order = np.lexsort((-spans["duration_ns"], spans["start_ns"], spans["thread"]))
        row_of = places_of(order, len(order))
        spans = {name: values[order] for name, values in spans.items()}
        threads = [(row, number, number, name) for row, (name, number, _) in enumerate(self._threads)]
        streams = [(DeviceType.CUDA, device, number, f"stream {number}") for device, number in self._streams]
        tables: dict[str, dict[str, Any]] = {
            "spans": spans,
            "threads": as_columns(("index", "os_tid", "torch_tid", "name"), threads),
            "streams": as_columns(STREAM_COLUMNS, streams),
            "launches": find_launches(spans, spans["stream"] >= 0, pair_arrows(None, spans)),
            "kernels": _joined(self._kernels, row_of),
            "copies": _joined(self._copies, row_of),
            "arguments": {"json": list(self._arguments)},
            "losses": loss_columns(losses),
        }
        if self._allocations:
            thread = _threads_of_calls(spans, self._allocations.pop("correlation"))
            tables["allocations"] = {**self._allocations, "thread": thread}
        return TraceData.from_columns(tables, strings=self._strings.texts, info=info, path=path)


_DEFAULTS: dict[str, Rows | int] = {
    "stream": -1, "correlation": -1, "category": 0, "flags": 0, "sequence": -1, "arguments": -1, "scope": 0,
}  # fmt: skip


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _version(name: str) -> int:
    version = _TABLE_VERSION.search(name)
    return int(version[1]) if version else 0


def _process_of(columns: dict[str, Rows]) -> Rows:
    serialized = columns["globalTid"] if "globalTid" in columns else columns["globalPid"]
    return (serialized >> 24) & 0xFFFFFF


def _mapped(columns: Sequence[Rows], make: Callable[..., int]) -> Rows:
    """Apply `make` to the values of each row, once for each distinct combination."""
    groups = Groups.by(columns)
    keys = zip(*(column[groups.first].tolist() for column in columns), strict=True)
    return np.array([make(*key) for key in keys], np.int64)[groups.of_row]


def _threads_of_calls(spans: dict[str, Rows], correlation: Rows) -> NDArray[np.int32]:
    calls = np.flatnonzero((spans["stream"] < 0) & (spans["correlation"] >= 0))
    thread = dict(zip(spans["correlation"][calls].tolist(), spans["thread"][calls].tolist(), strict=True))
    return np.array([thread.get(number, 0) for number in correlation.tolist()], np.int32)


def _joined(parts: list[dict[str, Rows]], row_of: NDArray[np.int32]) -> dict[str, Any]:
    if not parts:
        return {}
    names = dict.fromkeys(name for part in parts for name in part)
    columns = {
        name: np.concatenate(
            [part.get(name, np.full(len(part["span"]), _UNKNOWN, np.int64)) for part in parts]
        )
        for name in names
    }
    columns["span"] = row_of[columns["span"]]
    order = np.argsort(columns["span"], kind="stable")
    wide = ("context", "graph", "graph_node", "bytes", "shared_bytes")
    return {
        name: values[order] if name in wide else np.clip(values[order], -1, _LAST_INT32)
        for name, values in columns.items()
    }
