"""Comparing two runs, or several recordings of each: which rows are the same, how they differ, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.comparison import result
from kinetoscope.comparison.explanation import explained
from kinetoscope.comparison.matching import matched
from kinetoscope.comparison.measures import COUNTS, TIMED, Key, Numbers, Run, counts_of, population_of
from kinetoscope.comparison.statistics import Bootstrap, discoveries
from kinetoscope.comparison.work import changed_work
from kinetoscope.model.rows import Mask, Rows

# Rows are looked at from this share of a step on, and at most so many of a kind.
_LEAST_SHARE = 0.005
_MOST_ROWS = 100
_LEAST_COUNT = 1e-6
# What changed by this part of itself is not called the same, however little of a step that is.
_OWN_SHARE = 0.1
# Counts are exact, so that what they imply counts from this part of the margin on.
_OF_MARGIN = 0.3
# The work of one change is usually that of several rows.
_ROWS_OF_CHANGE = 3
# Half of the false alarms that are allowed may come from the whole, the other half from rows.
_HALF = 0.5
# A difference that shows only if a step takes more than this many times longer is not worth a number.
_MOST_SHOWN = 10.0


# What a row has of its key, by its kind; of others the name.
_COLUMNS = {
    "module": ("name", "detail"),
    "operator": ("name", "detail", "module"),
    "line": ("file", "name", "line", "detail"),
}


def compare_runs(
    base: Sequence[Run], new: Sequence[Run], margins: result.Margins | None = None, *, seed: int = 0
) -> result.Comparison:
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
    return _Comparing(
        result.Side(base), result.Side(new), margins or result.Margins(), in_turn=in_turn, seed=seed
    ).compare()


def _in_turn(base: Sequence[Run], new: Sequence[Run]) -> tuple[Sequence[Run], Sequence[Run], bool]:
    """Put the recordings in order of time, and say whether those of the two sides took turns."""
    started = [run.start_ns for run in (*base, *new)]
    if 0 in started or len(set(started)) < len(started):
        return base, new, False
    base, new = (sorted(side, key=lambda run: run.start_ns) for side in (base, new))
    if len(base) != len(new) or len(base) < 2:
        return base, new, False
    order = sorted([(run.start_ns, 0) for run in base] + [(run.start_ns, 1) for run in new])
    pairs = [{order[index][1], order[index + 1][1]} for index in range(0, len(order), 2)]
    return base, new, all(pair == {0, 1} for pair in pairs)


class _Comparing:
    """One comparison on its way."""

    def __init__(
        self, base: result.Side, new: result.Side, margins: result.Margins, *, in_turn: bool, seed: int
    ) -> None:
        self.base, self.new, self.margins = base, new, margins
        self.bootstrap = Bootstrap(base.series, new.series, in_turn=in_turn, seed=seed)
        self.alarm = 1 - margins.confidence
        self.step, self.width = result.step_difference(self.bootstrap, margins, _HALF * self.alarm)
        self.base_ns = self.step.base_ns
        self.row_step_ns = self._undisturbed_ns()
        self.work = changed_work(base.runs, new.runs, self.bootstrap.own_weights)

    def compare(self) -> result.Comparison:
        """Compare everything."""
        differences: dict[str, list[result.Difference]] = {kind: self._differences(kind) for kind in TIMED}
        step, reason = self.step, self._reason() if self.step.verdict == result.CANNOT_TELL else ""
        moved, by_rows = step.change_ns, False
        if (net := self._net(differences, step)) is not None:
            step = replace(step, verdict=result.SLOWER if net > 0 else result.FASTER)
            moved, by_rows, reason = net, True, ""
        if step.verdict in (result.FASTER, result.SLOWER):
            differences = {
                kind: [replace(row, share=(row.work_ns or row.change_ns) / moved) for row in of_kind]
                for kind, of_kind in differences.items()
            }
        order = [
            row
            for rows in differences.values()
            for row in sorted(rows, key=lambda row: (_rank(row), -abs(row.work_ns or row.change_ns)))
        ]
        return result.Comparison(
            self.base,
            self.new,
            self.margins,
            step,
            order,
            [count for name in COUNTS if (count := self._count(name)) is not None],
            self._memory(),
            self.bootstrap.fraction,
            self.bootstrap.in_turn,
            self.row_step_ns,
            reason,
            moved if by_rows else None,
            explained(self.base.runs, self.new.runs, *self.bootstrap.own_weights),
        )

    def _undisturbed_ns(self) -> float:
        """How long a step of the base takes where it is as little disturbed as single operators are.

        A row is described by the steps in which it was disturbed least; on a busy machine no whole step is so little disturbed.
        """
        parts = [float(run.step_ns[run.counted].sum()) * run.undisturbed for run in self.base.runs]
        return min(self.base_ns, max(sum(parts) / self.base.steps, 1.0))

    def _net(self, differences: dict[str, list[result.Difference]], whole: result.Difference) -> float | None:
        """What the work and the rows that changed come to where the step itself is too noisy; None where that says nothing.

        Each row has less noise than the step, and what the host does takes time of the step unless a device works meanwhile.
        """
        if differences["kernel"] or whole.verdict in (result.SLOWER, result.FASTER):
            return None
        work_ns = float(self._work_of_rows(np.zeros(len(self.work.places), np.int64), 1, _OF_MARGIN)[0])
        if work_ns and whole.low_ns <= work_ns <= whole.high_ns:
            return work_ns
        if whole.verdict == result.SAME:
            return None
        nets = [
            sum(row.change_ns for row in differences[kind] if row.verdict in (result.FASTER, result.SLOWER))
            for kind in ("module", "line")
        ]
        net = max(nets, key=abs)
        # Rows of both kinds share the time of a step among them; they must not contradict each other, nor the step.
        least_ns = self.margins.of_step(self.row_step_ns)
        if abs(net) < least_ns or min(nets) * max(nets) < 0 or not whole.low_ns <= net <= whole.high_ns:
            return None
        return net

    def _work_of_rows(self, row_of_place: Rows, rows: int, of_margin: float) -> Numbers:
        """How much longer each row takes by the work that certainly changed; 0 where that is too little or not known well enough."""
        estimate = self.bootstrap.estimate_rows(*self.work.by(row_of_place, rows))
        is_sure = np.abs(estimate.change) > estimate.half_width(self.margins.confidence)
        is_large = np.abs(estimate.change) >= of_margin * self.margins.of_step(self.row_step_ns)
        return np.where(is_sure & is_large, estimate.change, 0.0)

    def _reason(self) -> str:
        """Why it is unknown whether a step is faster."""
        if any(not run.unit.repeats for side in (self.base, self.new) for run in side.runs):
            return "a recording has no steps: loop over kinetoscope.steps(...), or pass a schedule and call prof.step()"
        if min(self.base.series.recordings, self.new.series.recordings) == 1:
            lossy = any(run.losses for side in (self.base, self.new) for run in side.runs)
            exact = "" if lossy else "; counts are exact"
            return (
                "one recording does not show how much recordings of one program differ: another run of the same program may take longer "
                f"throughout{exact}. For times, pass several of each run, recorded in turn, as `kinetoscope ab` records them"
            )
        width = np.expm1(self.width)
        if width > _MOST_SHOWN:
            return (
                "the recordings of one program differ too much, or are too few, for any difference of a step to show; "
                "record more, in turn"
            )
        return (
            f"the recordings differ by more than the margin: a difference below {float(f'{100 * width:.2g}'):,.10g} % of a step "
            "does not show; record more, in turn"
        )

    def _differences(self, kind: str) -> list[result.Difference]:
        """The rows of a kind that take enough of a step, or run more or less often."""
        ran = [population_of(side.runs, kind) for side in (self.base, self.new)]
        pairs = matched(kind, *(side.keys for side in ran))
        if not pairs:
            return []
        sizes, often = [], []
        for side, rows, weights in zip(ran, np.array(pairs).T, self.bootstrap.own_weights, strict=True):
            equal = np.full(len(weights), 1 / len(weights))
            sizes.append(np.append(side.means(weights), 0.0)[rows])
            often.append(np.append(side.means(equal, counts=True), 0.0)[rows])
        size, more = np.maximum(*sizes), np.abs(often[1] - often[0])
        large = np.flatnonzero((size >= _LEAST_SHARE * self.base_ns) | (kind == "part"))
        large = large[np.argsort(-size[large], kind="stable")[:_MOST_ROWS]]
        # However little time it takes: what runs more or less often is what the counts of a step are asked about.
        unlike = np.flatnonzero(more > _LEAST_COUNT)
        unlike = unlike[np.argsort(-more[unlike], kind="stable")[:_MOST_ROWS]]
        chosen = np.union1d(large, unlike)
        picked = [*zip(ran, np.array(pairs)[chosen].T, (self.base.steps, self.new.steps), strict=True)]
        keys = [[*map([*side.keys, None].__getitem__, rows.tolist())] for side, rows, _ in picked]
        tables = [side.table(rows, steps) for side, rows, steps in picked]
        counts = [side.table(rows, steps, counts=True) for side, rows, steps in picked]
        # The parts of a step add up to it, so all are of the same steps.
        estimate = (self.bootstrap.estimate if kind == "part" else self.bootstrap.estimate_rows)(*tables)
        width = estimate.half_width(self.margins.confidence)
        row_of_place = _rows_of_places(_OF_PLACE.get(kind, slice(0, 0)), self.work.places, keys)
        work_ns = self._work_of_rows(row_of_place, len(chosen), _OF_MARGIN / _ROWS_OF_CHANGE)
        columns = (
            estimate.base,
            estimate.new,
            estimate.p,
            width,
            self._discoveries(keys, estimate.p),
            work_ns,
        )
        return [
            self._difference(kind, *row)
            for row in zip(
                *keys,
                *(table.T for table in counts),
                zip(*map(np.ndarray.tolist, columns), strict=True),
                strict=True,
            )
        ]

    def _discoveries(self, keys: Sequence[Sequence[Key | None]], p: Numbers) -> Mask:
        """Which rows surely changed; half of the allowed false alarms are for edited code, whose rows are few.

        C. R. Genovese, K. Roeder and L. Wasserman, "False discovery control with p-value weighting", Biometrika 93 (2006).
        """
        if len(p) == 0:
            return np.zeros(0, bool)
        codes = [(new or base or ())[1:2] for base, new in zip(*keys, strict=True)]
        is_edited = np.array([not self.margins.edited.isdisjoint(code) for code in codes])
        # Together, edited rows have the weight of all others; the mean weight is 1.
        share = np.where(is_edited, is_edited.mean(), 1 - is_edited.mean())
        return discoveries(p * np.where(share < 1, share / _HALF, 1.0), _HALF * self.alarm / len(TIMED))

    def _difference(
        self,
        kind: str,
        base: Key | None,
        new: Key | None,
        base_counts: Numbers,
        new_counts: Numbers,
        values: tuple[float, float, float, float, bool, float],
    ) -> result.Difference:
        key = new if new is not None else base
        assert key is not None  # noqa: S101  (a row is of at least one side)
        base_ns, new_ns, p, width, sure, work_ns = values
        change = new_ns - base_ns
        verdict = self._row_verdict(kind, base_ns, change, width, sure=sure)
        if work_ns and verdict not in (result.SLOWER, result.FASTER) and abs(work_ns - change) <= width:
            verdict = result.SLOWER if work_ns > 0 else result.FASTER
        text: dict[str, Any] = dict(zip(_COLUMNS.get(kind, ("name",)), key, strict=False))
        if kind == "line" and base is not None:
            text |= {"detail": text["detail"] or base[3], "base_line": base[2]}
        elif kind == "collective":
            text["detail"] = f"{key[1]} ranks, {key[2]} bytes"
        only = "base" if new is None else "new" if base is None else ""
        counts = None if kind == "part" else count_difference(kind, base_counts, new_counts)
        if counts is not None:
            text |= dict(zip(("base_count", "new_count"), counts.usual, strict=True))
            text["count_verdict"] = {"base": result.GONE, "new": result.ADDED}.get(only, counts.verdict)
        return result.Difference(
            kind=kind,
            base_ns=base_ns,
            new_ns=new_ns,
            # No time can fall by more than all of it.
            low_ns=max(change - width, -base_ns) if np.isfinite(width) else -np.inf,
            high_ns=change + width,
            p=p,
            verdict=verdict,
            only=only,
            work_ns=work_ns,
            **text,
        )

    def _row_verdict(self, kind: str, base_ns: float, change: float, width: float, *, sure: bool) -> str:
        """What the difference of a row means: against a step as little disturbed as the row, and against the row itself."""
        least_ns = self.margins.of_step(self.base_ns if kind == "part" else self.row_step_ns)
        verdict = result.time_verdict(change, change - width, change + width, least_ns, sure=sure)
        if verdict == result.SAME and abs(change) > _OWN_SHARE * base_ns:
            return result.BELOW_MARGIN if sure else result.CANNOT_TELL
        return verdict

    def _count(self, name: str) -> result.CountDifference | None:
        base, new = counts_of(self.base.runs, name), counts_of(self.new.runs, name)
        if base is None and new is None:
            return None
        difference = count_difference(name, base, new)
        covered_percents = [run.flops_covered_percent for side in (self.base, self.new) for run in side.runs]
        if name == "flops" and max(covered_percents) - min(covered_percents) > _MOST_UNKNOWN_PERCENT:
            # What is known of one side only would count as what it does more.
            return replace(difference, verdict=result.CANNOT_TELL)
        return difference

    def _memory(self) -> list[result.CountDifference]:
        sides = (self.base, self.new)
        keys = [list(dict.fromkeys(key for run in side.runs for key in run.memory)) for side in sides]
        pairs = matched("memory", *keys)
        # Nothing is held at the place -1.
        base_keys, new_keys = ([*of_side, ()] for of_side in keys)
        rows = []
        for base_place, new_place in pairs:
            base, new = base_keys[base_place], new_keys[new_place]
            holder = ", ".join(filter(None, new or base))
            rows.append(count_difference("memory", self.base.held(base), self.new.held(new), holder))
        return sorted(rows, key=lambda row: (-abs((row.new or 0) - (row.base or 0)), -(row.new or 0)))


# Where the key of a row is in that of a place of work.
_OF_PLACE = {"line": slice(0, 4), "module": slice(5, 6)}


def _rows_of_places(
    part: slice, places: Sequence[tuple[Key | None, Key | None]], keys: Sequence[Sequence[Key | None]]
) -> Rows:
    """For each place of work the row that it belongs to, by the keys of the rows on both sides; -1 for none."""
    length = part.stop - part.start
    ours, theirs = ({key and key[:length]: row for row, key in enumerate(side) if length} for side in keys)
    row_of_pairs = [ours.get(base and base[part], theirs.get(new and new[part], -1)) for base, new in places]
    return np.array(row_of_pairs, np.int64)


# Sums of FLOPs of which more differs in what is known are not compared, in percent of the operators' time.
_MOST_UNKNOWN_PERCENT = 1.0


def count_difference(
    name: str, base: Numbers | None, new: Numbers | None, holder: str = ""
) -> result.CountDifference:
    """Compare a count: where it is the same number in all steps of a side, the verdict is exact.

    Steps that differ are the same only if both sides have the same range and the same total a step.
    """
    nothing = (np.nan, np.nan)
    ranges = [nothing if side is None else (float(side.min()), float(side.max())) for side in (base, new)]
    medians = [None if side is None else float(np.median(side)) for side in (base, new)]
    means = [None if side is None else float(side.mean()) for side in (base, new)]
    verdict = result.CANNOT_TELL
    if base is not None and new is not None:
        if ranges[1][0] > ranges[0][1]:
            verdict = result.MORE
        elif ranges[1][1] < ranges[0][0]:
            verdict = result.FEWER
        elif ranges[0] == ranges[1] and (
            ranges[0][0] == ranges[0][1] or _total(base) * len(new) == _total(new) * len(base)
        ):
            verdict = result.SAME
    return result.CountDifference(
        name, medians[0], medians[1], ranges[0], ranges[1], verdict, holder, means[0], means[1]
    )


def _total(counts: Numbers) -> int:
    return sum(map(int, counts.tolist()))


def _rank(row: result.Difference) -> int:
    if row.verdict in (result.SLOWER, result.FASTER):
        return 0
    if row.runs_otherwise:
        return 1
    return 2 if row.verdict in (result.CANNOT_TELL, result.BELOW_MARGIN) else 3
