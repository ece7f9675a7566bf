"""The summary of a run or of any trace: where the time went, in at most 40 lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from kinetoscope.analyses.findings import examine, headline, whose_line
from kinetoscope.analyses.warm_up import WarmUp, warm_up
from kinetoscope.collect import RecordingOptions
from kinetoscope.display.description import command_line, completeness, lost, peak_text
from kinetoscope.display.terminal import UNLIMITED, console
from kinetoscope.display.text_table import bar_table, cut
from kinetoscope.launcher.overhead import Records, records_of
from kinetoscope.model import units
from kinetoscope.model.hierarchy import host_work, operator_spans
from kinetoscope.model.losses import counted
from kinetoscope.model.schema import Phase
from kinetoscope.summaries import SUFFIX
from kinetoscope.tables.breakdown import (
    HostShares,
    StepTime,
    busiest_places,
    host_shares,
    part_names,
    step_time,
)
from kinetoscope.tables.costs.flops import Counted, counted_flops
from kinetoscope.tables.host.lines import lines_in
from kinetoscope.tables.host.modules import modules_in
from kinetoscope.tables.host.ops import operators_in, ranges_in
from kinetoscope.tables.host.processes import process_tree, steps_of_one
from kinetoscope.tables.host.source_lines import line_text
from kinetoscope.tables.host.steps import phase_moments, phase_times
from kinetoscope.tables.memory.peak import DevicePeak, device_peaks
from kinetoscope.tables.windows import start_up_steps

if TYPE_CHECKING:
    from rich.console import Console

    from kinetoscope.launcher.overhead import Overhead
    from kinetoscope.launcher.recording import Finished
    from kinetoscope.trace import Trace


# The facts of a summary, from the tables of a trace.

Row = dict[str, Any]


@dataclass(frozen=True)
class Elsewhere:
    """The busiest process without steps in a trace where others have some, such as a worker of a `DataLoader`.

    Attributes:
        name: Its name.
        whole_ns: How long it was recorded; shares are of this.
        by_operator: Its first rows of operators.
        by_line: Its first rows of source lines.
    """

    name: str
    whole_ns: int
    by_operator: tuple[Row, ...]
    by_line: tuple[Row, ...]


@dataclass(frozen=True)
class Facts:
    """What a summary shows. Times are those in steps, without start-up; without steps, those of the whole recording.

    Attributes:
        operators: The number of operators and backward functions in the whole trace.
        threads: The number of threads that ran anything.
        whole_ns: The step time of all processes that have steps; shares are of this.
        in_steps: Whether there are steps.
        places: Where the step time of each process and device went.
        phases_ns: How long the process ran something of each phase: forward and other, backward, optimizer; without waits.
        threads_ns: The self time of all threads together, without waits.
        steps_ns: The time of each step.
        start_up: Whether the first step contains what came before the loop, because its start is not marked.
        warm_up: What the first steps after that cost; None where the steps shown are those of another process.
        by_operator: The operators with the most time.
        by_range: The ranges with the most time, without data loading.
        by_module: The modules with the most time.
        outside_ns: Self time by phase on all threads outside all modules.
        by_line: The source lines with the most time.
        work: The floating-point operations; None if no shapes were recorded to count them from.
        work_in_steps: The part of them in `whole_ns`; None where it is not known.
        by_process: The processes of a merged trace, as `process_tree` returns them, with `operators` and the busiest `place` of each,
            if any.
        steps_of: The process whose steps they are, in a merged trace.
        elsewhere: The busiest process without steps, if others have steps.
        records: How much was recorded of each process, most records for its time first; those with steps come first.
        by_kernel: The first rows of the table `kernels`.
        devices: The rows of the table `devices` that ran something.
        peaks: The memory peak of each device, largest first; empty if memory was not recorded.
    """

    operators: int
    threads: int
    whole_ns: int
    in_steps: bool
    places: tuple[StepTime, ...]
    phases_ns: tuple[int, ...]
    threads_ns: int
    steps_ns: tuple[int, ...]
    start_up: bool
    warm_up: WarmUp | None
    by_operator: tuple[Row, ...]
    by_range: tuple[Row, ...]
    by_module: tuple[Row, ...]
    outside_ns: tuple[int, ...]
    by_line: tuple[Row, ...]
    work: Counted | None
    peaks: tuple[DevicePeak, ...]
    work_in_steps: int | None = None
    by_kernel: tuple[Row, ...] = ()
    devices: tuple[Row, ...] = ()
    by_process: tuple[Row, ...] = ()
    steps_of: str = ""
    elsewhere: Elsewhere | None = None
    records: tuple[Records, ...] = ()

    def largest_modules(self, most: int) -> list[Row]:
        """The largest modules in the order of the tree; a module is left out only after its submodules."""
        largest = sorted(
            range(len(self.by_module)),
            key=lambda row: (-self.by_module[row]["total_ns"], self.by_module[row]["depth"]),
        )
        return [self.by_module[row] for row in sorted(largest[:most]) if self.by_module[row]["total_ns"] > 0]


def gather(trace: Trace, rows: int) -> Facts:
    """Gather the facts of a trace, with at most `rows` operators and source lines."""
    spans, shares = trace.columns("spans"), host_shares(trace)
    outside = spans["module"] < 0
    is_operator = operator_spans(trace).mask
    phases_ns = np.where(shares.counts, phase_times(trace), 0)
    stepping, of_first = steps_of_one(trace)
    return Facts(
        operators=int(is_operator.sum()),
        threads=len(np.unique(spans["thread"][host_work(trace).mask])),
        whole_ns=shares.whole_ns,
        in_steps=shares.in_steps,
        places=tuple(step_time(trace)),
        phases_ns=phase_moments(trace, shares.counts),
        threads_ns=int(phases_ns.sum()),
        steps_ns=tuple(trace.column("steps", "duration_ns")[of_first].tolist()),
        start_up=bool(start_up_steps(trace)[of_first].any()),
        warm_up=_warm_up(trace, of_first),
        by_operator=tuple(operators_in(trace, shares)[:rows]),
        by_range=tuple(ranges_in(trace, shares)[:rows]),
        by_module=tuple(modules_in(trace, shares)),
        outside_ns=_sums(spans["phase"], np.where(outside, phases_ns, 0), len(Phase)),
        by_line=tuple(lines_in(trace, shares)[:rows]),
        work=counted_flops(trace) if len(trace.columns("shapes")) else None,
        peaks=tuple(device_peaks(trace)),
        work_in_steps=_work_in_steps(trace) if shares.in_steps else None,
        by_kernel=_first(trace, "kernels", rows, ["name", "total_ns", "kernel_percent", "count", "mean_ns"]),
        devices=tuple(row for row in _first(trace, "devices", None, ["model", "work_ns"]) if row["work_ns"]),
        by_process=_process_rows(trace, is_operator),
        steps_of=stepping,
        records=records_of(trace),
        elsewhere=_other_processes(trace, rows) if shares.in_steps else None,
    )


def _warm_up(trace: Trace, shown: Any) -> WarmUp | None:
    """What the first steps cost, if they are of the process whose steps are shown."""
    found = warm_up(trace)
    return found if (trace.column("steps", "process_row")[shown] == found.process).any() else None


def _work_in_steps(trace: Trace) -> int | None:
    """The floating-point operations in the steps that count; None where one is unknown."""
    rows = trace.table("steps").select(["start_up", "flops"]).to_pylist()
    counted = [row["flops"] for row in rows if not row["start_up"]]
    return None if None in counted else sum(counted)


def _process_rows(trace: Trace, is_operator: Any) -> tuple[Row, ...]:
    """The rows of the process tree."""
    tree = process_tree(trace)
    if not tree:
        return ()
    whose = trace.column("threads", "process_row")[trace.column("spans", "thread")]
    operators = _sums(whose[is_operator], None, len(tree))
    places = busiest_places(trace)
    return tuple(row | {"operators": operators[row["row"]], "place": places.get(row["row"])} for row in tree)


def _other_processes(trace: Trace, rows: int) -> Elsewhere | None:
    """The busiest process without steps."""
    idle = [
        place for place in step_time(trace) if place.process >= 0 and place.steps == 0 and place.working_ns
    ]
    if not idle:
        return None
    process = max(idle, key=lambda place: place.working_ns).process
    shares: HostShares = host_shares(trace, process)
    return Elsewhere(
        trace.columns("processes")["name"][process],
        shares.whole_ns,
        tuple(operators_in(trace, shares)[:rows]),
        tuple(lines_in(trace, shares)[:rows]),
    )


def _first(trace: Trace, name: str, rows: int | None, columns: list[str]) -> tuple[Row, ...]:
    """The first rows of a table."""
    table = trace.table(name).select(columns)
    return tuple((table if rows is None else table.slice(0, rows)).to_pylist())


def _sums(keys: Any, values: Any, length: int) -> tuple[int, ...]:
    """Add up values by key; exact as long as a sum of ns stays below 2 to the 53, which is a hundred days."""
    return tuple(np.bincount(keys, weights=values, minlength=length).astype(np.int64).tolist())


# The layout of the lines.

LABEL = 10


def fold(label: str, text: str, width: int, style: str = "", indent: int | None = None) -> list[Text]:
    """Wrap a sentence beside its label."""
    indent = (LABEL if label else 0) if indent is None else indent
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
            (label.ljust(indent) if place == 0 else " " * indent, "bold"), (cut(part, width - indent), style)
        )
        for place, part in enumerate(lines)
    ]


# Without a terminal: how many lines a summary has at most, and their width. On a terminal of another size there are as many as
# fit, within these limits.
MOST_LINES = 40
WIDTH = 100
_FEWEST_LINES, _TALLEST = 30, 70
_NARROWEST, _WIDEST = 40, 140
_MOST_DEVICES = 4
_MOST_FINDINGS = 3
_LEAST_WARM_UP_PERCENT = 5


def print_summary(finished: Finished, printer: Console | None = None, rows: int = 9) -> None:
    """Print the summary to standard error or to `printer`: `rows` rows of a table in 40 lines in total, or what fits the terminal."""
    printer = printer or console(stderr=True)
    width = WIDTH if printer.width >= UNLIMITED else max(_NARROWEST, min(_WIDEST, printer.width))
    # One line is for the prompt.
    most = max(_FEWEST_LINES, min(_TALLEST, printer.height - 1)) if printer.is_terminal else MOST_LINES
    for line in summary_lines(finished, width, rows + max(0, most - MOST_LINES) // 3, most):
        line.truncate(max(1, printer.width), overflow="ellipsis")
        printer.print(line, soft_wrap=True)


def print_trace(trace: Trace, path: str) -> None:
    """Print the summary of a trace from a file, to standard output."""
    from kinetoscope.launcher.options import LaunchOptions
    from kinetoscope.launcher.program import Program
    from kinetoscope.launcher.recording import Finished

    name, run = PurePath(path).name, trace.run_info
    missing = completeness(trace)
    finished = Finished(
        trace=trace,
        program=Program(name, is_module=True),
        ended=run.program_ended,
        options=LaunchOptions(
            prefix=Path(name), recording=RecordingOptions(profile_memory=bool(run.profile_memory))
        ),
        files=(),
        engine=run.engine_name or "kineto",
        messages=(missing,) if not run.complete else (),
        here=False,
    )
    print_summary(finished, console())


def summary_lines(finished: Finished, width: int, rows: int, most_lines: int = MOST_LINES) -> list[Text]:
    """Make the lines of the summary, none wider than `width` cells, and at most `most_lines`."""
    facts = gather(finished.trace, rows)
    head = [Text(), _title(finished, width), *_totals(finished, facts, width), *_steps(facts, width)]
    head += [*_divided(facts, width), *_findings(finished, width)]
    foot = [
        *_devices(facts, width),
        *_memory(finished, facts, width),
        *_lost(finished, width),
        *_cost(finished, facts, width),
        *_files(finished, width),
    ]
    room = most_lines - len(head) - len(foot) - 1
    body: list[Text] = []
    for most in range(rows, -1, -1):
        tables = [
            _processes(facts, width, min(6, most)),
            _kernels(facts, width, min(6, most)),
            _operators(facts, width, most),
            _ranges(facts, width, min(4, most)),
            _modules(facts, width, most),
            _lines(finished, facts, width, min(5, most)),
            _elsewhere(finished, facts, width, min(3, most)),
        ]
        body = [line for table in tables if len(table) > 1 for line in (Text(), *table)]
        if len(body) <= room:
            break
    return [*head, *body, Text(), *foot][:most_lines]


# ------------------------------------------------------------------------------------------------------------- head


def _title(finished: Finished, width: int) -> Text:
    """What ran, between rules."""
    ran = command_line(finished.trace.run_info).removeprefix("python ") or finished.program.name
    name = cut(ran, width - 19)
    rule = "━" * (width - cell_len(name) - 16)
    return Text.assemble(
        ("━━ ", "cyan"), ("kinetoscope", "bold cyan"), " ", (name, "bold"), (f" {rule}", "cyan")
    )


def _totals(finished: Finished, facts: Facts, width: int) -> list[Text]:
    """How long was recorded, how much, and how the program ended."""
    recorded_ns = finished.trace.duration_ns
    parts = [
        f"{units.duration(recorded_ns)} recorded",
        f"{units.count(facts.operators, 'operator')} on {units.count(facts.threads, 'thread')}"
        + (f" of {len(facts.by_process)} processes" if facts.by_process else ""),
        f"{finished.engine} engine",
        finished.ended,
    ]
    lines = fold("", ", ".join(filter(None, parts)), width)
    work = facts.work
    if work is not None and work.covered_percent is not None:
        counted = work.why
        if work.flops is not None:
            # What came before the loop would make the rate a lower one.
            done, while_ns = (
                (facts.work_in_steps, facts.whole_ns) if facts.in_steps else (work.flops, recorded_ns)
            )
            rate = f", {units.operations(done * 1e9 / while_ns)}/s" if done is not None and while_ns else ""
            counted = f"{units.operations(work.flops)}{rate}{' in steps' if rate and facts.in_steps else ''}, counted for "
            counted += f"{units.percent(work.covered_percent)} of the operators' time"
        lines += fold("", counted, width)
    for note in finished.messages:
        lines += fold("", f"note: {note}", width, style="yellow")[:3]
    return lines


def _steps(facts: Facts, width: int) -> list[Text]:
    """How long the steps took, and how much they varied."""
    steps = facts.steps_ns
    if not steps:
        return fold(
            "steps", "none: the program marked none, and no optimizer step ran while recording", width
        )
    # Next to the time before the loop all steps would look equal.
    compared = steps[1:] if facts.start_up else steps
    text = (
        f"{units.count(len(steps), 'step')} · min {units.duration(min(compared))}"
        f" · median {units.duration(median(compared))} · max {units.duration(max(compared))}"
    )
    first = f"start-up and the step before these: {units.duration(steps[0])}" if facts.start_up else ""
    text += f" · {facts.steps_of}" if facts.steps_of else ""
    lines = fold("", text, width, style="bold")
    line = lines[-1]
    if (room := width - line.cell_len - 3) >= 8:
        line.append("   ").append(units.sparkline(compared, min(room, 32)), style="green")
    else:
        line = Text(units.sparkline(compared, min(width, 32)), style="green")
        lines.append(line)
    if first and line.cell_len + 3 + cell_len(first) <= width:
        line.append(f"   {first}", style="dim")
    elif first:
        lines += fold("", first, width, style="dim")
    warm = facts.warm_up
    if warm is not None and warm.cost_ns * 100 >= _LEAST_WARM_UP_PERCENT * sum(compared):
        lines += fold("", warm.text, width, style="dim")
    return lines


def _divided(facts: Facts, width: int) -> list[Text]:
    """Where the step time went: the parts of the table `breakdown`, which add up to it."""
    lines = []
    named = [place for place in facts.places if place.steps or not facts.in_steps]
    for place in named[:_MOST_DEVICES]:
        on_host = place.device == "cpu"
        parts = [
            (f"{name} {units.percent(part_ns, place.duration_ns)}", part_ns)
            for name, part_ns in zip(part_names(on_host), place.parts_ns, strict=True)
            if part_ns
        ]
        parts.sort(key=lambda part: -part[1])
        whose = (
            " of " + _place_name(facts, place) if len(named) > 1 else "" if on_host else f" of {place.device}"
        )
        label = f"{'step' if place.steps else 'recorded'} time{whose}"
        lines += fold("", f"{label}: {', '.join(text for text, _ in parts)}", width) if parts else []
    if more := len(named) - _MOST_DEVICES:
        lines += fold("", f"and {more:,} more (table `breakdown`)", width) if more > 0 else []
    phases = [
        f"{name} {units.percent(part_ns, facts.whole_ns)}"
        for name, part_ns in zip(("forward and other", "backward", "optimizer"), facts.phases_ns, strict=True)
        if part_ns
    ]
    if sum(facts.phases_ns[1:]):
        lines += fold("", f"phases, as shares of {_whole(facts)}: {', '.join(phases)}", width)
    if facts.threads_ns > facts.whole_ns:
        lines += fold(
            "", "several threads worked at once: shares can be, or add up to, more than 100 %", width
        )
    return lines


def _place_name(facts: Facts, place: StepTime) -> str:
    """The process or rank, and the device, of a step time."""
    names = {row["row"]: row["name"] for row in facts.by_process}
    whose = f"rank {place.rank}" if place.rank >= 0 else names.get(place.process, "")
    return " ".join(filter(None, (whose, "" if place.device == "cpu" and whose else place.device)))


def _whole(facts: Facts) -> str:
    """What shares are of."""
    return "step time" if facts.in_steps else "the recorded time"


# ------------------------------------------------------------------------------------------------------------ tables


def _processes(facts: Facts, width: int, most: int) -> list[Text]:
    """The process tree; of many processes the program and the busiest. Shares are of the time of each process."""

    def worked_ns(row: Row) -> int:
        return row["place"].working_ns if row["place"] else 0

    # The program itself, and then the busiest; that one alone where there is room for no other.
    largest = sorted(
        range(len(facts.by_process)),
        key=lambda row: (row > 0 and most > 1, -worked_ns(facts.by_process[row]), row),
    )
    rows = [facts.by_process[row] for row in sorted(largest[:most])]
    if not rows:
        return []
    cells = [
        (
            f"{'  ' * row['depth']}{row['name']} ({row['pid']})",
            units.duration(worked_ns(row)),
            units.percent(worked_ns(row), place.duration_ns) if (place := row["place"]) else "–",
            f"{units.duration(place.duration_ns)} {'in steps' if place.steps else 'recorded'}"
            if place
            else "",
            f"{row['operators']:,}",
        )
        for row in rows
    ]
    left_out = len(facts.by_process) - len(rows)
    label = f"processes ({len(rows)} of {len(facts.by_process)})" if left_out else "processes"
    on_host = all(place.device == "cpu" for place in facts.places)
    header = (label, "in operators" if on_host else "busy", "share", "of", "operators")
    sizes = [round(1000 * worked_ns(row) / row["place"].duration_ns) if worked_ns(row) else 0 for row in rows]
    return bar_table(header, cells, width, sizes, 1000)


def _kernels(facts: Facts, width: int, most: int) -> list[Text]:
    """The kernels with the most time, as shares of all kernel time."""
    rows = facts.by_kernel[:most]
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


def _operators(facts: Facts, width: int, most: int) -> list[Text]:
    """The operators with the most self time, as shares of step time."""
    return _operator_rows("operators", facts.by_operator[:most], facts.whole_ns, width)


def _operator_rows(label: str, rows: Sequence[Row], whole_ns: int, width: int) -> list[Text]:
    """A table of operators."""
    rows = [row for row in rows if row["self_ns"]]
    cells = [
        (
            row["name"],
            units.duration(row["self_ns"]),
            units.percent(row["self_ns"], whole_ns),
            f"{row['count']:,}",
            units.duration(row["self_ns"] / row["count"]),
        )
        for row in rows
    ]
    return bar_table(
        (label, "self", "share", "calls", "mean"), cells, width, [row["self_ns"] for row in rows], whole_ns
    )


def _ranges(facts: Facts, width: int, most: int) -> list[Text]:
    """The ranges with the most total time."""
    rows = facts.by_range[:most]
    cells = [
        (
            row["name"],
            units.duration(row["total_ns"]),
            units.percent(row["total_ns"], facts.whole_ns),
            f"{row['count']:,}",
            units.duration(row["total_ns"] / row["count"]),
        )
        for row in rows
    ]
    header = ("ranges", "total", "share", "calls", "mean")
    return bar_table(header, cells, width, [row["total_ns"] for row in rows], facts.whole_ns)


def _elsewhere(finished: Finished, facts: Facts, width: int, most: int) -> list[Text]:
    """The busiest process without steps: its source lines or, without any, its operators."""
    other = facts.elsewhere
    if other is None:
        return []
    if other.by_line:
        return _line_rows(
            f"source lines of {other.name}", other.by_line[:most], other.whole_ns, finished, width
        )
    return _operator_rows(f"operators of {other.name}", other.by_operator[:most], other.whole_ns, width)


def _modules(facts: Facts, width: int, most: int) -> list[Text]:
    """The tree of the modules with the most total time, and what ran outside all modules."""
    optimizer_ns = facts.outside_ns[Phase.OPTIMIZER]
    forward_ns, backward_ns = facts.outside_ns[Phase.FORWARD], facts.outside_ns[Phase.BACKWARD]
    outside = [
        ("(optimizer)", optimizer_ns, 0, 0),
        ("(outside modules)", forward_ns + backward_ns, forward_ns, backward_ns),
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
            units.duration(total_ns),
            units.percent(total_ns, facts.whole_ns),
            *(units.duration(part_ns) if part_ns else "–" for part_ns in (forward_ns, backward_ns)),
        )
        for name, total_ns, forward_ns, backward_ns in rows
    ]
    header = ("modules", "total", "share", "forward", "backward")
    return bar_table(header, cells, width, [row[1] for row in rows], facts.whole_ns)


def _module_name(row: Row) -> str:
    """A module's path and class, indented by its depth in the tree."""
    name = f"{'  ' * row['depth']}{row['path']}"
    return name if row["class"] in ("", row["path"]) else f"{name}  {row['class']}"


