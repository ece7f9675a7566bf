"""What is shown of a trace, composed once: the summary on a terminal, the page of a notebook, and what programs read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Self

from kinetoscope.analyses.description import completeness, peaks
from kinetoscope.analyses.findings import columns, finding_blocks, whose_line
from kinetoscope.analyses.overview import HostTime, Overview, StepDurations
from kinetoscope.display.blocks import (
    ERROR,
    FAINT,
    GAP,
    STRONG,
    WARNING,
    Block,
    BlockColumn,
    Chart,
    Heading,
    Paragraph,
    TableBlock,
)
from kinetoscope.display.sentence import Sentence, sentence
from kinetoscope.ledger.parts import StepTime
from kinetoscope.model import units
from kinetoscope.model.schema import OPTIMIZER_STEP, Phase

ROWS = 10
LEAST_LINES = 8
"""So many lines of the program are shown before other tables have more than a row."""
_MOST_DEVICES = _MOST_REQUEST_NAMES = 4
_MOST_NOTES = 6
_MOST_LINES = 3
_LONGEST_PATH = 24
_MOST_FINDINGS = 3
_LEAST_WARM_UP_PERCENT = 5


def file_name(path: str) -> str:
    """The last part of a path of any system."""
    return PurePath(path.replace("\\", "/")).name


def label_in(folder: Path) -> Callable[[str], str]:
    """Name source files relative to a folder if that is short, else by their last part."""

    def label(path: str) -> str:
        inside = PurePath(path)
        inside = inside.relative_to(folder) if inside.is_relative_to(folder) else inside
        return str(inside) if not inside.is_absolute() and len(str(inside)) <= _LONGEST_PATH else inside.name

    return label


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run that its trace does not contain.

    Attributes:
        name: What ran, where the trace does not say.
        engine: The engine that recorded.
        ended: How the program ended; empty if unknown.
        notes: What the user should know beyond that.
        memory: Whether memory was to be recorded.
        peak_bytes: The most memory of the process; 0 if unknown.
        where: The path of the trace, as commands take it; empty if it has none.
        file_label: How a source file is named.
        title: What stands above it all; by default the recorded command.
    """

    name: str
    engine: str
    ended: str
    notes: tuple[str, ...]
    memory: bool
    peak_bytes: int = 0
    where: str = ""
    file_label: Callable[[str], str] = file_name
    title: str = ""

    @classmethod
    def of(cls, shown: Overview, name: str, **more: Any) -> Self:
        """What a trace itself says of its run."""
        info = shown.run
        notes = () if info.complete else (completeness(shown.trace),)
        engine = info.engine_name or "kineto"
        return cls(name, engine, info.program_ended, notes, bool(info.profile_memory), **more)


def trace_blocks(
    shown: Overview, run: RunFacts, rows: int = ROWS, *, in_full: bool = False, tables: bool = True
) -> list[Block]:
    """What a trace says: what ran, where the time went, what to change, and what took it.

    Args:
        shown: Its overview.
        run: Facts that the trace does not contain.
        rows: The most rows of a table.
        in_full: Include what to change, and who held the memory at its peak.
        tables: Include findings and tables of operators, ranges, modules and lines.
    """
    head: list[Block] = [
        Heading(run.title or shown.command.removeprefix("python ") or run.name),
        *_incident(shown),
        *_totals(shown, run, work=tables),
    ]
    if not shown.run.is_snapshot:
        head += [*_steps(shown), *_divided(shown, threads=tables)]
        note = Paragraph('This trace has many spans; table("ops") sums them by operator.')
        head += _findings(shown, run, in_full=in_full) if tables else [note]
    tables_of_time: list[TableBlock | None] = [_processes(shown, rows)]
    if tables:
        tables_of_time += [
            _your_lines(shown, run),
            _kernels(shown, rows) if shown.counts["streams"] else None,
            _operators("operators", shown, shown.host, rows),
            _modules(shown, rows),
            _ranges(shown, rows),
            _of_worker(shown, run, rows),
            _memory_owners(shown, run, rows) if in_full else None,
        ]
    return [
        *head,
        *(table for table in tables_of_time if table is not None),
        GAP,
        *_devices(shown),
        *_memory(shown, run),
        *_lost(shown),
    ]


def _incident(shown: Overview) -> list[Block]:
    incident = shown.incident
    if incident is None:
        return []
    return [
        Paragraph(f"incident: {incident.title}", tone=ERROR),
        *(Paragraph(note) for note in incident.notes[:_MOST_NOTES]),
    ]


