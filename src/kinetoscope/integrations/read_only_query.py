"""SQL of agents: each query runs in a process of its own, which reads no files and has limits of time and memory.

DuckDB's own limits are not enough: inside one function call, DuckDB 2.0 neither checks for interrupts nor counts
what it allocates. With a `memory_limit` of 64 MiB, `select repeat('x', 1000000000) from range(3)` took 1.9 GiB, and `interrupt` did not
end `select list_sum(range(1000000000))` within 40 s. So the kernel enforces the limits, and DuckDB's settings keep a query from files.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError, MissingDependencyError
from kinetoscope.model import units
from kinetoscope.trace.trace import tables_named

if TYPE_CHECKING:
    import duckdb
    import pyarrow

    from kinetoscope.trace import Trace

TIME_S = 30.0
MEMORY_BYTES = 1 << 30
LONGEST_QUERY = 50_000
_COUNTED_ROWS = 1_000_000
# Memory for the process itself, beyond the limit: stacks of threads, and memory held by allocators.
_ROOM_BYTES = 384 << 20
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from kinetoscope.integrations.read_only_query import answer; answer()"
)
_ONLY_READING = "only queries that read are allowed: select, with, from, describe, show, summarize or explain, one at a time"
# Each is set if this version of DuckDB has it; `True` for required ones.
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


def read_only_query(
    trace: Trace, query: str, most_rows: int, *, time_s: float = TIME_S, memory_bytes: int = MEMORY_BYTES
) -> tuple[pyarrow.Table, int]:
    """Run one query over the tables of a trace that can neither change nor read anything else.

    Args:
        trace: The trace.
        query: One SQL statement (DuckDB).
        most_rows: How many rows of the result to return.
        time_s: How long the query may take, in seconds.
        memory_bytes: How much memory it may take.

    Returns:
        The first rows, and the number of rows, counted up to a million.

    Raises:
        ArgumentError: DuckDB rejected the query, it does more than read, or it exceeded a limit.
        MissingDependencyError: DuckDB is not installed.
    """
    import pyarrow as pa

    if importlib.util.find_spec("duckdb") is None:
        raise MissingDependencyError("SQL needs DuckDB: install it with `pip install kinetoscope[sql]`")
    if len(query) > LONGEST_QUERY:
        raise ArgumentError(f"the query has {len(query):,} characters; at most {LONGEST_QUERY:,} are allowed")
    with tempfile.TemporaryDirectory(prefix="kinetoscope-sql-") as folder:
        for name in tables_named(trace, query):
            table = trace.table(name).combine_chunks().unify_dictionaries()
            with pa.ipc.new_file(f"{folder}/{name}.arrow", table.schema) as writer:
                writer.write_table(table, max_chunksize=1 << 17)
        request = {"query": query, "rows": most_rows, "folder": folder, "memory_bytes": memory_bytes}
        try:
            process = subprocess.run(  # noqa: S603  (our own interpreter and program)
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path)],
                input=json.dumps(request).encode(),
                capture_output=True,
                timeout=time_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ArgumentError(f"the query took longer than {time_s:g} s") from None
    head, _, body = process.stdout.partition(b"\n")
    if process.returncode or not head:
        raise ArgumentError(
            f"the query exceeded the memory limit of {units.size(memory_bytes)}, or DuckDB crashed"
        )
    reply = json.loads(head)
    if "error" in reply:
        raise ArgumentError(reply["error"])
    with pa.ipc.open_stream(body) as reader:
        return reader.read_all(), reply["rows"]


def answer() -> None:
    """Run the query on standard input, in a process of its own; write a line of JSON and the rows as an Arrow stream."""
    import duckdb
    import pyarrow as pa

    # Nothing else may print into the answer.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    memory_bytes = request["memory_bytes"]
    _limit(memory_bytes)
    try:
        with duckdb.connect(":memory:") as connection:
            for path in Path(request["folder"]).iterdir():
                connection.register(path.stem, pa.ipc.open_file(pa.memory_map(str(path))).read_all())
            table, rows = _result(connection, request["query"], request["rows"], memory_bytes)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        output.write(json.dumps({"rows": rows}).encode() + b"\n")
        output.write(sink.getvalue())
    except (MemoryError, duckdb.OutOfMemoryException, pa.ArrowMemoryError):
        os._exit(1)
    except (duckdb.Error, pa.ArrowException, ValueError) as error:
        output.write(json.dumps({"error": str(error)}).encode() + b"\n")
    output.flush()
    os._exit(0)  # cleaning up could exceed the limits, too


def _result(
    connection: duckdb.DuckDBPyConnection, query: str, most_rows: int, memory_bytes: int
) -> tuple[pyarrow.Table, int]:
    import duckdb
    import pyarrow as pa

    settings = (
        *_SETTINGS,
        ("memory_limit", f"'{memory_bytes >> 10}KiB'", True),
        ("lock_configuration", "true", True),
    )
    for name, value, needed in settings:
        try:
            connection.execute(f"set {name} = {value}")
        except duckdb.Error:
            if needed:
                raise
    statements = connection.extract_statements(query)
    reading = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
    if len(statements) != 1 or statements[0].type not in reading:
        raise ValueError(_ONLY_READING)
    result = connection.sql(query)
    # The older name is deprecated. Both produce rows as they are read, not all at once.
    reader = (getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader)(1 << 14)
    batches, rows = [], 0
    for batch in reader:
        batches += [batch.slice(0, most_rows - rows)] if rows < most_rows else []
        rows += batch.num_rows
        if rows > _COUNTED_ROWS:
            break
    return pa.Table.from_batches(batches, reader.schema), rows


def _limit(memory_bytes: int) -> None:
    """Limit this process's memory, forbid it to write files, and make it the first to be killed when memory is short."""
    import resource

    data_bytes = 0
    with suppress(OSError):
        # Pages that belong to this process alone; what it maps of files does not count.
        size = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        data_bytes = int(size[1]) << 10 if size else 0
    most = data_bytes + memory_bytes + _ROOM_BYTES
    for kind, limit in ((resource.RLIMIT_DATA, most), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, limit))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
