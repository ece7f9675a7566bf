"""The summary of a run or of any trace: where the time went, in at most 40 lines."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len
from rich.text import Text

from kinetoscope.analyses.findings import headline, whose_line
from kinetoscope.analyses.waterfall import floor_with_parts
from kinetoscope.display.description import command_line, completeness, lost, peak_lines
from kinetoscope.display.terminal import UNLIMITED, console
from kinetoscope.display.text_table import bar_table, cut, folded
from kinetoscope.launcher.overhead import records_of
from kinetoscope.ledger.parts import part_names
from kinetoscope.model import units
from kinetoscope.model.losses import consequence, counted
from kinetoscope.model.schema import Phase
from kinetoscope.summaries import SUFFIX
from kinetoscope.tables.host.source_lines import line_text

if TYPE_CHECKING:
    from rich.console import Console

    from kinetoscope.analyses.overview import HostTime, Overview
    from kinetoscope.launcher.overhead import Overhead, Records
    from kinetoscope.launcher.recording import Finished
    from kinetoscope.ledger.parts import StepTime
    from kinetoscope.trace import Trace


@dataclass(frozen=True)
class Run:
    """A trace and what is known besides of the run that it is of.

    Attributes:
        trace: The trace.
        name: What ran, where the trace does not say.
        engine: The engine that recorded.
        ended: How the program ended; empty if unknown.
        notes: What the user should know beyond that.
        memory: Whether memory was to be recorded.
        folder: Paths of files in it are shown relative to it.
        finished: The recording, if this process made it: then its files and its cost are shown.
    """

    trace: Trace
    name: str
    engine: str
    ended: str
    notes: tuple[str, ...]
    memory: bool
    folder: Path
    finished: Finished | None = None

    @classmethod
    def of(cls, finished: Finished) -> Self:
        """The run that this process recorded."""
        options = finished.options
        return cls(
            finished.trace,
            finished.program.name,
            finished.engine,
            finished.ended,
            finished.messages,
            options.recording.profile_memory,
            options.folder,
            finished,
        )

    def shown(self, path: Path) -> str:
        """A path as people read it."""
        return str(path.relative_to(self.folder) if path.is_relative_to(self.folder) else path)

    @property
    def overview(self) -> Overview:
        """Where its time went."""
        return self.trace.overview()


# The layout of the lines.

LABEL = 10


def fold(label: str, text: str, width: int, style: str = "", indent: int | None = None) -> list[Text]:
    """Wrap a sentence beside its label."""
    indent = (LABEL if label else 0) if indent is None else indent
    return [
        Text.assemble(
            (label.ljust(indent) if place == 0 else " " * indent, "bold"), (cut(part, width - indent), style)
        )
        for place, part in enumerate(folded(text, width - indent))
    ]


# Without a terminal: how many lines a summary has at most, and their width. On a terminal of another size there are as many as
# fit, within these limits.
MOST_LINES = 40
WIDTH = 100
_FEWEST_LINES, _TALLEST = 30, 70
_NARROWEST, _WIDEST = 40, 140
_MOST_DEVICES = 4
_MOST_NOTES = 6
_MOST_REQUEST_NAMES = 4
_MOST_LINES_OF_KINDS = 3
_ROWS = 9
_MOST_FINDINGS = 3
_LEAST_WARM_UP_PERCENT = 5


def print_summary(finished: Finished, printer: Console | None = None, rows: int = _ROWS) -> None:
    """Print the summary to standard error or to `printer`: `rows` rows of a table in 40 lines in total, or what fits the terminal."""
    _print(Run.of(finished), printer or console(stderr=True), rows)


def print_trace(trace: Trace, path: str) -> None:
    """Print the summary of a trace from a file, to standard output."""
    known = trace.run_info
    notes = () if known.complete else (completeness(trace),)
    name, engine = PurePath(path).name, known.engine_name or "kineto"
    run = Run(trace, name, engine, known.program_ended, notes, bool(known.profile_memory), Path.cwd())
    _print(run, console(), _ROWS)


def _print(run: Run, printer: Console, rows: int) -> None:
    """Print `rows` rows of a table in 40 lines in total, or what fits the terminal."""
    width = WIDTH if printer.width >= UNLIMITED else max(_NARROWEST, min(_WIDEST, printer.width))
    # One line is for the prompt.
    most = max(_FEWEST_LINES, min(_TALLEST, printer.height - 1)) if printer.is_terminal else MOST_LINES
    for line in summary_lines(run, width, rows + max(0, most - MOST_LINES) // 3, most):
        line.truncate(max(1, printer.width), overflow="ellipsis")
        printer.print(line, soft_wrap=True)


def summary_lines(run: Run, width: int, rows: int, most_lines: int = MOST_LINES) -> list[Text]:
    """Make the lines of the summary, none wider than `width` cells, and at most `most_lines`."""
    head = [
        Text(),
        _title(run, width),
        *_incident(run.overview, width),
        *_totals(run, width),
    ]
    if not run.trace.run_info.is_snapshot:
        head += [*_steps(run.overview, width), *_divided(run.overview, width), *_findings(run, width)]
    foot = [
        *_devices(run.overview, width),
        *_memory(run, width),
        *_lost(run.trace, width),
        *_cost(run, width),
        *_files(run, width),
    ]
    room = most_lines - len(head) - len(foot) - 1
    body: list[Text] = []
    for most in range(rows, -1, -1):
        tables = [
            _processes(run.overview, width, min(6, most)),
            _kernels(run.overview, width, min(6, most)),
            _operators("operators", run.overview.host, width, most),
            _calls(
                ("ranges", "total"),
                run.overview.ranges[: min(4, most)],
                "total_ns",
                run.overview.host.shares.whole_ns,
                width,
            ),
            _modules(run.overview, width, most),
            _lines("source lines", run.overview.host, run, width, min(5, most)),
            _elsewhere(run, width, min(3, most)),
        ]
        body = [line for table in tables if len(table) > 1 for line in (Text(), *table)]
        if len(body) <= room:
            break
    return [*head, *body, Text(), *foot][:most_lines]


# ------------------------------------------------------------------------------------------------------------- head


def _title(run: Run, width: int) -> Text:
    """What ran, between rules."""
    ran = command_line(run.trace.run_info).removeprefix("python ") or run.name
    name = cut(ran, width - 19)
    rule = "━" * (width - cell_len(name) - 16)
    return Text.assemble(
        ("━━ ", "cyan"), ("kinetoscope", "bold cyan"), " ", (name, "bold"), (f" {rule}", "cyan")
    )


def _incident(shown: Overview, width: int) -> list[Text]:
    """What happened, if the trace is of an incident."""
    found = shown.incident
    if found is None:
        return []
    lines = fold("", f"incident: {found.title}", width, style="bold red")
    for note in found.notes[:_MOST_NOTES]:
        lines += fold("", note, width)
    return lines


def _totals(run: Run, width: int) -> list[Text]:
    """How long was recorded, how much, and how the program ended."""
    shown = run.overview
    processes = f" of {len(shown.processes)} processes" if shown.processes else ""
    parts = [
        f"{units.duration(run.trace.duration_ns)} recorded",
        f"{units.count(shown.work_counts['operators'], 'operator')} on {units.count(shown.working_threads, 'thread')}{processes}",
        f"recorded by {by}" if (by := run.trace.run_info.recorded_by) else f"{run.engine} engine",
        run.ended,
    ]
    lines = fold("", ", ".join(filter(None, parts)), width)
    if shown.counts["shapes"] and (covered := shown.work.covered_percent) is not None:
        work, text = shown.work, shown.work.why
        if work.flops is not None:
            several = len(shown.step_kinds) > 1
            of = "" if shown.steps is None else " in steps" if several else " in the median step"
            rate = "" if work.flops_per_s is None else f", {units.operations(work.flops_per_s)}/s{of}"
            text = f"{units.operations(work.flops)}{rate}, counted for {units.percent(covered)} of the operators' time"
        lines += fold("", text, width)
    for note in run.notes:
        lines += fold("", f"note: {note}", width, style="yellow")[:3]
    return lines


def _steps(shown: Overview, width: int) -> list[Text]:
    """How long the steps took, and how much they varied."""
    steps, requests = shown.steps, _requests(shown, width)
    if steps is None:
        return requests or fold(
            "steps", "none: the program marked none, and no optimizer step ran while recording", width
        )
    # Next to the time before the loop all steps would look equal.
    times = steps.shown_ns
    kinds = shown.step_kinds_in_words
    # The median of steps of several kinds is that of one of them, or of none.
    usual = "" if kinds else f" · median {units.duration(median(times))}"
    text = f"{units.count(steps.shown, 'step')} · min {units.duration(min(times))}{usual} · max {units.duration(max(times))}"
    text += f" · {steps.shown_of}" if steps.shown_of else ""
    lines = fold("", text, width, style="bold")
    line = lines[-1]
    if (room := width - line.cell_len - 3) >= 8:
        line.append("   ").append(units.sparkline(times, min(room, 32)), style="green")
    else:
        line = Text(units.sparkline(times, min(width, 32)), style="green")
        lines.append(line)
    if first := steps.left_out_text:
        if line.cell_len + 3 + cell_len(first) <= width:
            line.append(f"   {first}", style="dim")
        else:
            lines += fold("", first, width, style="dim")
    if steps.ahead_text:
        lines += fold("", steps.ahead_text, width)
    if kinds and width > _NARROWEST:
        lines += fold("", kinds, width)[:_MOST_LINES_OF_KINDS]
    warm = shown.warm_up
    if shown.warm_up_is_shown and warm.cost_ns * 100 >= _LEAST_WARM_UP_PERCENT * sum(times):
        lines += fold("", warm.text, width, style="dim")
    return lines + requests


def _requests(shown: Overview, width: int) -> list[Text]:
    """What is known of the requests of each name, those with most time first."""
    found = shown.requests
    lines = [line for text in found[:_MOST_REQUEST_NAMES] for line in fold("", text, width, style="bold")]
    if left := len(found) - _MOST_REQUEST_NAMES:
        lines += fold("", f"and {left:,} more names (table `request_names`)", width) if left > 0 else []
    return lines


def _divided(shown: Overview, width: int) -> list[Text]:
    """Where the step time went: the parts of the table `breakdown`, which add up to it."""
    lines = []
    named = shown.places_that_count
    for place in named[:_MOST_DEVICES]:
        on_host = place.device == "cpu"
        parts = [
            (f"{name} {units.percent(part_ns, place.duration_ns)}", part_ns)
            for name, part_ns in zip(part_names(on_host), place.parts_ns, strict=True)
            if part_ns
        ]
        parts.sort(key=lambda part: -part[1])
        whose = (
            " of " + _place_name(shown, place) if len(named) > 1 else "" if on_host else f" of {place.device}"
        )
        label = f"{'step' if place.steps else 'recorded'} time{whose}"
        lines += fold("", f"{label}: {', '.join(text for text, _ in parts)}", width) if parts else []
    if more := len(named) - _MOST_DEVICES:
        lines += fold("", f"and {more:,} more (table `breakdown`)", width) if more > 0 else []
    whole_ns = shown.host.shares.whole_ns
    phases = [
        f"{name} {units.percent(part_ns, whole_ns)}"
        for name, part_ns in zip(("forward and other", "backward", "optimizer"), shown.phases_ns, strict=True)
        if part_ns
    ]
    if sum(shown.phases_ns[1:]):
        lines += fold("", f"phases, as shares of {_whole(shown)}: {', '.join(phases)}", width)
    if shown.threads_ns > whole_ns:
        lines += fold(
            "", "several threads worked at once: shares can be, or add up to, more than 100 %", width
        )
    return lines


def _place_name(shown: Overview, place: StepTime) -> str:
    """The process or rank, and the device, of a step time."""
    *whose, device = shown.place_names(place)
    return " ".join(whose if device == "cpu" and whose else [*whose, device])


def _whole(shown: Overview) -> str:
    """What shares are of."""
    return "step time" if shown.host.shares.in_steps else "the recorded time"


# ------------------------------------------------------------------------------------------------------------ tables


def _processes(shown: Overview, width: int, most: int) -> list[Text]:
    """The process tree; of many processes the program and the busiest. Shares are of the time of each process."""
    rows = shown.busiest_processes(most)
    if not rows:
        return []
    cells = [
        (
            f"{'  ' * row.depth}{row.name} ({row.pid})",
            units.duration(row.working_ns),
            units.percent(row.working_ns, row.whole_ns) if row.place else "–",
            f"{units.duration(row.whole_ns)} {'in steps' if row.place.steps else 'recorded'}"
            if row.place
            else "",
            f"{row.operators:,}",
        )
        for row in rows
    ]
    left_out = len(shown.processes) - len(rows)
    label = f"processes ({len(rows)} of {len(shown.processes)})" if left_out else "processes"
    on_host = all(place.device == "cpu" for place in shown.places)
    header = (label, "in operators" if on_host else "busy", "share", "of", "operators")
    sizes = [round(1000 * row.working_ns / row.whole_ns) if row.working_ns else 0 for row in rows]
    return bar_table(header, cells, width, sizes, 1000)


def _kernels(shown: Overview, width: int, most: int) -> list[Text]:
    """The kernels with the most time, as shares of all kernel time."""
    rows = shown.kernels.slice(0, most).to_pylist()
    cells = [
        (
            row["name"],
            units.duration(row["total_ns"]),
            # No share where all kernels together took no time.
            units.percent(row["kernel_percent"] or 0, 0 if row["kernel_percent"] is None else 100),
            f"{row['count']:,}",
            units.duration(row["mean_ns"]),
        )
        for row in rows
    ]
    header = ("kernels", "time", "of all", "calls", "mean")
    sizes = [round((row["kernel_percent"] or 0) * 1000) for row in rows]
    return bar_table(header, cells, width, sizes, 100_000)


def _operators(label: str, host: HostTime, width: int, most: int) -> list[Text]:
    """The operators with the most self time, as shares of step time."""
    rows = [row for row in host.operators[:most] if row["self_ns"]]
    return _calls((label, "self"), rows, "self_ns", host.shares.whole_ns, width)


def _calls(
    heads: tuple[str, str], rows: list[dict[str, Any]], time: str, whole_ns: int, width: int
) -> list[Text]:
    """A table of names with their time, its share of a whole, calls and mean."""
    cells = [
        (
            row["name"],
            units.duration(row[time]),
            units.percent(row[time], whole_ns),
            f"{row['count']:,}",
            units.duration(row[time] / row["count"]),
        )
        for row in rows
    ]
    return bar_table((*heads, "share", "calls", "mean"), cells, width, [row[time] for row in rows], whole_ns)


def _elsewhere(run: Run, width: int, most: int) -> list[Text]:
    """The busiest process without steps: its source lines or, without any, its operators."""
    other = run.overview.elsewhere
    if other is None:
        return []
    if other.lines:
        return _lines(f"source lines of {other.name}", other, run, width, most)
    return _operators(f"operators of {other.name}", other, width, most)


def _modules(shown: Overview, width: int, most: int) -> list[Text]:
    """The tree of the modules with the most total time, and what ran outside all modules."""
    whole_ns = shown.host.shares.whole_ns
    inside = [
        (_module_name(row), row["total_ns"], row["forward_ns"], row["backward_ns"])
        for row in shown.largest_modules(most)
    ]
    if not inside:
        return []
    forward_ns, backward_ns = shown.outside_ns[Phase.FORWARD], shown.outside_ns[Phase.BACKWARD]
    outside = [
        ("(optimizer)", shown.outside_ns[Phase.OPTIMIZER], 0, 0),
        ("(outside modules)", forward_ns + backward_ns, forward_ns, backward_ns),
    ]
    rows = [*inside, *(row for row in outside if row[1])]
    cells = [
        (
            name,
            units.duration(total_ns),
            units.percent(total_ns, whole_ns),
            *(units.duration(part_ns) if part_ns else "–" for part_ns in (forward_ns, backward_ns)),
        )
        for name, total_ns, forward_ns, backward_ns in rows
    ]
    header = ("modules", "total", "share", "forward", "backward")
    return bar_table(header, cells, width, [row[1] for row in rows], whole_ns)


def _module_name(row: dict[str, Any]) -> str:
    """A module's path and class, indented by its depth in the tree."""
    name = f"{'  ' * row['depth']}{row['path']}"
    return name if row["class"] in ("", row["path"]) else f"{name}  {row['class']}"