def _totals(shown: Overview, run: RunFacts, *, work: bool) -> list[Block]:
    info, in_processes = shown.run, f" of {len(shown.processes)} processes" if shown.processes else ""
    operators, threads = shown.work_counts["operators"], shown.working_threads
    parts = [
        "{} recorded",
        f"{{}} operator{'s' * (operators != 1)} on {{}} thread{'s' * (threads != 1)}{in_processes}",
        f"recorded by {by}" if (by := info.recorded_by) else f"{run.engine} engine",
        run.ended,
    ]
    texts: list[Block] = [
        Paragraph(sentence(", ".join(filter(None, parts)), (shown.duration_ns, "ns"), operators, threads))
    ]
    if work and shown.counts["shapes"] and shown.work.covered_percent is not None:
        texts.append(Paragraph(_work(shown)))
    return [*texts, *(Paragraph(f"note: {note}", tone=WARNING, most_lines=_MOST_LINES) for note in run.notes)]


def _work(shown: Overview) -> Sentence | str:
    """The floating-point operations, or why they are not known."""
    work = shown.work
    if work.flops is None:
        return work.why
    covered = "counted for {} of the operators' time"
    share = (work.covered_percent, "%")
    if work.deep_steps:
        covered += f", estimated from {units.count(work.deep_steps, 'step')}"
    elif work.deep_steps is not None:
        covered += ", estimated from a part of it"
    if work.flops_per_s is None:
        return sentence(f"{{}}, {covered}", (work.flops, "FLOP"), share)
    several = len(shown.step_kinds) > 1
    scope = "" if shown.steps is None else " in steps" if several else " in the median step"
    return sentence(
        f"{{}}, {{}}{scope}, {covered}", (work.flops, "FLOP"), (work.flops_per_s, "FLOP/s"), share
    )


def _steps(shown: Overview) -> list[Block]:
    steps, requests = shown.steps, shown.requests
    of_requests: list[Block] = [Paragraph(text, tone=STRONG) for text in requests[:_MOST_REQUEST_NAMES]]
    if (more := len(requests) - _MOST_REQUEST_NAMES) > 0:
        of_requests.append(Paragraph(sentence("and {} more names (table `request_names`)", more)))
    if steps is None:
        none = "none: the program marked none, and no optimizer step ran while recording"
        if any(text.startswith(OPTIMIZER_STEP) for text in shown.trace.strings):
            none = "none: most of the program ran outside the steps of its optimizer, and it marked none"
        return of_requests or [Paragraph(none, label="steps")]
    # Next to the time before the loop all steps would look equal.
    times, kinds = steps.shown_ns, shown.step_kinds_in_words
    total = len(times) + len(steps.left_out_ns)
    count = f"{{}} step{'s' * (total != 1)} · min {{}} · "
    process = f" · {steps.shown_of}" if steps.shown_of else ""
    low, high = (min(times), "ns"), (max(times), "ns")
    # The mean of steps of several kinds is that of none of them.
    mean = [] if kinds else [(sum(times) / len(times), "ns")]
    text = sentence(f"{count}{'' if kinds else 'mean {} · '}max {{}}{process}", total, low, *mean, high)
    warm = shown.warm_up
    costly = shown.warm_up_is_shown and warm.cost_ns * 100 >= _LEAST_WARM_UP_PERCENT * sum(times)
    before_ns = sum(steps.left_out_ns)
    apart = [
        (sentence("start-up and the step before these: {}", (before_ns, "ns")) if before_ns else "", FAINT),
        (ahead_sentence(steps) if steps.ahead_ns else "", ""),
        (kinds, ""),
        (warm.text if costly else "", FAINT),
    ]
    texts = [Paragraph(text, tone=tone, most_lines=_MOST_LINES) for text, tone in apart if text]
    return [Chart(text, values=times), *texts, *of_requests]


def ahead_sentence(steps: StepDurations) -> Sentence:
    """How far the host runs ahead of the device."""
    text = "the host runs up to {} ahead of the device; a step ends when its device work is done"
    return sentence(text, (steps.ahead_ns, "ns"))


