"""The sections of the summaries of a job as columns over all ranks, and what several answers need of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.analyses.meetings import Meetings
from kinetoscope.comparison.kinds import merged_kinds
from kinetoscope.model.arrow import integers, number_array, to_numpy
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Mask, Rows, places_of
from kinetoscope.summaries.summary import COLUMNS, SECTIONS, read
from kinetoscope.tables.step_kinds import LEAST_OF_KIND, Operators

Made = TypeVar("Made")

# By far the largest section, which one table needs: it is read when that is made, that of so many ranks at a time.
_LARGE = "sketches"
_BATCH = 64
_READERS = 8


class Group(NamedTuple):
    """A process group of the job; two may have one name.

    Attributes:
        name: Its name, or its ranks; empty in a job with one group.
        description: The program's description of it; empty without.
        ranks: Its global ranks; empty where they are not known.
        size: How many these are; -1 where that is not known.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    size: int


class Sections:
    """The summaries of the ranks of a job.

    Attributes:
        summaries: One row for each rank, in order of rank.
        ranks: The rank of each row; -1 for that of a program without ranks.
        unread: A sentence for each file that could not be read.
    """

    def __init__(self, summaries: Sequence[pa.Table], files: Sequence[Path] = ()) -> None:
        """Take summaries.

        Args:
            summaries: Tables with any number of rows.
            files: Where each of them was read from, if they lack a section.

        Raises:
            ArgumentError: There are none, or two of one rank.
        """
        ranks = [-1 if rank is None else rank for table in summaries for rank in table["rank"].to_pylist()]
        if not ranks:
            raise ArgumentError("there are no summaries: name at least one file or a folder with some")
        if len(set(ranks)) < len(ranks):
            twice = min(rank for rank in set(ranks) if ranks.count(rank) > 1)
            whose = "no rank" if twice < 0 else f"rank {twice}"
            raise ArgumentError(f"several summaries are of {whose}: pass those of one job, each rank once")
        self.unread: list[str] = []
        self._order = np.argsort(ranks, kind="stable").tolist()
        self._files = files
        self._made: dict[str, Any] = {}
        # Not `take`, which copies lists one by one.
        self.summaries = pa.concat_tables(self._ordered(summaries))
        self.ranks: Rows = np.sort(np.array(ranks, dtype=np.int64))

    @classmethod
    def of_files(cls, files: Sequence[Path]) -> Sections:
        """Read the files of summaries; one that cannot be read costs no other.

        Raises:
            FormatError: None of them is a summary.
        """
        if not files:
            return cls([])

        def attempt(file: Path) -> pa.Table | FormatError:
            try:
                return read(file, [name for name in COLUMNS if name != _LARGE])
            except FormatError as error:
                return error

        with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
            results = list(readers.map(attempt, files))
        errors = [result for result in results if isinstance(result, FormatError)]
        if len(errors) == len(files):
            raise errors[0]
        is_read = [isinstance(result, pa.Table) for result in results]
        sections = cls([*compress(results, is_read)], [*compress(files, is_read)])
        sections.unread = [str(error) for error in errors]
        return sections

    def __len__(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def _ordered(self, tables: Sequence[pa.Table]) -> list[pa.Table]:
        rows = [table.slice(row, 1) for table in tables for row in range(table.num_rows)]
        return [rows[position] for position in self._order]

    def records(self, name: str) -> dict[str, pa.Array]:
        """The columns of a section of all ranks, and `row`: for each record the row of its rank in `summaries`.

        Raises:
            ArgumentError: There is no such section.
        """
        if name not in SECTIONS:
            raise ArgumentError(f"there is no section {name!r}: the sections are {', '.join(SECTIONS)}")
        if name not in self.summaries.column_names:
            lists = pa.concat_tables(self._ordered([read(file, [name]) for file in self._files]))[name]
            return _records(lists, np.arange(len(self)))
        return self.cached(name, lambda: _records(self.summaries[name], np.arange(len(self))))

    def batches(self, name: str) -> Iterator[dict[str, pa.Array]]:
        """The same of some ranks at a time, in any order, where it is not in memory."""
        if name in self.summaries.column_names:
            yield self.records(name)
            return
        first_row = 0
        for begin in range(0, len(self._files), _BATCH):
            table = pa.concat_tables([read(file, [name]) for file in self._files[begin : begin + _BATCH]])
            yield _records(table[name], np.arange(first_row, first_row + table.num_rows))
            first_row += table.num_rows

    def cached(self, key: str, make: Callable[[], Made]) -> Made:
        """Return the cached value for `key`, which `make` computes the first time; for what several tables need."""
        if key not in self._made:
            self._made[key] = make()
        value: Made = self._made[key]
        return value

    def rows(self, name: str) -> Rows:
        """For each record of a section the row of its rank in `summaries`."""
        return to_numpy(self.records(name)["row"])

    def counts(self, name: str) -> Rows:
        """How many records of a section each rank has."""
        return Groups(self.rows(name), len(self)).sizes()

    def numbers(self, name: str, column: str) -> Rows:
        """A column of integers of a section, -1 for null; do not change it."""
        values = self.records(name)[column]
        return integers(values) if values.null_count else to_numpy(values).astype(np.int64, copy=False)

    def codes(self, name: str, column: str) -> NDArray[np.int32]:
        """A column of texts of a section as numbers that are equal where the texts are; -1 for null."""
        return codes_of(self.records(name)[column])

    def texts(self, name: str, column: str, rows: NDArray[Any]) -> list[str | None]:
        """Some values of a column of texts of a section."""
        texts: list[str | None] = self.records(name)[column].take(number_array(rows)).to_pylist()
        return texts

    def identity(self, name: str) -> Rows:
        """A column of integers of `summaries`, -1 for null."""
        return integers(self.summaries[name])

    def usual(self, rows: Rows, steps: Rows, values: Rows) -> Rows:
        """What each rank has in a step: the median over its steps of each kind, and of several kinds the mean over their steps; -1 without.

        Args:
            rows: The row of the rank of each value.
            steps: The number of its step, of which a rank has one value at most; -1 outside.
            values: The values.
        """
        cells = Groups.by([rows, self.at_steps(rows, steps, self._usual_kinds)])
        by_rank, count = Groups(rows[cells.first], len(self)), cells.sizes()
        number, totals = by_rank.sums(count), by_rank.sums(cells.medians(values) * count)
        return np.where(number > 0, totals // np.maximum(number, 1), -1)

    def usual_of_steps(self, name: str) -> Rows:
        """The same of a column of the section `steps`."""
        return self.usual(self.rows("steps"), self.numbers("steps", "step"), self.numbers("steps", name))

    @cached_property
    def _usual_kinds(self) -> Rows:
        """The kind of each record of `steps` on its rank; those of fewer than `LEAST_OF_KIND` steps of a rank count for the kind with most of them."""
        row, kind = self.rows("steps"), self.numbers("steps", "kind")
        cells = Groups.by([row, kind])
        often, first = cells.sizes(), cells.first
        most = np.zeros(len(self), dtype=np.int64)
        order = np.lexsort((-kind[first], often))
        most[row[first[order]]] = kind[first[order]]  # the last one counts
        return np.where(often >= LEAST_OF_KIND, kind[first], most[row[first]])[cells.of_row]

    def at_steps(self, rows: Rows, steps: Rows, of_records: Rows) -> Rows:
        """What the records of `steps` say of some steps, by the row of their rank and their numbers; -1 where there is no record.

        Args:
            rows: The row of the rank of each step.
            steps: Its number.
            of_records: What is said of each record.
        """
        recorded_rows, number = self.rows("steps"), self.numbers("steps", "step")
        cells = Groups.by([np.concatenate((recorded_rows, rows)), np.concatenate((number, steps))])
        of_cells = np.append(of_records, np.full(len(rows), -1))[cells.first]
        return np.asarray(of_cells[cells.of_row[len(recorded_rows) :]])

    @cached_property
    def step_ns(self) -> Rows:
        """The usual step of each rank, see `usual`; -1 without steps."""
        return self.usual_of_steps("duration_ns")

    @cached_property
    def kinds(self) -> tuple[list[Operators], Rows]:
        """The kinds of steps of the job, those with most time first: the operators of each, and for each record of `steps` the place of its kind in these.

        Kinds of several ranks are one where about the same operators run in them.
        """
        row, kind = self.rows("steps"), self.numbers("steps", "kind")
        cells = Groups.by([row, kind])
        kinds_of_ranks = list(zip(row[cells.first].tolist(), kind[cells.first].tolist(), strict=True))
        kinds_of: list[dict[int, dict[str, tuple[float, float]]]] = [{} for _ in range(len(self))]
        for rank_row, number in sorted(kinds_of_ranks):
            kinds_of[rank_row][number] = {}
        records = self.records("step_kinds")
        columns = (records[name].to_pylist() for name in ("row", "kind", "name", "count", "mean_ns"))
        for rank_row, number, name, count, mean_ns in zip(*columns, strict=True):
            if number in kinds_of[rank_row]:
                kinds_of[rank_row][number][name] = (count, mean_ns)
        examples, members_of = merged_kinds(kinds_of)
        merged_number = {member: number for number, members in enumerate(members_of) for member in members}
        of_cells = np.array([merged_number[member] for member in kinds_of_ranks], dtype=np.int64)
        time_ns = Groups(of_cells[cells.of_row], len(examples)).sums(self.numbers("steps", "duration_ns"))
        order = np.argsort(-time_ns, kind="stable")
        of_place = places_of(order, len(examples)).astype(np.int64)
        return [examples[number] for number in order.tolist()], of_place[of_cells[cells.of_row]]

    @cached_property
    def world_size(self) -> int:
        """How many ranks the job has, as far as is known."""
        return max(len(self), int(self.identity("world_size").max()), int(self.ranks.max()) + 1)

    @cached_property
    def _groups_of_ranks(self) -> dict[tuple[int, str], Group]:
        """The process groups that each rank is in, by its row and the name of the group, as they were recorded."""
        records = self.records("groups")
        columns = (records[name].to_pylist() for name in ("row", "group", "description", "ranks", "size"))
        return {
            (row, name): Group(
                name, description, tuple(json.loads(ranks)) if ranks else (), -1 if size is None else size
            )
            for row, name, description, ranks, size in zip(*columns, strict=True)
        }

    @cached_property
    def known_groups(self) -> list[Group]:
        """All process groups whose ranks are known, each once."""
        groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        for group in self._groups_of_ranks.values():
            key = (group.name, group.ranks)
            if group.ranks and (key not in groups or not groups[key].description):
                groups[key] = group
        return list(groups.values())

    @cached_property
    def groups(self) -> tuple[list[Group], Rows]:
        """The process groups of collectives, and for each record of `collectives` the place of its group in them, -1 where it is not known."""
        named: dict[str, list[Group]] = {}
        for group in self.known_groups:
            named.setdefault(group.name, []).append(group)
        row, code = self.rows("collectives"), self.codes("collectives", "group")
        cells = Groups.by([row, code])
        first = cells.first
        names = self.texts("collectives", "group", first)
        number_of: dict[Group, int] = {}
        number = np.full(len(first) + 1, -1, dtype=np.int64)
        for index, (rank_row, name) in enumerate(zip(row[first].tolist(), names, strict=True)):
            if name is not None:
                # Without a name it is the only group of the job.
                unknown = Group(name, "", (), -1 if name else self.world_size)
                recorded_group = self._groups_of_ranks.get((rank_row, name), unknown)
                # Others may have recorded of the group what this rank has not.
                same = [
                    group
                    for group in named.get(name, ())
                    if group.ranks == recorded_group.ranks
                    or (not recorded_group.ranks and int(self.ranks[rank_row]) in group.ranks)
                ]
                number[index] = number_of.setdefault(same[0] if same else recorded_group, len(number_of))
        return list(number_of), number[cells.of_row]

    @cached_property
    def group_sizes(self) -> Rows:
        """How many ranks the group of each record of `collectives` has; -1 where that is not known."""
        groups, of_record = self.groups
        return np.array([*(group.size for group in groups), -1], dtype=np.int64)[of_record]

    @cached_property
    def meetings(self) -> Meetings:
        """The collectives that several ranks ran together and left together."""
        together = to_numpy(self.records("collectives")["leaves_together"])
        return self.matched.only(together[self.matched.first])

    @cached_property
    def matched(self) -> Meetings:
        """The same, and each all_to_all: its ranks leave at about one moment, too, but need not."""
        group = self.groups[1]
        meeting_rows = np.flatnonzero(self.may_meet & (group >= 0))
        step, name = self.numbers("collectives", "step"), self.codes("collectives", "name")
        # What a rank gives to others than an all_reduce may have a size of its own.
        size = np.where(self.is_named("all_reduce"), self.numbers("collectives", "bytes"), 0)
        return Meetings.of(
            meeting_rows,
            self.rows("collectives")[meeting_rows],
            [key[meeting_rows] for key in (step, group, name)],
            self.numbers("collectives", "number")[meeting_rows],
            size[meeting_rows],
            self.numbers("collectives", "duration_ns"),
        )

    @cached_property
    def may_meet(self) -> Mask:
        """Which records of `collectives` are of a kind that `matched` has."""
        together = to_numpy(self.records("collectives")["leaves_together"])
        return np.asarray(together | self.is_named("all_to_all"), dtype=bool)

    def is_named(self, name: str) -> Mask:
        """Which collectives have a name."""
        names = encoded(self.records("collectives")["name"])
        texts = names.dictionary.to_pylist()
        return np.asarray(integers(names.indices) == (texts.index(name) if name in texts else len(texts)))

    @cached_property
    def late_by_step(self) -> tuple[Rows, Rows, Rows]:
        """How late each rank was in each step, at the collective for which it was latest: its row, the step, and how late."""
        meetings = self.meetings
        return self.by_step(meetings.rows, meetings.late_of_row_ns, Groups.maxima)

    def exposed_ns(self, cell: NDArray[np.int32]) -> Rows:
        """The exposed communication of each record of `collectives`: of those on the host, which say nothing of it, all the time.

        Args:
            cell: The number of what each counts for; the time of records on the host that overlap in one counts for the first of them.
        """
        exposed, start, duration = (
            self.numbers("collectives", name) for name in ("exposed_ns", "start_ns", "duration_ns")
        )
        host = np.flatnonzero(exposed < 0)
        host = host[np.lexsort((start[host], cell[host]))]
        if len(host) == 0:
            return exposed
        cells = Groups.runs(cell[host])
        offset_ns = start[host] - start[host][cells.first][cells.of_row]
        # Cells are laid out one behind the other, so that one running maximum is that of each.
        extent = cells.maxima(offset_ns + duration[host])
        offset_ns += (np.cumsum(extent) - extent)[cells.of_row]
        end = offset_ns + duration[host]
        before = np.append(0, np.maximum.accumulate(end)[:-1])
        exposed[host] = np.maximum(end - np.maximum(offset_ns, before), 0)
        return exposed

    def by_step(
        self, rows: Rows, values: Rows, join: Callable[[Groups, Rows], Rows]
    ) -> tuple[Rows, Rows, Rows]:
        """Values of records of `collectives` put together for each rank and step: its row, the step (-1 outside), and the value."""
        step, row = self.numbers("collectives", "step")[rows], self.rows("collectives")[rows]
        cells = Groups.by([row, step])
        joined, first = join(cells, values), cells.first
        order = np.lexsort((step[first], row[first]))
        return row[first[order]], step[first[order]], joined[order]

    @cached_property
    def late_ns(self) -> Rows:
        """How late each rank usually is; -1 where it has no collectives with others."""
        return self.usual(*self.late_by_step)


def _records(lists: pa.ChunkedArray, rows: Rows) -> dict[str, pa.Array]:
    """The columns of the records of some lists, and which of some rows each belongs to."""
    column = lists.combine_chunks()
    records = column.flatten()
    columns = {field.name: part for field, part in zip(records.type, records.flatten(), strict=True)}
    return columns | {"row": number_array(np.repeat(rows, np.diff(to_numpy(column.offsets))))}


def codes_of(column: pa.Array) -> NDArray[np.int32]:
    """A column of texts as numbers that are equal where the texts are; -1 for null."""
    return np.ascontiguousarray(integers(encoded(column).indices), dtype=np.int32)


def encoded(column: pa.Array) -> pa.DictionaryArray:
    """A column of texts as numbers of those in a dictionary, each there once."""
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