def _lines(label: str, host: HostTime, run: Run, width: int, most: int) -> list[Text]:
    """The source lines with the most self time, with their text where there is room for it."""
    rows, whole_ns = [row for row in host.lines[:most] if row["time_ns"] > 0], host.shares.whole_ns
    python = any(row["python_ns"] + row["blocked_ns"] for row in rows)
    waits = any(row["blocked_ns"] for row in rows)
    cells = [
        (
            f"{_short_path(row['file'], run)}:{row['line']}  {line_text(run.trace, row['file'], row['line']) or row['function']}",
            units.duration(row["time_ns"]),
            units.percent(row["time_ns"], whole_ns),
            *([units.duration(row["python_ns"] + row["blocked_ns"])] if python else []),
        )
        for row in rows
    ]
    header = (label, "self", "share", *(["Python, waits" if waits else "in Python"] if python else []))
    return bar_table(header, cells, width, [row["time_ns"] for row in rows], whole_ns)


# -------------------------------------------------------------------------------------------------------------- foot


def _devices(shown: Overview, width: int) -> list[Text]:
    """How busy each device was."""
    models = {one.place: one.model for one in shown.utilization}
    places = [place for place in shown.places if place.device != "cpu"]
    parts = [
        f"{_place_name(shown, place)} busy {units.percent(place.working_ns, place.duration_ns)} of"
        f" {'step time' if place.steps else 'the recorded time'}{f' ({model})' if (model := models[place]) else ''}"
        for place in places[:_MOST_DEVICES]
    ]
    if more := len(places) - len(parts):
        parts.append(f"and {more:,} more (table `breakdown`)")
    return fold("devices", ", ".join(parts), width) if parts else []


