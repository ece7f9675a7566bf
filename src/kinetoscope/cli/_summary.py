"""The summary at the end of a run: where the time went, in at most 40 lines."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from kinetoscope.cli import _units
from kinetoscope.cli._summary_facts import Facts, Row, gather
from kinetoscope.cli._terminal import UNLIMITED, console
from kinetoscope.cli.info import command_line, summed_losses
from kinetoscope.trace import Phase

if TYPE_CHECKING:
    from rich.console import Console

    from kinetoscope.cli._recording import Finished

MOST_LINES = 40
WIDEST = 100
NARROWEST = 40
_LABEL = 10
_BAR = 10


def print_summary(finished: Finished, printer: Console | None = None, rows: int = 9) -> None:
    """Print the summary on standard error, or on `printer`; `rows` of each table at most, and 40 lines in all."""
    printer = printer or console(stderr=True)
    width = WIDEST if printer.width >= UNLIMITED else max(NARROWEST, min(WIDEST, printer.width))
    for line in summary_lines(finished, width, rows):
        line.truncate(max(1, printer.width), overflow="ellipsis")
        printer.print(line, soft_wrap=True)


def summary_lines(finished: Finished, width: int, rows: int) -> list[Text]:
    """Make the lines of the summary, none wider than `width` cells."""
    facts = gather(finished.trace, rows)
    head = [Text(), _title(finished, width), *_totals(finished, facts, width), *_steps(facts, width)]
    foot = [
        *_memory(finished, facts, width),
        *_lost(finished, width),
        *_cost(finished, facts, width),
        *_files(finished, width),
    ]
    room = MOST_LINES - len(head) - len(foot) - 1
    body: list[Text] = []
    for most in range(rows, -1, -1):
        tables = [
            _processes(facts, width, min(6, most)),
            _operators(facts, width, most),
            _modules(facts, width, most),
            _lines(finished, facts, width, min(5, most)),
        ]
        body = [line for table in tables if len(table) > 1 for line in (Text(), *table)]
        if len(body) <= room:
            break
    return [*head, *body, Text(), *foot][:MOST_LINES]


# ------------------------------------------------------------------------------------------------------------- head


def _title(finished: Finished, width: int) -> Text:
    """What ran, between rules."""
    ran = (
        command_line(finished.trace.info).removeprefix("python ").partition(" (")[0] or finished.program.name
    )
    name = _cut(ran, width - 19)
    rule = "━" * (width - cell_len(name) - 16)
    return Text.assemble(
        ("━━ ", "cyan"), ("kinetoscope", "bold cyan"), " ", (name, "bold"), (f" {rule}", "cyan")
    )


def _totals(finished: Finished, facts: Facts, width: int) -> list[Text]:
    """How long, how much, how it ended."""
    recorded_ns = finished.trace.duration_ns
    told = [
        f"{_units.duration(recorded_ns)} recorded",
        f"{_units.count(facts.operators, 'operator')} on {_units.count(facts.threads, 'thread')}"
        + (f" of {len(facts.by_process)} processes" if facts.by_process else ""),
        f"{finished.engine} engine",
        finished.ended,
    ]
    lines = _fold("", ", ".join(told), width)
    if facts.all_ns:
        parts = [
            f"{name} {_units.percent(part, facts.all_ns)}"
            for name, part in zip(
                ("forward and other", "backward", "optimizer"), facts.phases_ns, strict=True
            )
            if part
        ]
        busy = _units.percent(facts.busiest_ns, recorded_ns)
        where = "" if facts.threads == 1 else " (busiest thread)"
        lines += _fold("", f"in torch {busy} of the time{where}; of that {', '.join(parts)}", width)
    if facts.flops is not None and facts.covered_percent is not None:
        rate = facts.flops * 1e9 / recorded_ns if recorded_ns else 0.0
        work = f"{_units.operations(facts.flops)}, {_units.operations(rate)}/s; known for "
        lines += _fold("", f"{work}{facts.covered_percent:.1f} % of the operators' time", width)
    for note in finished.notes:
        lines += _fold("", f"note: {note}", width, style="yellow")[:3]
    return lines


def _steps(facts: Facts, width: int) -> list[Text]:
    """How long the steps took, and how evenly."""
    steps = facts.steps_ns
    if not steps:
        return _fold("steps", "none found: no optimizer stepped while recording", width)
    # What comes before the loop would make all its steps look alike.
    apart = facts.set_up and len(steps) >= 3
    compared = steps[1:] if apart else steps
    told = (
        f"{_units.count(len(steps), 'step')} · min {_units.duration(min(compared))}"
        f" · median {_units.duration(median(compared))} · max {_units.duration(max(compared))}"
    )
    first = f"first, with the set-up: {_units.duration(steps[0])}" if apart else ""
    told += f" · of {facts.steps_of}" if facts.steps_of else ""
    lines = _fold("", told, width, style="bold")
    line = lines[-1]
    if (room := width - line.cell_len - 3) >= 8:
        line.append("   ").append(_units.sparkline(compared, min(room, 32)), style="green")
    else:
        line = Text(_units.sparkline(compared, min(width, 32)), style="green")
        lines.append(line)
    if first and line.cell_len + 3 + cell_len(first) <= width:
        line.append(f"   {first}", style="dim")
    elif first:
        lines += _fold("", first, width, style="dim")
    return lines


# ------------------------------------------------------------------------------------------------------------ tables


def _processes(facts: Facts, width: int, most: int) -> list[Text]:
    """The processes as a tree, those that computed most where there are many."""
    largest = sorted(range(len(facts.by_process)), key=lambda row: (-facts.by_process[row]["self_ns"], row))
    rows = [facts.by_process[row] for row in sorted(largest[:most])]
    if not rows:
        return []
    cells = [
        (
            f"{'  ' * row['depth']}{row['name']} ({row['pid']})",
            _units.duration(row["self_ns"]),
            _units.percent(row["self_ns"], facts.all_ns),
            f"{row['operators']:,}",
            _units.duration(row["duration_ns"]),
        )
        for row in rows
    ]
    left_out = len(facts.by_process) - len(rows)
    label = f"processes (the {len(rows)} largest of {len(facts.by_process)})" if left_out else "processes"
    header = (label, "in torch", "share", "operators", "recorded")
    return _table(header, cells, width, [row["self_ns"] for row in rows], facts.all_ns)


def _operators(facts: Facts, width: int, most: int) -> list[Text]:
    """The operators and ranges that took most themselves."""
    rows = facts.by_operator[:most]
    cells = [
        (
            row["name"],
            _units.duration(row["self_ns"]),
            _units.percent(row["self_ns"], facts.all_ns),
            f"{row['count']:,}",
            _units.duration(row["self_ns"] / row["count"]),
        )
        for row in rows
    ]
    header = ("operators", "self", "share", "calls", "mean")
    return _table(header, cells, width, [row["self_ns"] for row in rows], facts.all_ns)


def _modules(facts: Facts, width: int, most: int) -> list[Text]:
    """The tree of the modules that took most, with all inside them, and what ran in none."""
    optimizer_ns = facts.outside_ns[Phase.OPTIMIZER]
    forward_ns, backward_ns = facts.outside_ns[Phase.FORWARD], facts.outside_ns[Phase.BACKWARD]
    outside = [
        ("(optimizer)", optimizer_ns, 0, 0),
        ("(in no module)", forward_ns + backward_ns, forward_ns, backward_ns),
    ]
    outside = [row for row in outside if row[1]]
    inside = [
        (_module_name(row), row["total_ns"], row["forward_ns"], row["backward_ns"])
        for row in facts.largest_modules(most)
    ]
    if not inside:
        return []
    rows = [*inside, *outside]
    cells = [
        (
            name,
            _units.duration(total_ns),
            _units.percent(total_ns, facts.all_ns),
            *(_units.duration(part_ns) if part_ns else "–" for part_ns in (forward_ns, backward_ns)),
        )
        for name, total_ns, forward_ns, backward_ns in rows
    ]
    header = ("modules", "total", "share", "forward", "backward")
    return _table(header, cells, width, [row[1] for row in rows], facts.all_ns)


def _module_name(row: Row) -> str:
    """A module's path and class, indented by its place in the tree."""
    name = f"{'  ' * row['depth']}{row['path']}"
    return name if row["class"] in ("", row["path"]) else f"{name}  {row['class']}"


