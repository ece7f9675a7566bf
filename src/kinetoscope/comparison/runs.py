"""Two runs, or several recordings of each: which steps, modules, operators and lines take longer, and how sure that is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.comparison.matching import LEVELS, matched, same_files
from kinetoscope.comparison.measures import COUNTS, RUN_COUNTS, STEP_COUNTS, TIMED, Run
from kinetoscope.comparison.statistics import Bootstrap, Series, discoveries
from kinetoscope.model.arrow import to_arrow
from kinetoscope.model.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.comparison.statistics import Estimate

    Rows = NDArray[np.int64]
    Numbers = NDArray[np.float64]
    Key = tuple[Any, ...]

FASTER, SLOWER, SAME, CANNOT_TELL = "faster", "slower", "same", "cannot tell"
MORE, FEWER = "more", "fewer"

# Rows are looked at from this share of a step on, and at most so many of a kind.
_LEAST_SHARE = 0.005
_MOST_ROWS = 100
_LEAST_COUNT = 1e-6
# Half of the false alarms that are allowed may come from the whole, the other half from rows.
_HALF = 0.5


@dataclass(frozen=True)
class Margins:
    """When a difference of times counts: it has to meet all three conditions.

    Attributes:
        percent: It is at least this part of a step, in percent.
        least_ns: It is at least this long, in nanoseconds a step.
        confidence: How sure it is, between 0 and 1.
    """

    percent: float = 1.0
    least_ns: float = 10_000.0
    confidence: float = 0.99

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ArgumentError: One cannot be used.
        """
        if not 0 <= self.percent < float("inf"):
            raise ArgumentError(f"percent={self.percent!r} is not valid: use a number of percent, 0 or more")
        if not 0 <= self.least_ns < float("inf"):
            raise ArgumentError(
                f"least_ns={self.least_ns!r} is not valid: use a number of nanoseconds, 0 or more"
            )
        if not 0.5 <= self.confidence < 1:
            raise ArgumentError(
                f"confidence={self.confidence!r} is not valid: use a number from 0.5 to below 1, such as 0.99"
            )


@dataclass(frozen=True)
class Difference:
    """One row of a comparison of times.

    Attributes:
        kind: `step`, or one of `part`, `module`, `operator`, `line`, `kernel`, `collective`.
        name: The part, the path of the module, the operator, the function of the line, the kernel, or the collective.
        base_ns: How long it takes in a step of the base.
        new_ns: The same in the other run.
        low_ns: The difference is at least this, as sure as the margins ask.
        high_ns: It is at most this.
        p: How probable so large a difference is where there is none.
        verdict: `faster`, `slower`, `same` or `cannot tell`.
        share: How much of the change of the step it explains: 1 for all; None where that is not known to have changed.
        base_count: How many times it runs in a step of the base; None for parts and steps.
        new_count: The same in the other run.
        detail: The class of a module, the sizes of an operator's inputs, the text of a line.
        module: The module of an operator.
        file: The file of a line, as the base names it.
        line: The line in the other run; in the base where it is there only.
        base_line: The line in the base.
        only: `base` or `new` where the other side does not have it; else empty.
    """

    kind: str
    name: str
    base_ns: float
    new_ns: float
    low_ns: float
    high_ns: float
    p: float
    verdict: str
    share: float | None = None
    base_count: float | None = None
    new_count: float | None = None
    detail: str = ""
    module: str = ""
    file: str = ""
    line: int = -1
    base_line: int = -1
    only: str = ""

    @property
    def change_ns(self) -> float:
        """How much longer it takes in a step."""
        return self.new_ns - self.base_ns


@dataclass(frozen=True)
class CountDifference:
    """One count of both runs.

    Attributes:
        name: The count, one of `COUNTS`, or for bytes at the memory peak `memory`.
        base: What a step of the base has, or the base: the median; None where it was not recorded.
        new: The same of the other run.
        base_range: The smallest and the largest.
        new_range: The same of the other run.
        verdict: `more`, `fewer`, `same`, or `cannot tell` where steps differ so that they overlap, or it was not recorded.
        holder: For `memory`, who holds it: device, category, module, operator and line.
    """

    name: str
    base: float | None
    new: float | None
    base_range: tuple[float, float]
    new_range: tuple[float, float]
    verdict: str
    holder: str = ""