def _memory(run: Run, width: int) -> list[Text]:
    """The memory peak of each device, and of the process."""
    peaks, process_bytes = run.overview.peaks, run.finished.process_peak_bytes if run.finished else 0
    of_process = f"process {units.size(process_bytes)} (peak RSS)" if process_bytes else ""
    if peaks:
        parts = [f"peak {text}" for text in peak_lines(run.overview, with_time=True)[:_MOST_DEVICES]]
        if more := len(peaks) - len(parts):
            parts.append(f"and {more:,} more {units.noun(more, 'device')}")
        return fold("memory", "; ".join([*parts, *filter(None, [of_process])]), width)
    if run.memory:
        return fold("memory", "no allocations were recorded", width)
    hint = "tensors were not recorded" + (" (use --memory)" if run.finished else "")
    return fold("memory", "; ".join(filter(None, (of_process, hint))), width)


def _lost(trace: Trace, width: int) -> list[Text]:
    """What is missing from the trace."""
    losses = lost(trace)
    if not losses:
        return fold("lost", "nothing", width)
    effect = consequence(loss["code"] for loss in trace.losses)
    text = "; ".join(f"{counted(what, count)}: {why.rstrip('.')}" for (what, why), count in losses.items())
    if effect:
        return fold("lost", f"{effect}. {text}", width, style="yellow")[:4]
    return fold("missing", text, width)[:4]


