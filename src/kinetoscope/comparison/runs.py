"""Comparing two runs, or several recordings of each: which rows are the same, how they differ, and how sure that is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.comparison.matching import LEVELS, matched, same_files
from kinetoscope.comparison.measures import COUNTS, TIMED, Run
from kinetoscope.comparison.result import (
    CANNOT_TELL,
    FASTER,
    FEWER,
    MORE,
    SAME,
    SLOWER,
    Comparison,
    CountDifference,
    Difference,
    Margins,
    Side,
    time_verdict,
)
from kinetoscope.comparison.statistics import Bootstrap, discoveries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kinetoscope.comparison.statistics import Estimate

    Numbers = NDArray[np.float64]
    Key = tuple[Any, ...]

# Rows are looked at from this share of a step on, and at most so many of a kind.
_LEAST_SHARE = 0.005
_MOST_ROWS = 100
_LEAST_COUNT = 1e-6
# Half of the false alarms that are allowed may come from the whole, the other half from rows.
_HALF = 0.5


def compare_runs(
    base: Sequence[Run], new: Sequence[Run], margins: Margins | None = None, *, seed: int = 0
) -> Comparison:
    """Compare two runs.

    Args:
        base: What the recordings of the base did.
        new: What those of the other run did.
        margins: When a difference of times counts.
        seed: Of the random numbers with which steps are resampled.

    Returns:
        The comparison.

    Raises:
        ArgumentError: A side has no recording.
    """
    for side, runs in (("base", base), ("new", new)):
        if not runs:
            raise ArgumentError(f"the side {side} has no recording: pass one trace or a list of traces")
    base, new, in_turn = _in_turn(base, new)
    return _Comparing(Side(base), Side(new), margins or Margins(), in_turn=in_turn, seed=seed).compare()


def _in_turn(base: Sequence[Run], new: Sequence[Run]) -> tuple[Sequence[Run], Sequence[Run], bool]:
    """Put the recordings in order of time, and say whether those of the two sides took turns."""
    started = [run.start_ns for run in (*base, *new)]
    if 0 in started or len(set(started)) < len(started):
        return base, new, False
    base, new = (sorted(side, key=lambda run: run.start_ns) for side in (base, new))
    if len(base) != len(new) or len(base) < 2:
        return base, new, False
    order = sorted([(run.start_ns, 0) for run in base] + [(run.start_ns, 1) for run in new])
    pairs = [{order[place][1], order[place + 1][1]} for place in range(0, len(order), 2)]
    return base, new, all(pair == {0, 1} for pair in pairs)


class _Comparing:
    """One comparison on its way."""

    def __init__(self, base: Side, new: Side, margins: Margins, *, in_turn: bool, seed: int) -> None:
        self.base, self.new, self.margins = base, new, margins
        self.bootstrap = Bootstrap(base.series, new.series, in_turn=in_turn, seed=seed)
        self.step = self.bootstrap.estimate(base.series.step_ns[:, None], new.series.step_ns[:, None])
        self.step_ns = max(float(self.step.base[0]), 1.0)
        self.least_ns = max(margins.percent / 100 * self.step_ns, margins.least_ns)
        self.alarm = 1 - margins.confidence

    def compare(self) -> Comparison:
        """Compare everything."""
        found: dict[str, list[Difference]] = {kind: self._kind(kind) for kind in TIMED}
        whole, reason = self._whole()
        moved, by_rows = whole.change_ns, False
        if whole.verdict == CANNOT_TELL and (net := self._net_of_rows(found, whole)) is not None:
            whole = replace(whole, verdict=SLOWER if net > 0 else FASTER)
            moved, by_rows, reason = net, True, ""
        if whole.verdict in (FASTER, SLOWER):
            found = {kind: [_explaining(row, moved) for row in rows] for kind, rows in found.items()}
        order = [
            row
            for rows in found.values()
            for row in sorted(rows, key=lambda row: (_rank(row), -abs(row.change_ns)))
        ]
        return Comparison(
            self.base,
            self.new,
            self.margins,
            whole,
            order,
            [one for name in COUNTS if (one := self._count(name)) is not None],
            self._memory(),
            self.bootstrap.fraction,
            self.bootstrap.in_turn,
            reason,
            moved if by_rows else None,
        )

    def _net_of_rows(self, found: dict[str, list[Difference]], whole: Difference) -> float | None:
        """What the rows that changed come to where the step itself is too noisy; None where that says nothing.

        Each row has less noise than the step, and what the host does takes time of the step unless a device works meanwhile.
        """
        if found["kernel"]:
            return None
        nets = [
            sum(row.change_ns for row in found[kind] if row.verdict in (FASTER, SLOWER))
            for kind in ("module", "line")
        ]
        net = max(nets, key=abs)
        # Rows of both kinds share the time of a step among them; they must not contradict each other, nor the step.
        if abs(net) < self.least_ns or min(nets) * max(nets) < 0 or not whole.low_ns <= net <= whole.high_ns:
            return None
        return net

    def _whole(self) -> tuple[Difference, str]:
        """The verdict on a step, and why it is no better."""
        p, width = float(self.step.p[0]), float(self.step.half_width(self.margins.confidence)[0])
        change = float(self.step.change[0])
        verdict = time_verdict(change, width, self.least_ns, sure=p <= _HALF * self.alarm)
        whole = Difference(
            "step",
            "step",
            float(self.step.base[0]),
            float(self.step.new[0]),
            change - width,
            change + width,
            p,
            verdict,
        )
        if verdict != CANNOT_TELL:
            return whole, ""
        return whole, self._reason(width)

    def _reason(self, width: float) -> str:
        """Why one cannot tell whether a step is faster."""
        if not all(run.has_steps for side in (self.base, self.new) for run in side.runs):
            return "a recording has no steps: loop over kinetoscope.steps(...), or pass a schedule and call prof.step()"
        if min(self.base.series.recordings, self.new.series.recordings) == 1:
            return (
                "one recording does not show how much recordings of one program differ: pass several of each run, "
                "recorded in turn"
            )
        return (
            f"the recordings differ by more than the margin: a difference below {100 * width / self.step_ns:.2g} % of a step "
            "does not show; record more, in turn"
        )

    def _kind(self, kind: str) -> list[Difference]:
        """The rows of a kind that take enough of a step, or run more or less often."""
        keys = {"base": self.base.keys(kind), "new": self.new.keys(kind)}
        known = keys["new"]
        if kind == "line":
            files = same_files((key[0] for key in keys["base"]), (key[0] for key in known))
            known = [(files[key[0]], *key[1:]) for key in known]
        pairs, gone, added = matched(keys["base"], known, LEVELS[kind])
        rows: list[tuple[int, int]] = [
            *pairs,
            *((place, -1) for place in gone),
            *((-1, place) for place in added),
        ]
        if not rows:
            return []
        sides = ((self.base, keys["base"], 0), (self.new, keys["new"], 1))
        sizes, often = [], []
        for (side, names, at), weights in zip(sides, self.bootstrap.own_weights, strict=True):
            here = np.array([row[at] for row in rows])
            sizes.append(np.append(side.means(kind, names, weights), 0.0)[here])
            equal = np.full(side.steps, 1 / side.steps)
            often.append(np.append(side.means(kind, names, equal, counts=True), 0.0)[here])
        size, more = np.maximum(*sizes), np.abs(often[1] - often[0])
        large = np.flatnonzero((size >= _LEAST_SHARE * self.step_ns) | (kind == "part"))
        large = large[np.argsort(-size[large], kind="stable")[:_MOST_ROWS]]
        # However little time it takes: what runs more or less often is what the counts of a step are asked about.
        unlike = np.flatnonzero(more > _LEAST_COUNT)
        unlike = unlike[np.argsort(-more[unlike], kind="stable")[:_MOST_ROWS]]
        chosen = np.union1d(large, unlike)
        picked: list[list[Key | None]] = [
            [names[rows[row][at]] if rows[row][at] >= 0 else None for row in chosen.tolist()]
            for _, names, at in sides
        ]
        tables = [side.table(kind, names) for (side, _, _), names in zip(sides, picked, strict=True)]
        # The parts of a step add up to it, so all are of the same steps.
        estimate = (self.bootstrap.estimate if kind == "part" else self.bootstrap.estimate_rows)(*tables)
        counts = [
            np.median(side.table(kind, names, counts=True), axis=0) if len(names) else np.zeros(0)
            for (side, _, _), names in zip(sides, picked, strict=True)
        ]
        sure = discoveries(estimate.p, _HALF * self.alarm / len(TIMED))
        width = estimate.half_width(self.margins.confidence)
        return [
            self._difference(
                kind,
                (picked[0][at], picked[1][at]),
                estimate,
                width,
                at,
                bool(sure[at]),
                (counts[0][at], counts[1][at]),
            )
            for at in range(len(chosen))
        ]

    def _difference(
        self,
        kind: str,
        keys: tuple[Key | None, Key | None],
        estimate: Estimate,
        width: Numbers,
        at: int,
        sure: bool,
        counts: tuple[float, float],
    ) -> Difference:
        """One row."""
        base, new = keys
        key = new if new is not None else base
        assert key is not None  # noqa: S101  (a row is of at least one side)
        change = float(estimate.change[at])
        text: dict[str, Any] = {}
        if kind == "module":
            text = {"detail": key[1]}
        elif kind == "operator":
            text = {"detail": key[1], "module": key[2]}
        elif kind == "line":
            own = base if base is not None else key
            text = {
                "detail": key[3] or own[3],
                "file": key[0],
                "line": key[2],
                "base_line": own[2] if base is not None else -1,
            }
        elif kind == "collective":
            text = {"detail": f"{key[1]} ranks, {key[2]} bytes"}
        counted = kind != "part"
        return Difference(
            kind,
            str(key[1] if kind == "line" else key[0]),
            float(estimate.base[at]),
            float(estimate.new[at]),
            change - float(width[at]),
            change + float(width[at]),
            float(estimate.p[at]),
            time_verdict(change, float(width[at]), self.least_ns, sure=sure),
            None,
            float(counts[0]) if counted else None,
            float(counts[1]) if counted else None,
            only="base" if new is None else "new" if base is None else "",
            **text,
        )

    def _count(self, name: str) -> CountDifference | None:
        """A count of both runs; None where neither has it."""
        base, new = self.base.counts(name), self.new.counts(name)
        if base is None and new is None:
            return None
        return count_difference(name, base, new)

    def _memory(self) -> list[CountDifference]:
        """The memory of each holder at the peak."""
        sides = [
            list(dict.fromkeys(key for run in side.runs for key in run.memory))
            for side in (self.base, self.new)
        ]
        pairs, gone, added = matched(sides[0], sides[1], LEVELS["memory"])
        rows = [
            count_difference(
                "memory",
                np.array(
                    [run.memory.get(sides[0][one], 0) if one >= 0 else 0 for run in self.base.runs], float
                ),
                np.array(
                    [run.memory.get(sides[1][other], 0) if other >= 0 else 0 for run in self.new.runs], float
                ),
                ", ".join(part for part in (sides[1][other] if other >= 0 else sides[0][one]) if part),
            )
            for one, other in [*pairs, *((place, -1) for place in gone), *((-1, place) for place in added)]
        ]
        return sorted(rows, key=lambda row: (-abs((row.new or 0) - (row.base or 0)), -(row.new or 0)))


def count_difference(
    name: str, base: Numbers | None, new: Numbers | None, holder: str = ""
) -> CountDifference:
    """Compare a count: where it is the same number in all steps of a side, the verdict is exact."""
    nothing = (np.nan, np.nan)
    ranges = [nothing if each is None else (float(each.min()), float(each.max())) for each in (base, new)]
    medians = [None if each is None else float(np.median(each)) for each in (base, new)]
    verdict = CANNOT_TELL
    if medians[0] is not None and medians[1] is not None:
        if medians[0] == medians[1]:
            verdict = SAME
        elif ranges[1][0] > ranges[0][1] or ranges[1][1] < ranges[0][0]:
            verdict = MORE if medians[1] > medians[0] else FEWER
    return CountDifference(name, medians[0], medians[1], ranges[0], ranges[1], verdict, holder)


def _explaining(row: Difference, moved_ns: float) -> Difference:
    """A row with its share of the change of a step."""
    return replace(row, share=row.change_ns / moved_ns)


def _rank(row: Difference) -> int:
    """Rows that changed come first, then those of which one cannot tell."""
    return 0 if row.verdict in (SLOWER, FASTER) else 1 if row.verdict == CANNOT_TELL else 2
