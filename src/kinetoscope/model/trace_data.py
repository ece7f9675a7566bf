"""What a trace holds: columns, strings, what is known about the run, and what was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.model.assemble import assemble
from kinetoscope.model.run_info import Metadata
from kinetoscope.model.schema import STORED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from kinetoscope.model.assemble import Strings
    from kinetoscope.model.columns import Columns
    from kinetoscope.model.run_info import RunInfo

    Parts = tuple[dict[str, dict[str, Any]], list[str], dict[str, Any], Path | None]

AnyTrace = TypeVar("AnyTrace", bound="TraceData")
Kept = TypeVar("Kept")

_NOT_YET: Any = object()


class TraceData:
    """The columns, strings, metadata and losses of one recording, as every room below the public `Trace` sees them.

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
        self._kept: dict[str, Any] = {}
        # That of the columns: they ask for what is cached, and what is cached asks for them.
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
        rows: Mapping[str, int | Callable[[], int]] | None = None,
    ) -> Self:
        """Make a trace from columns that something else collected.

        Args:
            tables: For each table its columns by name, as `kinetoscope.model.schema.STORED` defines them. Missing
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

    def saved_info(self) -> dict[str, Any]:
        """The metadata that a file of this trace keeps."""
        return dict(self.info)

    @property
    def run_info(self) -> RunInfo:
        """The metadata as typed values: what a file does not state, or states in a form that makes no sense, is None or empty."""
        return self.info.typed

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing; if not, `losses` says what."""
        return len(self.columns("losses")) == 0

    @property
    def losses(self) -> list[dict[str, Any]]:
        """What is missing, one mapping (`what`, `count`, `where`, `why`, `code`) for each kind of loss."""
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
        stop_ns = self.run_info.stop_ns
        return last if stop_ns is None else max(last, stop_ns)

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

    def __reduce__(self) -> tuple[Any, tuple[type[Self], Parts]]:
        """Pickle what was recorded; what follows from it is computed again. A closed trace raises `StateError`."""
        tables = {}
        for table in STORED:
            columns = self.columns(table)
            tables[table] = {name: columns[name] for name in columns.given}
        return _made_again, (type(self), (tables, self.strings, self.info, self.path))

    def __copy__(self) -> Self:
        """The trace itself, which nobody can change."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """The trace itself, which nobody can change."""
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
    """Make the trace that was pickled."""
    tables, strings, info, path = parts
    return kind.from_columns(tables, strings=strings, info=info, path=path)
