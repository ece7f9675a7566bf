"""The trace: what can be done with a recording."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kinetoscope._errors import ArgumentError, checked_choice, checked_whole, needed
from kinetoscope._import_aside import import_aside
from kinetoscope.combine.cut import ENDLESS_NS, TracePart, cut
from kinetoscope.formats.suffixes import ONE_TABLE, WHOLE_TRACE, Format, suffix_of
from kinetoscope.model import units
from kinetoscope.model.assemble import Strings
from kinetoscope.model.columns import Columns
from kinetoscope.model.rows import Rows
from kinetoscope.model.trace_data import TraceData
from kinetoscope.trace.tables import TABLES, checked_options, maker, rows_where

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from rich.console import Console, ConsoleOptions, RenderResult

    from kinetoscope.analyses.account import Account, WhatIf
    from kinetoscope.analyses.overview import Overview
    from kinetoscope.torch_events.event_list import EventList


DEVICE_RULES = ("time", "launch")


class Trace(TraceData):
    """Everything one recording knows, as columns that are computed when they are first used.

    Get one from `kinetoscope.open`, from `prof.trace` after a session, or from `Trace.from_columns`. Times are integer
    nanoseconds from the start of the trace. A trace may be used from several threads.

    Attributes:
        info: The metadata of the run, among them `process`, `start_realtime_ns`, `start_monotonic_ns` (by the machine's
            monotonic clock), `boot_id` (the machine and its boot), `stop_ns` and `complete` (False if the recording was not
            stopped, because the process was killed or still runs).
        path: The file it was opened from, if any.
    """

    def __init__(
        self, tables: dict[str, Columns], strings: Strings, info: dict[str, Any], path: Path | None = None
    ) -> None:
        """Hold the parts; use the class methods to make a trace."""
        super().__init__(tables, strings, info, path)
        tables["spans"].source(("flops", "bytes_moved"), self._costs)

    @classmethod
    def of(cls, data: TraceData) -> Self:
        """Make a trace from the data of a reader, which must not be used afterwards: the two share everything."""
        return data.as_type(cls)

    @classmethod
    def from_recording(cls, path: str | os.PathLike[str]) -> Self:
        """Read a recording, also that of a process that was killed.

        Args:
            path: The file that the recorder wrote.

        Returns:
            The trace; `info["complete"]` is False when the recording was never stopped.

        Raises:
            FormatError: The file is not a recording, or has a version that this release does not read.
            OSError: The file cannot be read.
        """
        import_aside()
        from kinetoscope.combine.sources import with_rows
        from kinetoscope.storage.recording import read_recording

        data, rows = read_recording(Path(path))
        return with_rows(cls.of(data), [rows])

    def saved_info(self) -> dict[str, Any]:
        """The metadata that is saved with this trace: its own, the costs from registered formulas, and the text of source lines."""
        import_aside()
        from kinetoscope.tables.costs.columns import saved_info
        from kinetoscope.tables.host import source_lines

        return {**self.info, **saved_info(self), **source_lines.saved_info(self)}

    def _costs(self) -> dict[str, Rows]:
        import_aside()
        from kinetoscope.tables.costs.columns import span_costs

        return span_costs(self)

    # As tables

    def table(self, name: str, *, where: Mapping[str, object] | None = None, **options: Any) -> pyarrow.Table:
        """Return a table with names, modules and stacks as strings, and -1 as null.

        Args:
            name: One of `table_names`, such as `spans`, `ops`, `modules`, `steps`, `lines` or `memory`.
            where: Only rows with these values: for each column a value, or a list of which any will do, such as
                ``{"name": "aten::mm"}``; None is null. Shares are still those of the whole table.
            **options: Options of that table, such as ``by="module"``. The page "Tables" of the documentation lists them.

        Returns:
            An Arrow table. It has `__arrow_c_stream__`, so pandas, polars and DuckDB use it without a copy; the
            description of each column is in the metadata of its field.

        Raises:
            ArgumentError: No such table, option or column, or a value that it cannot have.
        """
        self.columns("spans")  # says it if the trace was closed
        if name not in self.table_names:
            raise ArgumentError(f"there is no table {name!r}; choose one of: {', '.join(self.table_names)}")
        rows = maker(name)(self, **checked_options(name, options))
        return rows if where is None else rows_where(rows, where)

    def findings(self) -> pyarrow.Table:
        """Return what makes the run slow: the table `findings`, the largest possible gain first.

        Returns:
            A row for each finding: a stable code, a sentence, its share of step time, a ceiling of the gain, what to change, and where;
            no rows of a healthy run.

        Raises:
            StateError: The trace was closed.
        """
        return self.table("findings")

    def account(self) -> Account:
        """Return what the time of steps was spent on, and how far each kind of steps is from its floor: what it needs on this machine.

        Returns:
            For each kind of steps the time of each entry (needed, slow, not needed, python, waiting ...), which add up to its duration,
            its floor, and the rows of the table `account`: entries by cause, operator, line and module.

        Raises:
            StateError: The trace was closed.
        """
        import_aside()
        from kinetoscope.analyses.account import account_of

        self.columns("spans")  # says it if the trace was closed
        return account_of(self)

    def what_if(self, *mended: str) -> WhatIf:
        """Predict a step in which some lines, causes or operators of the account take only what they need on this machine.

        Args:
            mended: For each a line (`train.py:12`, or the finding `hot-line:train.py:12`), a cause (`fresh memory`), an entry (`python`) or an operator
                (`aten::zero_`) of the table `account`.

        Returns:
            The step now and as predicted; overlaps count once. For several ranks, a replay of their collectives says what the job gains: nothing
            from a rank that is not the last to arrive.

        Raises:
            ArgumentError: There is no time above the floor that one of these is about.
            StateError: The trace was closed.
        """
        import_aside()
        from kinetoscope.analyses.what_if import what_if

        self.columns("spans")  # says it if the trace was closed
        return what_if(self, *mended)

    def overview(self) -> Overview:
        """Return where the time went: the numbers of the summary, of a notebook's page and of the viewer's overview.

        Returns:
            The steps and their parts, the busiest operators, ranges, modules, lines and kernels, processes, operations and memory; each is
            computed when it is first read.

        Raises:
            StateError: The trace was closed.
        """
        import_aside()
        from kinetoscope.analyses.overview import overview

        self.columns("spans")  # says it if the trace was closed
        return overview(self)

    def compare_steps(self, step: int | None = None, other: int | None = None) -> pyarrow.Table:
        """Return what a step has more of than others: the table `step_difference`.

        Args:
            step: The number of the step; None for the one that exceeds the usual duration of its kind most. In a trace with requests and without
                steps, the number of a request, as in the table `requests`.
            other: The number of the step to compare with; None for the median of its kind, or of requests with its name.

        Returns:
            Rows for the parts of the step, operators, source lines, Python between operators, modules and kernels: the time in the
            step and the usual one in nanoseconds, sorted by descending difference.

        Raises:
            ArgumentError: There is no such step.
            StateError: There is no other step, or the trace was closed.
        """
        return self.table("step_difference", step=step, other=other)

    def samples(self) -> pyarrow.Table:
        """Return the table `samples`: which line of Python each thread was in, 100 times a second.

        Returns:
            One row for each sample of a thread: its time and the time it stands for in nanoseconds, the state of the thread,
            the line, the module and the stack. No rows for traces that were not recorded by the native recorder.

        Raises:
            StateError: The trace was closed.
        """
        return self.table("samples")

    @property
    def table_names(self) -> tuple[str, ...]:
        """The names that `table`, `to_pandas`, `to_polars` and `sql` accept."""
        return tuple(TABLES)

    def to_pandas(self, name: str = "spans", **options: Any) -> pandas.DataFrame:
        """Return `table(name)` as a pandas data frame.

        Raises:
            ArgumentError: No such table.
            MissingDependencyError: pandas is not installed.
        """
        table = self.table(name, **options)
        import_aside()
        with needed("to_pandas() needs pandas: install it with `pip install pandas`"):
            import pandas as pd
        import pyarrow as pa

        nullable = {pa.int8(): pd.Int8Dtype(), pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
        # pandas would turn integers with nulls into floats, which cannot hold every nanosecond.
        columns = {
            title: column.to_pandas(types_mapper=nullable.get if column.null_count else None)
            for title, column in zip(table.column_names, table.columns, strict=True)
        }
        return pd.DataFrame(columns, copy=False)

    def to_polars(self, name: str = "spans", **options: Any) -> polars.DataFrame:
        """Return `table(name)` as a polars data frame.

        Raises:
            ArgumentError: No such table.
            MissingDependencyError: polars is not installed.
        """
        import_aside("polars")
        with needed("to_polars() needs polars: install it with `pip install polars`"):
            import polars as pl

        return pl.DataFrame(self.table(name, **options))

    def sql(self, query: str) -> pyarrow.Table:
        """Run a DuckDB query over the tables of the trace.

        Args:
            query: One SQL statement, such as ``select name, sum(self_ns) from spans group by name``.

        Returns:
            The result as an Arrow table.

        Raises:
            ArgumentError: DuckDB rejected the query; the message is DuckDB's.
            MissingDependencyError: DuckDB is not installed (``pip install kinetoscope[sql]``).
        """
        with needed("trace.sql() needs DuckDB: install it with `pip install kinetoscope[sql]`"):
            import duckdb

        with duckdb.connect(":memory:") as connection:
            for name in tables_named(self, query):
                connection.register(name, self.table(name))
            try:
                result = connection.sql(query)
            except duckdb.Error as error:
                raise ArgumentError(
                    f"DuckDB rejected the query: {error}. Tables of a trace: {', '.join(self.table_names)}"
                ) from error
            if result is None:
                raise ArgumentError("the query returns no rows; use `select`")
            try:
                rows: pyarrow.Table = result.to_arrow_table()
            except duckdb.Error as error:
                raise ArgumentError(f"DuckDB could not run the query: {error}") from error
            return rows

    # As parts of it

    def window(self, start_ns: int = 0, end_ns: int | None = None, *, device: str = "time") -> Trace:
        """Return a window of time as a trace.

        Its times count from `start_ns`, as in a recording that started there; windows can be taken of windows. Spans that
        cross an edge are clipped: `flags` (and `unfinished` in the table `spans`) mark them, and `info["selections"]` has
        their number. The times in disjoint windows add up to those of the whole trace. Memory is as in the whole trace:
        blocks that were live at `start_ns` are allocations before the start, at -1 ns.

        Args:
            start_ns: Where it starts, in nanoseconds from the start of this trace.
            end_ns: Where it ends, exclusive; None for the end of the trace.
            device: `time`: device work that ran in the window, clipped at its edges. `launch`: device work that was launched
                in the window, unclipped, whenever it ran; device spans with an unknown launch by their time.

        Returns:
            A new trace; this one is unchanged and can be closed.

        Raises:
            ArgumentError: The window is empty, lies outside the trace, or `device` is something else.
            StateError: The trace was closed.
        """
        since_start = " nanoseconds from the start of the trace"
        start = checked_whole("start_ns", start_ns, 0, since_start)
        end = ENDLESS_NS if end_ns is None else checked_whole("end_ns", end_ns, 0, since_start)
        if end > ENDLESS_NS:
            raise ArgumentError(
                f"end_ns is {end}, far after the end of the trace; leave it out for all of it"
            )
        if end <= start:
            raise ArgumentError(
                f"the window starts at {start} ns and ends at {end} ns: the end must be after the start"
            )
        lasted_ns = self.duration_ns
        if start > 0 and start >= lasted_ns:
            raise ArgumentError(
                f"the window starts at {units.duration(start)}, but the trace is only {units.duration(lasted_ns)} long"
            )
        note = {
            "window_ns": [start, None if end == ENDLESS_NS else end],
            "device": checked_choice("device", device, DEVICE_RULES),
        }
        return cut(self, TracePart.of_window(self, start, end, by_launch=device == "launch", selection=note))

    def select_steps(self, numbers: Iterable[int], *, device: str = "launch") -> Trace:
        """Return some steps as a trace.

        Consecutive steps include what ran between them; other gaps stay gaps in time. Spans that cross an edge are clipped
        as in `window`; a span that overlaps several groups of steps has a piece in each of them.

        Args:
            numbers: Their numbers, as in the table `steps`. If several steps have a number, all of them are selected.
            device: `launch`: device work that these steps launched, unclipped, also if it ran later; device spans with an
                unknown launch by their time. `time`: device work that ran during these steps, clipped at their edges.

        Returns:
            A new trace; this one is unchanged and can be closed.

        Raises:
            ArgumentError: A step is not in the trace, the trace has no steps, or `device` is not valid.
            StateError: The trace was closed.
        """
        steps = self.columns("steps")
        existing = steps["number"]
        if len(existing) == 0:
            raise ArgumentError(
                "the trace has no steps; call step() in the loop while recording, or use a window"
            )
        wanted = _existing(numbers, "step", existing.tolist())
        rows = np.flatnonzero(np.isin(existing, wanted))
        start, end = _stretches(rows, existing, steps["start_ns"], steps["start_ns"] + steps["duration_ns"])
        if len(start) == 0:
            raise ArgumentError(
                f"step {units.ranges(wanted)} has a duration of 0, so there is nothing to select"
            )
        note = {
            "steps": wanted,
            "windows_ns": np.column_stack((start, end)).tolist(),
            "device": checked_choice("device", device, DEVICE_RULES),
        }
        part = TracePart(int(start[0]), start, end, steps=rows, by_launch=device == "launch", selection=note)
        return cut(self, part)

    def select_ranks(self, ranks: Iterable[int]) -> Trace:
        """Return some ranks of a distributed run as a trace, on the same time axis.

        Counters and metadata of the whole run are included; threads and devices of other ranks are not.

        Args:
            ranks: Their numbers.

        Returns:
            A new trace; this one is unchanged and can be closed.

        Raises:
            ArgumentError: A rank is not in the trace, or the trace has no ranks.
            StateError: The trace was closed.
        """
        import_aside()
        from kinetoscope.tables.stored import rank

        own_rank = rank(self)
        of_thread = self.column("threads", "rank")
        of_thread = np.where(of_thread < 0, -1 if own_rank is None else own_rank, of_thread)
        existing = sorted(set(of_thread.tolist()) - {-1} | ({own_rank} if own_rank is not None else set()))
        if not existing:
            raise ArgumentError("the trace has no ranks")
        wanted = _existing(ranks, "rank", existing)
        threads = np.isin(of_thread, [*wanted, -1])
        part = TracePart.of_window(self, 0, ENDLESS_NS, threads=threads, selection={"ranks": wanted})
        return cut(self, part)

    # As torch's events

    def events(self) -> EventList:
        """Return the spans as an `EventList`, API-compatible with `torch.profiler`: a view that makes events on demand.

        As in torch, it includes calls of Python functions and modules if the session had `with_stack=True`.
        """
        import_aside()
        from kinetoscope.torch_events.event_list import events_of

        return events_of(self)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
        include_python_functions: bool | None = None,
    ) -> EventList:
        """Return the events added up by name, as an `EventList` with a `table()`.

        Args:
            group_by_input_shape: Group by input shapes.
            group_by_stack_n: Group by this many innermost Python frames.
            group_by_overload_name: Group by the overload of an operator.
            include_python_functions: Whether to include the calls of Python functions and modules that `events()`
                lists. None does what the release of torch that recorded the trace does: up to 2.13 they are included,
                from 2.14 on they are not.

        Returns:
            An `EventList` of `FunctionEventAvg`.
        """
        return self.events().key_averages(
            group_by_input_shape, group_by_stack_n, group_by_overload_name, include_python_functions
        )

    # As files

    def save(self, path: str | os.PathLike[str], *, table: str | None = None) -> None:
        """Write the trace to a file; the suffix selects the format. `.ktrace` contains everything and is small.

        The page "Formats" of the documentation says what the others are for. The file appears under its name only when
        it is whole.

        Args:
            path: Where to write.
            table: For formats that hold one table, which one; `spans` if None.

        Raises:
            ArgumentError: No format has this suffix, there is no such table, or the format holds more than one.
            OSError: The file cannot be written.
        """
        self.columns("spans")  # says it if the trace was closed
        import_aside()
        suffix = suffix_of(path)
        if suffix in ONE_TABLE:
            _save_table(self, Path(path), ONE_TABLE[suffix].name, table or "spans")
            return
        if table is not None:
            raise ArgumentError(
                f"{path}: {suffix} files contain all tables, so table={table!r} cannot be chosen; formats for one table: "
                f"{', '.join(ONE_TABLE)}"
            )
        _save_whole(self, Path(path), WHOLE_TRACE[suffix])

    # As text

    def __repr__(self) -> str:
        """One line: where from, how much, whether complete."""
        import_aside()
        from kinetoscope.analyses.description import one_line

        return "<Trace (closed)>" if self._closed else one_line(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the main facts in rich."""
        import_aside()
        from kinetoscope.analyses.description import main_facts
        from kinetoscope.display.lines import lines_of

        yield from [repr(self)] if self._closed else lines_of(main_facts(self), options.max_width)

    def _repr_html_(self) -> str:
        import_aside()
        from kinetoscope.trace.page import trace_page

        return "<p>Trace (closed)</p>" if self._closed else trace_page(self)


