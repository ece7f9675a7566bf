"""The summary at the end of a run, and of any trace: where the time went, in at most 40 lines."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path, PurePath
from statistics import median
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from kinetoscope.cli import _units
from kinetoscope.cli._summary_facts import Facts, Row, gather
from kinetoscope.cli._summary_layout import LABEL, cut, fold, table
from kinetoscope.cli._terminal import UNLIMITED, console
from kinetoscope.cli.info import command_line, completeness, peak_text, summed_losses
from kinetoscope.trace import Phase

if TYPE_CHECKING:
    from rich.console import Console

    from kinetoscope.cli._recording import Finished
    from kinetoscope.trace import Trace

MOST_LINES = 40
WIDEST = 100
NARROWEST = 40
_MOST_DEVICES = 4


def print_summary(finished: Finished, printer: Console | None = None, rows: int = 9) -> None:
    """Print the summary on standard error, or on `printer`; `rows` of each table at most, and 40 lines in all."""
    printer = printer or console(stderr=True)
    width = WIDEST if printer.width >= UNLIMITED else max(NARROWEST, min(WIDEST, printer.width))
    for line in summary_lines(finished, width, rows):
        line.truncate(max(1, printer.width), overflow="ellipsis")
        printer.print(line, soft_wrap=True)


def print_trace(trace: Trace, path: str) -> None:
    """Print the summary of a trace that was recorded at another time, on standard output."""
    from kinetoscope.cli._program import Program
    from kinetoscope.cli._recording import Finished, Wanted

    name, info = PurePath(path).name, trace.info
    program = info.get("program")
    ended = program.get("ended", "") if isinstance(program, dict) else ""
    missing = completeness(trace)
    told = Finished(
        trace=trace,
        program=Program(name, is_module=True),
        ended=str(ended),
        wanted=Wanted(prefix=Path(name), memory=bool(info.get("profile_memory"))),
        files=(),
        engine=str(info.get("engine", "kineto")),
        notes=(missing,) if trace.info.get("complete") is False else (),
        here=False,
    )
    print_summary(told, console())


def summary_lines(finished: Finished, width: int, rows: int) -> list[Text]:
    """Make the lines of the summary, none wider than `width` cells."""
    facts = gather(finished.trace, rows)
    head = [Text(), _title(finished, width), *_totals(finished, facts, width), *_steps(facts, width)]
    foot = [
        *_devices(facts, width),
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
            _kernels(facts, width, min(6, most)),
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
    name = cut(ran, width - 19)
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
    lines = fold("", ", ".join(filter(None, told)), width)
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
        lines += fold("", f"in torch {busy} of the time{where}; of that {', '.join(parts)}", width)
    work = facts.work
    if work is not None and work.covered_percent is not None:
        counted = work.why
        if work.flops is not None:
            rate = work.flops * 1e9 / recorded_ns if recorded_ns else 0.0
            counted = f"{_units.operations(work.flops)}, {_units.operations(rate)}/s; known for "
            counted += f"{work.covered_percent:.1f} % of the operators' time"
        lines += fold("", counted, width)
    for note in finished.notes:
        lines += fold("", f"note: {note}", width, style="yellow")[:3]
    return lines


def _steps(facts: Facts, width: int) -> list[Text]:
    """How long the steps took, and how evenly."""
    steps = facts.steps_ns
    if not steps:
        return fold("steps", "none found: no optimizer stepped while recording", width)
    # What comes before the loop would make all its steps look alike.
    apart = facts.set_up and len(steps) >= 3
    compared = steps[1:] if apart else steps
    told = (
        f"{_units.count(len(steps), 'step')} · min {_units.duration(min(compared))}"
        f" · median {_units.duration(median(compared))} · max {_units.duration(max(compared))}"
    )
    first = f"first, with the set-up: {_units.duration(steps[0])}" if apart else ""
    told += f" · of {facts.steps_of}" if facts.steps_of else ""
    lines = fold("", told, width, style="bold")
    line = lines[-1]
    if (room := width - line.cell_len - 3) >= 8:
        line.append("   ").append(_units.sparkline(compared, min(room, 32)), style="green")
    else:
        line = Text(_units.sparkline(compared, min(width, 32)), style="green")
        lines.append(line)
    if first and line.cell_len + 3 + cell_len(first) <= width:
        line.append(f"   {first}", style="dim")
    elif first:
        lines += fold("", first, width, style="dim")
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
    return table(header, cells, width, [row["self_ns"] for row in rows], facts.all_ns)


def _kernels(facts: Facts, width: int, most: int) -> list[Text]:
    """The kernels that took most, as shares of all time in kernels."""
    rows = facts.by_kernel[:most]
    cells = [
        (
            row["name"],
            _units.duration(row["total_ns"]),
            # No share where all kernels together took no time.
            _units.percent(row["kernel_percent"] or 0, 0 if row["kernel_percent"] is None else 100),
            f"{row['calls']:,}",
            _units.duration(row["mean_ns"]),
        )
        for row in rows
    ]
    header = ("kernels", "time", "share", "calls", "mean")
    sizes = [round((row["kernel_percent"] or 0) * 1000) for row in rows]
    return table(header, cells, width, sizes, 100_000)


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
    return table(header, cells, width, [row["self_ns"] for row in rows], facts.all_ns)


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
    return table(header, cells, width, [row[1] for row in rows], facts.all_ns)


def _module_name(row: Row) -> str:
    """A module's path and class, indented by its place in the tree."""
    name = f"{'  ' * row['depth']}{row['path']}"
    return name if row["class"] in ("", row["path"]) else f"{name}  {row['class']}"


