"""How a trace shows itself in a notebook: what it holds, and where the time went."""

from __future__ import annotations

import linecache
import os
import re
from pathlib import PurePath
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._units import size_text
from kinetoscope.tables._visible import host_spans, host_total_ns
from kinetoscope.tables.memory_peak import device_peaks, memory_peak
from kinetoscope.tables.of_processes import modules_together, process_tree, steps_of_one
from kinetoscope.trace._html import Cell, columns_chart, note, page, table
from kinetoscope.trace._looks import duration_text, facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetoscope.trace import Trace

ROWS = 10
# Adding up more spans than this takes seconds, and a value that is shown in a notebook should show at once.
MOST_SPANS = 5_000_000

# Where a session keeps its recording when nobody says where; that file goes with the trace.
_TEMPORARY = re.compile(r"kinetoscope-\d+-[^/]+/live\.recording$")
_SAID = ("spans", "threads", "steps", "allocations and frees")


def trace_page(
    trace: Trace,
    *,
    rows: int = ROWS,
    whole: bool = False,
    title: str = "Trace",
    place_of: Callable[[str], str] | None = None,
) -> str:
    """Return HTML about a trace.

    Args:
        trace: The trace.
        rows: At most this many rows of each table.
        whole: Show modules, source lines and the memory peak as well, and operators however many spans there are.
        title: What stands above it all.
        place_of: Returns what a person calls a source file; None: its name.

    Returns:
        The HTML; names in it are text, whatever they hold.
    """
    parts = [_facts(trace, title), _steps(trace), _processes(trace, rows)]
    if whole or len(trace.columns("spans")) <= MOST_SPANS:
        parts.append(_operators(trace, rows))
    else:
        parts.append(note('A long trace: table("ops") adds it up.'))
    if whole:
        parts += [
            _modules(trace, rows),
            _lines(trace, rows, place_of or _file_name),
            _memory(trace, rows, place_of or _file_name),
        ]
    return page(*parts)


def _facts(trace: Trace, title: str) -> str:
    """What the trace holds, and what is missing in it."""
    known = facts(trace)
    said = [known["duration"], *(_many(known[name], name) for name in _SAID if name in known)]
    if processes := len(trace.columns("processes")):
        said.insert(1, "1 process" if processes == 1 else f"{processes:,} processes")
    if "file" in known and not _TEMPORARY.search(known["file"]):
        said.append(known["file"])
    line = f"{title}: {', '.join(said)}"
    lost = (
        ""
        if known["complete"] == "yes"
        else note(f"not complete: {known['complete'].removeprefix('no: ')}", warns=True)
    )
    return note(line) + lost


def _many(number: str, noun: str) -> str:
    """Say how many there are of something."""
    return f"1 {noun[:-1]}" if number == "1" and " " not in noun else f"{number} {noun}"


def _steps(trace: Trace) -> str:
    """How long each step took, as a picture."""
    whose, of_first = steps_of_one(trace)
    steps = trace.column("steps", "duration_ns")[of_first].tolist()
    if len(steps) < 2:
        return ""
    said = f"{len(steps):,} steps: {duration_text(min(steps))} to {duration_text(max(steps))}, median {duration_text(round(median(steps)))}"
    said += f" (of {whose})" if whose else ""
    return f"<div>{columns_chart(steps, said)}</div>{note(said)}"


def _processes(trace: Trace, rows: int) -> str:
    """The processes of a trace of several, each below the one that started it: the first, and those that computed most."""
    tree = process_tree(trace)
    if not tree:
        return ""
    own_ns = np.where(host_spans(trace), trace.column("spans", "self_ns"), 0)
    whose = trace.column("threads", "process_row")[trace.column("spans", "thread")]
    by_process = np.bincount(whose, weights=own_ns, minlength=len(tree)).astype(np.int64).tolist()
    largest = sorted(range(len(tree)), key=lambda place: (place > 0, -by_process[tree[place]["row"]], place))
    whole_ns = host_total_ns(trace)
    body: list[list[Cell | str]] = [
        [
            f"{'  ' * row['depth']}{row['name']}",
            str(row["pid"]),
            str(row["rank"]) if row["rank"] >= 0 else "–",
            _time(by_process[row["row"]], whole_ns),
            _percent(by_process[row["row"]], whole_ns),
            _time(row["duration_ns"]),
        ]
        for row in (tree[place] for place in sorted(largest[:rows]))
    ]
    headings = ["process", "number", "rank", "self", "share", "recorded"]
    return table(headings, body, caption="Processes") + _rest(len(tree), rows, "processes")


def _operators(trace: Trace, rows: int) -> str:
    """The operators and ranges that took most themselves."""
    whole_ns = host_total_ns(trace)
    found = trace.table("ops")
    on_device = any(found["device_self_ns"].to_pylist()[:1000])
    with_memory = found["self_bytes"].null_count < found.num_rows
    headings = ["operator", "self", "share", "calls", "mean", "total"]
    headings += ["device self"] * on_device + ["memory self"] * with_memory
    body: list[list[Cell | str]] = [
        [
            Cell(row["name"], row["kind"]),
            _time(row["self_ns"], whole_ns),
            _percent(row["self_ns"], whole_ns),
            f"{row['count']:,}",
            _time(round(row["mean_ns"])),
            _time(row["total_ns"]),
            *([_time(row["device_self_ns"])] if on_device else []),
            *([_bytes(row["self_bytes"])] if with_memory else []),
        ]
        for row in found.slice(0, rows).to_pylist()
    ]
    return table(headings, body, caption="Operators") + _rest(found.num_rows, rows, "ops") if body else ""


