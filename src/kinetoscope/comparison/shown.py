"""A comparison as a person reads it: one headline, the counts that changed, and of each kind the rows that did."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kinetoscope.comparison.measures import BYTE_COUNTS, COUNTS, RUN_COUNTS, TIMED
from kinetoscope.comparison.runs import CANNOT_TELL, FASTER, SAME, SLOWER
from kinetoscope.display.html import note, page, table
from kinetoscope.display.text_table import cut, text_table
from kinetoscope.model import units
from kinetoscope.model.strings import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetoscope.comparison.runs import Comparison, CountDifference, Difference, Side

TITLES = {
    "part": "Parts of the step",
    "module": "Modules",
    "operator": "Operators",
    "line": "Source lines",
    "kernel": "Kernels",
    "collective": "Collectives",
}
HEADINGS = ("base", "new", "change", "of step", "share", "count", "")
_WIDEST = 60


def headline(comparison: Comparison) -> str:
    """The verdict on a step in one sentence."""
    whole = comparison.whole
    times = f"{units.duration(whole.base_ns)} -> {units.duration(whole.new_ns)} a step"
    low, high = (100 * value / max(whole.base_ns, 1) for value in (whole.low_ns, whole.high_ns))
    sure = f"{100 * comparison.margins.confidence:g} % confidence"
    # An interval without an end, as of a single step, is not worth a number.
    between = f"{low:+.2g} % to {high:+.2g} %, {sure}" if high - low < 1000 else "one step a side"
    if whole.verdict == CANNOT_TELL:
        return f"cannot tell: {times} ({between})"
    if comparison.net_of_rows_ns is not None:
        net = 100 * comparison.net_of_rows_ns / max(whole.base_ns, 1)
        return f"{whole.verdict}: what changed comes to {net:+.2g} % of a step; {times} ({between})"
    return f"{whole.verdict}: {times} ({between})"


def basis(comparison: Comparison) -> str:
    """What the times are means of."""
    fraction = comparison.fraction
    used = "all steps" if fraction == 1 else f"the fastest {units.percent(100 * fraction)} of steps"
    turns = ", recorded in turn and compared in pairs" if comparison.in_turn else ""
    return f"Times are means of {used}{turns}."


def _side(name: str, side: Side) -> str:
    """One side in words."""
    names = (
        side.names[0] if len(side.names) == 1 else units.count(len(side.names), "recording")
    )
    return (
        f"{name:4}  {printable(names)}: {units.count(side.steps, 'step')}, "
        f"{side.left_out:,} left out as warm-up"
    )


def as_text(comparison: Comparison, rows: int) -> str:
    """The comparison as plain text."""
    lines = [
        _side("base", comparison.base),
        _side("new", comparison.new),
        "",
        headline(comparison),
        *([comparison.reason] if comparison.reason else []),
        basis(comparison),
    ]
    for title, header, body, rest in _sections(comparison, rows):
        lines += ["", title, *text_table([header, *body], "<" + ">" * (len(header) - 2) + "<")]
        lines += [f"  {rest}"] if rest else []
    lost = [f"{run.name}: {run.losses}" for side in (comparison.base, comparison.new) for run in side.runs if run.losses]
    lines += ["", *(f"incomplete: {printable(one)}" for one in lost)] if lost else []
    return "\n".join(lines)


def as_html(comparison: Comparison, rows: int) -> str:
    """The comparison as HTML."""
    parts = [
        note(headline(comparison), warns=comparison.verdict == SLOWER),
        *([note(comparison.reason)] if comparison.reason else []),
        note(f"{_side('base', comparison.base)}; {_side('new', comparison.new)}. {basis(comparison)}"),
    ]
    for title, header, body, rest in _sections(comparison, rows):
        last = len(header) - 1
        parts.append(table(header, body, left=(0, last), caption=title) + (note(rest) if rest else ""))
    return page(*parts)


def _sections(
    comparison: Comparison, rows: int
) -> list[tuple[str, list[str], list[list[str]], str]]:
    """The tables to show: of each its title, headings, rows and a remark on what is not shown."""
    found = []
    for title, per_run in (("Counts a step", False), ("Counts of the run", True)):
        counts = [one for one in comparison.counts if (one.name in RUN_COUNTS) == per_run]
        changed = [one for one in counts if one.verdict != SAME]
        body = [_count_row(one, COUNTS[one.name]) for one in changed]
        same = [COUNTS[one.name] for one in counts if one.verdict == SAME and one.base]
        rest = f"the same: {', '.join(same)}" if same else ""
        if body or same:
            found.append((title, [title.split()[0].lower(), "base", "new", "change", ""], body, rest))
    memory = [one for one in comparison.memory if one.base != one.new]
    if memory:
        body = [_count_row(one, one.holder, size=True) for one in memory[: rows or None]]
        rest = f"{units.count(len(memory) - len(body), 'more holder')} changed" if len(memory) > len(body) else ""
        found.append(("Memory at the peak", ["holder", "base", "new", "change", ""], body, rest))
    for kind in TIMED:
        of_kind = [one for one in comparison.differences if one.kind == kind]
        shown = [
            one for one in of_kind if kind == "part" or one.verdict in (FASTER, SLOWER) or one.base_count != one.new_count
        ]
        shown = shown[: rows or None]
        if not of_kind:
            continue
        rest_of = [one for one in of_kind if one not in shown]
        same, unknown = (
            sum(one.verdict == verdict for one in rest_of) for verdict in (SAME, CANNOT_TELL)
        )
        more = len(rest_of) - same - unknown
        said = [
            text
            for number, text in (
                (more, f"{more:,} more changed"),
                (same, f"{same:,} the same"),
                (unknown, f"{unknown:,} too noisy to tell"),
            )
            if number
        ]
        header = [TITLES[kind].lower(), *HEADINGS]
        found.append((TITLES[kind], header, [_row(one, comparison) for one in shown], ", ".join(said)))
    return found


def _count_row(one: CountDifference, what: str, *, size: bool = False) -> list[str]:
    """A count as a row."""
    in_bytes = size or one.name in BYTE_COUNTS

    def text(value: float | None) -> str:
        if value is None:
            return "not recorded"
        return units.size(value) if in_bytes else f"{value:,.10g}"

    change = "" if one.base is None or one.new is None else _signed(one.new - one.base, in_bytes=in_bytes)
    verdict = "steps differ" if one.verdict == CANNOT_TELL and change else one.verdict
    return [cut(what, _WIDEST), text(one.base), text(one.new), change, verdict]


def _signed(value: float, *, in_bytes: bool) -> str:
    """A difference with its sign."""
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return sign + (units.size(abs(value)) if in_bytes else f"{abs(value):,.10g}")


def _row(one: Difference, comparison: Comparison) -> list[str]:
    """A difference of times as a row."""
    change = one.change_ns
    counts = ""
    if one.base_count is not None and one.new_count is not None:
        counts = (
            f"{one.new_count:,.10g}"
            if one.base_count == one.new_count
            else f"{one.base_count:,.10g} -> {one.new_count:,.10g}"
        )
    return [
        cut(label(one), _WIDEST),
        units.duration(one.base_ns) if one.only != "new" else "-",
        units.duration(one.new_ns) if one.only != "base" else "-",
        ("+" if change > 0 else "") + units.duration(change),
        f"{100 * change / max(comparison.whole.base_ns, 1):+.2f} %",
        "" if one.share is None else f"{100 * one.share:.0f} %",
        counts,
        one.verdict if not one.only else f"{one.verdict}, only in {one.only}",
    ]


def label(one: Difference) -> str:
    """What a row is about, in one line."""
    if one.kind == "line":
        base = f"{one.base_line} -> " if one.base_line not in (-1, one.line) and one.only == "" else ""
        return f"{os.path.basename(one.file)}:{base}{one.line} {one.detail or one.name}"
    inside = f" in {one.module}" if one.module else ""
    detail = f" ({one.detail})" if one.detail else ""
    return f"{one.name}{inside}{detail}"


def names_of(rows: Sequence[Difference], most: int = 3) -> str:
    """A few rows by name, for a message."""
    return ", ".join(label(one) for one in rows[:most])