def _divided(shown: Overview, *, threads: bool) -> list[Block]:
    """Where the step time went: the parts of the table `breakdown`, which add up to it."""
    texts: list[Block] = []
    if shown.sample.text:
        texts.append(Paragraph(f"what follows is of {shown.sample.text}, chosen evenly", tone=FAINT))
    named = shown.divided
    for use, parts in named[:_MOST_DEVICES]:
        only = "" if use.device == "cpu" else f" of {use.device}"
        whose = f" of {_place_name(shown, use)}" if len(named) > 1 else only
        text = f"{'step' if use.steps else 'recorded'} time{whose}: {', '.join(f'{name} {{}}' for name, _ in parts)}"
        shares = ((100 * part_ns / use.duration_ns, "%") for _, part_ns in parts)
        texts += [Paragraph(sentence(text, *shares))] if parts else []
    if (more := len(named) - _MOST_DEVICES) > 0:
        texts.append(Paragraph(sentence("and {} more (table `breakdown`)", more)))
    if threads and shown.threads_ns > shown.host.shares.whole_ns:
        texts.append(
            Paragraph("several threads worked at once: shares can be, or add up to, more than 100 %")
        )
    return texts


def _place_name(shown: Overview, place: StepTime) -> str:
    *whose, device = shown.place_names(place)
    return " ".join(whose if device == "cpu" and whose else [*whose, device])


def _findings(shown: Overview, run: RunFacts, *, in_full: bool) -> list[Block]:
    report = shown.report
    if in_full:
        return finding_blocks(report) if report.whole_ns > 0 else []
    floor, of_machine = report.above_floor, report.of_machine
    headlines = report.headlines(_MOST_FINDINGS)
    texts = [Paragraph(floor, label="floor")] if floor else []
    texts = [*(Paragraph(finding.finding, label="machine", tone=WARNING) for finding in of_machine), *texts]
    texts += [
        Paragraph(text, label="" if index else "findings", tone=WARNING)
        for index, text in enumerate(headlines)
    ]
    if report.findings:
        texts += [Paragraph(whose_line(report), label="", tone=FAINT)] if report.process else []
        texts.append(
            Paragraph(f"what to change: kinetoscope findings {run.where or 'TRACE'}", label="", tone=FAINT)
        )
    return [GAP, *texts] if texts else []


# ------------------------------------------------------------------------------------------------------------ tables


def _processes(shown: Overview, most: int) -> TableBlock | None:
    """The process tree; of many processes the program and the busiest. Shares are of the time of each process."""
    if not shown.processes:
        return None
    rows = shown.busiest_processes(most)
    on_host = all(use.device == "cpu" for use in shown.places)
    cells = tuple(
        (
            f"{'  ' * row.depth}{row.name} ({row.pid}{f', rank {row.rank}' if row.rank >= 0 else ''})",
            row.working_ns,
            100 * row.working_ns / row.whole_ns if row.place and row.whole_ns else None,
            row.whole_ns if row.place else None,
            "" if not row.place else "in steps" if row.place.steps else "recorded",
            row.operators,
        )
        for row in rows
    )
    busiest = sorted(range(len(rows)), key=lambda at: (-rows[at].working_ns, at))
    numbers = {
        "in operators" if on_host else "busy": "ns",
        "share": "%",
        "of": "ns",
        "": "",
        "operators": "",
    }
    return TableBlock(
        columns("processes", numbers),
        cells,
        bars=tuple((0.0, row.working_ns / row.whole_ns if row.whole_ns else 0.0) for row in rows),
        # With room for one it is the busiest; the first one tells what ran.
        importance=tuple(dict.fromkeys((busiest[0], 0, *busiest))),
        most_rows=6,
        total=len(shown.processes),
        says_total=True,
        name="processes",
    )


def _kernels(shown: Overview, most: int) -> TableBlock | None:
    rows = shown.kernels.slice(0, most).to_pylist()
    if not rows:
        return None
    return TableBlock(
        columns("kernels", {"time": "ns", "of all": "%", "calls": "", "mean": "ns"}),
        tuple(
            (row["name"], row["total_ns"], row["kernel_percent"], row["count"], row["mean_ns"])
            for row in rows
        ),
        bars=tuple((0.0, (row["kernel_percent"] or 0) / 100) for row in rows),
        most_rows=6,
        total=len(shown.kernels),
        name="kernels",
    )


def _operators(label: str, shown: Overview, host: HostTime, most: int) -> TableBlock | None:
    operators = shown.operators if host is shown.host else host.operators
    rows = [row for row in operators[:most] if row["self_ns"]]
    more = [
        column
        for column in (("on device", "ns", "device_self_ns"), ("memory", "bytes", "self_bytes"))
        if any(row.get(column[-1]) for row in rows)
    ]
    return _calls(label, "self", rows, "self_ns", host, len(host.operators), more)