# Bounds that are further apart than by this factor say nothing: those of a machine on which others overwrite the caches.
_WIDEST_BOUNDS = 5.0


def _cost(run: Run, width: int) -> list[Text]:
    """The estimated cost of recording."""
    if run.finished is None:
        return []
    overhead, helpers = run.finished.overhead, run.finished.helpers
    if overhead is None:
        return fold("overhead", "not measured", width)
    records, *others = records_of(run.trace)
    cost_ns = overhead.record_ns(records.spacing_ns)
    if cost_ns <= 0:
        return fold("overhead", "too small to measure (the machine is busy with other processes)", width)
    text = (
        f"{_cost_share(overhead, records, of=_whole(run.overview))}{f' of {records.process}' if records.process else ''}, estimated "
        f"from {units.count(records.count, 'record')} at {units.duration(cost_ns)} each, as measured now on two small training "
        f"steps{' (rough: the machine is busy)' if overhead.is_rough else ''}"
    )
    if others := [one for one in others if not one.in_steps and one.count]:
        text += f"; {_cost_share(overhead, others[0], of='the recorded time')} of {others[0].process}"
    if helpers is not None and helpers.process_ns > 0:
        text += f"; the recorder's own threads took {units.percent(helpers.helpers_ns, helpers.process_ns)} of the process's processor time"
    return fold("overhead", text, width)