def _modules(trace: Trace, rows: int) -> str:
    """The modules that took most, in the order of the tree."""
    found = modules_together(trace)
    largest = sorted(range(len(found)), key=lambda place: (-found[place]["total_ns"], found[place]["depth"]))[
        :rows
    ]
    whole_ns = host_total_ns(trace)
    body: list[list[Cell | str]] = [
        [
            f"{'  ' * row['depth']}{row['path']}",
            row["class"] or "",
            _time(row["total_ns"], whole_ns),
            _percent(row["total_ns"], whole_ns),
            _time(row["forward_ns"]),
            _time(row["backward_ns"]),
        ]
        for row in (found[place] for place in sorted(largest))
        if row["total_ns"] > 0
    ]
    headings = ["module", "class", "total", "share", "forward", "backward"]
    return (
        table(headings, body, left=(0, 1), caption="Modules") + _rest(len(found), rows, "modules")
        if body
        else ""
    )


def _lines(trace: Trace, rows: int, place_of: Callable[[str], str]) -> str:
    """The source lines that took most, with their text where it can be read."""
    whole_ns = host_total_ns(trace)
    found = trace.table("lines")
    # Lines that only called others come last, and are not where the time went.
    found = found.slice(0, sum(time_ns > 0 for time_ns in found["self_ns"].to_pylist()))
    body = [
        [
            Cell(f"{place_of(row['file'])}:{row['line']}", row["file"]),
            _source(row["file"], row["line"]) or row["function"] or "",
            _time(row["self_ns"], whole_ns),
            _percent(row["self_ns"], whole_ns),
        ]
        for row in found.slice(0, rows).to_pylist()
    ]
    headings = ["line", "", "self", "share"]
    return (
        table(headings, body, left=(0, 1), caption="Source lines") + _rest(found.num_rows, rows, "lines")
        if body
        else ""
    )


def _memory(trace: Trace, rows: int, place_of: Callable[[str], str]) -> str:
    """Who held the memory when most of it was in use."""
    peaks = device_peaks(trace)
    if not peaks:
        return ""
    top = peaks[0]
    found = memory_peak(trace, device=top.device)
    body = [
        [
            row["operator"] or "(before)",
            row["category"] or "",
            row["module"] or "",
            Cell(_short(row["line"], place_of), row["line"] or ""),
            Cell(
                size_text(row["bytes"]),
                f"{row['bytes']:,} bytes",
                row["bytes"] / top.attributed_bytes if top.attributed_bytes else 0.0,
            ),
            f"{row['blocks']:,}",
        ]
        for row in found.slice(0, rows).to_pylist()
    ]
    caption = f"Memory at its peak on {top.device}: {size_text(top.bytes)} after {duration_text(top.time_ns)}"
    if top.attributed_bytes < top.bytes:
        caption += f", of which at most {size_text(top.attributed_bytes)} is attributed"
    headings = ["operator", "category", "module", "line", "bytes", "blocks"]
    return table(headings, body, left=(0, 1, 2, 3), caption=caption) + _rest(
        found.num_rows, rows, "memory_peak"
    )


def _short(line: str | None, place_of: Callable[[str], str]) -> str:
    """A source line of `memory_peak` with what a person calls its file."""
    file, bracket, rest = (line or "").rpartition("(")
    number, closed, _ = rest.partition(")")
    return f"{place_of(file)}:{number}" if bracket and closed else line or ""


def _source(path: str, line: int) -> str:
    """The text of a line, where the file can be read; one that is named by a part of its path may be another's of that name."""
    if not os.path.isabs(path) and path not in linecache.cache:
        return ""
    try:
        return linecache.getline(path, line).strip()
    except ValueError:  # a name that no file can have
        return ""


def _file_name(path: str) -> str:
    """The last part of a path."""
    return PurePath(path.replace("\\", "/")).name


def _time(time_ns: int | None, whole_ns: int = 0) -> Cell:
    """A time, exact when pointed at, with a bar for its share of a whole."""
    if time_ns is None:
        return Cell("–")
    share = time_ns / whole_ns if whole_ns > 0 else 0.0
    return Cell(duration_text(time_ns), f"{time_ns:,} ns", share) if time_ns else Cell("–")


def _bytes(size: int | None) -> Cell:
    """A size, exact when pointed at."""
    return Cell(size_text(size), f"{size:,} bytes") if size else Cell("–")


def _percent(part: Any, whole: int) -> str:
    """A share."""
    return f"{100 * part / whole:.1f} %" if whole > 0 else "–"


def _rest(have: int, shown: int, name: str) -> str:
    """Where the rows are that are not shown."""
    return note(f'table("{name}") has {have - shown:,} more') if have > shown else ""