def _ranges(shown: Overview, most: int) -> TableBlock | None:
    return _calls(
        "ranges", "total", shown.ranges[:most], "total_ns", shown.host, len(shown.ranges), most_rows=4
    )


def _calls(
    label: str,
    heading: str,
    rows: list[dict[str, Any]],
    time: str,
    host: HostTime,
    total: int,
    more: Sequence[tuple[str, str, str]] = (),
    most_rows: int = 0,
) -> TableBlock | None:
    """A table of names with their time, its share, calls and mean, and more columns: heading, unit, and name in `rows`."""
    cells = [
        (row["name"], row[time], row["count"], row[time] / row["count"], *(row.get(key) for *_, key in more))
        for row in rows
    ]
    numbers = {"calls": "", "mean": "ns"} | {name: unit for name, unit, _ in more}
    return _timed(label, heading, cells, numbers, host, most_rows=most_rows, total=total, name="ops")


def _timed(
    label: str,
    heading: str,
    rows: Sequence[tuple[Any, ...]],
    numbers: dict[str, str],
    host: HostTime,
    **more: Any,
) -> TableBlock | None:
    """A table of rows of a name, its time and more numbers, with the share that the time has of that of the host."""
    if not rows:
        return None
    shares = [
        100 * time_ns / host.shares.whole_ns if host.shares.whole_ns else None for _, time_ns, *_ in rows
    ]
    return TableBlock(
        columns(label, {heading: "ns", "share": "%"} | numbers),
        tuple((*row[:2], share, *row[2:]) for row, share in zip(rows, shares, strict=True)),
        bars=tuple((0.0, (share or 0.0) / 100) for share in shares),
        **more,
    )


def _of_worker(shown: Overview, run: RunFacts, most: int) -> TableBlock | None:
    """The busiest process without steps: its source lines or, without any, its operators."""
    other = shown.elsewhere
    if other is None:
        return None
    if not (lines := shown.lines_elsewhere):
        return _operators(f"operators of {other.name}", shown, other, min(most, 3))
    rows = [
        (f"{run.file_label(line['file'])}:{line['line']}  {_code(shown, line)}", line["time_ns"])
        for line in lines[: min(most, 3)]
    ]
    label = f"source lines of {other.name}"
    return _timed(label, "self", rows, {}, other, most_rows=5, total=len(lines), name="lines")


def _modules(shown: Overview, most: int) -> TableBlock | None:
    """The tree of the modules with the most total time, and what ran outside all modules."""
    tree = shown.modules
    # One is left out only after its submodules.
    largest = sorted(range(len(tree)), key=lambda at: (-tree[at]["total_ns"], tree[at]["depth"]))
    rows = [tree[index] for index in sorted(largest[:most]) if tree[index]["total_ns"] > 0]
    forward_ns, backward_ns = shown.outside_ns[Phase.FORWARD], shown.outside_ns[Phase.BACKWARD]
    optimizer_ns = shown.outside_ns[Phase.OPTIMIZER]
    if not rows and not backward_ns + optimizer_ns:
        return None
    cells = [
        (
            f"{'  ' * row['depth']}{row['path']}"
            + ("" if row["class"] in ("", None, row["path"]) else f"  {row['class']}"),
            *(row[name] for name in ("total_ns", "forward_ns", "backward_ns")),
        )
        for row in rows
    ]
    outside = [
        ("(optimizer)", optimizer_ns, 0, 0),
        ("(outside modules)", forward_ns + backward_ns, forward_ns, backward_ns),
    ]
    outside = [row for row in outside if row[1]]
    return _timed(
        "modules",
        "total",
        [
            (name, total_ns, *(part_ns or None for part_ns in parts_ns))
            for name, total_ns, *parts_ns in (*cells, *outside)
        ],
        {"forward": "ns", "backward": "ns"},
        shown.host,
        importance=tuple(sorted(range(len(rows)), key=lambda at: (-rows[at]["total_ns"], rows[at]["depth"]))),
        always=len(outside),
        total=len(shown.modules),
        name="modules",
    )


