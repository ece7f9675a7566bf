"""The trace: columns, strings, what is known about the run, and what was lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kinetoscope._errors import ArgumentError, FormatError, StateError
from kinetoscope.trace import catalog
from kinetoscope.trace._assemble import assemble
from kinetoscope.trace._calls import mark_collections
from kinetoscope.trace._cycles import one_cycle
from kinetoscope.trace._losses import TOLD_AT_STOP, loss_rows
from kinetoscope.trace._notes import add_notes
from kinetoscope.trace._pickle import itself, pickled
from kinetoscope.trace._recorded_words import from_json, with_python_names
from kinetoscope.trace._saving import save
from kinetoscope.trace._schema import STORED
from kinetoscope.trace._selections import Selections
from kinetoscope.trace._storages import add_storages

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    import pandas
    import polars
    import pyarrow
    from numpy.typing import NDArray
    from rich.console import Console, ConsoleOptions, RenderResult

    from kinetoscope.trace._assemble import Strings
    from kinetoscope.trace._columns import Columns

Kept = TypeVar("Kept")

_RECORDED = (
    "threads", "frames", "stacks", "modules", "parameters", "shapes", "spans", "allocations",
)  # fmt: skip
_NOT_YET: Any = object()
_RENAMED = {"stack": "own_stack", "module": "own_module"}


class Trace(Selections):
    """Everything one recording knows, as columns that are computed when they are first used.

    Get one from `kinetoscope.open`, from `prof.trace` after a session, or from `Trace.from_columns`. Times are integer
    nanoseconds from the start of the trace. A trace may be used from several threads.

    Attributes:
        info: What is known about the run: `process`, `start_realtime_ns`, `start_monotonic_ns` (the
            clock of the machine that is never set), `boot_id` (which start of which machine), `stop_ns`, `complete` (False when the
            recording was never stopped, because the process was killed or still runs), and the run's metadata.
        path: The file it was opened from, if any.
    """

    def __init__(
        self, tables: dict[str, Columns], strings: Strings, info: dict[str, Any], path: Path | None = None
    ) -> None:
        """Hold the parts; use the class methods to make a trace."""
        self._tables = tables
        self._strings = strings
        self.info = info
        self.path = path
        self._kept: dict[str, Any] = {}
        # That of the columns: they ask for what is cached, and what is cached asks for them.
        self._lock = tables["spans"].lock
        self._closed = False
        self._release: Callable[[], None] | None = None
        catalog.attach_columns(self, tables)

    @classmethod
    def from_columns(
        cls,
        tables: Mapping[str, Mapping[str, Any]],
        *,
        strings: list[str],
        info: Mapping[str, Any] | None = None,
        path: Path | None = None,
        rows: Mapping[str, int | Callable[[], int]] | None = None,
    ) -> Self:
        """Make a trace from columns that something else collected.

        Args:
            tables: For each table its columns by name, as `kinetoscope.trace._schema.STORED` defines them. Missing
                columns have their default, missing tables no rows. Spans must be sorted by thread, then start, then
                the longer one first; allocations by time. A column may be a function that makes it when it is needed.
            strings: The string table; entry 0 must be the empty string.
            info: What is known about the run.
            path: The file it came from.
            rows: The number of rows of tables whose first column is a function, or a function that finds it.

        Returns:
            The trace.

        Raises:
            ArgumentError: An unknown table or column, or columns of different lengths.
        """
        unknown = sorted(set(tables) - set(STORED))
        if unknown:
            raise ArgumentError(f"a trace has no table {unknown[0]!r}; its tables are: {', '.join(STORED)}")
        if not strings or strings[0] != "":
            raise ArgumentError("the string table of a trace must begin with the empty string")
        known: dict[str, Any] = {"complete": True, **(info or {})}
        return cls(assemble(tables, strings, rows), strings, known, path)

    @classmethod
    def from_recording(cls, path: str | os.PathLike[str]) -> Self:
        """Read the file of a recording, also of one whose process was killed.

        Args:
            path: The file that the recorder wrote.

        Returns:
            The trace; `info["complete"]` is False when the recording was never stopped.

        Raises:
            FormatError: The file is no recording, or of a version this release does not read.
            OSError: The file cannot be read.
        """
        from kinetoscope import _core

        try:
            recording: Mapping[str, Any] = _core.read_recording(str(path))
        except ValueError as error:
            raise FormatError(f"{path}: not a readable recording: {error}") from error
        return cls.from_recording_parts(recording, path=Path(path))

    @classmethod
    def from_recording_parts(cls, recording: Mapping[str, Any], *, path: Path | None = None) -> Self:
        """Make a trace from what `_core.read_recording` returns.

        Args:
            recording: The parts of a recording: tables, strings, metadata as JSON texts, and counted losses.
            path: The file it came from.

        Returns:
            The trace.
        """
        tables: dict[str, Mapping[str, Any]] = {name: dict(recording[name]) for name in _RECORDED}
        tables["spans"] = {_RENAMED.get(name, name): values for name, values in recording["spans"].items()}
        add_notes(tables, recording.get("notes", {}), recording["strings"])
        stopped = recording["state"] == "stopped"
        info: dict[str, Any] = {key: from_json(text) for key, text in recording["info"].items()}
        mark_collections(tables, recording["strings"], info)
        strings, unseen = add_storages(tables, info, recording["strings"], recording["start_realtime_ns"])
        found = {**recording["losses"], "skipped_storages": unseen}
        # What the recorder itself could tell only when it had stopped.
        found |= {name: told for name in TOLD_AT_STOP if isinstance(told := info.get(name), int)}
        tables["losses"] = loss_rows(found, stopped=stopped, pauses=info.get("pauses"))
        tables["cycles"] = one_cycle(info, recording["stop_ns"])
        info.update(
            process=recording["process"],
            start_realtime_ns=recording["start_realtime_ns"],
            stop_ns=recording["stop_ns"],
            complete=stopped,
        )
        if (monotonic_ns := recording.get("start_monotonic_ns", -1)) >= 0:
            info["start_monotonic_ns"] = monotonic_ns
        tables["threads"] = with_python_names(tables["threads"], info.pop("python_threads", None))
        errors = recording["clock_checks"].get("error_ns")
        if errors is not None and len(errors):
            info["clock_checks"] = {"readings": len(errors), "largest_error_ns": int(abs(errors).max())}
        return cls(assemble(tables, strings), strings, info, path)

    # What is in it

    @property
    def strings(self) -> list[str]:
        """Every string, each once; columns such as `spans.name` hold places in it. Entry 0 is empty."""
        if not isinstance(self._strings, list):
            self._strings = self._strings()
        return self._strings

    def columns(self, table: str) -> Columns:
        """Return the columns of one stored table, by its name in `kinetoscope.trace.STORED`.

        Raises:
            ArgumentError: No such table.
            StateError: The trace was closed.
        """
        if self._closed:
            raise StateError("the trace was closed; open it again to read more of it")
        try:
            return self._tables[table]
        except KeyError:
            known = ", ".join(self._tables)
            raise ArgumentError(f"a trace has no stored table {table!r}; it has: {known}") from None

    def column(self, table: str, name: str) -> NDArray[Any]:
        """Return one column of a stored table, computed on first use; do not change it.

        Args:
            table: A table of `kinetoscope.trace.STORED`, such as `spans`.
            name: One of its columns, such as `self_ns`.

        Returns:
            A numpy array, or a list of strings for a column of type `text`.

        Raises:
            ArgumentError: No such table or column.
        """
        return self.columns(table)[name]  # type: ignore[no-any-return]

    def cached(self, key: str, make: Callable[[], Kept]) -> Kept:
        """Return what `make` returned the first time it was called for `key`; used by tables that build on others."""
        kept: Kept = self._kept.get(key, _NOT_YET)
        if kept is _NOT_YET:
            with self._lock:
                kept = self._kept[key] = self._kept[key] if key in self._kept else make()
        return kept

    def forget(self, table: str, names: Sequence[str]) -> None:
        """Let columns be computed again when they are next asked for, and with them all that was cached.

        What was cached does not say which columns it was made from, and nothing is in it that cannot be made again.

        Args:
            table: A stored table.
            names: Columns of it; those that were recorded stay as they are.
        """
        with self._lock:
            if self._closed:
                return
            self._tables[table].forget(names)
            self._kept.clear()

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing; if not, `losses` says what."""
        return len(self.columns("losses")) == 0

    @property
    def losses(self) -> list[dict[str, Any]]:
        """What is missing, one mapping (`what`, `count`, `where`, `why`) for each kind of loss."""
        losses = self.columns("losses")
        columns = [
            losses[name] if isinstance(losses[name], list) else losses[name].tolist() for name in losses
        ]
        return [dict(zip(losses, row, strict=True)) for row in zip(*columns, strict=True)]

    @property
    def duration_ns(self) -> int:
        """From the start of the trace to its end, in nanoseconds."""
        spans = self.columns("spans")
        last = int((spans["start_ns"] + spans["duration_ns"]).max()) if len(spans) else 0
        stop_ns = self.info.get("stop_ns")
        return max(last, stop_ns) if isinstance(stop_ns, int) else last

    # As tables

    def table(self, name: str, **options: Any) -> pyarrow.Table:
        """Return a table for people: names, modules and stacks as strings, -1 as null.

        Args:
            name: One of `table_names`, such as `spans`, `ops`, `modules`, `steps`, `lines` or `memory`.
            **options: Passed to the table's own function.

        Returns:
            An Arrow table. It has `__arrow_c_stream__`, so pandas, polars and DuckDB take it without a copy; the
            meaning of each column is in its field's metadata.

        Raises:
            ArgumentError: No such table.
        """
        if self._closed:
            raise StateError("the trace was closed; open it again to read more of it")
        if name not in catalog.TABLES:
            raise ArgumentError(f"there is no table {name!r}; choose one of: {', '.join(self.table_names)}")
        found: pyarrow.Table = catalog.resolve(catalog.TABLES[name])(self, **options)
        return found

    @property
    def table_names(self) -> tuple[str, ...]:
        """The names that `table`, `to_pandas`, `to_polars` and `sql` know."""
        return tuple(catalog.TABLES)

    def to_pandas(self, name: str = "spans", **options: Any) -> pandas.DataFrame:
        """Return `table(name)` as a pandas data frame.

        Raises:
            ArgumentError: No such table.
            MissingDependencyError: pandas is not installed.
        """
        from kinetoscope.trace._frames import to_pandas

        return to_pandas(self.table(name, **options))

    def to_polars(self, name: str = "spans", **options: Any) -> polars.DataFrame:
        """Return `table(name)` as a polars data frame.

        Raises:
            ArgumentError: No such table.
            MissingDependencyError: polars is not installed.
        """
        from kinetoscope.trace._frames import to_polars

        return to_polars(self.table(name, **options))

    def sql(self, query: str) -> pyarrow.Table:
        """Run a DuckDB query in which every table of the trace can be named.

        Args:
            query: One SQL statement, such as ``select name, sum(self_ns) from spans group by name``.

        Returns:
            The result as an Arrow table.

        Raises:
            ArgumentError: DuckDB refused the query; the message is DuckDB's.
            MissingDependencyError: DuckDB is not installed (``pip install kinetoscope[sql]``).
        """
        from kinetoscope.trace._sql import run_query

        return run_query(self, query)

    def events(self) -> Any:
        """Return the spans as an `EventList`, as `torch.profiler` gives them: a view that makes events on demand.

        As in torch, calls of Python functions and modules are among them where the session asked for stacks.
        """
        return catalog.resolve(catalog.VIEWS["events"])(self)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        include_python_functions: bool | None = None,
    ) -> Any:
        """Return the events added up by name, as an `EventList` with a `table()`.

        Args:
            group_by_input_shape: Keep calls with different input shapes apart.
            group_by_stack_n: Keep calls apart whose innermost this many Python frames differ.
            group_by_overload_name: Keep overloads of an operator apart.
            include_python_functions: Whether the calls of Python functions and modules that `events()` lists are
                among the sums; None does as the release of torch that recorded the trace: up to 2.13 they are, from
                2.14 on they are not.

        Returns:
            An `EventList` of `FunctionEventAvg`.
        """
        view = catalog.resolve(catalog.VIEWS["key_averages"])
        return view(
            self, group_by_input_shape, group_by_stack_n, group_by_overload_name, include_python_functions
        )

    # As files

    def save(self, path: str | os.PathLike[str], *, table: str | None = None) -> None:
        """Write the trace to a file whose suffix names the format: `.ktrace` keeps everything and is small.

        The page "Formats" of the documentation says what the others are for. The file appears under its name only when
        it is whole.

        Args:
            path: Where to write.
            table: For formats that hold one table, which one; `spans` if None.

        Raises:
            ArgumentError: No format has this suffix, there is no such table, or the format holds more than one.
            OSError: The file cannot be written.
        """
        save(self, path, table)

    def close(self) -> None:
        """Let go of the file and of all columns; columns already handed out stay valid. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._kept.clear()
            self._tables = {}
            if self._release is not None:
                self._release()
                self._release = None

    def on_close(self, release: Callable[[], None]) -> None:
        """Have `release` called once when the trace is closed."""
        self._release = release

    __reduce__, __copy__, __deepcopy__ = pickled, itself, itself

    def __enter__(self) -> Self:
        """Return the trace itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the trace."""
        self.close()

    # As text

    def __repr__(self) -> str:
        """One line: where from, how much, whether complete."""
        from kinetoscope.trace._looks import one_line

        return "<Trace (closed)>" if self._closed else one_line(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print as a small table in rich."""
        from kinetoscope.trace._looks import rich_table

        yield repr(self) if self._closed else rich_table(self)

    def _repr_html_(self) -> str:
        """Show in notebooks what is in it, and the operators that took most."""
        page: str = "<p>Trace (closed)</p>" if self._closed else catalog.resolve(catalog.PAGE)(self)
        return page
