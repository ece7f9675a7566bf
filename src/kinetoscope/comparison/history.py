"""What many builds measured, in order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.comparison.kinds import classes_of_steps
from kinetoscope.comparison.measures import BYTE_COUNTS, COUNTS, Run
from kinetoscope.comparison.statistics import Series
from kinetoscope.display.blocks import Block, BlockColumn, Cell, Chart, Paragraph, TableBlock
from kinetoscope.display.html import as_html
from kinetoscope.display.lines import plain_lines
from kinetoscope.display.terminal import UNLIMITED
from kinetoscope.model import units

STEP = "step_ns"
"""The name of the series of step times, in nanoseconds; the others are named as in `COUNTS`."""
SERIES = {STEP: "time of a step"} | COUNTS
_FASTEST = 0.5


@dataclass(frozen=True)
class Build:
    """What one build measured.

    Attributes:
        name: The file, or what the caller calls it.
        values: For each of `SERIES` the number; without those that were not recorded.
        start_ns: When it was recorded, by the clock of the machine; 0 if unknown.
    """

    name: str
    values: Mapping[str, float]
    start_ns: int = 0


def build_of(runs: Sequence[Run], name: str) -> Build:
    """What the recordings of one build measured.

    Times are means of the fastest half of the steps of each kind, so that all kinds keep their weight; of counts the largest of a step, as in budgets.
    """
    values: dict[str, float] = {}
    if timed := [run for run in runs if run.unit.repeats and len(run.counted)]:
        step_ns, kind = np.concatenate([run.step_ns[run.counted] for run in timed]), classes_of_steps(timed)
        fastest = Series.of([step_ns], kind).weights(np.ones((1, len(step_ns))), _FASTEST)
        values[STEP] = float(fastest[0] @ step_ns)
    for count in COUNTS:
        if recorded := [column for run in runs if (column := run.counts(count)) is not None]:
            values[count] = float(np.concatenate(recorded).max())
    return Build(name, values, min((run.start_ns for run in runs if run.start_ns), default=0))


def build_of_comparison(content: Any, name: str) -> Build | None:
    """What the new side of a comparison measured, of the values of its JSON; None if these are something else."""
    if not isinstance(content, dict) or not {"step", "counts", "verdict"} <= content.keys():
        return None
    values = {
        count["name"]: float(count["new"])
        for count in content["counts"]
        if count["new"] is not None and count["name"] in COUNTS
    }
    return Build(name, {STEP: float(content["step"]["new_ns"])} | values)


@dataclass
class History:
    """Builds in order.

    Attributes:
        builds: The builds, the oldest first.
        order: What the order is by, as a person reads it.
        names: The series to show, of `SERIES`; the time of a step and the counts that differ between builds if empty.
    """

    builds: list[Build]
    order: str = "name"
    names: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ArgumentError: There are too few builds, or there is no series of a name.
        """
        if len(self.builds) < 2:
            raise ArgumentError(
                f"{units.count(len(self.builds), 'build')} cannot be compared: pass at least 2"
            )
        for name in self.names:
            if name not in SERIES:
                raise ArgumentError(f"there is no series {name!r}; choose from: {', '.join(SERIES)}")

    @cached_property
    def series(self) -> dict[str, list[float | None]]:
        """The number of each build, of each series to show; None where a build has none."""
        columns = {name: [build.values.get(name) for build in self.builds] for name in SERIES}
        return {
            name: column
            for name, column in columns.items()
            if (name in self.names if self.names else name == STEP or len({*column} - {None}) > 1)
        }

    # As people and services read it.

    def to_dict(self) -> dict[str, Any]:
        """Everything as values that JSON has, with stable keys."""
        builds = [
            {"name": build.name, "start_ns": build.start_ns or None, "values": dict(build.values)}
            for build in self.builds
        ]
        return {"order": self.order, "builds": builds}

    def to_json(self) -> str:
        """`to_dict` as a JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_text(self, width: int = UNLIMITED) -> str:
        """Plain text of a width: a row for each build, with each number's change from the build before."""
        return "\n".join(plain_lines(self._blocks(), width))

    def to_html(self) -> str:
        """The same as HTML, with a drawing of each series."""
        charts = [
            Chart(SERIES[name], values=tuple(value or 0.0 for value in column))
            for name, column in self.series.items()
        ]
        return as_html([*self._blocks(), *charts])

    def _repr_html_(self) -> str:
        return self.to_html()

    def _blocks(self) -> list[Block]:
        columns = [BlockColumn("build", is_text=True)]
        cells: list[list[Cell]] = [[build.name for build in self.builds]]
        for name, values in self.series.items():
            unit = "ns" if name == STEP else "bytes" if name in BYTE_COUNTS else ""
            columns += [BlockColumn(SERIES[name], unit), BlockColumn("change")]
            cells += [list(map(_number, values)), list(map(_change, (None, *values), values))]
        title = f"{units.count(len(self.builds), 'build')}, ordered by {self.order}"
        return [Paragraph(title), TableBlock(tuple(columns), tuple(zip(*cells, strict=True)))]


def _number(value: float | None) -> float | None:
    """A number as a table shows it: whole ones have no decimals."""
    return int(value) if value is not None and float(value).is_integer() else value


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None or before == after:
        return ""
    return units.change_percent(100 * (after - before) / before) if before else "from 0"