def _lines(finished: Finished, facts: Facts, width: int, most: int) -> list[Text]:
    """The lines of the program that took most, with their text where there is room for it."""
    rows = [row for row in facts.by_line[:most] if row["self_ns"] > 0]
    cells = [
        (
            f"{_short_path(row['file'], finished)}:{row['line']}  {_source(row['file'], row['line']) or row['function']}",
            _units.duration(row["self_ns"]),
            _units.percent(row["self_ns"], facts.all_ns),
        )
        for row in rows
    ]
    return _table(
        ("source lines", "self", "share"), cells, width, [row["self_ns"] for row in rows], facts.all_ns
    )


def _table(
    header: tuple[str, ...], rows: Sequence[tuple[str, ...]], width: int, sizes: list[int], whole: int
) -> list[Text]:
    """Lay out rows: a name as wide as there is room, numbers to the right, a bar for the share."""
    count = len(header)
    while True:
        widths = [
            max([len(header[place]), *(cell_len(row[place]) for row in rows)]) for place in range(1, count)
        ]
        bar = _BAR if width >= 72 else 0
        name_width = width - sum(widths) - 2 * len(widths) - (bar + 2 if bar else 0)
        if name_width >= 24 or count <= 3:
            break
        count -= 1
    lines = [_row(header[:count], widths, name_width, "bold")]
    for row, size in zip(rows, sizes, strict=True):
        line = _row(row[:count], widths, name_width, "")
        if bar:
            line.append("  ").append(_bar(size / whole if whole else 0, bar), style="cyan")
        lines.append(line)
    return lines