def _lines(finished: Finished, facts: Facts, width: int, most: int) -> list[Text]:
    """The lines of the program that took most, with their text where there is room for it."""
    rows = [row for row in facts.by_line[:most] if row["self_ns"] > 0]
    cells = [
        (
            f"{_short_path(row['file'], finished)}:{row['line']}  {_source(row, finished) or row['function']}",
            _units.duration(row["self_ns"]),
            _units.percent(row["self_ns"], facts.all_ns),
        )
        for row in rows
    ]
    return table(
        ("source lines", "self", "share"), cells, width, [row["self_ns"] for row in rows], facts.all_ns
    )


# -------------------------------------------------------------------------------------------------------------- foot


def _devices(facts: Facts, width: int) -> list[Text]:
    """How busy each device was."""
    told = [
        f"{row['device']} busy {_units.percent(row['busy_percent'] or 0, 100)} of the time"
        + (f" ({row['model']})" if row["model"] else "")
        for row in facts.devices[:_MOST_DEVICES]
    ]
    if more := len(facts.devices) - len(told):
        told.append(f"and {more:,} more: see the table `devices`")
    return fold("devices", ", ".join(told), width) if told else []


def _memory(finished: Finished, facts: Facts, width: int) -> list[Text]:
    """The memory peak of each device or, where that was not recorded, of the process."""
    process = _process_peak_bytes() if finished.here else 0
    of_process = f"the process held {_units.size(process)} at most" if process else ""
    if facts.peaks:
        told = [
            f"peak {peak_text(peak)}, after {_units.duration(peak.time_ns)}"
            for peak in facts.peaks[:_MOST_DEVICES]
        ]
        if more := len(facts.peaks) - len(told):
            told.append(f"and {more:,} more devices")
        return fold("memory", "; ".join([*told, *filter(None, [of_process])]), width)
    if finished.wanted.memory:
        return fold("memory", "no allocation was seen", width)
    hint = "--memory records the tensors'" if finished.here else "that of tensors was not recorded"
    return fold("memory", "; ".join(filter(None, (of_process, hint))), width)


def _lost(finished: Finished, width: int) -> list[Text]:
    """What is missing from the trace."""
    losses = summed_losses(finished.trace)
    if not losses:
        return fold("lost", "nothing", width)
    told = "; ".join(f"{count:,} {what} ({why.rstrip('.')})" for (what, why), count in losses.items())
    return fold("lost", told, width, style="yellow")[:4]


def _cost(finished: Finished, facts: Facts, width: int) -> list[Text]:
    """What recording cost."""
    overhead = finished.overhead
    if not finished.here:
        return []
    if overhead is None:
        return fold("overhead", "not measured", width)
    if overhead.record_ns <= 0:
        return fold(
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
    return fold("overhead", told, width)


def _files(finished: Finished, width: int) -> list[Text]:
    """What was written, and what to do with it."""
    lines = []
    for place, path in enumerate(finished.files):
        shown = finished.wanted.shown(path)
        use = (
            f"kinetoscope info {shown}" if path.suffix == ".ktrace" else "open it in https://ui.perfetto.dev"
        )
        told = f"{shown}  {_units.size(path.stat().st_size)}"
        if LABEL + cell_len(told) + cell_len(use) + 3 > width:
            lines += [
                *fold("files" if place == 0 else "", told, width, indent=LABEL),
                *fold("", use, width, style="dim", indent=LABEL),
            ]
        else:
            label = ("files" if place == 0 else "").ljust(LABEL)
            lines.append(Text.assemble((label, "bold"), told, "   ", (use, "dim")))
    return lines


def _short_path(path: str, finished: Finished) -> str:
    """A path as short as it can be told apart: from the folder of the command line, else its name."""
    inside = Path(finished.wanted.shown(Path(path)))
    return str(inside) if not inside.is_absolute() and len(str(inside)) <= 24 else inside.name


def _source(row: Row, finished: Finished) -> str:
    """The text of a line, where the file is that of the run and can be read."""
    try:
        return linecache.getline(row["file"], row["line"]).strip() if finished.here else ""
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
