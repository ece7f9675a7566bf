"""SQL on the page: each query runs in a process of its own, which can be ended and cannot take what is ours.

Why a process, and not DuckDB's own limits: inside one call of a function DuckDB 2.0 neither looks whether it was
interrupted nor counts what it allocates. With a `memory_limit` of 64 MiB, `select repeat('x', 1000000000) from range(3)`
took 1.9 GiB and `select sum(unnest(range(1000000000)))` more than 8 GiB, and `interrupt` did not end
`select list_sum(range(1000000000))`, `levenshtein` of long texts and others within 40 s. So the limits are the kernel's: a process may take no more memory than it is given, and is ended when its
time is over. It reads the tables from files that it maps, and DuckDB's settings keep it from all else.
"""

from __future__ import annotations

import importlib.util
import io
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError, MissingDependencyError, StateError
from kinetoscope.model import units
from kinetoscope.model.trace_data import derived
from kinetoscope.storage.unpacking import available_bytes
from kinetoscope.trace.tables import definition
from kinetoscope.trace.trace import tables_named
from kinetoscope.viewer.requests import Limited, MadeFile

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query


EXAMPLES: tuple[tuple[str, str], ...] = (
    (
        "Operators by self time",
        """\
select name, kind, count, self_ns, device_self_ns
from ops
order by self_ns desc
limit 20""",
    ),
    (
        "The longest span of each name (click a row to see it on the timeline)",
        """\
select id as span, name, kind, start_ns, duration_ns, step, module
from spans
qualify row_number() over (partition by name, kind order by duration_ns desc) = 1
order by duration_ns desc
limit 50""",
    ),
    (
        "Time of each kind of span, step by step",
        """\
select step, kind, count(*) as spans, sum(self_ns) as self_ns
from spans
where step is not null
group by all
order by step, self_ns desc""",
    ),
    (
        "Steps compared with the median step",
        """\
select number, duration_ns,
       100.0 * duration_ns / median(duration_ns) over () as of_median_percent
from steps
order by duration_ns desc""",
    ),
    (
        "Launches that waited longest for the device",
        """\
select host as span, operator, device_name, delay_ns, queue_ns, device_ns, step
from launches
order by delay_ns desc
limit 50""",
    ),
    (
        "Kernels by module",
        """\
select module, count(*) as kernels, sum(duration_ns) as device_ns
from spans
where kind = 'kernel'
group by module
order by device_ns desc""",
    ),
    (
        "Variation of an operator's duration",
        """\
select name, count(*) as calls, min(duration_ns) as min_ns, median(duration_ns) as median_ns,
       quantile_cont(duration_ns, 0.99) as p99_ns, max(duration_ns) as max_ns
from spans
where kind = 'operator'
group by name
having calls >= 10
order by max_ns - median_ns desc
limit 50""",
    ),
    (
        "Bytes allocated by module and operator",
        """\
select module, operator, sum(bytes) as bytes, count(*) as blocks
from allocations
where bytes > 0
group by all
order by bytes desc
limit 50""",
    ),
    ("The tables", "show tables"),
)


TIME_S = 30.0
MOST_MEMORY_BYTES = 2 << 30
LEAST_MEMORY_BYTES = 256 << 20
MOST_ROWS = 20_000
"""What a page shows of a result."""
MOST_CSV_ROWS = 1_000_000
LONGEST_QUERY = 50_000
MOST_WAITING = 4
"""Queries that wait for the one that runs; each holds a thread of the server, which needs them for other pages."""

NEEDS_DUCKDB = (
    "SQL needs DuckDB, which is not installed where the viewer runs: "
    'install it there with `pip install "kinetoscope[sql]"` and start the viewer again.'
)
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from kinetoscope.viewer.sql.worker import main; main(int(sys.argv[2]))"
)