COMPARISON_SCHEMA = Table(
    "comparison",
    "Something that takes time in the steps of both runs, or of one. Of each kind, what changed most comes first.",
    (
        Column("kind", "category", "", "What the row is about: step, part, module, operator, line, kernel or collective."),
        Column("name", "string", "", "The part, path of the module, operator, function of the line, kernel or collective."),
        Column("detail", "string", "", "The class of a module, the sizes of an operator's inputs, the text of a line."),
        Column("module", "string", "", "The module of an operator."),
        Column("file", "string", "", "The file of a line."),
        Column("line", "int64", "", "The line in the new run."),
        Column("base_line", "int64", "", "The line in the base."),
        Column("verdict", "category", "", "faster, slower, same or cannot tell."),
        Column("base_ns", "float64", "ns", "Its time in a step of the base."),
        Column("new_ns", "float64", "ns", "Its time in a step of the new run."),
        Column("change_ns", "float64", "ns", "The difference; below 0 where the new run is faster."),
        Column("low_ns", "float64", "ns", "The lower end of the confidence interval of the difference."),
        Column("high_ns", "float64", "ns", "The upper end."),
        Column("p", "float64", "", "How probable so large a difference is where there is none."),
        Column("share_percent", "float64", "%", "Its part of the change of the step; null where the step is not known to have changed."),
        Column("base_count", "float64", "", "How many times it runs in a step of the base."),
        Column("new_count", "float64", "", "The same in the new run."),
        Column("only", "category", "", "base or new where only that run has it."),
    ),
)  # fmt: skip

COUNTS_SCHEMA = Table(
    "comparison_counts",
    "A count of both runs, or the memory of one holder at the peak.",
    (
        Column("name", "category", "", "What is counted; memory for the bytes of a holder."),
        Column("holder", "string", "", "For memory: device, category, module, operator and line."),
        Column("verdict", "category", "", "more, fewer, same, or cannot tell."),
        Column("base", "float64", "", "The median of the steps of the base, or of its recordings."),
        Column("new", "float64", "", "The same of the new run."),
        Column("change", "float64", "", "The difference."),
    ),
)


@dataclass(eq=False)
class Side:
    """The recordings of one run.

    Attributes:
        runs: What each did.
    """

    runs: Sequence[Run]

    @property
    def names(self) -> list[str]:
        """The names of the recordings."""
        return [run.name for run in self.runs]

    @cached_property
    def steps(self) -> int:
        """How many steps count."""
        return sum(len(run.counted) for run in self.runs)

    @property
    def left_out(self) -> int:
        """How many steps were left out as warm-up."""
        return sum(run.warm_up for run in self.runs)

    @cached_property
    def series(self) -> Series:
        """Its steps."""
        return Series(
            np.concatenate([run.step_ns[run.counted] for run in self.runs]),
            np.repeat(np.arange(len(self.runs)), [len(run.counted) for run in self.runs]),
            np.concatenate([run.step_counts["operators"][run.counted] for run in self.runs]).astype(np.int64),
        )

    def keys(self, kind: str) -> list[Key]:
        """The rows of a kind that any recording has."""
        return list(dict.fromkeys(key for run in self.runs for key in run.populations[kind].keys))

    def means(self, kind: str, keys: Sequence[Key], weights: Numbers, *, counts: bool = False) -> Numbers:
        """The mean time, or count, of each row, each step with its weight."""
        place = {key: row for row, key in enumerate(keys)}
        found, begin = np.zeros(len(keys)), 0
        for run in self.runs:
            population, counted = run.populations[kind], run.counted
            all_weights = np.zeros(len(run.step_ns))
            all_weights[counted] = weights[begin : begin + len(counted)]
            begin += len(counted)
            rows = np.array([place[key] for key in population.keys], dtype=np.int64)
            np.add.at(found, rows, population.means(all_weights, counts=counts))
        return found

    def table(self, kind: str, keys: Sequence[Key | None], *, counts: bool = False) -> Numbers:
        """The times, or counts, of some rows in all steps that count; 0 for None."""
        parts = []
        for run in self.runs:
            population = run.populations[kind]
            place = {key: row for row, key in enumerate(population.keys)}
            found = [(column, place[key]) for column, key in enumerate(keys) if key is not None and key in place]
            part = np.zeros((len(run.counted), len(keys)))
            if found:
                columns, rows = (np.array(one, dtype=np.int64) for one in zip(*found, strict=True))
                part[:, columns] = population.table(rows, run.counted, counts=counts)
            parts.append(part)
        return np.concatenate(parts)

    def counts(self, name: str) -> Numbers | None:
        """A count in each step, or of a run in each recording; None where a recording does not have it."""
        if name in RUN_COUNTS:
            values = [run.run_counts.get(name) for run in self.runs]
            return None if None in values else np.array(values, dtype=np.float64)
        found = [
            run.step_counts[name][run.counted] if name in run.step_counts else None for run in self.runs
        ]
        known = [each for each in found if each is not None]
        return np.concatenate(known) if len(known) == len(found) else None


