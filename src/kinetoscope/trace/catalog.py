"""What can be asked of a trace, and which room answers.

A `Trace` lives below the rooms that make tables and files from it, and may not import them. It finds them here, by
dotted name, when they are first asked for. To add a table or a format, write its function and name it here.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kinetoscope.trace._columns import Columns
    from kinetoscope.trace._schema import Table
    from kinetoscope.trace._trace import Trace

# Table name -> function (Trace, **options) -> pyarrow.Table. Beside it stands `SCHEMA`, or `<NAME>_SCHEMA`.
TABLES: dict[str, str] = {
    "ops": "kinetoscope.tables.ops:ops",
    "modules": "kinetoscope.tables.modules:modules",
    "steps": "kinetoscope.tables.steps:steps",
    "flops": "kinetoscope.tables.flops:flops",
    "flops_coverage": "kinetoscope.tables.flops:flops_coverage",
    "lines": "kinetoscope.tables.lines:lines",
    "stacks": "kinetoscope.tables.stacks:stacks",
    "memory": "kinetoscope.tables.memory:memory",
    "memory_peak": "kinetoscope.tables.memory_peak:memory_peak",
    "memory_timeline": "kinetoscope.tables.memory_timeline:memory_timeline",
    "spans": "kinetoscope.trace._shown:spans",
    "cycles": "kinetoscope.trace._cycles:cycles",
    "processes": "kinetoscope.trace._processes:processes",
    "threads": "kinetoscope.trace._shown:threads",
    "kernels": "kinetoscope.tables.kernels:kernels",
    "launches": "kinetoscope.tables.launches:launches",
    "copies": "kinetoscope.tables.copies:copies",
    "streams": "kinetoscope.tables.streams:streams",
    "devices": "kinetoscope.tables.streams:devices",
    "allocations": "kinetoscope.trace._shown:allocations",
    "frames": "kinetoscope.trace._shown:frames",
    "shapes": "kinetoscope.trace._shown:shapes",
    "counters": "kinetoscope.trace._shown:counters",
    "collectives": "kinetoscope.tables.collectives:collectives",
    "data_loading": "kinetoscope.tables.data_loading:data_loading",
    "breakdown": "kinetoscope.tables.breakdown:breakdown",
    "overlap": "kinetoscope.tables.overlap:overlap",
    "execution": "kinetoscope.formats.execution_join:execution",
    "execution_tensors": "kinetoscope.formats.execution_join:execution_tensors",
    "losses": "kinetoscope.trace._shown:losses",
    "info": "kinetoscope.trace._shown:info",
    "strings": "kinetoscope.trace._shown:strings",
}

# Stored table -> columns that a room above computes -> function (Trace) -> {column: values}.
COLUMNS: dict[str, dict[tuple[str, ...], str]] = {
    "spans": {("flops", "bytes_moved"): "kinetoscope.tables.costs.columns:span_costs"},
}

# Functions (Trace) -> metadata that a saved trace keeps beside its own.
SAVED_INFO: tuple[str, ...] = ("kinetoscope.tables.costs.columns:saved_info",)

# What an unpacked text begins with -> function (UnpackedText, max_memory_bytes=, progress=) -> Trace.
READERS: tuple[tuple[tuple[bytes, ...], str], ...] = (
    ((b"{", b"["), "kinetoscope.formats.chrome_reading:read_chrome_trace"),
)

# File suffix -> function (Trace, path) -> None. The longest suffix that fits decides.
WRITERS: dict[str, str] = {
    ".ktrace": "kinetoscope.trace._file:write_ktrace",
    ".json": "kinetoscope.formats.chrome:write_chrome_trace",
    ".json.gz": "kinetoscope.formats.chrome:write_chrome_trace",
    ".json.zst": "kinetoscope.formats.chrome:write_chrome_trace",
    ".perfetto-trace": "kinetoscope.formats.perfetto:write_perfetto",
    ".perfetto-trace.gz": "kinetoscope.formats.perfetto:write_perfetto",
    ".pftrace": "kinetoscope.formats.perfetto:write_perfetto",
    ".pftrace.gz": "kinetoscope.formats.perfetto:write_perfetto",
    ".memory.html": "kinetoscope.formats.memory_timeline:write_memory_timeline",
    ".memory.json": "kinetoscope.formats.memory_timeline:write_memory_timeline",
    ".memory.json.gz": "kinetoscope.formats.memory_timeline:write_memory_timeline",
    ".memory.raw.json.gz": "kinetoscope.formats.memory_timeline:write_memory_timeline",
    ".speedscope.json": "kinetoscope.formats.speedscope:write_speedscope",
    ".speedscope.json.gz": "kinetoscope.formats.speedscope:write_speedscope",
    ".tables": "kinetoscope.trace._tables_folder:write_tables",
    ".collapsed": "kinetoscope.formats.stacks:write_collapsed",
    ".folded": "kinetoscope.formats.stacks:write_collapsed",
}

# The same for formats of one table: function (Trace, path, name of the table) -> None.
TABLE_WRITERS: dict[str, str] = {
    ".parquet": "kinetoscope.trace._parquet:write_parquet",
    ".arrow": "kinetoscope.trace._arrow_file:write_arrow",
    ".feather": "kinetoscope.trace._arrow_file:write_arrow",
}

# Method name -> function (Trace, **options).
VIEWS: dict[str, str] = {
    "events": "kinetoscope.tables.events:events",
    "key_averages": "kinetoscope.tables.events:key_averages",
}

# Function (Trace) -> HTML, as notebooks show a trace.
PAGE = "kinetoscope.tables.trace_page:trace_page"

# Function (max_memory_bytes=0): a native reader of Chrome's format, to be fed; and function (what it found) -> Trace.
CHROME_READER = "kinetoscope.formats.chrome_reading:new_reader"
CHROME_TRACE = "kinetoscope.formats.chrome_reading:made_trace"

# Function (source, target): copies an execution trace of torch as strict JSON.
EXECUTION_TRACE_WRITER = "kinetoscope.formats._execution_trace_mending:write_mended"


def resolve(entry: str) -> Callable[..., Any]:
    """Import and return what a dotted entry such as ``kinetoscope.tables.ops:ops`` names."""
    module, _, name = entry.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def attach_columns(trace: Trace, tables: Mapping[str, Columns]) -> None:
    """Tell the tables of a trace how the columns named in `COLUMNS` are computed."""
    for table, sources in COLUMNS.items():
        for names, entry in sources.items():
            tables[table].source(names, partial(_made_above, entry, trace))


def saved_info(trace: Trace) -> dict[str, Any]:
    """The metadata of a trace with what the rooms above want to find in a file of it."""
    info = dict(trace.info)
    for entry in SAVED_INFO:
        info.update(resolve(entry)(trace))
    return info


def _made_above(entry: str, trace: Trace) -> Any:
    """Columns that a room above this one computes."""
    return resolve(entry)(trace)


def schema(name: str) -> Table:
    """Return the definition of the table that `Trace.table(name)` gives, with the meaning of each column.

    Raises:
        KeyError: No such table.
    """
    module, _, function = TABLES[name].partition(":")
    loaded = importlib.import_module(module)
    found: Table = getattr(loaded, f"{function.upper()}_SCHEMA")
    return found