def _stretches(rows: Rows, number: Rows, start_ns: Rows, end_ns: Rows) -> tuple[Rows, Rows]:
    """The time windows of steps; adjacent or overlapping steps become one window."""
    windows: list[list[int]] = []
    previous = -2
    for row in rows.tolist():
        start, end = int(start_ns[row]), int(end_ns[row])
        follows = row == previous + 1 and number[row] - number[previous] in (0, 1)
        if windows and (follows or start <= windows[-1][1]):
            windows[-1][1] = max(end, windows[-1][1])
        else:
            windows.append([start, end])
        previous = row
    left = [window for window in windows if window[0] < window[1]]
    return np.array([start for start, _ in left], np.int64), np.array([end for _, end in left], np.int64)


def _existing(numbers: Iterable[int], noun: str, existing: list[int]) -> list[int]:
    wanted = sorted({operator.index(number) for number in numbers})
    missing = sorted(set(wanted) - set(existing))
    if missing or not wanted:
        problem = f"the trace has no {noun} {units.ranges(missing)}" if missing else f"no {noun} was passed"
        raise ArgumentError(f"{problem}; it has {units.ranges(existing)}")
    return wanted


_WORD = re.compile(r"\w+")
# Statements that list tables without naming them need all of them.
_LISTING = {"show", "describe", "summarize", "information_schema"}