def _lines(finished: Finished, facts: Facts, width: int, most: int) -> list[Text]:
    """The source lines with the most self time."""
    return _line_rows("source lines", facts.by_line[:most], facts.whole_ns, finished, width)


def _line_rows(label: str, rows: Sequence[Row], whole_ns: int, finished: Finished, width: int) -> list[Text]:
    """A table of source lines, with their text where there is room for it."""
    rows = [row for row in rows if row["time_ns"] > 0]
    python = any(row["python_ns"] + row["blocked_ns"] for row in rows)
    waits = any(row["blocked_ns"] for row in rows)
    cells = [
        (
            f"{_short_path(row['file'], finished)}:{row['line']}  {line_text(finished.trace, row['file'], row['line']) or row['function']}",
            units.duration(row["time_ns"]),
            units.percent(row["time_ns"], whole_ns),
            *([units.duration(row["python_ns"] + row["blocked_ns"])] if python else []),
        )
        for row in rows
    ]
    header = (label, "self", "share", *(["Python, waits" if waits else "in Python"] if python else []))
    return bar_table(header, cells, width, [row["time_ns"] for row in rows], whole_ns)


# -------------------------------------------------------------------------------------------------------------- foot


def _devices(facts: Facts, width: int) -> list[Text]:
    """How busy each device was."""
    places = [place for place in facts.places if place.device != "cpu"]
    models = [row["model"] for row in facts.devices]
    models = models if len(models) == len(places) else [""] * len(places)
    parts = [
        f"{_place_name(facts, place)} busy {units.percent(place.working_ns, place.duration_ns)} of"
        f" {'step time' if place.steps else 'the recorded time'}{f' ({model})' if model else ''}"
        for place, model in zip(places[:_MOST_DEVICES], models, strict=False)
    ]
    if more := len(places) - len(parts):
        parts.append(f"and {more:,} more (table `breakdown`)")
    return fold("devices", ", ".join(parts), width) if parts else []