def _your_lines(shown: Overview, run: RunFacts) -> TableBlock | None:
    """The lines of the program with what runs under them."""
    tree = shown.your_lines
    if not tree.lines:
        return None

    def percent(time_ns: int) -> float | None:
        return 100 * time_ns / tree.whole_ns if time_ns else None

    rows = []
    for line in tree.lines:
        code = _code(shown, {"file": line.file, "line": line.line, "function": line.function})
        package = f"  (in {line.package})" if line.package else ""
        name = f"{'  ' * line.depth}{run.file_label(line.file)}:{line.line}  {code}{package}"
        rows.append((name, *map(percent, (line.time_ns, line.operators_ns, line.python_ns, line.waiting_ns))))
    return TableBlock(
        columns("your lines", dict.fromkeys(("of the time", "operators", "Python", "waiting"), "%")),
        tuple(rows),
        bars=tuple((0.0, line.time_ns / tree.whole_ns) for line in tree.lines),
        importance=tuple(
            sorted(range(len(rows)), key=lambda at: (-tree.lines[at].time_ns, tree.lines[at].depth))
        ),
        least_rows=LEAST_LINES,
        total=tree.total,
        name="lines",
    )


def _code(shown: Overview, row: dict[str, Any]) -> str:
    text = shown.source_lines.get(row["file"], {}).get(row["line"], "").strip()
    return text or row["function"] or ""


def _memory_owners(shown: Overview, run: RunFacts, most: int) -> TableBlock | None:
    if not shown.peaks:
        return None
    top = shown.peaks[0]
    owners = shown.peak_owners(top.device)
    rows = owners.slice(0, most).to_pylist()
    title = f"Peak memory on {top.device}: {units.size(top.bytes)} after {units.duration(top.time_ns)}"
    if top.attributed_bytes < top.bytes:
        title += f", at most {units.size(top.attributed_bytes)} attributed"
    names = tuple(BlockColumn(heading, is_text=True) for heading in ("category", "module", "line"))
    return TableBlock(
        (*columns("operator", {"bytes": "bytes", "blocks": ""}), *names),
        tuple(
            (
                row["operator"] or "(before)",
                row["bytes"],
                row["blocks"],
                row["category"] or "",
                row["module"] or "",
                _short(row["line"], run),
            )
            for row in rows
        ),
        title=title,
        bars=tuple((0.0, row["bytes"] / max(top.attributed_bytes, 1)) for row in rows),
        total=owners.num_rows,
        name="memory_peak",
    )


def _short(line: str | None, run: RunFacts) -> str:
    file, bracket, rest = (line or "").rpartition("(")
    number, closed, _ = rest.partition(")")
    return f"{run.file_label(file)}:{number}" if bracket and closed else line or ""


# -------------------------------------------------------------------------------------------------------------- foot


def _devices(shown: Overview) -> list[Block]:
    models = {device.place: device.model for device in shown.utilization}
    devices = [device for device in shown.places if device.device != "cpu"]
    texts = [
        f"{_place_name(shown, device)} busy {{}} of {'step time' if device.steps else 'the recorded time'}"
        f"{f' ({model})' if (model := models[device]) else ''}"
        for device in devices[:_MOST_DEVICES]
    ]
    shares = [
        (100 * device.working_ns / device.duration_ns if device.duration_ns else None, "%")
        for device in devices[:_MOST_DEVICES]
    ]
    more = len(devices) - len(texts)
    texts += [f"and {more:,} more (table `breakdown`)"] if more else []
    return [Paragraph(sentence(", ".join(texts), *shares), label="devices")] if texts else []


def _memory(shown: Overview, run: RunFacts) -> list[Block]:
    of_devices = peaks(shown, with_time=True)[:_MOST_DEVICES]
    parts = [f"peak {peak['text']}" for peak in of_devices]
    values = [value for peak in of_devices for value in peak["values"]]
    if (more := len(shown.peaks) - len(parts)) > 0:
        parts.append(f"and {units.count(more, 'more device')}")
    if run.peak_bytes:
        parts.append("process {} (peak RSS)")
        values.append((run.peak_bytes, "bytes"))
    if not shown.peaks:
        parts.append(
            "no allocations were recorded" if run.memory else "tensors were not recorded (--memory does)"
        )
    return [Paragraph(sentence("; ".join(parts), *values), label="memory")]


def _lost(shown: Overview) -> list[Block]:
    if not shown.lost:
        return [Paragraph("nothing", label="lost")]
    text = "; ".join(f"{subject}: {why.rstrip('.')}" for subject, why in shown.lost)
    if shown.loss_effect:
        return [Paragraph(f"{shown.loss_effect}. {text}", label="lost", tone=WARNING, most_lines=4)]
    return [Paragraph(text, label="missing", most_lines=4)]
