"""A job: the summaries of all its ranks, which rank was late, and why."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kinetoscope._errors import ArgumentError, StateError, checked_choice
from kinetoscope.analyses.findings import Report, table_of
from kinetoscope.comparison.kinds import typical_operators
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model import units
from kinetoscope.model.arrow import integers, number_array, to_arrow, to_numpy
from kinetoscope.model.groups import Groups, percent
from kinetoscope.model.rows import Rows
from kinetoscope.storage.atomic_write import write_atomically
from kinetoscope.summaries import SUFFIX, communication, lateness
from kinetoscope.summaries.clocks import clocks, recorded_apart
from kinetoscope.summaries.engines import outcomes
from kinetoscope.summaries.findings import examine_job
from kinetoscope.summaries.sections import Sections, codes_of
from kinetoscope.summaries.sketch import Sketches
from kinetoscope.summaries.summary import SECTIONS, file_name, summarized
from kinetoscope.tables.step_kinds import most_of

# The rows of the table `ranks`: one per rank, or one per rank and kind of steps.
_BY = ("rank", "kind")

_NAMED = 8
# The number of stragglers for which the step time without each is estimated.
_REPLAYED = 7


class Job:
    """The summaries of the ranks of a job.

    Attributes:
        summaries: One row for each rank, in order of rank.
        sections: The sections of all summaries as columns.
    """

    def __init__(self, summaries: pa.Table | Sections) -> None:
        """Take summaries of one job.

        Raises:
            ArgumentError: There are none, or two for one rank.
        """
        self.sections = summaries if isinstance(summaries, Sections) else Sections([summaries])
        self.summaries = self.sections.summaries

    @classmethod
    def open(cls, *paths: str | os.PathLike[str]) -> Job:
        """Read summaries.

        Args:
            paths: Files that `summarize` wrote, or folders with such `.parquet` files.

        Raises:
            ArgumentError: There are none, or two for one rank.
            FormatError: None of the files is a summary. If some are, `notes` has the problems of the others.
            OSError: A file cannot be read.
        """
        files: list[Path] = []
        for path in map(Path, paths):
            files += sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        return cls(Sections.of_files(files))

    def __len__(self) -> int:
        """The number of ranks."""
        return len(self.sections)

    def section(self, name: str) -> pa.Table:
        """Return a section of all ranks as a table: `rank` and the columns of `SECTIONS`.

        Raises:
            ArgumentError: There is no such section.
        """
        records = self.sections.records(name)
        rank = number_array(self.sections.ranks[self.sections.rows(name)])
        return pa.table({"rank": rank} | {name: records[name] for name in SECTIONS[name].column_names})

    @cached_property
    def report(self) -> Report:
        """The findings on the job: at most seven, the largest possible gain first, for the steps of the median rank."""
        return examine_job(self.sections)

    @cached_property
    def notes(self) -> list[str]:
        """Sentences on problems of the summaries: damaged files, missing ranks, and ranks recorded at another time."""
        ranks = self.sections.ranks
        missing = (
            np.setdiff1d(np.arange(self.sections.world_size), ranks) if (ranks >= 0).all() else ranks[:0]
        )
        apart = ranks[recorded_apart(self.sections)]
        sentences = [*self.sections.unread]
        if len(missing):
            sentences.append(
                f"{len(self):,} of {self.sections.world_size:,} ranks {units.noun(len(self), 'has', 'have')} a summary here; without one: {_named(missing)}."
            )
        if len(apart):
            sentences.append(
                f"When {_named(apart)} recorded, the other ranks of the machine did not: pass the summaries of one run."
            )
        return sentences

    def findings(self) -> pa.Table:
        """Return the findings on the job as a table, with the columns of a trace's `findings`."""
        return table_of(self.report)

    def clocks(self) -> pa.Table:
        """Return the table `clocks`: the alignment of each rank's clock with a reference, and its possible error."""
        return clocks(self.sections)

    def collective_arrivals(self) -> pa.Table:
        """Return the table `collective_arrivals`: for each collective the last rank to arrive, and how long the others waited."""
        return lateness.collective_arrivals(self.sections)

    def stragglers(self) -> pa.Table:
        """Return the table `stragglers`: the ranks that others wait for, and the part of the step that makes them late."""
        return lateness.stragglers(self.sections)

    def without_lateness(self) -> pa.Table:
        """Return the table `without_lateness`: the step time if no rank were late, or if one of the worst stragglers were not."""
        worst = self.stragglers()["rank"].to_pylist()[:_REPLAYED]
        return lateness.without_lateness(self.sections, worst)

    def exposed_communication(self) -> pa.Table:
        """Return the table `exposed_communication`: the cost of each collective by process group, with waiting for late ranks separate."""
        return communication.exposed_communication(self.sections)

    def links(self) -> pa.Table:
        """Return the table `links`: pairs of ranks that communicated with each other, and their speed."""
        return communication.links(self.sections)

    def coordinates(self) -> pa.Table:
        """Return the table `coordinates`: ranks by their positions along TP, DP, PP, EP and CP."""
        return communication.coordinates(self.sections)

    def ranks(self, by: str = "rank") -> pa.Table:
        """Return the table `ranks`: each rank's step time, its parts, and its usual lateness.

        Args:
            by: `rank` for one row per rank; `kind` for one row per rank and kind of steps, see `step_kinds`.

        Raises:
            ArgumentError: `by` has another value.
        """
        checked_choice("by", by, _BY)
        sections = self.sections
        of_step = sections.kinds[1] if by == "kind" else np.zeros(len(sections.rows("steps")), dtype=np.int64)
        first = Groups.by([sections.rows("steps"), of_step]).first
        rank = sections.rows("steps")[first] if by == "kind" else np.arange(len(self))
        kind = of_step[first] if by == "kind" else np.zeros(len(self), dtype=np.int64)
        order = np.lexsort((kind, rank))
        rank, kind = rank[order], kind[order]

        def usual(rows: Rows, steps: Rows, values: Rows) -> Rows:
            """The usual value in a step, for each row of the table."""
            if by == "rank":
                return sections.usual(rows, steps, values)
            kind_of_record = sections.at_steps(rows, steps, of_step)
            is_step = kind_of_record >= 0
            cell = np.searchsorted(rank * width + kind, (rows * width + kind_of_record)[is_step])
            return Groups(cell, len(rank)).medians(values[is_step])

        width = int(of_step.max(initial=0)) + 1
        records, steps = sections.rows("steps"), sections.numbers("steps", "step")
        less = lateness.less_waiting(sections)
        dimensions = sorted(communication.coordinates_of(sections).items())
        coordinates = [
            " ".join(f"{name}={index[row]}" for name, index in dimensions if index[row] >= 0) or None
            for row in rank.tolist()
        ]
        memory = np.full(len(self), -1, dtype=np.int64)
        np.maximum.at(memory, sections.rows("memory"), sections.numbers("memory", "bytes"))
        columns: dict[str, Any] = {
            "rank": sections.ranks[rank],
            "host": self.summaries["host"].take(number_array(rank)).to_pylist(),
            "coordinates": coordinates,
            "device": self.summaries["device"].take(number_array(rank)).to_pylist(),
            "step_kind": kind if by == "kind" else np.full(len(rank), -1),
            "steps": Groups(
                np.searchsorted(rank * width + kind, records * width + of_step), len(rank)
            ).sizes(),
            "step_ns": usual(records, steps, sections.numbers("steps", "duration_ns")),
            "exposed_ns": usual(*lateness.exposed_by_step(sections)),
            "late_ns": usual(*sections.late_by_step),
            "holds_up_ns": usual(*less),
            "memory_bytes": memory[rank],
            "findings": sections.counts("findings")[rank],
            "losses": sections.counts("losses")[rank],
            "source": self.summaries["source"].take(number_array(rank)).to_pylist(),
        }
        columns |= {name: usual(records, steps, sections.numbers("steps", name)) for name in PARTS}
        table = to_arrow("job: ranks", columns)
        # Here -1 can be a value, not null.
        alone = ~np.isin(rank, less[0])
        column = table.schema.get_field_index("holds_up_ns")
        held = number_array(columns["holds_up_ns"], absent=alone)
        return table.set_column(column, table.schema.field(column), held)

    def step_kinds(self) -> pa.Table:
        """Return the table `step_kinds`: the kinds of steps of the job, most total time first."""
        operators, kind = self.sections.kinds
        rows, duration = self.sections.rows("steps"), self.sections.numbers("steps", "duration_ns")
        cells, by_kind = Groups.by([rows, kind]), Groups(kind, len(operators))
        first, of_rank = cells.first, cells.medians(duration)
        ranks_by_kind = Groups(kind[first], len(operators))
        slowest = ranks_by_kind.row_of_minimum(-of_rank)
        columns: dict[str, Any] = {
            "kind": np.arange(len(operators)),
            "ranks": ranks_by_kind.sizes(),
            "steps": by_kind.sizes(),
            "share_percent": percent(by_kind.sums(duration), int(duration.sum())),
            "step_ns": ranks_by_kind.medians(of_rank),
            "slowest_rank": self.sections.ranks[rows[first[slowest]]],
            "slowest_ns": of_rank[slowest],
            "operators": np.array([typical_operators(of_kind) for of_kind in operators], dtype=np.int64),
            "most_of": most_of(operators),
        }
        return to_arrow("job: step_kinds", columns)

    def durations(self) -> pa.Table:
        """Return the table `durations`: operators, kernels and modules of all ranks, with quantiles."""
        row_of: dict[tuple[str, str], int] = {}
        sketches = Sketches.of(np.zeros(0, np.int64), np.zeros(0, np.int64))
        on_ranks: list[int] = []
        for records in self.sections.batches("sketches"):
            sketched = Groups.by([codes_of(records[column]) for column in ("kind", "name")])
            group, first = sketched.of_row, number_array(sketched.first)
            kinds, names = (records[column].take(first).to_pylist() for column in ("kind", "name"))
            keys = zip(kinds, names, strict=True)
            rows = np.array([row_of.setdefault(key, len(row_of)) for key in keys], np.int64)
            on_ranks += [0] * (len(row_of) - len(on_ranks))
            of_ranks = group[Groups.by([group, to_numpy(records["row"])]).first]
            for row, ranks in zip(rows.tolist(), Groups(of_ranks, len(rows)).sizes().tolist(), strict=True):
                on_ranks[row] += ranks
            bucket, count, total_ns = (integers(records[name]) for name in ("bucket", "count", "total_ns"))
            sketches = sketches.joined(Sketches(rows[group], bucket.astype(np.int16), count, total_ns))
        groups = len(row_of)
        by_name = Groups(sketches.group, groups)
        total = by_name.sums(sketches.total)
        columns: dict[str, Any] = {
            "kind": [kind for kind, _ in row_of],
            "name": [name for _, name in row_of],
            "ranks": np.array(on_ranks, dtype=np.int64),
            "count": by_name.sums(sketches.count),
            "total_ns": total,
        }
        columns |= {
            column: sketches.quantile(part, len(names))
            for column, part in (("median_ns", 0.5), ("p95_ns", 0.95), ("p99_ns", 0.99))
        }
        return to_arrow("job: durations", columns, np.argsort(-total, kind="stable"))


