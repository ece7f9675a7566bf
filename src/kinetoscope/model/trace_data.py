"""A trace: columns, strings, the metadata of the run, and losses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.model.assemble import Strings, assemble
from kinetoscope.model.columns import Columns
from kinetoscope.model.losses import losses_of
from kinetoscope.model.run_info import Metadata, RunInfo
from kinetoscope.model.schema import STORED

Parts = tuple[dict[str, dict[str, Any]], list[str], dict[str, Any], Path | None]

AnyTrace = TypeVar("AnyTrace", bound="TraceData")
Options = ParamSpec("Options")
Made = TypeVar("Made")

_NOT_YET: Any = object()


class TraceData:
    """The columns, strings, metadata and losses of one recording, as the rooms below the public `Trace` use them.

    Columns are computed when they are first used. Times are integer nanoseconds from the start of the trace. A trace may be
    used from several threads.

    Attributes:
        info: The metadata of the run.
        path: The file it was opened from, if any.
    """

    def __init__(
        self, tables: dict[str, Columns], strings: Strings, info: dict[str, Any], path: Path | None = None
    ) -> None:
        """Hold the parts; use `from_columns` to make a trace."""
        self._tables = tables
        self._strings = strings
        self.info = Metadata(info) if type(info) is not Metadata else info
        self.path = path
        self._cache: dict[Hashable, Any] = {}
        # The lock of the columns: columns use cached values, and cached values use columns.
        self._lock = tables["spans"].lock
        self._closed = False
        self._release: Callable[[], None] | None = None

    @classmethod
    def from_columns(
        cls,
        tables: Mapping[str, Mapping[str, Any]],
        *,
        strings: list[str],
        info: Mapping[str, Any] | None = None,
        path: Path | None = None,
    ) -> Self:
        """Make a trace from columns that something else collected.

        Args:
            tables: For each table its columns by name, as `kinetoscope.model.schema.STORED` defines them. Missing
                columns have their default, missing tables no rows. Spans must be sorted by thread, then start, then
                the longer one first; allocations by time. A column may be a function that makes it when it is needed.
            strings: The string table; entry 0 must be the empty string.
            info: The metadata of the run.
            path: The file it came from.

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
        metadata: dict[str, Any] = {"complete": True, **(info or {})}
        return cls(assemble(tables, strings), strings, metadata, path)

    def as_type(self, kind: type[AnyTrace]) -> AnyTrace:
        """Return this as a trace of another class; the two share everything, so that this one must not be used afterwards."""
        trace = kind(self._tables, self._strings, self.info, self.path)
        if self._release is not None:
            trace.on_close(self._release)
        self._release = None
        return trace

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
            names = ", ".join(self._tables)
            raise ArgumentError(f"a trace has no stored table {table!r}; it has: {names}") from None

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

    def recorded_columns(self) -> dict[str, dict[str, Any]]:
        """The columns of the stored tables, without those that follow from others.

        Raises:
            StateError: The trace was closed.
        """
        tables = {table: self.columns(table) for table in STORED}
        return {
            table: {name: columns[name] for name in columns.given}
            for table, columns in tables.items()
            if columns.given
        }

    def cached(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the cached value for `key`, which `make` computes the first time; for tables that build on others."""
        value: Made = self._cache.get(key, _NOT_YET)
        if value is _NOT_YET:
            with self._lock:
                value = self._cache[key] = self._cache[key] if key in self._cache else make()
        return value

    def forget(self, table: str, names: Sequence[str]) -> None:
        """Compute columns again when they are next used, and everything that was cached.

        Cached values do not record which columns they were computed from, and all of them can be computed again.

        Args:
            table: A stored table.
            names: Its columns; recorded columns are unchanged.
        """
        with self._lock:
            if self._closed:
                return
            self._tables[table].forget(names)
            self._cache.clear()

    def saved_info(self) -> dict[str, Any]:
        """The metadata that a file of this trace keeps."""
        return dict(self.info)

    @property
    def run_info(self) -> RunInfo:
        """The metadata as typed values: what a file does not state, or states in a form that makes no sense, is None or empty."""
        return self.info.typed

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing; otherwise `losses` has what is."""
        return len(self.columns("losses")) == 0

    @property
    def losses(self) -> list[dict[str, Any]]:
        """One mapping (`what`, `count`, `where`, `why`, `code`) for each kind of loss."""
        return [dict(vars(loss)) for loss in losses_of(self.columns("losses"))]

    @property
    def extent_ns(self) -> tuple[int, int]:
        """When it begins, which is at 0 or with a span before that, and when it ends."""
        start = self.column("spans", "start_ns")
        return min(0, int(start.min(initial=0))), self.duration_ns

    @property
    def duration_ns(self) -> int:
        """From the start of the trace to its end, in nanoseconds."""
        spans = self.columns("spans")
        last = self.cached("last end", lambda: int((spans["start_ns"] + spans["duration_ns"]).max(initial=0)))
        stop_ns = self.run_info.stop_ns
        return last if stop_ns is None else max(last, stop_ns)

    def close(self) -> None:
        """Close the file and release all columns; columns already returned stay valid. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._cache.clear()
            for columns in self._tables.values():
                columns.close()
            self._tables = {}
            if self._release is not None:
                self._release()
                self._release = None

    def on_close(self, release: Callable[[], None]) -> None:
        """Have `release` called once when the trace is closed."""
        self._release = release

    def __reduce__(self) -> tuple[Any, tuple[type[Self], Parts]]:
        """Pickle what was recorded; what follows from it is computed again. A closed trace raises `StateError`."""
        return _made_again, (type(self), (self.recorded_columns(), self.strings, self.info, self.path))

    def __copy__(self) -> Self:
        """The trace itself, which is immutable."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """The trace itself, which is immutable."""
        return self

    def __enter__(self) -> Self:
        """Return the trace itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the trace."""
        self.close()


def _made_again(kind: type[AnyTrace], parts: Parts) -> AnyTrace:
    tables, strings, info, path = parts
    return kind.from_columns(tables, strings=strings, info=info, path=path)


def derived(
    make: Callable[Concatenate[AnyTrace, Options], Made],
) -> Callable[Concatenate[AnyTrace, Options], Made]:
    """Decorate a function of a trace and of values that can be keys, so that it runs once for each trace and values.

    Later calls get what the first one returned, which they must not change.
    """
    name = f"{make.__module__}.{make.__qualname__}"
    _, *options = inspect.signature(make).parameters.values()
    defaults = [(option.name, option.default) for option in options]

    @wraps(make)
    def cached(trace: AnyTrace, /, *args: Options.args, **kwargs: Options.kwargs) -> Made:
        if not defaults:
            return trace.cached(name, lambda: make(trace, *args, **kwargs))
        arguments = [kwargs.get(option, default) for option, default in defaults[len(args) :]]
        return trace.cached((name, *args, *arguments), lambda: make(trace, *args, **kwargs))

    return cached
