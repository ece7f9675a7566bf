"""The result of a comparison of two runs: times and counts with verdicts, as tables, text, HTML and JSON."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.comparison.explanation import Explanation, signed
from kinetoscope.comparison.kinds import classes_of_steps
from kinetoscope.comparison.measures import BYTE_COUNTS, COUNTS, RUN_COUNTS, TIMED, Key, Numbers, Run, noun_of
from kinetoscope.comparison.statistics import Bootstrap, Series
from kinetoscope.display import blocks
from kinetoscope.display.blocks import Block
from kinetoscope.display.html import as_html
from kinetoscope.display.lines import cut, plain_lines
from kinetoscope.display.sentence import printable
from kinetoscope.display.terminal import UNLIMITED
from kinetoscope.model import units
from kinetoscope.model.arrow import ArrowTable, rows_to_arrow

FASTER, SLOWER, SAME, CANNOT_TELL = "faster", "slower", "same", "cannot tell"
# The verdict for a row that certainly changed, but by too little of a step.
BELOW_MARGIN = "below the margin"
MORE, FEWER, ADDED, GONE = "more", "fewer", "added", "gone"
_TABLES = ("times", "counts", "memory")


@dataclass(frozen=True)
class Margins:
    """The three conditions that a difference of times must meet to count.

    Attributes:
        percent: The smallest difference, in percent of a step.
        least_ns: The smallest difference, in nanoseconds per step.
        confidence: The confidence level, between 0 and 1.
        edited: The classes and functions that an edit of the program touched: half of the allowed false alarms are for their rows.
    """

    percent: float = 1.0
    least_ns: float = 10_000.0
    confidence: float = 0.99
    edited: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ArgumentError: A value is out of range.
        """
        for name, unit in (("percent", "percent"), ("least_ns", "nanoseconds")):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
                raise ArgumentError(f"{name}={value!r} is not valid: use a number of {unit}, 0 or more")
        if not isinstance(self.confidence, Real) or not 0.5 <= self.confidence < 1:
            raise ArgumentError(
                f"confidence={self.confidence!r} is not valid: use a number from 0.5 to below 1, such as 0.99"
            )

    def of_step(self, step_ns: float) -> float:
        """The smallest difference that counts, in nanoseconds, for a step of this duration."""
        return max(self.percent / 100 * step_ns, self.least_ns)