def _named(ranks: Rows) -> str:
    text = ", ".join(map(str, ranks[:_NAMED].tolist()))
    more = f" and {len(ranks) - _NAMED:,} more" if len(ranks) > _NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {text}{more}"


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
        sources: The traces, in any format that `kinetoscope.open` reads, also URLs. A worker holds one at a time in memory.
        output: The folder for the summaries, created if needed. Files of the same ranks are replaced.
        progress: Called with each source when it is done.
        engine: Where the work runs: `here` (sequentially, in this process), `processes` of this machine (a script then needs
            `if __name__ == "__main__":`), `dask` or `ray`. Workers need Kinetoscope and access to the sources; the summaries
            come back to this process.
        workers: The number of processes on this machine; None for one per CPU.
        address: The address of a running Dask or Ray cluster; None to start one on this machine.

    Returns:
        The job of these summaries.

    Raises:
        ArgumentError: There are no sources, two have the same rank, or an argument cannot be used.
        FormatError: The only source is not a trace.
        MissingDependencyError: The engine's package is not installed.
        OSError: The only source cannot be read, or a file cannot be written.
        StateError: Some of several sources could not be read; the summaries of the others were written.
    """
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"output={str(folder)!r} is a file: name a folder for the summaries")
    folder.mkdir(parents=True, exist_ok=True)
    names = [os.fspath(source) for source in sources]
    written: dict[Path, str] = {}
    failed: dict[int, Exception] = {}
    for index, outcome in outcomes(engine, summarized, names, workers=workers, address=address):
        source = names[index]
        if isinstance(outcome, Exception):
            failed[index] = outcome
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
                write_atomically(path, summary)
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