class Queries:
    """Runs queries about one trace, one at a time."""

    def __init__(self, trace: Trace, time_s: float = TIME_S, memory_bytes: int | None = None) -> None:
        """Start nothing yet.

        Args:
            trace: The trace.
            time_s: How long a query may take.
            memory_bytes: How much memory it may take; without it half of what is available, 2 GiB at most.
        """
        self._trace = weakref.ref(trace)
        self.time_s = time_s
        self.memory_bytes = memory_bytes or max(
            LEAST_MEMORY_BYTES, min(MOST_MEMORY_BYTES, (available_bytes() or MOST_MEMORY_BYTES) // 2)
        )
        self._one_at_a_time = threading.Lock()
        self._turns = threading.Semaphore(1 + MOST_WAITING)
        self._closed = False
        # A stop belongs to the query that runs at that moment.
        self._state = threading.Lock()
        self._runs = self._stopped = False
        # Made by the first query.
        self._folder = Path(tempfile.gettempdir(), f"kinetoscope-sql-{secrets.token_hex(16)}")
        # The process of the query that runs, else that of the next one: it imports what it needs ahead of time.
        self._processes: list[subprocess.Popen[bytes]] = []
        self._clean_up = weakref.finalize(self, _clean_up, self._processes, self._folder)

    def ask(self, query: str, *, rows: int, form: str) -> tuple[dict[str, Any], bytes]:
        """Run a query.

        Args:
            query: One statement that changes nothing.
            rows: How many rows of the result are wanted.
            form: `arrow` or `csv`.

        Returns:
            What there is to say of the result (`total` rows, whether these are `all`), and the rows.

        Raises:
            ArgumentError: DuckDB refused it, or it took more time or memory than it may.
            MissingDependencyError: DuckDB is not installed.
            StateError: It was stopped, or too many queries wait already.
        """
        if not is_installed():
            raise MissingDependencyError(NEEDS_DUCKDB)
        if len(query) > LONGEST_QUERY:
            raise ArgumentError(f"the query has {len(query):,} characters; the most are {LONGEST_QUERY:,}")
        trace = self._trace()
        if trace is None:
            raise StateError("the trace was closed; open it again")
        if not self._turns.acquire(blocking=False):
            raise StateError(
                f"{1 + MOST_WAITING} queries are running or waiting already: stop the running one, or try again later"
            )
        try:
            with self._one_at_a_time:
                return self._run(trace, query, rows, form)
        finally:
            self._turns.release()

    def _run(self, trace: Trace, query: str, rows: int, form: str) -> tuple[dict[str, Any], bytes]:
        """Run a query in its process, until it is done or ended; those before it are done."""
        if self._closed:
            raise StateError(STOPPED)
        with self._state:
            self._runs, self._stopped = True, False
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            tables = {name: self._written(trace, name) for name in tables_named(trace, query)}
            request = {"query": query, "rows": rows, "form": form, "tables": tables, "time_s": self.time_s}
            answer, why = self._exchange(json.dumps(request).encode())
        finally:
            with self._state:
                self._runs = False
        self._next()
        if self._stopped:
            raise StateError(STOPPED)
        if why:
            limits = f"the limits are {self.time_s:g} s and {units.size(self.memory_bytes)}"
            raise ArgumentError(f"{why}; {limits}.")
        line, _, body = answer.partition(b"\n")
        reply = json.loads(line)
        if "error" in reply:
            raise ArgumentError(reply["error"])
        return reply, body

    def _exchange(self, request: bytes) -> tuple[bytes, str]:
        """What the process of a query writes, or why it was ended."""
        process = self._next()
        why = ""
        with process:
            if self._stopped:
                process.kill()
            try:
                answer, _ = process.communicate(request, timeout=self.time_s)
            except subprocess.TimeoutExpired:
                process.kill()
                answer, why = b"", f"It took longer than {self.time_s:g} s"
        if process.returncode and not why:
            why = "It exceeded the memory limit, or DuckDB crashed"
        return answer, why

    def _next(self) -> subprocess.Popen[bytes]:
        """A process that waits for a query, started if there is none."""
        with self._state:
            if self._processes and self._processes[0].poll() is None:
                return self._processes[0]
            process = subprocess.Popen(  # noqa: S603  (our own interpreter and program)
                [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path), str(self.memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self._folder,
                start_new_session=True,  # a Ctrl-C is for the server
            )
            _end(self._processes)
            self._processes.append(process)
            return process

    def stop(self) -> None:
        """End the query that runs, if one does."""
        with self._state:
            if self._runs:
                self._stopped = True
                for process in self._processes:
                    process.kill()

    def close(self) -> None:
        """End the process and remove its files; queries that wait are not run, nor any other."""
        self._closed = True
        # A query may be about to begin: it is ended as soon as it has.
        while not self._one_at_a_time.acquire(timeout=0.05):
            self.stop()
        self._clean_up()
        self._one_at_a_time.release()

    def _written(self, trace: Trace, name: str) -> str:
        """The file of a table, written when it is first needed."""
        import pyarrow as pa

        path = self._folder / f"{name}.arrow"
        if not path.exists():
            table = trace.table(name).combine_chunks().unify_dictionaries()
            part = path.with_suffix(".part")
            with pa.ipc.new_file(str(part), table.schema) as writer:
                writer.write_table(table, max_chunksize=1 << 17)
            part.rename(path)
        return str(path)


STOPPED = "The query was stopped."


def is_installed() -> bool:
    """Whether DuckDB is."""
    return importlib.util.find_spec("duckdb") is not None


@derived
def queries(trace: Trace) -> Queries:
    """What runs queries about a trace; it ends with the trace."""
    return Queries(trace)


def end_queries(trace: Trace) -> None:
    """End what runs queries about a trace."""
    queries(trace).close()


def about(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `sql/about`: whether queries can run, on which tables and columns, and within which limits."""
    runner = queries(trace)
    tables = []
    for name in trace.table_names:
        schema = definition(name).schema
        columns = [
            {"name": column.name, "type": column.type, "unit": column.unit, "meaning": column.meaning}
            for column in schema.columns
        ]
        tables.append({"name": name, "row": schema.row, "columns": columns})
    return {
        "problem": None if is_installed() else NEEDS_DUCKDB,
        "tables": tables,
        "examples": [{"title": title, "query": text} for title, text in EXAMPLES],
        "time_s": runner.time_s,
        "memory_bytes": runner.memory_bytes,
        "most_rows": MOST_ROWS,
        "most_csv_rows": MOST_CSV_ROWS,
    }


def rows(trace: Trace, query: Query) -> Limited:
    """Respond to `sql`: the first rows of the result of the option `query`, and how many there are.

    Raises:
        ArgumentError: DuckDB refused the query, or it took more time or memory than it may.
        MissingDependencyError: DuckDB is not installed.
    """
    import pyarrow as pa

    reply, body = queries(trace).ask(_text(query), rows=MOST_ROWS, form="arrow")
    with pa.ipc.open_stream(body) as reader:
        found = reader.read_all()
    known = {"all": "yes" if reply["all"] else "no", "elapsed_ms": str(reply["elapsed_ms"])}
    return Limited(found.replace_schema_metadata(known), reply["total"])


def csv(trace: Trace, query: Query) -> MadeFile:
    """Respond to `sql/csv`: all rows of the result as comma-separated values.

    Raises:
        ArgumentError: As for `rows`, or there are too many rows.
        MissingDependencyError: DuckDB is not installed.
    """
    reply, body = queries(trace).ask(_text(query), rows=MOST_CSV_ROWS, form="csv")
    if reply["cut"]:
        raise ArgumentError(f"the result has more than {MOST_CSV_ROWS:,} rows: add a `limit` to the query")
    return MadeFile(io.BytesIO(body), "query.csv", "text/csv; charset=utf-8")


def stop(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `sql/stop`: the query that runs, if one does, is ended."""
    queries(trace).stop()
    return {}


def _text(query: Query) -> str:
    """The query itself."""
    text = query.get("query", "").strip()
    if not text:
        raise ArgumentError("the query is empty: try `select * from ops limit 10`")
    return text


def _clean_up(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """End a process and remove its files."""
    _end(processes)
    shutil.rmtree(folder, ignore_errors=True)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End a process, if there is one, and close what leads to it."""
    while processes:
        with processes.pop() as process:
            process.kill()