def _memory(finished: Finished, facts: Facts, width: int) -> list[Text]:
    """The memory peak of each device, and of the process."""
    process = _process_peak_bytes() if finished.here else 0
    of_process = f"process {units.size(process)} (peak RSS)" if process else ""
    if facts.peaks:
        parts = [
            f"peak {peak_text(peak)}, after {units.duration(peak.time_ns)}"
            for peak in facts.peaks[:_MOST_DEVICES]
        ]
        if more := len(facts.peaks) - len(parts):
            parts.append(f"and {more:,} more {units.noun(more, 'device')}")
        return fold("memory", "; ".join([*parts, *filter(None, [of_process])]), width)
    if finished.options.recording.profile_memory:
        return fold("memory", "no allocations were recorded", width)
    hint = "tensors were not recorded" + (" (use --memory)" if finished.here else "")
    return fold("memory", "; ".join(filter(None, (of_process, hint))), width)


def _lost(finished: Finished, width: int) -> list[Text]:
    """What is missing from the trace."""
    losses = lost(finished.trace)
    if not losses:
        return fold("lost", "nothing", width)
    text = "; ".join(f"{counted(what, count)}: {why.rstrip('.')}" for (what, why), count in losses.items())
    return fold("lost", text, width, style="yellow")[:4]


