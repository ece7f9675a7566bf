"""SQL on the page: each query runs in a process beside this one, which can be ended and cannot take what is ours.

DuckDB stops a query that takes long, or much memory, only where it looks whether it should. So the limits are the
kernel's: the process may take no more memory than it is given, and is ended when its time is over. It reads the tables
from files that it maps, and is kept from all other files, from the network and from its own settings.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError, MissingDependencyError, StateError
from kinetoscope.model import units
from kinetoscope.storage.unpacking import available_bytes
from kinetoscope.trace.tables import definition
from kinetoscope.trace.trace import tables_named
from kinetoscope.viewer.requests import Limited, MadeFile

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query


# Queries to begin with.

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
_STARTING_S = 60.0

NEEDS_DUCKDB = (
    "SQL needs DuckDB, which is not installed where the viewer runs: "
    'install it there with `pip install "kinetoscope[sql]"` and start the viewer again.'
)
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from kinetoscope.viewer.sql.worker import main; main(int(sys.argv[2]))"
)


class Queries:
    """Answers queries about one trace, one at a time, in a process that is started with the first."""

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
        self._process: subprocess.Popen[bytes] | None = None
        # Whether a query runs, and why it is ended; a stop belongs to the query that runs at that moment.
        self._state = threading.Lock()
        self._runs = False
        self._ended_for = ""
        self._folder: Path | None = None
        self._let_go: weakref.finalize[..., Queries] | None = None

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
            return self._ask(trace, query, rows, form)
        finally:
            self._turns.release()

    def _ask(self, trace: Trace, query: str, rows: int, form: str) -> tuple[dict[str, Any], bytes]:
        """Run a query when those before it are done."""
        with self._one_at_a_time:
            if self._closed:
                raise StateError(STOPPED)
            with self._state:
                self._runs, self._ended_for = True, ""
            try:
                reply, body = self._run(trace, query, rows, form)
            finally:
                with self._state:
                    self._runs = False
        if "error" in reply:
            raise ArgumentError(reply["error"])
        return reply, body

    def _run(self, trace: Trace, query: str, rows: int, form: str) -> tuple[dict[str, Any], bytes]:
        """Run a query in the process, until it is done or ended."""
        process = self._running()
        tables = {name: self._written(trace, name) for name in tables_named(trace, query)}
        request = {"query": query, "rows": rows, "form": form, "tables": tables, "time_s": self.time_s}
        timer = threading.Timer(self.time_s, self._end, [f"It took longer than {self.time_s:g} s"])
        timer.start()
        reply: dict[str, Any] = {}
        try:
            if self._ended_for:
                raise EOFError(self._ended_for)
            reply, body = _exchange(process, request)
        except (OSError, EOFError) as error:
            process.kill()
            process.wait()
            why = self._ended_for or "It exceeded the memory limit, or DuckDB crashed"
            raise (StateError if why == STOPPED else ArgumentError)(
                f"{why}; the limits are {self.time_s:g} s and {units.size(self.memory_bytes)}."
                if why != STOPPED
                else why
            ) from error
        finally:
            timer.cancel()
            timer.join()  # its thread holds these queries: they would outlive their trace until it is scheduled
            if self._ended_for or reply.get("last"):
                process.kill()
                process.wait()
            if process.poll() is not None:
                self._forget(process)
        return reply, body

    def stop(self) -> None:
        """End the query that runs, if one does."""
        self._end(STOPPED)

    def close(self) -> None:
        """End the process and remove its files; queries that wait are not run, nor any other."""
        self._closed = True
        # A query may be about to begin: it is ended as soon as it has.
        while not self._one_at_a_time.acquire(timeout=0.05):
            self.stop()
        try:
            if self._let_go is not None:
                self._let_go()
            self._process = self._folder = None
        finally:
            self._one_at_a_time.release()

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, started if there is none."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="kinetoscope-sql-"))
        process = subprocess.Popen(  # noqa: S603  (our own interpreter and program)
            [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path), str(self.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            start_new_session=True,  # a Ctrl-C is for the server
        )
        if self._let_go is not None and (ended := self._let_go.detach()) is not None:
            _close_pipes(ended[2][0])
        self._let_go = weakref.finalize(self, _clean_up, process, self._folder)
        timer = threading.Timer(_STARTING_S, process.kill)
        timer.start()
        try:
            reply, _ = _read(process.stdout)
        except EOFError:
            process.wait()
            raise StateError("the process that runs queries could not be started") from None
        finally:
            timer.cancel()
        if "error" in reply:
            process.wait()
            raise StateError(reply["error"])
        self._process = process
        return process

    def _written(self, trace: Trace, name: str) -> str:
        """The file of a table, written when it is first needed."""
        import pyarrow as pa

        assert self._folder is not None  # noqa: S101  (made before the process is started)
        path = self._folder / f"{name}.arrow"
        if not path.exists():
            table = trace.table(name).combine_chunks().unify_dictionaries()
            part = path.with_suffix(".part")
            with pa.ipc.new_file(str(part), table.schema) as writer:
                writer.write_table(table, max_chunksize=1 << 17)
            part.rename(path)
        return str(path)

    def _end(self, why: str) -> None:
        """End the query that runs, if one does; without a process, before it is sent to one."""
        with self._state:
            if not self._runs:
                return
            self._ended_for = self._ended_for or why
            if self._process is not None:
                self._process.kill()

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        """Close what leads to a process that has ended."""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                _close(pipe)
        self._process = None


STOPPED = "The query was stopped."


def is_installed() -> bool:
    """Whether DuckDB is."""
    return importlib.util.find_spec("duckdb") is not None


def queries(trace: Trace) -> Queries:
    """What runs queries about a trace; it ends with the trace."""
    return trace.cached("viewer: sql", lambda: Queries(trace))


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
    import io

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


def _exchange(process: subprocess.Popen[bytes], request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Send a query to the process and wait for the response."""
    assert process.stdin is not None  # noqa: S101  (it is a pipe)
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return _read(process.stdout)


def _read(answers: IO[bytes] | None) -> tuple[dict[str, Any], bytes]:
    """A line of JSON, and as many bytes behind it as the line says."""
    line = answers.readline() if answers is not None else b""
    if answers is None or not line.endswith(b"\n"):
        raise EOFError
    reply = json.loads(line)
    body = answers.read(reply.get("bytes", 0))
    if len(body) < reply.get("bytes", 0):
        raise EOFError
    return reply, body


def _clean_up(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End the process and remove its files."""
    process.kill()
    process.wait()
    _close_pipes(process)
    shutil.rmtree(folder, ignore_errors=True)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    """Close both pipes to a process that has ended."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            _close(pipe)


def _close(pipe: IO[bytes]) -> None:
    """Close a pipe; what is still on its way to a process that is gone is of no use any more."""
    with suppress(OSError):
        pipe.close()
