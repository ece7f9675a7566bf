"""The process that runs a query for a page: it sets its own limits, then runs one query.

`queries` starts it, and gives it the query as JSON on its standard input; it writes a line of JSON, and the rows behind
it. Of this package it imports only how numbers and arrays are written.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope.model import units
from kinetoscope.model.arrow import text_array

if TYPE_CHECKING:
    import duckdb
    import pyarrow

# What the limit leaves for the process itself: stacks of threads, and memory that allocators keep.
_ROOM_BYTES = 384 << 20
_RESULT_BYTES = 192 << 20
_PAGE_BYTES = 48 << 20
_COUNTING_S = 2.0
_GRACE_S = 3.0
_THREADS = 4
_SAFE_INTEGER = (1 << 53) - 1
_UNITS = (
    (re.compile(r"(?:^|_)ns$"), "ns"),
    (re.compile(r"(?:^|_)bytes$"), "bytes"),
    (re.compile(r"_percent$"), "%"),
)
_ONLY_QUESTIONS = "Only queries that read are allowed: select, with, from, describe, show, summarize or explain, one at a time."
_TOO_MUCH = "The query exceeded the memory limit of {}: select fewer rows or columns, or aggregate first."

# Each is set where this version of DuckDB has it; `True` for those without which nothing is run.
_SETTINGS = (
    ("temp_directory", "''", False),
    ("enable_external_access", "false", True),
    ("autoinstall_known_extensions", "false", False),
    ("autoload_known_extensions", "false", False),
    ("allow_community_extensions", "false", False),
    ("allow_persistent_secrets", "false", False),
    ("python_enable_replacements", "false", False),
    ("python_scan_all_frames", "false", False),
    ("enable_progress_bar", "false", False),
)


def main(memory_bytes: int) -> None:
    """Respond to the query on standard input.

    Args:
        memory_bytes: How much memory it may take.
    """
    # What anything prints must not come into the answer.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        import duckdb
        import pyarrow.compute
        import pyarrow.csv
    except ImportError as error:
        reply = {"error": f"The process that runs queries cannot import {error.name}: {error}"}
        answer.write(json.dumps(reply).encode())
        answer.close()
        return
    del pyarrow, duckdb
    _limit(memory_bytes)
    request = json.loads(sys.stdin.buffer.read())
    # If the server is gone, the kernel ends a query that does not end by itself.
    signal.setitimer(signal.ITIMER_REAL, request["time_s"] + _GRACE_S)
    reply, body = _answered(request, memory_bytes)
    answer.write(json.dumps(reply).encode() + b"\n")
    answer.write(body)
    answer.flush()
    os._exit(0)  # nothing is tidied up: that may take memory, too


def _answered(request: dict[str, Any], memory_bytes: int) -> tuple[dict[str, Any], bytes]:
    """The metadata of a result, and the result; or the error of the query."""
    import duckdb

    began = time.monotonic()
    try:
        with duckdb.connect(":memory:") as connection:
            found, reply = _result(connection, request, memory_bytes)
            body = as_csv(found) if request["form"] == "csv" else _as_stream(found)
    except Exception as error:  # noqa: BLE001  (whatever it is, the person at the page is to read it)
        if _lacked_memory(error):
            return {"error": _TOO_MUCH.format(units.size(memory_bytes))}, b""
        if isinstance(error, duckdb.Error | ValueError):
            return {"error": str(error)}, b""
        return {"error": f"The query could not be run ({type(error).__name__}: {error})"}, b""
    reply["elapsed_ms"] = round((time.monotonic() - began) * 1e3)
    return reply, body


def _lacked_memory(error: BaseException | None) -> bool:
    """Whether an error comes from memory that ran out, be it that closing what was open then failed, too."""
    import duckdb

    while error is not None:
        if isinstance(error, MemoryError | duckdb.OutOfMemoryException):
            return True
        # pyarrow hands on what DuckDB says as an error of its own; a query may have such words in it.
        if not isinstance(error, duckdb.Error) and "Out of Memory Error" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _result(
    connection: duckdb.DuckDBPyConnection, request: dict[str, Any], memory_bytes: int
) -> tuple[pyarrow.Table, dict[str, Any]]:
    """The first rows of a result, and how many there are as far as they can be counted soon."""
    import duckdb
    import pyarrow as pa

    for name, path in request["tables"].items():
        connection.register(name, pa.ipc.open_file(pa.memory_map(path)).read_all())
    _shut(connection, memory_bytes)
    statements = connection.extract_statements(request["query"])
    kinds = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
    if len(statements) != 1 or statements[0].type not in kinds:
        raise ValueError(_ONLY_QUESTIONS)
    result = connection.sql(request["query"])
    # The newer name first: the older one is going. Either makes rows while they are read, not all at once.
    reading = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
    reader = reading(1 << 14)
    most_bytes = _RESULT_BYTES if request["form"] == "csv" else _PAGE_BYTES
    kept, rows, total, size, until = [], 0, 0, 0, float("inf")
    complete = True
    for batch in reader:
        if rows < request["rows"] and size < most_bytes:
            kept.append(batch.slice(0, request["rows"] - rows))
            rows += kept[-1].num_rows
            size += kept[-1].nbytes
        total += batch.num_rows
        if total > rows and until == float("inf"):
            until = time.monotonic() + _COUNTING_S
        if time.monotonic() > until:
            complete = False
            break
    found = shown(pa.Table.from_batches(kept, reader.schema))
    return found, {"total": total, "all": complete, "cut": total > rows}


def _shut(connection: duckdb.DuckDBPyConnection, memory_bytes: int) -> None:
    """Keep a query from files, the network, extensions and settings."""
    import duckdb

    settings = [
        *_SETTINGS,
        ("memory_limit", f"'{memory_bytes // 1024}KiB'", True),
        ("threads", str(min(_THREADS, os.cpu_count() or 1)), True),
        ("lock_configuration", "true", True),
    ]
    for name, value, needed in settings:
        try:
            connection.execute(f"set {name} = {value}")
        except duckdb.Error:
            if needed:
                raise


def shown(table: pyarrow.Table) -> pyarrow.Table:
    """The same rows in columns that a page can show: numbers that it can hold exactly, truth values, texts."""
    import pyarrow as pa

    arrays, fields, taken = [], [], set()
    for place, column in enumerate(table.columns):
        plain = _plain(column)
        name = table.column_names[place]
        while name in taken:
            name = f"{name}_{place + 1}"
        taken.add(name)
        number = pa.types.is_integer(plain.type) or pa.types.is_floating(plain.type)
        unit = next((unit for pattern, unit in _UNITS if pattern.search(name)), "") if number else ""
        arrays.append(plain)
        fields.append(pa.field(name, plain.type, metadata={"unit": unit} if unit else None))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _plain(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """One such column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    of = column.type
    if types.is_dictionary(of):
        column = column.cast(of.value_type)
        of = column.type
    if types.is_boolean(of) or types.is_float32(of) or types.is_float64(of):
        return column
    if types.is_null(of):
        return column.cast(pa.string())
    if types.is_float16(of):
        return column.cast(pa.float64())
    if types.is_decimal(of):
        with suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64() if of.scale == 0 else pa.float64())
            of = column.type
    if types.is_float64(of):
        return column
    if types.is_integer(of):
        if of.bit_width < 64:
            return column.cast(pa.int64())
        ends = pc.min_max(column).as_py()
        if ends["min"] is None or (ends["min"] >= -_SAFE_INTEGER and ends["max"] <= _SAFE_INTEGER):
            return column.cast(pa.int64())
        return column.cast(pa.string())
    if types.is_string(of):
        return column
    if types.is_large_string(of) or types.is_string_view(of) or types.is_decimal(of):
        return column.cast(pa.string())
    return pa.chunked_array([text_array(None if v is None else str(v) for v in column.to_pylist())])


def as_csv(table: pyarrow.Table) -> bytes:
    """Rows as comma-separated values; a text that a spreadsheet would take for a formula begins with a quote."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    columns = []
    for column in table.columns:
        if pa.types.is_string(column.type):
            risky = pc.match_substring_regex(column, "^[=+\\-@\\t\\r]")
            column = pc.if_else(risky, pc.binary_join_element_wise("'", column, ""), column)
        columns.append(column)
    sink = io.BytesIO()
    pyarrow.csv.write_csv(pa.Table.from_arrays(columns, table.column_names), sink)
    return sink.getvalue()


def _as_stream(table: pyarrow.Table) -> bytes:
    """Rows as an Arrow stream."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def _limit(memory_bytes: int) -> None:
    """Let the kernel refuse this process more memory, and any file; and let it be the first to go where memory is short."""
    import resource

    taken = 0
    with suppress(OSError):
        # Pages that are only this process's own; what it maps of files does not count.
        found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        taken = int(found[1]) << 10 if found else 0
    most = taken + memory_bytes + _ROOM_BYTES
    for which, limit in ((resource.RLIMIT_DATA, most), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):
            resource.setrlimit(which, (limit, limit))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