# Bounds that are further apart than by this factor say nothing: those of a machine on which others overwrite the caches.
_WIDEST_BOUNDS = 5.0


def _cost(finished: Finished, facts: Facts, width: int) -> list[Text]:
    """The estimated cost of recording."""
    overhead = finished.overhead
    if not finished.here:
        return []
    if overhead is None:
        return fold("overhead", "not measured", width)
    records, *others = facts.records
    cost_ns = overhead.record_ns(records.spacing_ns)
    if cost_ns <= 0:
        return fold("overhead", "too small to measure (the machine is busy with other processes)", width)
    text = (
        f"{_cost_share(overhead, records, of=_whole(facts))}{f' of {records.process}' if records.process else ''}, estimated "
        f"from {units.count(records.count, 'record')} at {units.duration(cost_ns)} each, as measured now on two small training "
        f"steps{' (rough: the machine is busy)' if overhead.is_rough else ''}"
    )
    if others := [one for one in others if not one.in_steps and one.count]:
        text += f"; {_cost_share(overhead, others[0], of='the recorded time')} of {others[0].process}"
    helpers = finished.helpers
    if helpers is not None and helpers.process_ns > 0:
        text += f"; the recorder's own threads took {units.percent(helpers.helpers_ns, helpers.process_ns)} of the process's processor time"
    return fold("overhead", text, width)


