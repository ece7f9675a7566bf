"""The HTML page of a trace in a notebook: its contents, what makes it slow, and where the time went."""

from __future__ import annotations

import re
from pathlib import PurePath
from statistics import median
from typing import TYPE_CHECKING

from kinetoscope.analyses.findings import MOST_FINDINGS, headline, severity, whose_line
from kinetoscope.analyses.overview import overview
from kinetoscope.analyses.waterfall import floor_with_parts
from kinetoscope.display.description import incomplete, main_counts
from kinetoscope.display.html import Cell, columns_chart, note, page, table
from kinetoscope.model import units
from kinetoscope.model.losses import inexact
from kinetoscope.tables.host.source_lines import line_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetoscope.analyses.overview import HostTime, Overview
    from kinetoscope.model.trace_data import TraceData

ROWS = 10
# Summing more spans than this takes seconds, too long for displaying a value in a notebook.
MOST_SPANS = 5_000_000

# The recording of a session without a path: a temporary file, deleted with the trace.
_TEMPORARY = re.compile(r"kinetoscope-\d+-[^/]+/live\.recording$")


def trace_page(
    trace: TraceData,
    *,
    rows: int = ROWS,
    details: bool = False,
    title: str = "Trace",
    file_label: Callable[[str], str] | None = None,
) -> str:
    """Return HTML about a trace.

    Args:
        trace: The trace.
        rows: The most rows of each table.
        details: Also show modules, source lines and the memory peak, and show operators even if there are many spans.
        title: The title above the tables.
        file_label: Returns the label of a source file; by default its name.

    Returns:
        The HTML, with all names escaped.
    """
    shown = overview(trace)
    parts = [_facts(trace, title), _steps(shown)]
    if details or len(trace.columns("spans")) <= MOST_SPANS:
        parts += [_findings(shown), _processes(shown, rows), _operators(shown, rows), _ranges(shown, rows)]
    else:
        parts.append(_processes(shown, rows))
        parts.append(note('This trace has many spans; table("ops") sums them by operator.'))
    if details:
        parts += [
            _modules(shown, rows),
            _lines(shown, rows, file_label or _file_name),
            _memory(shown, rows, file_label or _file_name),
        ]
    return page(*parts)


def _facts(trace: TraceData, title: str) -> str:
    """Return the main counts, and what is missing."""
    parts = [units.duration(trace.duration_ns), *main_counts(trace)]
    if processes := len(trace.columns("processes")):
        parts.insert(1, units.count(processes, "process", "processes"))
    if trace.path is not None and not _TEMPORARY.search(str(trace.path)):
        parts.append(str(trace.path))
    missing = incomplete(trace)
    return note(f"{title}: {', '.join(parts)}") + (
        note(f"Incomplete: {missing}", warns=bool(inexact(trace.losses))) if missing else ""
    )


def _steps(shown: Overview) -> str:
    """Return a chart of the step times."""
    steps = shown.steps
    if steps is None or steps.shown < 2:
        return ""
    times = steps.shown_ns
    text = f"{units.count(steps.shown, 'step')}: {units.duration(min(times))} to {units.duration(max(times))}"
    text += (
        f". {kinds}" if (kinds := shown.step_kinds_in_words) else f", median {units.duration(median(times))}"
    )
    text += f" (of {steps.shown_of})" if steps.shown_of else ""
    text = ", ".join(filter(None, (text, steps.left_out_text, steps.ahead_text)))
    return f"<div>{columns_chart(times, text)}</div>{note(text)}"


def _findings(shown: Overview) -> str:
    """Return what makes the run slow, each finding with what to change below it; empty for a trace without time."""
    report = shown.report
    if report.whole_ns <= 0:
        return ""
    notes = "".join(
        note(headline(one, report.whole_ns), warns=severity(one) == "warning") + note(one.advice)
        for one in report.findings[:MOST_FINDINGS]
    )
    whose = note(whose_line(report)) if report.process else ""
    above = floor_with_parts(report.account)
    notes = (notes or note(report.no_problem)) + (note(above) if above else "")
    return whose + notes + _rest(len(report.findings), MOST_FINDINGS, "findings")


def _processes(shown: Overview, rows: int) -> str:
    """Return a table of the first process and the busiest others, as a tree; empty for a trace of one process."""
    if not shown.processes:
        return ""
    body: list[list[Cell | str]] = [
        [
            f"{'  ' * one.depth}{one.name}",
            str(one.pid),
            str(one.rank) if one.rank >= 0 else "–",
            _time(one.working_ns, one.whole_ns),
            units.percent(one.working_ns, one.whole_ns),
            _time(one.whole_ns),
        ]
        for one in shown.busiest_processes(rows)
    ]
    headings = ["process", "PID", "rank", "busy", "share", "of"]
    return table(headings, body, caption="Processes") + _rest(len(shown.processes), rows, "processes")


