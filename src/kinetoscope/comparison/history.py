"""What many builds measured, in order, and where it changed for good.

A series is divided where the energy distance of its two parts is largest, then each part again: D. S. Matteson and N. A. James, "A nonparametric
approach for multiple change point analysis of multivariate data" (E-divisive), Journal of the American Statistical Association 109
(2014). Whether a division counts is decided by Student's t-test between the segments on both sides instead of by permutations, as in M. Fleming et
al., "Hunter: using change point detection to hunt for performance regressions", ICPE 2023, with the
probability divided by the number of builds, because each could be the change. A change that later ones make doubtful is dropped.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.comparison.kinds import classes_of_steps
from kinetoscope.comparison.measures import BYTE_COUNTS, COUNTS, Run
from kinetoscope.comparison.statistics import Series, two_sided_p
from kinetoscope.display.html import note, page, safe, table
from kinetoscope.display.printable import printable
from kinetoscope.display.terminal import UNLIMITED
from kinetoscope.display.text_table import text_table
from kinetoscope.model import units
from kinetoscope.tables.host.units_of_work import Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

STEP = "step_ns"
"""The name of the series of step times, in nanoseconds; the others are named as in `COUNTS`."""
SERIES = {STEP: "time of a step"} | COUNTS
LEAST_SEGMENT = 2
"""Builds between two changes, at least: what a single build measured is no change."""
MOST_BUILDS = 2_000
_FASTEST = 0.5
_HEIGHT, _WIDTH = 8, 96
_SVG_WIDTH, _SVG_HEIGHT = 720, 120


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


@dataclass(frozen=True)
class Change:
    """A build from which on a series is different.

    Attributes:
        series: One of `SERIES`.
        place: The place of the first build that differs.
        build: Its name.
        before: The mean from the change before to this one.
        after: The mean from this one to the next.
        p: How probable so large a difference of the two is if nothing changed, at any of the builds.
    """

    series: str
    place: int
    build: str
    before: float
    after: float
    p: float

    @property
    def percent(self) -> float:
        """By how much it changed; infinite from 0."""
        return 100 * (self.after - self.before) / self.before if self.before else math.inf


def build_of(runs: Sequence[Run], name: str) -> Build:
    """What the recordings of one build measured.

    Times are means of the fastest half of the steps of each kind, so that all kinds keep their weight; of counts the largest of a step, as in budgets.
    """
    values: dict[str, float] = {}
    if timed := [run for run in runs if run.unit is not Unit.RECORDING and len(run.counted)]:
        step_ns, kind = np.concatenate([run.step_ns[run.counted] for run in timed]), classes_of_steps(timed)
        fastest = Series(step_ns, np.zeros(len(step_ns), np.int64), kind).weights(
            np.ones((1, len(step_ns))), _FASTEST
        )
        values[STEP] = float(fastest[0] @ step_ns)
    for count in COUNTS:
        found = [
            float(run.run_counts[count])
            if count in run.run_counts
            else float(run.step_counts[count][run.counted].max())
            if count in run.step_counts
            else None
            for run in runs
        ]
        if known := [one for one in found if one is not None]:
            values[count] = max(known)
    return Build(name, values, min((run.start_ns for run in runs if run.start_ns), default=0))


def build_of_comparison(found: Any, name: str) -> Build | None:
    """What the new side of a comparison measured, of the values of its JSON; None if these are something else."""
    if not isinstance(found, dict) or not {"step", "counts", "verdict"} <= found.keys():
        return None
    values = {
        one["name"]: float(one["new"])
        for one in found["counts"]
        if one["new"] is not None and one["name"] in COUNTS
    }
    return Build(name, {STEP: float(found["step"]["new_ns"])} | values)


@dataclass
class History:
    """Builds in order, and what changed.

    Attributes:
        builds: The builds, the oldest first.
        confidence: How sure a change has to be, below 1.
        order: What the order is by, as a person reads it.
    """

    builds: list[Build]
    confidence: float = 0.99
    order: str = "name"
    names: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ArgumentError: There are too few or too many builds, or a value cannot be used.
        """
        if not 0.5 <= self.confidence < 1:
            raise ArgumentError(
                f"confidence={self.confidence!r} is not valid: use a number from 0.5 to below 1, such as 0.99"
            )
        if not 2 * LEAST_SEGMENT <= len(self.builds) <= MOST_BUILDS:
            raise ArgumentError(
                f"{units.count(len(self.builds), 'build')} cannot be searched for changes: pass {2 * LEAST_SEGMENT} to {MOST_BUILDS:,}"
            )
        for name in self.names:
            if name not in SERIES:
                raise ArgumentError(f"there is no series {name!r}; choose from: {', '.join(SERIES)}")

    @cached_property
    def series(self) -> dict[str, Numbers]:
        """The number of each build, of the series that more than three builds have; not a number where one has none."""
        chosen = self.names or SERIES
        found = {
            name: np.array([build.values.get(name, np.nan) for build in self.builds])
            for name in SERIES
            if name in chosen
        }
        return {name: each for name, each in found.items() if np.isfinite(each).sum() >= 2 * LEAST_SEGMENT}

    @cached_property
    def changes(self) -> list[Change]:
        """The changes of all series, by series in the order of builds."""
        return [one for name in self.series for one in self._changes(name)]

    def _changes(self, name: str) -> list[Change]:
        """The changes of a series."""
        known = np.flatnonzero(np.isfinite(self.series[name]))
        values = self.series[name][known]
        places = change_points(values, 1 - self.confidence)
        edges = [0, *places, len(values)]
        found = []
        for before, place, after in zip(edges, places, edges[2:], strict=False):
            sides = values[before:place], values[place:after]
            at = int(known[place])
            found.append(
                Change(
                    name,
                    at,
                    self.builds[at].name,
                    float(sides[0].mean()),
                    float(sides[1].mean()),
                    min(1.0, len(values) * same_mean_p(*sides)),
                )
            )
        return found

    # As people and services read it.

    def to_dict(self) -> dict[str, Any]:
        """Everything as values that JSON has, with stable keys."""
        changes = [
            asdict(one) | {"percent": one.percent if math.isfinite(one.percent) else None}
            for one in self.changes
        ]
        builds = [
            {"name": build.name, "start_ns": build.start_ns or None, "values": dict(build.values)}
            for build in self.builds
        ]
        return {"order": self.order, "confidence": self.confidence, "changes": changes, "builds": builds}

    def to_json(self) -> str:
        """`to_dict` as a JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_text(self, width: int = UNLIMITED) -> str:
        """Plain text of a width: the changes, and a plot of each series that changed, and of the time of a step."""
        lines = [f"{units.count(len(self.builds), 'build')}, ordered by {self.order}", ""]
        lines += (
            text_table([_HEADER, *self._rows()], "<<>>><", width=width)
            if self.changes
            else ["No series changed."]
        )
        for name in self._shown():
            lines += [
                "",
                SERIES[name],
                *_plot(self.series[name], [one.place for one in self.changes if one.series == name], name),
            ]
        return "\n".join(lines)

    def to_html(self) -> str:
        """The same as HTML, with drawings."""
        parts = [note(f"{units.count(len(self.builds), 'build')}, ordered by {self.order}")]
        parts.append(
            table(_HEADER, self._rows(), left=(0, 1, 5), caption="Changes")
            if self.changes
            else note("No series changed.")
        )
        for name in self._shown():
            parts += [note(SERIES[name]), self._svg(name)]
        return page(*parts)

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return self.to_html()

    def _shown(self) -> list[str]:
        """The series to plot: of those that did not change, the time of a step and those that were chosen."""
        changed = {one.series for one in self.changes}
        return [name for name in self.series if name in changed or name == STEP or self.names]

    def _rows(self) -> list[list[str]]:
        """The changes as rows of text."""
        return [
            [
                SERIES[one.series],
                printable(one.build),
                amount(one.series, one.before),
                amount(one.series, one.after),
                units.change_percent(one.percent) if math.isfinite(one.percent) else "from 0",
                f"p = {one.p:.1g}",
            ]
            for one in self.changes
        ]

    def _svg(self, name: str) -> str:
        """A series as a drawing: a point for each build, a line for the mean between changes."""
        values = self.series[name]
        places = [one.place for one in self.changes if one.series == name]
        low, high = _range(values)
        across, down = _SVG_WIDTH / max(len(values) - 1, 1), _SVG_HEIGHT / (high - low)
        width, height = _SVG_WIDTH + 16, _SVG_HEIGHT + 16
        size = f'width="{width}" height="{height}" viewBox="-8 -8 {width} {height}"'
        parts = [f'<svg {size} fill="currentColor" role="img"><title>{safe(SERIES[name])}</title>']
        for place, value in enumerate(values.tolist()):
            if math.isfinite(value):
                title = safe(f"{self.builds[place].name}: {amount(name, value)}")
                parts.append(
                    f'<circle cx="{place * across:.1f}" cy="{(high - value) * down:.1f}" r="2.5" fill-opacity="0.6"><title>{title}</title></circle>'
                )
        for begin, end in zip([0, *places], [*places, len(values)], strict=True):
            y = (high - float(np.nanmean(values[begin:end]))) * down
            parts.append(
                f'<path d="M{begin * across:.1f} {y:.1f}H{max(end - 1, begin) * across:.1f}" stroke="rgba(66,133,244,.9)" stroke-width="2"/>'
            )
        parts += [
            f'<path d="M{(place - 0.5) * across:.1f} -8v{_SVG_HEIGHT + 16}" stroke="rgba(230,140,0,.9)" stroke-dasharray="4 3"/>'
            for place in places
        ]
        return f'<div class="s">{"".join(parts)}</svg></div>'


_HEADER = ["series", "from build", "before", "after", "change", ""]


def change_points(values: Numbers, alarm: float) -> list[int]:
    """The places at which a series changes: each is the first of a segment.

    Args:
        values: The series, finite.
        alarm: How probable it may be that a series that never changes is divided.
    """
    # The place with the largest difference is one of many.
    alarm /= max(len(values), 1)
    found: list[int] = []
    waiting = [(0, len(values))]
    while waiting:
        begin, end = waiting.pop()
        if (inside := _best_division(values[begin:end])) is None:
            continue
        place = begin + inside
        if same_mean_p(values[begin:place], values[place:end]) <= alarm:
            found.append(place)
            waiting += [(begin, place), (place, end)]
    found.sort()
    # Later divisions shorten the segments of earlier ones: the weakest that is no longer sure goes first.
    while found:
        edges = [0, *found, len(values)]
        p = [
            same_mean_p(values[before:place], values[place:after])
            for before, place, after in zip(edges, found, edges[2:], strict=False)
        ]
        weakest = int(np.argmax(p))
        if p[weakest] <= alarm:
            break
        del found[weakest]
    return found


def _best_division(values: Numbers) -> int | None:
    """Where the energy distance of the two parts is largest; None if they would be too short."""
    count = len(values)
    places = np.arange(LEAST_SEGMENT, count - LEAST_SEGMENT + 1)
    if len(places) == 0:
        return None
    # Sums of the distances of all pairs of the first i and the first j.
    sums = np.zeros((count + 1, count + 1))
    sums[1:, 1:] = np.abs(values[:, None] - values[None, :]).cumsum(axis=0).cumsum(axis=1)
    left, right = places.astype(float), (count - places).astype(float)
    within_left = sums[places, places]
    across = sums[places, count] - within_left
    within_right = sums[count, count] - sums[places, count] - across
    distance = (
        2 * across / (left * right) - within_left / (left * (left - 1)) - within_right / (right * (right - 1))
    )
    return int(places[np.argmax(left * right / count * distance)])


def same_mean_p(one: Numbers, other: Numbers) -> float:
    """The probability of so large a difference of two means if there is none, by Student's t-test.

    Both sides share one variance: that of a segment of two builds alone says nothing.
    """
    freedom = len(one) + len(other) - 2
    variance = (((one - one.mean()) ** 2).sum() + ((other - other.mean()) ** 2).sum()) / freedom
    error = math.sqrt(float(variance) * (1 / len(one) + 1 / len(other)))
    difference = abs(float(one.mean() - other.mean()))
    if error == 0:
        return 1.0 if difference == 0 else 0.0
    return float(two_sided_p(np.array([difference / error]), np.array([float(freedom)]))[0])


def amount(series: str, value: float) -> str:
    """A number of a series as a person reads it."""
    if series == STEP:
        return units.duration(value)
    return units.size(value) if series in BYTE_COUNTS else f"{value:,.10g}"


def _range(values: Numbers) -> tuple[float, float]:
    """The smallest and the largest number, and room around equal ones."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return (low, high) if high > low else (low - 1, high + 1)


def _plot(values: Numbers, places: Sequence[int], name: str) -> list[str]:
    """A plot of text: a column for each build, or for several; `|` is where a segment begins."""
    each = -(-len(values) // _WIDTH)
    groups = [values[begin : begin + each] for begin in range(0, len(values), each)]
    low, high = _range(values)
    cells = [[" "] * len(groups) for _ in range(_HEIGHT)]
    for place in places:
        for line in cells:
            line[place // each] = "|"
    for column, group in enumerate(groups):
        if np.isfinite(group).any():
            row = round((_HEIGHT - 1) * (high - float(np.nanmean(group))) / (high - low))
            cells[row][column] = "*"
    labels = {0: amount(name, high), _HEIGHT - 1: amount(name, low)}
    width = max(map(len, labels.values()))
    return [f"{labels.get(row, ''):>{width}}  {''.join(line).rstrip()}" for row, line in enumerate(cells)]