@dataclass(eq=False)
class Comparison:
    """What differs between two runs.

    Attributes:
        base: The recordings of the base.
        new: The recordings of the other run.
        margins: When a difference of times counts.
        whole: The time of a step.
        differences: The times of everything else, of each kind what changed most first.
        counts: The counts of both runs.
        memory: The memory of each holder at the peak, what changed most first.
        fraction: Which part of the steps the times are means of, the fastest.
        in_turn: Whether the recordings of both sides took turns, and are compared in pairs.
        reason: Why there is no better verdict; empty where there is one.
        net_of_rows_ns: Where the step itself is too noisy, and its verdict is that of its rows: what these come to; else None.
    """

    base: Side
    new: Side
    margins: Margins
    whole: Difference
    differences: list[Difference]
    counts: list[CountDifference]
    memory: list[CountDifference]
    fraction: float
    in_turn: bool
    reason: str = ""
    net_of_rows_ns: float | None = None
    _tables: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def verdict(self) -> str:
        """Whether a step of the other run is `faster`, `slower`, the `same`, or one `cannot tell`."""
        return self.whole.verdict

    @property
    def changed(self) -> list[Difference]:
        """The rows that take longer or less."""
        return [row for row in self.differences if row.verdict in (FASTER, SLOWER)]

    @property
    def changed_counts(self) -> list[CountDifference]:
        """The counts that are not the same."""
        return [row for row in self.counts if row.verdict in (MORE, FEWER)]

    def table(self, name: str = "times") -> pyarrow.Table:
        """Return a table: `times`, `counts` or `memory`.

        Raises:
            ArgumentError: No such table.
        """
        makers = {"times": self._times, "counts": lambda: _counts(self.counts), "memory": lambda: _counts(self.memory)}
        if name not in makers:
            raise ArgumentError(f"a comparison has no table {name!r}; choose one of: {', '.join(makers)}")
        if name not in self._tables:
            self._tables[name] = makers[name]()
        return self._tables[name]

    def _times(self) -> pyarrow.Table:
        """The table `times`."""
        rows = [self.whole, *self.differences]
        shares = [np.nan if row.share is None else 100 * row.share for row in rows]
        columns: dict[str, Any] = {
            name: [getattr(row, name) or None for row in rows]
            for name in ("kind", "name", "detail", "module", "file", "verdict", "only")
        }
        columns |= {
            name: np.array([getattr(row, name) for row in rows], dtype=np.int64) for name in ("line", "base_line")
        }
        columns |= {
            name: np.array([_number(getattr(row, name)) for row in rows])
            for name in (
                "base_ns",
                "new_ns",
                "change_ns",
                "low_ns",
                "high_ns",
                "p",
                "base_count",
                "new_count",
            )
        }
        return to_arrow(COMPARISON_SCHEMA, columns | {"share_percent": np.array(shares)})

    def to_dict(self) -> dict[str, Any]:
        """Everything as values that JSON has, with stable keys."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "confidence": self.margins.confidence,
            "least_percent": self.margins.percent,
            "least_ns": self.margins.least_ns,
            "fastest_steps": self.fraction,
            "in_turn": self.in_turn,
            "net_of_rows_ns": self.net_of_rows_ns,
            "base": {"recordings": self.base.names, "steps": self.base.steps, "left_out": self.base.left_out},
            "new": {"recordings": self.new.names, "steps": self.new.steps, "left_out": self.new.left_out},
            "step": _as_dict(self.whole),
            "times": [_as_dict(row) for row in self.differences],
            "counts": [_as_dict(row) for row in self.counts],
            "memory": [_as_dict(row) for row in self.memory],
        }

    def to_json(self) -> str:
        """`to_dict` as a JSON text; a number that is not finite is null."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_text(self, rows: int = 10) -> str:
        """The comparison as plain text, with at most so many rows of each kind; 0 for all that changed."""
        from kinetoscope.comparison.shown import as_text

        return as_text(self, rows)

    def to_html(self, rows: int = 10) -> str:
        """The comparison as HTML, for notebooks and pages."""
        from kinetoscope.comparison.shown import as_html

        return as_html(self, rows)

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return self.to_html()

    def __repr__(self) -> str:
        """The verdict in one line."""
        from kinetoscope.comparison.shown import headline

        return f"<Comparison: {headline(self)}>"