@dataclass(frozen=True)
class Difference:
    """One row of a comparison of times.

    Attributes:
        kind: `step`, or one of `part`, `module`, `operator`, `line`, `kernel`, `collective`.
        name: The part, the path of the module, the operator, the function of the line, the kernel, or the collective.
        base_ns: Its time in a step of the base.
        new_ns: Its time in a step of the other run.
        low_ns: The lower end of the difference's confidence interval; infinite if a side has one recording.
        high_ns: The upper end.
        p: The p-value of the difference; NaN if a side has one recording.
        verdict: `faster`, `slower`, `same`, `below the margin` (changed, but by too little of a step) or `cannot tell`.
        share: The fraction of the step's change that it explains: 1 for all; None if the step is not known to have changed.
        base_count: Its calls in a step of the base, the mean if steps differ; None for parts and steps.
        new_count: Its calls in a step of the other run.
        count_verdict: `more`, `fewer`, `added`, `gone`, `same`, or `cannot tell` if steps differ; empty for parts and steps.
        detail: The class of a module, the shapes of an operator's inputs, or the text of a line.
        module: The module of an operator.
        file: The file of a line, as the base names it.
        line: The line in the other run, or in the base if only the base has it.
        base_line: The line in the base.
        only: `base` or `new` if only that side has it; else empty.
        work_ns: The change of its time that exact counts of its operators imply; 0 where they are the same, or imply too little.
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
    count_verdict: str = ""
    detail: str = ""
    module: str = ""
    file: str = ""
    line: int = -1
    base_line: int = -1
    only: str = ""
    work_ns: float = 0.0

    @property
    def change_ns(self) -> float:
        """The change of its time in a step; above 0 is slower."""
        return self.new_ns - self.base_ns

    @property
    def runs_otherwise(self) -> bool:
        """Whether its number of calls differs, or only one run has it."""
        return self.count_verdict in (MORE, FEWER, ADDED, GONE) or self.base_count != self.new_count


@dataclass(frozen=True)
class CountDifference:
    """One count in both runs.

    Attributes:
        name: The count, one of `COUNTS`, or `memory` for bytes at the memory peak.
        base: The median over the steps of the base, or the count of its run; None if not recorded.
        new: The same for the other run.
        base_range: The smallest and the largest value.
        new_range: The same for the other run.
        verdict: `more`, `fewer`, `same`, or `cannot tell` if the ranges overlap or it was not recorded.
        holder: For `memory`, the holder: device, category, module, operator and line.
        base_mean: The mean over the steps of the base; None if not recorded.
        new_mean: The same for the other run.
    """

    name: str
    base: float | None
    new: float | None
    base_range: tuple[float, float]
    new_range: tuple[float, float]
    verdict: str
    holder: str = ""
    base_mean: float | None = None
    new_mean: float | None = None

    @property
    def usual(self) -> tuple[float | None, float | None]:
        """The typical count of both sides: the medians, or the means if the verdict is `cannot tell`."""
        return (self.base_mean, self.new_mean) if self.verdict == CANNOT_TELL else (self.base, self.new)


def time_verdict(change: float, low: float, high: float, least: float, *, sure: bool) -> str:
    """The verdict on a difference of times.

    Args:
        change: The difference; above 0 is slower.
        low: The lower end of its confidence interval.
        high: The upper end.
        least: The smallest difference that counts.
        sure: Whether the difference is statistically significant.
    """
    if sure and abs(change) >= least:
        return SLOWER if change > 0 else FASTER
    return SAME if -least <= low and high <= least else CANNOT_TELL


def step_difference(bootstrap: Bootstrap, margins: Margins, rate: float) -> tuple[Difference, float]:
    """The difference of the step time between two sides.

    Args:
        bootstrap: The two sides.
        margins: The conditions for a difference to count.
        rate: The accepted rate of false alarms.

    Returns:
        The difference, and half the width of the confidence interval of the ratio's logarithm; infinite if unknown.
    """
    estimate = bootstrap.estimate_step()
    width, ratio, p = (
        float(values[0]) for values in (estimate.half_width(margins.confidence), estimate.change, estimate.p)
    )
    base_ns, new_ns = (float(np.exp(log_ns[0])) for log_ns in (estimate.base, estimate.new))
    with np.errstate(over="ignore"):
        low_ns, high_ns = (base_ns * float(np.expm1(ratio + side * width)) for side in (-1, 1))
    if not np.isfinite(width):
        low_ns, high_ns = -np.inf, np.inf
    verdict = time_verdict(new_ns - base_ns, low_ns, high_ns, margins.of_step(base_ns), sure=p <= rate)
    return Difference("step", "step", base_ns, new_ns, low_ns, high_ns, p, verdict), width


@dataclass(eq=False)
class Side:
    """The recordings of one run.

    Attributes:
        runs: The measurements of each recording.
    """

    runs: Sequence[Run]

    @property
    def names(self) -> list[str]:
        """The names of the recordings."""
        return [run.name for run in self.runs]

    @cached_property
    def steps(self) -> int:
        """The number of steps that count."""
        return sum(len(run.counted) for run in self.runs)

    @property
    def left_out(self) -> int:
        """The number of steps excluded as warm-up."""
        return sum(run.warm_up for run in self.runs)

    @cached_property
    def series(self) -> Series:
        """The times of the steps of this side that count, for each of its runs."""
        return Series.of([run.with_core_ns[run.counted] for run in self.runs], classes_of_steps(self.runs))

    def held(self, holder: Key) -> Numbers:
        """The bytes of a holder at the peak of each recording."""
        return np.array([run.memory.get(holder, 0) for run in self.runs], float)

    def to_dict(self) -> dict[str, Any]:
        """Return the names and counts of this side as JSON values."""
        return {"recordings": self.names, "steps": self.steps, "left_out": self.left_out}


@dataclass(eq=False)
class Comparison:
    """The differences between two runs.

    Attributes:
        base: The recordings of the base.
        new: The recordings of the other run.
        margins: The conditions for a difference of times to count.
        whole: The time of a step.
        differences: The times of all other rows, largest change first within each kind.
        counts: The counts of both runs.
        memory: The memory of each holder at the peak, largest change first.
        fraction: The fraction of steps, the fastest ones, over which times are averaged.
        in_turn: Whether the recordings of both sides alternated and are compared in pairs.
        row_step_ns: The time of a step of the base if it were as little disturbed as its rows: the base of the margin of rows.
        reason: Why there is no better verdict; empty if there is one.
        net_of_rows_ns: The sum over the changed rows, if the step itself is too noisy and they decide its verdict; else None.
        explanation: The causes of the difference; None if the recordings were measured without their account.
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
    row_step_ns: float
    reason: str = ""
    net_of_rows_ns: float | None = None
    explanation: Explanation | None = None

    @property
    def verdict(self) -> str:
        """The verdict on a step of the other run: `faster`, `slower`, `same` or `cannot tell`."""
        return self.whole.verdict

    @property
    def confirmed(self) -> bool:
        """Whether there are several recordings of each run, as any verdict on times requires."""
        return min(len(self.base.runs), len(self.new.runs)) > 1

    @property
    def changed(self) -> list[Difference]:
        """The rows that are faster or slower."""
        return [row for row in self.differences if row.verdict in (FASTER, SLOWER)]

    @property
    def exit_code(self) -> int:
        """For a build: 0 if a step is proven to take no longer, 1 if it is proven to take longer, 2 if neither."""
        if self.verdict == SLOWER:
            return 1
        return 0 if self.verdict in (FASTER, SAME) and not self.losses else 2

    @property
    def most_changed(self) -> str:
        """The module and the line that changed most in the direction of the step, in words; empty if none surely did."""
        rows = {row.kind: row for row in reversed(self.changed) if row.verdict == self.verdict}
        names = [label(rows[kind]) for kind in ("module", "line") if kind in rows]
        return f", most in {' at '.join(names)}" if names else ""

    @property
    def changed_counts(self) -> list[CountDifference]:
        """The counts that are higher or lower."""
        return [row for row in self.counts if row.verdict in (MORE, FEWER)]

    @property
    def why(self) -> str:
        """A sentence on the main causes of the difference of a step; empty if the step is not known to differ."""
        return self.explanation.sentence if self.explanation is not None and self.differs else ""

    @property
    def losses(self) -> list[str]:
        """One sentence for each recording that lost data, or has none."""
        runs = (*self.base.runs, *self.new.runs)
        return [f"{run.name}: {run.doubt}" for run in runs if run.doubt]

    @property
    def noun(self) -> str:
        """The unit of the comparison: `step`, or `request` if both runs have no steps."""
        return noun_of(*self.base.runs, *self.new.runs)

    @property
    def explanation_title(self) -> str:
        """The title of the parts of `explanation`."""
        if self.verdict == CANNOT_TELL or self.net_of_rows_ns is not None:
            return f"What the difference of a {self.noun} is spent on"
        return f"Why a {self.noun} takes {'longer' if self.whole.change_ns > 0 else 'less'}"

    @property
    def differs(self) -> bool:
        """Whether a step differs by enough to count, significant or not."""
        large = abs(self.whole.change_ns) >= self.margins.of_step(self.whole.base_ns)
        return self.verdict in (FASTER, SLOWER) or (self.verdict == CANNOT_TELL and large)

    def table(self, name: str = "times") -> ArrowTable:
        """Return a table: `times`, `counts` or `memory`.

        Raises:
            ArgumentError: No such table.
        """
        if name not in _TABLES:
            raise ArgumentError(f"a comparison has no table {name!r}; choose one of: {', '.join(_TABLES)}")
        return self._times() if name == "times" else _counts(getattr(self, name))

    def _times(self) -> ArrowTable:
        rows = []
        for row in (self.whole, *self.differences):
            share = None if row.share is None else 100 * row.share
            values = _as_dict(row) | {"share_percent": share}
            rows.append({name: None if value == "" else value for name, value in values.items()})
        return rows_to_arrow("comparison", rows)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-compatible values with stable keys."""
        return {
            "verdict": self.verdict,
            "headline": headline(self),
            "confirmed": self.confirmed,
            "reason": self.reason,
            "confidence": self.margins.confidence,
            "least_percent": self.margins.percent,
            "least_ns": self.margins.least_ns,
            "fastest_steps": self.fraction,
            "in_turn": self.in_turn,
            "net_of_rows_ns": self.net_of_rows_ns,
            "row_step_ns": self.row_step_ns,
            "base": self.base.to_dict(),
            "new": self.new.to_dict(),
            "step": _as_dict(self.whole),
            "times": [_as_dict(row) for row in self.differences],
            "counts": [_as_dict(row) for row in self.counts],
            "memory": [_as_dict(row) for row in self.memory],
            "explanation": None if self.explanation is None else self.explanation.to_dict(),
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text; numbers that are not finite become null."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_text(self, rows: int = 10, width: int = UNLIMITED) -> str:
        """The comparison as plain text.

        Args:
            rows: The largest number of rows of each kind; 0 for all that changed.
            width: The line width: sentences wrap, and tables drop columns and say which.
        """
        return "\n".join(plain_lines(as_blocks(self, rows), width))

    def to_brief_text(self, rows: int = 3, width: int = UNLIMITED) -> str:
        """The verdict, the causes of a step's difference, and the counts of a step, as plain text.

        Args:
            rows: The largest number of parts of the difference; 0 for all.
            width: The line width.
        """
        tables = (*_explanation_tables(self, rows)[:1], *_count_tables(self)[:1])
        return "\n".join(plain_lines([*_verdict(self), *tables], width))

    def to_html(self, rows: int = 10) -> str:
        """The comparison as HTML, for notebooks and pages."""
        return as_html(as_blocks(self, rows))

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        """The verdict in one line."""
        return f"<Comparison: {headline(self)}>"


def _as_dict(row: Difference | CountDifference) -> dict[str, Any]:
    fields = asdict(row)
    if isinstance(row, Difference):
        fields["change_ns"] = row.change_ns
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in fields.items()
    }


def _counts(rows: Sequence[CountDifference]) -> ArrowTable:
    listed = []
    for row in rows:
        base, new = (np.nan if value is None else value for value in row.usual)
        values = {"base": base, "new": new, "change": new - base}
        listed.append({"name": row.name, "holder": row.holder or None, "verdict": row.verdict} | values)
    return rows_to_arrow("comparison_counts", listed)


TITLES = {
    "part": "Parts of the {noun}",
    "module": "Modules",
    "operator": "Operators",
    "line": "Source lines",
    "kernel": "Kernels",
    "collective": "Collectives",
}
_COUNT_HEADINGS = ("base", "new", "change", "")
HEADINGS = ("base", "new", "change", "of itself", "of {noun}", "share", "count", "")
# The columns that a narrow terminal drops, in this order; other columns imply their values.
_DISPENSABLE = ("share", "count", "of itself", "base", "new")
_WIDEST = 60
# Said where an undisturbed step is shorter than this part of it.
_DISTURBED = 0.8


def headline(comparison: Comparison) -> str:
    """The verdict on a step in one sentence, with the counts that changed."""
    counted = _counted(comparison)
    if not comparison.confirmed:
        return _unconfirmed(comparison, counted)
    step = comparison.whole
    noun = comparison.noun
    times = f"{units.duration(step.base_ns)} -> {units.duration(step.new_ns)} a {noun}"
    low, high = (100 * value / max(step.base_ns, 1) for value in (step.low_ns, step.high_ns))
    sure = f"{100 * comparison.margins.confidence:g} % confidence"
    # An interval that leaves everything open is not worth a number.
    between = "too uncertain for a confidence interval"
    if high - low < 1000:
        between = f"{units.change_percent(low)} to {units.change_percent(high)}, {sure}"
    text = f"{step.verdict}: {times} ({between})"
    if comparison.net_of_rows_ns is not None:
        net = 100 * comparison.net_of_rows_ns / max(comparison.row_step_ns, 1)
        text = f"{step.verdict}: what changed comes to {units.change_percent(net)} of a {noun}{comparison.most_changed}; {times} ({between})"
    return f"{text}; {counted}" if counted else text


def _counted(comparison: Comparison) -> str:
    """The first of the counts that changed, in words; empty where none did."""
    changed = comparison.changed_counts
    if not changed:
        differing = (
            count
            for count in comparison.counts
            if None not in count.usual and count.usual[0] != count.usual[1]
        )
        return next((f"{COUNTS[row.name]} {_on_average(row, comparison.noun)}" for row in differing), "")
    first = changed[0]
    by = abs((first.new or 0) - (first.base or 0))
    amount = _amount(by, first.name)
    per = "" if first.name in RUN_COUNTS else f" a {comparison.noun}"
    word = "less" if first.name in BYTE_COUNTS and first.verdict == FEWER else first.verdict
    text = f"{COUNTS[first.name]}{per}: {amount} {word}"
    if first.name not in BYTE_COUNTS and by != 1:
        text = f"{amount} {word} {COUNTS[first.name]}{per}"
    rest = len(changed) - 1
    return f"{text} and {units.count(rest, 'other count')} changed" if rest else text


def _on_average(count: CountDifference, noun: str) -> str:
    """A count whose steps differ, of which only the means can be compared."""
    means = " -> ".join(_amount(value or 0, count.name) for value in count.usual)
    return (
        f"{means} on average" if count.name in RUN_COUNTS else f"a {noun}: {means} on average, {noun}s differ"
    )


def _unconfirmed(comparison: Comparison, counted: str) -> str:
    """What one recording per side shows: no verdict on times."""
    step = comparison.whole
    base_ns = max(step.base_ns, 1.0)
    percent = 100 * step.change_ns / base_ns
    if abs(step.change_ns) < comparison.margins.of_step(base_ns):
        moved = "time differed by less than the margin"
    else:
        moved = f"time {'rose' if percent > 0 else 'fell'} by about {units.change_percent(abs(percent)).lstrip('+')}"
    counts = [len(side.runs) for side in (comparison.base, comparison.new)]
    one_of = "each" if max(counts) == 1 else f"of the {'base' if counts[0] == 1 else 'new run'}"
    text = f"{moved} ({units.duration(step.base_ns)} -> {units.duration(step.new_ns)} a {comparison.noun}), one recording {one_of}: unconfirmed; `kinetoscope ab` confirms"
    return f"{counted}; {text}" if counted else text


def basis(comparison: Comparison) -> str:
    """What the times are means of."""
    fraction, noun = comparison.fraction, comparison.noun
    used = f"all {noun}s" if fraction == 1 else f"the fastest {100 * fraction:g} % of {noun}s"
    turns = ", recorded in turn and compared in pairs" if comparison.in_turn else ""
    text = f"Times are means of {used}{turns}."
    runs = (*comparison.base.runs, *comparison.new.runs)
    if any((run.with_core_ns < run.step_ns).any() for run in runs):
        text += f" Those of a {noun} are without its waits for a CPU core."
    part = comparison.row_step_ns / max(comparison.whole.base_ns, 1.0)
    if part < _DISTURBED:
        text += (
            f" Rows are means of the {noun}s in which each was disturbed least, and compared with a {noun} as little disturbed: "
            f"{units.duration(comparison.row_step_ns)}."
        )
    return text


def summary_of_side(side: Side) -> str:
    """One side in words."""
    names = side.names[0] if len(side.names) == 1 else units.count(len(side.names), "recording")
    return f"{printable(names)}: {units.count(side.steps, noun_of(*side.runs))}, {side.left_out:,} left out as warm-up"


def as_blocks(comparison: Comparison, rows: int) -> list[Block]:
    """The comparison: both sides, the verdict and what it is based on, all tables, and what was lost of the recordings."""
    named = (("base", comparison.base), ("new", comparison.new))
    sides = [blocks.Paragraph(summary_of_side(side), name) for name, side in named]
    lost = [blocks.GAP, *map(blocks.Paragraph, comparison.losses)] if comparison.losses else []
    return [*sides, blocks.GAP, *_verdict(comparison), *_tables(comparison, rows), *lost]


def _verdict(comparison: Comparison) -> list[Block]:
    tone = blocks.WARNING if comparison.verdict == SLOWER else ""
    texts = [blocks.Paragraph(text) for text in (comparison.reason, basis(comparison)) if text]
    return [blocks.Paragraph(headline(comparison), tone=tone), *texts]


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], rest: str) -> Block:
    """A table of texts, without the columns in which no row has anything, and a remark on what is not shown."""
    last = len(headings) - 1
    filled = [
        column
        for column in range(len(headings))
        if column in (0, last) or not rows or any(row[column] for row in rows)
    ]
    names = [headings[column] for column in filled]
    return blocks.TableBlock(
        tuple(blocks.BlockColumn(headings[column], is_text=column in (0, last)) for column in filled),
        tuple(tuple(row[column] for column in filled) for row in rows),
        title,
        rest=rest,
        dispensable=tuple(names.index(name) for name in _DISPENSABLE if name in names),
    )


def _count_tables(comparison: Comparison) -> list[Block]:
    tables = []
    for title, per_run in ((f"Counts a {comparison.noun}", False), ("Counts of the run", True)):
        counts = [count for count in comparison.counts if (count.name in RUN_COUNTS) == per_run]
        changed = [count for count in counts if count.verdict != SAME]
        body = [_count_row(count, COUNTS[count.name]) for count in changed]
        equal = [COUNTS[count.name] for count in counts if count.verdict == SAME and count.base]
        rest = f"the same: {', '.join(equal)}" if equal else ""
        if body or equal:
            headings = (title.split()[0].lower(), *_COUNT_HEADINGS)
            tables.append(_table(title, headings, body, rest))
    return tables


def _tables(comparison: Comparison, rows: int) -> list[Block]:
    tables = [*_explanation_tables(comparison, rows), *_count_tables(comparison)]
    memory = [holder for holder in comparison.memory if holder.base != holder.new]
    if memory:
        body = [_count_row(holder, holder.holder) for holder in memory[: rows or None]]
        more = len(memory) - len(body)
        rest = f"{units.count(more, 'more holder')} changed" if more else ""
        tables.append(_table("Memory at the peak", ("holder", *_COUNT_HEADINGS), body, rest))
    for kind in TIMED:
        of_kind = [row for row in comparison.differences if row.kind == kind]
        top = [row for row in of_kind if kind == "part" or _is_shown(row, comparison)][: rows or None]
        if not of_kind:
            continue
        left_out = [row for row in of_kind if row not in top]
        counts = Counter(MORE if _is_shown(row, comparison) else row.verdict for row in left_out)
        words = {
            MORE: "more changed" if comparison.confirmed else "more differ",
            BELOW_MARGIN: "changed by less than the margin",
            SAME: "the same",
            CANNOT_TELL: "too noisy to tell" if comparison.confirmed else "differ by less than the margin",
        }
        remarks = [f"{counts[verdict]:,} {text}" for verdict, text in words.items() if counts[verdict]]
        title = TITLES[kind].format(noun=comparison.noun)
        headings = [title.lower(), *(heading.format(noun=comparison.noun) for heading in HEADINGS)]
        tables.append(_table(title, headings, [_row(row, comparison) for row in top], ", ".join(remarks)))
    return tables


def _explanation_tables(comparison: Comparison, rows: int) -> list[Block]:
    """The tables of what the difference of a step is spent on, and of the kinds of steps where there are several."""
    explanation = comparison.explanation
    if explanation is None or not comparison.differs:
        return []
    parts = explanation.parts[: rows or None]
    body = [
        [
            cut(f"{row.where} {row.text}".strip() or "-", _WIDEST),
            units.duration(row.base_ns),
            units.duration(row.new_ns),
            signed(row.change_ns),
            cut(row.what, _WIDEST),
        ]
        for row in parts
    ]
    left = explanation.parts[len(parts) :]
    rest = (
        f"{units.count(len(left), 'more part')}: {signed(sum(row.change_ns for row in left))}" if left else ""
    )
    headings = ["where", "base", "new", "change", "what"]
    tables = [_table(comparison.explanation_title, headings, body, rest)]
    if len(explanation.kinds) > 1:
        lines = [
            [
                f"like {comparison.noun} {kind.new_step if kind.new_step >= 0 else kind.base_step}",
                units.percent(100 * kind.base_share),
                units.percent(100 * kind.new_share),
                "-" if kind.base_ns is None else units.duration(kind.base_ns),
                "-" if kind.new_ns is None else units.duration(kind.new_ns),
                "" if None in (kind.base_ns, kind.new_ns) else signed(kind.change_ns),
                cut(kind.parts[0].sentence if kind.parts and kind.parts[0].spent else "", _WIDEST),
            ]
            for kind in explanation.kinds
        ]
        headings = [f"{comparison.noun}s", "of base", "of new", "base", "new", "change", "most of it"]
        tables.append(_table(f"Kinds of {comparison.noun}s", headings, lines[: rows or None], ""))
    return tables


def _is_shown(row: Difference, comparison: Comparison) -> bool:
    """Whether a row is worth a line: it changed or, where that cannot be known, differs enough in what was recorded."""
    if row.verdict in (FASTER, SLOWER) or row.runs_otherwise:
        return True
    return not comparison.confirmed and abs(row.change_ns) >= comparison.margins.of_step(
        comparison.row_step_ns
    )


def _count_row(count: CountDifference, what: str) -> list[str]:
    base, new = count.usual
    change, verdict = "", count.verdict
    if base is not None and new is not None:
        sign = "+" if new > base else "-" if new < base else ""
        change = sign + _amount(abs(new - base), count.name)
        verdict = "steps differ, means" if verdict == CANNOT_TELL else verdict
    texts = ("not recorded" if value is None else _amount(value, count.name) for value in (base, new))
    return [cut(what, _WIDEST), *texts, change, verdict]


def _amount(value: float, name: str = "") -> str:
    """A count of a name: bytes with their unit, a whole number as it is, a mean with few digits."""
    if name in (*BYTE_COUNTS, "memory"):
        return units.size(value)
    return f"{value:,.10g}" if float(value).is_integer() else f"{value:,.{1 if abs(value) >= 100 else 2}f}"


def _row(row: Difference, comparison: Comparison) -> list[str]:
    change = row.change_ns
    of_ns = comparison.whole.base_ns if row.kind == "part" else comparison.row_step_ns
    counts = [_amount(count) for count in (row.base_count, row.new_count) if count is not None]
    return [
        cut(label(row), _WIDEST),
        units.duration(row.base_ns) if row.only != "new" else "-",
        units.duration(row.new_ns) if row.only != "base" else "-",
        ("+" if change > 0 else "") + units.duration(change),
        units.change_percent(100 * change / row.base_ns) if row.base_ns > 0 and not row.only else "",
        f"{100 * change / max(of_ns, 1):+.2f} %",
        "" if row.share is None else f"{100 * row.share:.0f} %",
        " -> ".join(counts if row.base_count != row.new_count else counts[:1]),
        _verdicts(row, comparison),
    ]


def _verdicts(row: Difference, comparison: Comparison) -> str:
    """The verdicts on a row: how often it runs, which is exact, and how long it takes."""
    often = {
        GONE: "gone",
        ADDED: "added",
        MORE: "more calls",
        FEWER: "fewer calls",
        CANNOT_TELL: "steps differ" if row.base_count != row.new_count else "",
    }.get(row.count_verdict, "")
    took = row.verdict if row.verdict != CANNOT_TELL or comparison.confirmed else "unconfirmed"
    if often and row.verdict not in (FASTER, SLOWER):
        return often
    return f"{often}, {took}" if often else took


def label(row: Difference) -> str:
    """What a row is about, in one line."""
    if row.kind == "line":
        base = f"{row.base_line} -> " if row.base_line not in (-1, row.line) and row.only == "" else ""
        return f"{os.path.basename(row.file)}:{base}{row.line} {row.detail or row.name}"
    inside = f" in {row.module}" if row.module else ""
    detail = f" ({row.detail})" if row.detail else ""
    return f"{row.name}{inside}{detail}"