def _cost_share(overhead: Overhead, records: Records, of: str) -> str:
    """The share of a process's time that recording took, and its bounds where they are known."""
    shares = overhead.share(records)
    one, low, high = (units.percent(share, 1.0) for share in shares)
    if records.waits_much:
        of += " in which it had a CPU core"
    if one == high:
        return f"{one} of {of}"
    if shares[2] > _WIDEST_BOUNDS * shares[1] and (records.waits_much or overhead.is_disturbed):
        return f"roughly {one} of {of}"
    about = "" if one.startswith("<") else "about "
    return f"{about}{one} of {of} ({low.removesuffix(' %')} to {high})"


def _findings(run: Run, width: int) -> list[Text]:
    """What makes the run slow, in a sentence each; nothing of a healthy run."""
    report = run.overview.report
    above = floor_with_parts(report.account)
    floor = fold("floor", above, width, indent=LABEL) if above else []
    if not report.findings:
        return [Text(), *floor] if floor else []
    out = [Text(), *floor]
    for number, one in enumerate(report.findings[:_MOST_FINDINGS], 1):
        out += fold(
            "findings" if number == 1 else "",
            headline(one, report.whole_ns),
            width,
            style="yellow",
            indent=LABEL,
        )
    if report.process:
        out += fold("", whose_line(report), width, style="dim", indent=LABEL)
    if run.finished is None:
        where = str(run.trace.path or "TRACE")
    else:
        traces = [path for path in run.finished.files if path.suffix == ".ktrace"]
        where = run.shown(traces[0]) if traces else "TRACE"
    return [
        *out,
        *fold("", f"what to change: kinetoscope findings {where}", width, style="dim", indent=LABEL),
    ]


def _files(run: Run, width: int) -> list[Text]:
    """The files written, and how to open them."""
    lines: list[Text] = []
    for place, path in enumerate(run.finished.files if run.finished else ()):
        shown = run.shown(path)
        uses = {
            ".ktrace": f"kinetoscope info {shown}",
            SUFFIX: f"kinetoscope ranks {os.path.dirname(shown) or shown}",
        }
        use = uses.get(path.suffix, "open it in https://ui.perfetto.dev")
        entry = f"{shown}  {units.size(path.stat().st_size)}"
        if LABEL + cell_len(entry) + cell_len(use) + 3 > width:
            lines += [
                *fold("files" if place == 0 else "", entry, width, indent=LABEL),
                *fold("", use, width, style="dim", indent=LABEL),
            ]
        else:
            label = ("files" if place == 0 else "").ljust(LABEL)
            lines.append(Text.assemble((label, "bold"), entry, "   ", (use, "dim")))
    return lines


def _short_path(path: str, run: Run) -> str:
    """A path relative to the working directory if that is short, else its file name."""
    inside = Path(run.shown(Path(path)))
    return str(inside) if not inside.is_absolute() and len(str(inside)) <= 24 else inside.name