def _row(cells: tuple[str, ...], widths: list[int], name_width: int, style: str) -> Text:
    """Lay out one row."""
    name = _cut(cells[0], name_width)
    text = name + " " * (name_width - cell_len(name))
    text += "".join(
        "  " + " " * (width - cell_len(cell)) + cell for cell, width in zip(cells[1:], widths, strict=True)
    )
    return Text(text, style=style)


def _bar(share: float, width: int) -> str:
    """Draw a share as a bar, in eighths of a cell."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


# -------------------------------------------------------------------------------------------------------------- foot


def _memory(finished: Finished, facts: Facts, width: int) -> list[Text]:
    """The memory peak of the tensors or, where that was not recorded, of the process."""
    process = _process_peak_bytes()
    of_process = f"the process held {_units.size(process)} at most" if process else ""
    if facts.peak is not None:
        when = _units.duration(facts.peak.time_ns)
        told = f"peak {_units.size(facts.peak.bytes)} of tensors allocated while recording, after {when}"
        return _fold("memory", f"{told}; {of_process}" if process else told, width)
    if finished.wanted.memory:
        return _fold("memory", "no allocation was seen", width)
    return _fold(
        "memory", "; ".join(part for part in (of_process, "--memory records the tensors'") if part), width
    )


def _lost(finished: Finished, width: int) -> list[Text]:
    """What is missing from the trace."""
    losses = summed_losses(finished.trace)
    if not losses:
        return _fold("lost", "nothing", width)
    told = "; ".join(f"{count:,} {what} ({why.rstrip('.')})" for (what, why), count in losses.items())
    return _fold("lost", told, width, style="yellow")[:4]


def _cost(finished: Finished, facts: Facts, width: int) -> list[Text]:
    """What recording cost."""
    overhead = finished.overhead
    if overhead is None:
        return _fold("overhead", "not measured", width)
    if overhead.record_ns <= 0:
        return _fold(
            "overhead", "too small to be measured here, on a machine that is busy with other things", width
        )
    records = len(finished.trace.columns("spans"))
    total_ns = overhead.total_ns(records)
    share = _units.percent(total_ns, max(1, finished.trace.duration_ns))
    told = (
        f"{'' if share.startswith('<') else 'about '}{share} of the time: an estimate from "
        f"{_units.count(records, 'record')} times {_units.duration(overhead.record_ns)}, measured just now on a small "
        f"training step{', while the machine was busy: rough' if overhead.rough else ''}"
    )
    return _fold("overhead", told, width)


def _files(finished: Finished, width: int) -> list[Text]:
    """What was written, and what to do with it."""
    lines = []
    for place, path in enumerate(finished.files):
        shown = finished.wanted.shown(path)
        use = (
            f"kinetoscope info {shown}" if path.suffix == ".ktrace" else "open it in https://ui.perfetto.dev"
        )
        told = f"{shown}  {_units.size(path.stat().st_size)}"
        if _LABEL + cell_len(told) + cell_len(use) + 3 > width:
            lines += [
                *_fold("files" if place == 0 else "", told, width, indent=_LABEL),
                *_fold("", use, width, style="dim", indent=_LABEL),
            ]
        else:
            label = ("files" if place == 0 else "").ljust(_LABEL)
            lines.append(Text.assemble((label, "bold"), told, "   ", (use, "dim")))
    return lines


def _fold(label: str, text: str, width: int, style: str = "", indent: int | None = None) -> list[Text]:
    """Fold a sentence under its label."""
    indent = (_LABEL if label else 0) if indent is None else indent
    lines, line = [], ""
    for word in text.split():
        if line and cell_len(line) + 1 + cell_len(word) > width - indent:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return [
        Text.assemble(
            (label.ljust(indent) if place == 0 else " " * indent, "bold"), (_cut(part, width - indent), style)
        )
        for place, part in enumerate(lines)
    ]


def _cut(text: str, width: int) -> str:
    """Shorten a text to a width, and keep what would disturb a terminal out of it."""
    text = "".join(character if character.isprintable() else "·" for character in text)
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[: max(0, min(len(text) - 1, width - 1))]
    return text + "…"


def _short_path(path: str, finished: Finished) -> str:
    """A path as short as it can be told apart: from the folder of the command line, else its name."""
    inside = Path(finished.wanted.shown(Path(path)))
    return str(inside) if not inside.is_absolute() and len(str(inside)) <= 24 else inside.name


def _source(path: str, line: int) -> str:
    """The text of a line, where the file can be read."""
    try:
        return linecache.getline(path, line).strip()
    except ValueError:  # a name that no file can have
        return ""


def _process_peak_bytes() -> int:
    """The most physical memory this process ever held."""
    try:
        import resource
    except ImportError:  # not on every platform
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