def tables_named(trace: Trace, query: str) -> list[str]:
    """The tables of a trace that a query may be about: those whose names are words of it."""
    words = {word.lower() for word in _WORD.findall(query)}
    lists_tables = words & _LISTING or any(word.startswith("duckdb_") for word in words)
    return [name for name in trace.table_names if name in words or lists_tables]


def _save_table(trace: Trace, path: Path, form: str, table: str) -> None:
    from kinetoscope.storage.table_files import write_arrow, write_parquet

    if form == "arrow":
        write_arrow(trace.table(table), path, trace.saved_info())
        return
    rows = len(trace.columns("spans")) if table == "spans" else None
    write_parquet(partial(trace.table, table), path, trace.saved_info(), rows)


def _save_whole(trace: Trace, path: Path, form: Format) -> None:
    match form.name:
        case "ktrace":
            from kinetoscope.storage.ktrace import write_ktrace

            write_ktrace(trace, path)
        case "chrome":
            from kinetoscope.formats.chrome.write import write_chrome_trace

            write_chrome_trace(trace, path)
        case "memory timeline" | "memory events":
            from kinetoscope.formats.memory_timeline import write_memory_timeline

            write_memory_timeline(trace, path)
        case "speedscope":
            from kinetoscope.formats.stacks import write_speedscope

            write_speedscope(trace, path)
        case "tables":
            from kinetoscope.storage.table_files import write_tables

            write_tables(trace, path, trace.table)
        case _:
            from kinetoscope.torch_events.event_list import write_collapsed

            write_collapsed(trace, path)