def _number(value: float | None) -> float:
    """A number, not a number for None."""
    return np.nan if value is None else float(value)


def _as_dict(row: Difference | CountDifference) -> dict[str, Any]:
    """The fields of a row; infinite numbers are null."""
    found = asdict(row)
    if isinstance(row, Difference):
        found["change_ns"] = row.change_ns
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in found.items()
    }


def _counts(rows: Sequence[CountDifference]) -> pyarrow.Table:
    """The table of some counts."""
    base, new = (np.array([_number(getattr(row, name)) for row in rows]) for name in ("base", "new"))
    columns = {
        "name": [row.name for row in rows],
        "holder": [row.holder or None for row in rows],
        "verdict": [row.verdict for row in rows],
        "base": base,
        "new": new,
        "change": new - base,
    }
    return to_arrow(COUNTS_SCHEMA, columns)


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
        ArgumentError: A side has no recording, or one without a step that counts.
    """
    for side, runs in (("base", base), ("new", new)):
        if not runs:
            raise ArgumentError(f"the side {side} has no recording: pass one trace or a list of traces")
        for run in runs:
            if len(run.counted) == 0:
                raise ArgumentError(
                    f"{run.name}: {run.warm_up} steps are left out, which leaves none of its {len(run.step_ns)}: leave out fewer, or record more"
                )
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
            row for rows in found.values() for row in sorted(rows, key=lambda row: (_rank(row), -abs(row.change_ns)))
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
            sum(row.change_ns for row in found[kind] if row.verdict in (FASTER, SLOWER)) for kind in ("module", "line")
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
        verdict = self._verdict(change, width, sure=p <= _HALF * self.alarm)
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
            return "a recording has no steps: call prof.step() or kinetoscope.steps() in the loop"
        if min(self.base.series.recordings, self.new.series.recordings) == 1:
            return (
                "one recording does not show how much recordings of one program differ: pass several of each run, "
                "recorded in turn"
            )
        return (
            f"the recordings differ by more than the margin: a difference below {100 * width / self.step_ns:.2g} % of a step "
            "does not show; record more, in turn"
        )

    def _verdict(self, change: float, width: float, *, sure: bool) -> str:
        """What a difference means, with half the width of its interval."""
        if sure and abs(change) >= self.least_ns:
            return SLOWER if change > 0 else FASTER
        return SAME if abs(change) + width <= self.least_ns else CANNOT_TELL

    def _kind(self, kind: str) -> list[Difference]:
        """The rows of a kind that take enough of a step, or run more or less often."""
        keys = {"base": self.base.keys(kind), "new": self.new.keys(kind)}
        known = keys["new"]
        if kind == "line":
            files = same_files((key[0] for key in keys["base"]), (key[0] for key in known))
            known = [(files[key[0]], *key[1:]) for key in known]
        pairs, gone, added = matched(keys["base"], known, LEVELS[kind])
        rows: list[tuple[int, int]] = [*pairs, *((place, -1) for place in gone), *((-1, place) for place in added)]
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
        estimate = self.bootstrap.estimate(*tables)
        counts = [
            np.median(side.table(kind, names, counts=True), axis=0) if len(names) else np.zeros(0)
            for (side, _, _), names in zip(sides, picked, strict=True)
        ]
        sure = discoveries(estimate.p, _HALF * self.alarm / len(TIMED))
        width = estimate.half_width(self.margins.confidence)
        return [
            self._difference(
                kind, (picked[0][at], picked[1][at]), estimate, width, at, bool(sure[at]), (counts[0][at], counts[1][at])
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
            self._verdict(change, float(width[at]), sure=sure),
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
            [key for key in dict.fromkeys(key for run in side.runs for key in run.memory)]
            for side in (self.base, self.new)
        ]
        pairs, gone, added = matched(sides[0], sides[1], LEVELS["memory"])
        rows = [
            count_difference(
                "memory",
                np.array([run.memory.get(sides[0][one], 0) if one >= 0 else 0 for run in self.base.runs], float),
                np.array([run.memory.get(sides[1][other], 0) if other >= 0 else 0 for run in self.new.runs], float),
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