def _cost_share(overhead: Overhead, records: Records, of: str) -> str:
    """The share of a process's time that recording took, and its bounds where they are known."""
    shares = overhead.share(records)
    one, low, high = (units.percent(share, 1.0) for share in shares)
    if records.waits_much:
        of += " in which it had a processor"
    if one == high:
        return f"{one} of {of}"
    if shares[2] > _WIDEST_BOUNDS * shares[1] and (records.waits_much or overhead.is_disturbed):
        return f"roughly {one} of {of}"
    about = "" if one.startswith("<") else "about "
    return f"{about}{one} of {of} ({low.removesuffix(' %')} to {high})"


def _findings(finished: Finished, width: int) -> list[Text]:
    """What makes the run slow, in a sentence each; nothing of a healthy run."""
    report = examine(finished.trace)
    if not report.findings:
        return []
    out = [Text()]
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
    traces = [path for path in finished.files if path.suffix == ".ktrace"]
    if traces:
        where = finished.options.shown(traces[0])
    else:
        where = str(finished.trace.path or "TRACE") if not finished.here else "TRACE"
    return [
        *out,
        *fold("", f"what to change: kinetoscope findings {where}", width, style="dim", indent=LABEL),
    ]


def _files(finished: Finished, width: int) -> list[Text]:
    """The files written, and how to open them."""
    lines = []
    for place, path in enumerate(finished.files):
        shown = finished.options.shown(path)
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


def _short_path(path: str, finished: Finished) -> str:
    """A path relative to the working directory if that is short, else its file name."""
    inside = Path(finished.options.shown(Path(path)))
    return str(inside) if not inside.is_absolute() and len(str(inside)) <= 24 else inside.name


def _process_peak_bytes() -> int:
    """The peak of the physical memory of this process."""
    try:
        import resource
    except ImportError:  # not on every platform
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
