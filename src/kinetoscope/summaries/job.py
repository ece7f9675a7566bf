"""The summaries of all ranks of a job, side by side: who was late, and why."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.model import units
from kinetoscope.model.arrow import integers, number_array, to_arrow, to_numpy
from kinetoscope.model.schema import Column, Table
from kinetoscope.storage.atomic_write import open_atomically
from kinetoscope.summaries import SUFFIX
from kinetoscope.summaries.engines import engine_of
from kinetoscope.summaries.sketch import Sketches
from kinetoscope.summaries.summary import SECTIONS, file_name, read, summarized
from kinetoscope.tables.breakdown import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

# What a rank does itself before it arrives at a collective; the rest of a step is waiting, for others among it.
_OWN_PARTS = {
    "compute_ns": "compute",
    "copy_ns": "copies",
    "input_wait_ns": "input",
    "cpu_bound_ns": "host",
}
_LEAST_SCORE = 5.0
"""A rank whose lateness lies this many standard deviations from that of the others is a straggler."""
_LEAST_LATE_PERCENT = 1.0
"""And it has to delay the others by at least this share of a step."""
# Of a step: a smaller spread would make a straggler of whom a microsecond sets apart.
_FLOOR = 0.001
# The median absolute deviation of a normal distribution, times this, is its standard deviation.
_TO_DEVIATION = 1.4826

ARRIVALS = Table(
    "collective_arrivals",
    "A collective that several ranks ran together, and who arrived last. All ranks leave such a collective together, so one whose transfer "
    "took shorter arrived later; this compares no clocks.",
    (
        Column("step", "int64", "", "The number of the step."),
        Column("group", "category", "", "The name of the process group, or its ranks."),
        Column("name", "category", "", "The collective, such as all_reduce."),
        Column("number", "int32", "", "Its place among those of this step, group and name."),
        Column("ranks", "int32", "", "How many ranks' summaries have it."),
        Column("bytes", "int64", "bytes", "The size of the message."),
        Column("last_rank", "int32", "", "The rank that arrived last."),
        Column("late_ns", "int64", "ns", "How long after the first one it arrived."),
        Column("waited_ns", "int64", "ns", "How long all ranks waited for it, added up."),
        Column(
            "transfer_ns", "int64", "ns", "How long the transfer took once all had arrived: the shortest."
        ),
    ),
)
RANKS = Table(
    "ranks",
    "A rank: its step time, where it went, and how late it arrived at collectives. Times are medians over steps.",
    (
        Column("rank", "int32", "", "The rank."),
        Column("host", "category", "", "The machine."),
        Column("device", "category", "", "The device on which it worked most."),
        Column("steps", "int64", "", "How many steps."),
        Column("step_ns", "int64", "ns", "The duration of a step."),
        *(Column(name, "int64", "ns", "See `breakdown`.") for name in PARTS),
        Column("exposed_ns", "int64", "ns", "Exposed communication in a step; on the host the time in collectives."),
        Column("late_ns", "int64", "ns", "How much later than the first rank it arrived at the collective of a step for which it was "
                                         "latest; null without collectives."),
        Column("memory_bytes", "int64", "bytes", "The largest memory peak of its devices; null if memory was not recorded."),
        Column("findings", "int64", "", "How many findings its trace has.", 0),
        Column("losses", "int64", "", "How many kinds of losses.", 0),
        Column("source", "category", "", "The file of the trace."),
    ),
)  # fmt: skip
STRAGGLERS = Table(
    "stragglers",
    "A rank for which the others wait again and again. The worst first.",
    (
        Column("rank", "int32", "", "The rank."),
        Column("late_ns", "int64", "ns", "How late it usually is in a step: the median."),
        Column("late_percent", "float64", "%", "The same as a share of a step."),
        Column("score", "float64", "", "How far this lies from the median of the other ranks, in robust standard deviations (1.4826 times the "
                                       "median absolute deviation) of theirs or of its own median, whichever is larger."),
        Column("steps_percent", "float64", "%", "In which share of the steps it was the latest of all ranks."),
        Column("phase", "category", "", "What takes it longer than others: `input`, `host`, `compute` or `copies`; null if none does."),
        Column("extra_ns", "int64", "ns", "How much longer, in a step."),
    ),
)  # fmt: skip
SKETCH = Table(
    "durations",
    "How long an operator, kernel or module ran on all ranks, the one with most time first. Quantiles are exact to 1 %.",
    (
        Column("kind", "category", "", "`operator`, `kernel` or `module`."),
        Column("name", "category", "", "The name, or the path of the module."),
        Column("ranks", "int64", "", "On how many ranks it ran."),
        Column("count", "int64", "", "How many calls; of a module, steps."),
        Column("total_ns", "int64", "ns", "Their time: self time of operators and modules."),
        Column("median_ns", "float64", "ns", "The median."),
        Column("p95_ns", "float64", "ns", "The 95th percentile."),
        Column("p99_ns", "float64", "ns", "The 99th percentile."),
    ),
)


class Job:
    """The summaries of the ranks of a job.

    Attributes:
        summaries: One row for each rank, in order of rank.
    """

    def __init__(self, summaries: pyarrow.Table) -> None:
        """Take summaries of one job.

        Raises:
            ArgumentError: There are none, or two of one rank.
        """
        if summaries.num_rows == 0:
            raise ArgumentError("there are no summaries: name at least one file or a folder with some")
        ranks = [-1 if rank is None else rank for rank in summaries["rank"].to_pylist()]
        twice = (
            sorted({rank for rank in ranks if ranks.count(rank) > 1}) if len(set(ranks)) < len(ranks) else []
        )
        if twice:
            whose = "no rank" if twice[0] < 0 else f"rank {twice[0]}"
            raise ArgumentError(f"several summaries are of {whose}: pass those of one job, each rank once")
        self.summaries = summaries.take(np.argsort(ranks, kind="stable"))

    @classmethod
    def open(cls, *paths: str | os.PathLike[str]) -> Job:
        """Read summaries.

        Args:
            paths: Files that `summarize` wrote, or folders whose `.parquet` files are such.

        Raises:
            ArgumentError: There are none, or two of one rank.
            FormatError: A file is no summary.
            OSError: A file cannot be read.
        """
        import pyarrow as pa

        files = [
            file
            for path in map(Path, paths)
            for file in (sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path])
        ]
        return cls(pa.concat_tables([read(file) for file in files]) if files else pa.table({"rank": []}))

    def __len__(self) -> int:
        """The number of ranks."""
        return int(self.summaries.num_rows)

    @cached_property
    def _ranks(self) -> Rows:
        return integers(self.summaries["rank"])

    def section(self, name: str) -> pyarrow.Table:
        """Return a section of all ranks as a table: the columns of `SECTIONS` behind `rank`.

        Raises:
            ArgumentError: There is no such section.
        """
        import pyarrow as pa

        if name not in SECTIONS:
            raise ArgumentError(f"there is no section {name!r}: the sections are {', '.join(SECTIONS)}")
        return pa.table({"rank": number_array(self._ranks[self._rows(name)])} | self._records(name))

    def _records(self, name: str) -> dict[str, pyarrow.Array]:
        """The columns of a section."""
        column = self.summaries[name].combine_chunks()
        records = column.flatten()
        names = [field.name for field in records.type]
        return dict(zip(names, records.flatten(), strict=True))

    def _rows(self, name: str) -> Rows:
        """For each record of a section the row of its rank in `summaries`."""
        import pyarrow.compute as pc

        lengths = pc.list_value_length(self.summaries[name]).combine_chunks()
        return np.repeat(np.arange(len(self)), np.asarray(lengths))

    # Answers

    def collective_arrivals(self) -> pyarrow.Table:
        """Return the table `collective_arrivals`: for each collective the rank that arrived last, and how long the others waited."""
        found = self._meetings
        first = found.first
        records = self._records("collectives")
        columns: dict[str, Any] = {
            name: integers(records[name])[first] for name in ("step", "number", "bytes")
        } | {name: _texts(records[name], first) for name in ("group", "name")}
        columns |= {
            "ranks": found.count,
            "last_rank": self._ranks[found.last],
            "late_ns": found.late_ns,
            "waited_ns": found.waited_ns,
            "transfer_ns": found.shortest_ns,
        }
        return to_arrow(ARRIVALS, columns)

    def ranks(self) -> pyarrow.Table:
        """Return the table `ranks`: each rank's steps, their parts, and how late it usually is."""
        steps, rows = self._records("steps"), self._rows("steps")
        count = np.bincount(rows, minlength=len(self))
        columns: dict[str, Any] = {
            "rank": self._ranks,
            "host": self.summaries["host"].to_pylist(),
            "device": self.summaries["device"].to_pylist(),
            "steps": count,
            "step_ns": self._medians(rows, integers(steps["duration_ns"])),
            "exposed_ns": self._exposed_ns,
            "late_ns": self._late_ns,
            "memory_bytes": self._largest("memory", "bytes"),
            "findings": np.bincount(self._rows("findings"), minlength=len(self)),
            "losses": np.bincount(self._rows("losses"), minlength=len(self)),
            "source": self.summaries["source"].to_pylist(),
        }
        columns |= {name: self._medians(rows, integers(steps[name])) for name in PARTS}
        return to_arrow(RANKS, columns)

    def stragglers(self) -> pyarrow.Table:
        """Return the table `stragglers`: the ranks for which the others wait, and what takes them longer.

        A rank is one if its median lateness is far from that of the other ranks (a robust score above 5), and at least 1 % of a step.
        """
        late = self._late_ns
        known = np.flatnonzero(late >= 0)
        steps, rows = self._records("steps"), self._rows("steps")
        step_ns = self._medians(rows, integers(steps["duration_ns"]))
        percent = 100.0 * late / np.maximum(step_ns, 1)
        score = np.zeros(len(self))
        for row in known[percent[known] >= _LEAST_LATE_PERCENT].tolist() if len(known) > 1 else []:
            score[row] = self._score(row, known[known != row], _FLOOR * float(step_ns[row]))
        found = np.flatnonzero(score >= _LEAST_SCORE)
        found = found[np.argsort(-late[found], kind="stable")]
        each = {name: self._medians(rows, integers(steps[name])) for name in _OWN_PARTS}
        extra = {name: values - _middle(values)[0] for name, values in each.items()}
        names = list(_OWN_PARTS)
        phases = [names[one] for one in np.argmax([extra[name][found] for name in names], axis=0).tolist()]
        longer = np.array([extra[name][row] for name, row in zip(phases, found.tolist(), strict=True)])
        latest = self._latest_percent
        columns: dict[str, Any] = {
            "rank": self._ranks[found],
            "late_ns": late[found],
            "late_percent": percent[found],
            "score": score[found],
            "steps_percent": latest[found],
            "phase": [
                _OWN_PARTS[name] if more > 0 else None for name, more in zip(phases, longer, strict=True)
            ],
            "extra_ns": np.maximum(longer, 0).astype(np.int64),
        }
        return to_arrow(STRAGGLERS, columns)

    def _score(self, row: int, others: Rows, floor_ns: float) -> float:
        """How far the usual lateness of a rank lies from that of the others, in standard deviations."""
        late = self._late_ns
        middle, spread = _middle(late[others])
        of_rank, _, each = self._late_by_step
        own = each[of_rank == row]
        # The median of n values of a normal distribution varies by 1.2533 times their deviation over the root of n.
        error = 1.2533 * _middle(own)[1] / float(np.sqrt(len(own)))
        return float((late[row] - middle) / max(spread, error, floor_ns, 1.0))

    def durations(self) -> pyarrow.Table:
        """Return the table `durations`: operators, kernels and modules of all ranks, with quantiles."""
        records, rows = self._records("sketches"), self._rows("sketches")
        kind, name = (_codes(records[column]) for column in ("kind", "name"))
        group, first = _core.group([kind, name])
        sketches = Sketches(
            group.astype(np.int64),
            integers(records["bucket"]).astype(np.int16),
            integers(records["count"]),
            integers(records["total_ns"]),
        ).merged()
        groups = len(first)
        count = _core.group_sums(sketches.group.astype(np.int32), groups, sketches.count)
        total = _core.group_sums(sketches.group.astype(np.int32), groups, sketches.total)
        _, place = _core.group([group, rows.astype(np.int32)])
        columns: dict[str, Any] = {
            "kind": _texts(records["kind"], first),
            "name": _texts(records["name"], first),
            "ranks": np.bincount(group[place], minlength=groups),
            "count": count,
            "total_ns": total,
        }
        columns |= {
            column: sketches.quantile(part, groups)
            for column, part in (("median_ns", 0.5), ("p95_ns", 0.95), ("p99_ns", 0.99))
        }
        return to_arrow(SKETCH, columns, np.argsort(-total, kind="stable"))

    # What these are made from

    @cached_property
    def _meetings(self) -> _Meetings:
        records, rows = self._records("collectives"), self._rows("collectives")
        keys = [_codes(records[name]) for name in ("step", "group", "name", "number")]
        together = to_numpy(records["leaves_together"])
        return _Meetings(keys, rows, integers(records["duration_ns"]), together)

    @cached_property
    def _late_by_step(self) -> tuple[Rows, Rows, Rows]:
        """How late each rank was in each step, at the collective for which it was latest: its row, the step, and how late."""
        found = self._meetings
        step = integers(self._records("collectives")["step"])[found.rows]
        width = int(step.max(initial=0)) + 2
        cell, which = np.unique(found.rank * width + step + 1, return_inverse=True)
        late = np.zeros(len(cell), dtype=np.int64)
        np.maximum.at(late, which.ravel(), found.late_of_row_ns)
        return cell // width, cell % width, late

    @cached_property
    def _late_ns(self) -> Rows:
        """How late each rank usually is; -1 where it has no collectives with others."""
        rank, _, late = self._late_by_step
        return self._medians(rank, late)

    @cached_property
    def _latest_percent(self) -> NDArray[np.float64]:
        """In which share of the steps each rank was the latest."""
        rank, step, late = self._late_by_step
        order = np.lexsort((late, step))
        last = np.append(step[order][1:] != step[order][:-1], True)[: len(order)]
        return 100.0 * np.bincount(rank[order][last], minlength=len(self)) / max(1, int(last.sum()))

    @cached_property
    def _exposed_ns(self) -> Rows:
        """The exposed communication of a step of each rank; the transfers where there is no device that could compute meanwhile."""
        records, rows = self._records("collectives"), self._rows("collectives")
        exposed = integers(records["exposed_ns"])
        exposed = np.where(exposed < 0, integers(records["duration_ns"]), exposed)
        step = integers(records["step"])
        width = int(step.max(initial=0)) + 2
        cell, which = np.unique(rows * width + step + 1, return_inverse=True)
        sums = np.zeros(len(cell), dtype=np.int64)
        np.add.at(sums, which.ravel(), exposed)
        return self._medians(cell // width, sums)

    def _medians(self, rows: Rows, values: Rows) -> Rows:
        """The median of some values of each rank; -1 without."""
        order = np.lexsort((values, rows))
        rows, values = rows[order], values[order]
        first = np.searchsorted(rows, np.arange(len(self)), side="left")
        last = np.searchsorted(rows, np.arange(len(self)), side="right")
        padded = np.append(values, -1)
        low, high = (padded[np.where(last > first, (first + last - one) // 2, len(values))] for one in (1, 0))
        return np.asarray((low + high) // 2, dtype=np.int64)

    def _largest(self, section: str, name: str) -> Rows:
        """The largest number of a section of each rank; -1 without."""
        found = np.full(len(self), -1, dtype=np.int64)
        np.maximum.at(found, self._rows(section), integers(self._records(section)[name]))
        return found


def summarize(
    *sources: str | os.PathLike[str],
    output: str | os.PathLike[str],
    progress: Callable[[str], None] | None = None,
    engine: str = "here",
    workers: int | None = None,
    address: str | None = None,
) -> Job:
    """Reduce the traces of the ranks of a job to one small file each.

    Args:
        sources: The traces, in any format that `kinetoscope.open` reads, also URLs. A worker has one at a time in memory.
        output: The folder for the summaries; it is made if needed. Files of the same ranks in it are replaced.
        progress: Called with each source when it is done.
        engine: Where the work is done: `here` (one after the other, in this process), `processes` of this machine (a script that uses
            it needs `if __name__ == "__main__":`), `dask` or `ray`. Where a worker runs, Kinetoscope must be installed, and the sources
            must be readable; the summaries come back here.
        workers: How many processes to start on this machine; None for one for each processor.
        address: Of a Dask or Ray cluster that is running; None to start one on this machine.

    Returns:
        The job that these summaries describe.

    Raises:
        ArgumentError: There are no sources, two have the same rank, or an argument cannot be used.
        FormatError: The only source is no trace.
        MissingDependencyError: The engine's package is not installed.
        OSError: The only source cannot be read, or a file cannot be written.
        StateError: Of several sources, some could not be read; the summaries of the others were written.
    """
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    names = [os.fspath(source) for source in sources]
    written: dict[Path, str] = {}
    failed: dict[int, Exception] = {}
    for place, outcome in engine_of(engine)(summarized, names, workers=workers, address=address):
        source = names[place]
        if isinstance(outcome, Exception):
            failed[place] = outcome
        else:
            for rank, summary in outcome.items():
                alone = f"{os.path.basename(source).partition('.')[0]}{SUFFIX}"
                path = folder / (alone if rank is None else file_name(rank))
                if path in written:
                    first, second = sorted((source, written[path]), key=names.index)
                    raise ArgumentError(
                        f"{second} and {first} are both of rank {rank}: pass the traces of one job"
                    )
                written[path] = source
                with open_atomically(path) as file:
                    file.write(summary)
        if progress is not None:
            progress(source)
    if failed:
        first_place = min(failed)
        why = failed[first_place]
        if len(names) == 1:
            raise why
        raise StateError(
            f"{units.count(len(failed), 'trace')} of {len(names):,} could not be summarized, the first one {names[first_place]}: {why} "
            f"({units.count(len(written), 'summary', 'summaries')} of the others in {folder})"
        ) from why
    return Job.open(*sorted(written))


class _Meetings:
    """The collectives that several ranks ran together.

    Attributes:
        rows: The records that are of such a collective.
        rank: The row of the rank of each of these.
        late_of_row_ns: How much later than the first rank each arrived.
        first: The first record of each collective; so for the next ones.
        count: How many ranks it has.
        last: The row of the rank that arrived last.
        late_ns: How late that was.
        waited_ns: How long the others waited for it, added up.
        shortest_ns: The shortest transfer.
    """

    def __init__(
        self, keys: Sequence[NDArray[np.int32]], rank: Rows, duration_ns: Rows, together: NDArray[np.bool_]
    ) -> None:
        """Group records by step, group, name and number."""
        kept = np.flatnonzero(together)
        group, _ = _core.group([np.ascontiguousarray(key[kept]) for key in keys])
        count = np.bincount(group)
        several = count[group] > 1
        self.rows, group = kept[several], group[several]
        order = np.argsort(group, kind="stable")
        self.rows, group = self.rows[order], group[order]
        begin = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(group)])
        each = np.diff(np.append(begin, len(group)))
        place = np.repeat(np.arange(len(begin)), each)
        self.rank = rank[self.rows]
        duration = duration_ns[self.rows]
        longest = np.maximum.reduceat(duration, begin) if len(begin) else duration
        self.shortest_ns = np.minimum.reduceat(duration, begin) if len(begin) else duration
        self.late_of_row_ns = longest[place] - duration
        self.first, self.count = self.rows[begin], each
        ascending = np.lexsort((self.late_of_row_ns, place))
        self.last = self.rank[ascending[begin + each - 1]]
        self.late_ns = longest - self.shortest_ns
        waited = np.bincount(place, weights=duration - self.shortest_ns[place], minlength=len(begin))
        self.waited_ns = waited.astype(np.int64)


def _middle(values: Rows) -> tuple[float, float]:
    """The median of some values, and their robust standard deviation."""
    middle = float(np.median(values))
    return middle, _TO_DEVIATION * float(np.median(np.abs(values - middle)))


def _codes(column: pyarrow.Array) -> NDArray[np.int32]:
    """A column as numbers that are equal where its values are."""
    return np.ascontiguousarray(to_numpy(column.dictionary_encode("encode").indices), dtype=np.int32)


def _texts(column: pyarrow.Array, rows: NDArray[Any]) -> list[str | None]:
    """Some values of a column of texts."""
    found: list[str | None] = column.take(rows).to_pylist()
    return found