def _operators(shown: Overview, rows: int) -> str:
    """Return the operators with the most self time."""
    found, whole_ns, totals = shown.host.operators, shown.host.shares.whole_ns, shown.operator_totals
    on_device = any(row["device_self_ns"] for row in totals.values())
    with_memory = any(row["self_bytes"] is not None for row in totals.values())
    headings = ["operator", "self", "share", "calls", "mean"]
    headings += ["device self"] * on_device + ["memory self"] * with_memory
    body: list[list[Cell | str]] = [
        [
            Cell(row["name"], row["kind"]),
            _time(row["self_ns"], whole_ns),
            units.percent(row["self_ns"], whole_ns),
            f"{row['count']:,}",
            _time(round(row["self_ns"] / row["count"])),
            *([_time(totals[row["name"], row["kind"]]["device_self_ns"])] if on_device else []),
            *([_bytes(totals[row["name"], row["kind"]]["self_bytes"])] if with_memory else []),
        ]
        for row in found[:rows]
    ]
    caption = f"Operators, {_of(shown.host)}"
    return table(headings, body, caption=caption) + _rest(len(found), rows, "ops") if body else ""


def _ranges(shown: Overview, rows: int) -> str:
    """Return the ranges with the most total time."""
    found, whole_ns = shown.ranges, shown.host.shares.whole_ns
    body: list[list[Cell | str]] = [
        [
            row["name"],
            _time(row["total_ns"], whole_ns),
            units.percent(row["total_ns"], whole_ns),
            _time(row["self_ns"]),
            f"{row['count']:,}",
        ]
        for row in found[:rows]
    ]
    headings = ["range", "total", "share", "self", "count"]
    return table(headings, body, caption="Ranges") + _rest(len(found), rows, "ops") if body else ""


def _of(host: HostTime) -> str:
    """Return what shares refer to."""
    return "shares of step time" if host.shares.in_steps else "shares of the recorded time"


def _modules(shown: Overview, rows: int) -> str:
    """Return the modules with the most total time, in tree order."""
    whole_ns = shown.host.shares.whole_ns
    body: list[list[Cell | str]] = [
        [
            f"{'  ' * row['depth']}{row['path']}",
            row["class"] or "",
            _time(row["total_ns"], whole_ns),
            units.percent(row["total_ns"], whole_ns),
            _time(row["forward_ns"]),
            _time(row["backward_ns"]),
        ]
        for row in shown.largest_modules(rows)
    ]
    headings = ["module", "class", "total", "share", "forward", "backward"]
    return (
        table(headings, body, left=(0, 1), caption="Modules") + _rest(len(shown.modules), rows, "modules")
        if body
        else ""
    )


def _lines(shown: Overview, rows: int, file_label: Callable[[str], str]) -> str:
    """Return the source lines with the most time, with their text if the file is readable."""
    whole_ns = shown.host.shares.whole_ns
    # Lines without time of their own only called others.
    found = [row for row in shown.host.lines if row["time_ns"] > 0]
    body = [
        [
            Cell(f"{file_label(row['file'])}:{row['line']}", row["file"]),
            line_text(shown.trace, row["file"], row["line"]) or row["function"] or "",
            _time(row["self_ns"], whole_ns),
            _time(row["python_ns"] + row["blocked_ns"], whole_ns),
            units.percent(row["time_ns"], whole_ns),
        ]
        for row in found[:rows]
    ]
    headings = ["line", "", "operators", "Python", "share"]
    return (
        table(headings, body, left=(0, 1), caption="Source lines") + _rest(len(found), rows, "lines")
        if body
        else ""
    )


def _memory(shown: Overview, rows: int, file_label: Callable[[str], str]) -> str:
    """Return the owners of the memory at its peak."""
    if not shown.peaks:
        return ""
    top = shown.peaks[0]
    found = shown.peak_owners(top.device)
    body = [
        [
            row["operator"] or "(before)",
            row["category"] or "",
            row["module"] or "",
            Cell(_short(row["line"], file_label), row["line"] or ""),
            Cell(
                units.size(row["bytes"]),
                units.count(row["bytes"], "byte"),
                row["bytes"] / top.attributed_bytes if top.attributed_bytes else 0.0,
            ),
            f"{row['blocks']:,}",
        ]
        for row in found.slice(0, rows).to_pylist()
    ]
    caption = f"Peak memory on {top.device}: {units.size(top.bytes)} after {units.duration(top.time_ns)}"
    if top.attributed_bytes < top.bytes:
        caption += f", at most {units.size(top.attributed_bytes)} attributed"
    headings = ["operator", "category", "module", "line", "bytes", "blocks"]
    return table(headings, body, left=(0, 1, 2, 3), caption=caption) + _rest(
        found.num_rows, rows, "memory_peak"
    )


def _short(line: str | None, file_label: Callable[[str], str]) -> str:
    """Shorten the file in a source line of `memory_peak`."""
    file, bracket, rest = (line or "").rpartition("(")
    number, closed, _ = rest.partition(")")
    return f"{file_label(file)}:{number}" if bracket and closed else line or ""


def _file_name(path: str) -> str:
    """Return the last part of a path."""
    return PurePath(path.replace("\\", "/")).name


def _time(time_ns: int | None, whole_ns: int = 0) -> Cell:
    """Return a cell with a time, the exact time as tooltip, and a bar for its share."""
    if time_ns is None:
        return Cell("–")
    share = time_ns / whole_ns if whole_ns > 0 else 0.0
    return Cell(units.duration(time_ns), f"{time_ns:,} ns", share) if time_ns else Cell("–")


def _bytes(size: int | None) -> Cell:
    """Return a cell with a size, and the exact size as tooltip."""
    return Cell(units.size(size), units.count(size, "byte")) if size else Cell("–")


def _rest(have: int, shown: int, name: str) -> str:
    """Return a note about rows that are not shown."""
    return note(f'table("{name}") has {have - shown:,} more') if have > shown else ""
