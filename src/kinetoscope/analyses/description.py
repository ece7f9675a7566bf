"""What a trace is, as labeled facts: for `kinetoscope info`, `repr`, notebooks and the viewer's overview."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kinetoscope.display.blocks import Paragraph
from kinetoscope.display.sentence import plain, printable, printable_lines, sentence
from kinetoscope.model import units
from kinetoscope.model.losses import consequence, counted, effects, lost
from kinetoscope.model.processes import host_threads, process_runs, process_tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetoscope.analyses.overview import Overview
    from kinetoscope.display.sentence import Sentence
    from kinetoscope.model.run_info import ClockChecks, RunInfo
    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.memory.peak import DevicePeak

LONGEST = 2000
"""The most characters of one text that a description shows; a trace may contain text of any length."""

SWITCHES = {
    "record_shapes": "shapes",
    "deep_steps": "deep steps",
    "profile_memory": "memory",
    "with_stack": "stacks",
    "with_modules": "modules",
    "with_flops": "FLOPs",
}
"""What is recorded besides operators, by the keyword of `profile` that turns it on."""

# Metadata keys that `describe` formats; all other keys are listed as JSON.
_DESCRIBED = {
    "attainable", "boot_id", "clock_checks", "command_line", "complete", "cpu_count", "cycle", "cuda_driver_version", "cuda_runtime_version",
    "deviceProperties", "devices", "distributedInfo", "engine", "float32_matmul_precision", "hip_driver_version",
    "hip_runtime_version", "host", "host_name", "import_folders", "incident", "machine", "not_recorded", "out_of_memory", "parent_process", "process", "process_name",
    "processes", "program", "python_version", "registered_costs", "schemaVersion", "source_lines", "start_monotonic_ns",
    "start_realtime_ns", "stop_ns", "torch_threads", "torch_version", "trace_id", "trainer", *SWITCHES,
}  # fmt: skip
_LONGEST_VALUE = 300
_MOST_SHOWN = 4
_MOST_PROCESSES = 24
_MOST_DEVICES = 16


def describe(overview: Overview) -> list[Paragraph]:
    """Describe a trace: completeness, program, time, environment, contents and losses.

    Args:
        overview: The overview of the trace.

    Returns:
        The facts, most important first; those without a value are left out.
    """
    trace = overview.trace
    facts = [
        _fact("Complete", completeness(trace)),
        _fact("Program", _with_parentheses(overview.command, trace.run_info.program_ended)),
        _fact("Recorded", _when(trace)),
        _fact("Processes", _process_lines(trace)),
        *environment(trace),
        _fact("Contents", ", ".join(contents(overview)) or "nothing"),
        _fact("Incident", _incident(overview)),
        _fact("Memory peak", "\n".join(map(plain, peaks(overview)))),
        _fact("Missing", "\n".join(f"{subject}: {why}" for subject, why in overview.lost)),
        _fact("Clock", _clock(trace.run_info.clock_checks)),
        *(
            _fact(key, _shortened(value))
            for key, value in sorted(trace.info.items())
            if key not in _DESCRIBED
        ),
    ]
    return [fact for fact in facts if fact.text]


def environment(trace: TraceData) -> list[Paragraph]:
    """Describe where and how a trace was recorded: devices, ranks, host, versions, engine and options.

    Args:
        trace: The trace; if it merges several processes, distinct values are listed once.

    Returns:
        The facts that have a value.
    """
    run = trace.run_info
    every = [run, *process_runs(trace)]
    facts = [
        _fact("Devices", _devices(run)),
        _fact("Ranks", _ranks(every)),
        _fact("Host", _distinct(process.host for process in every)),
        _fact("Machine", _distinct(map(_machine, every))),
        _fact("PyTorch", _distinct(process.torch_version for process in every)),
        _fact("Python", _distinct(process.python_version for process in every)),
        _fact("CUDA", _distinct(_version(process.cuda_runtime_version, 1000, 10) for process in every)),
        _fact("CUDA driver", _distinct(_version(process.cuda_driver_version, 1000, 10) for process in every)),
        _fact("HIP", _distinct(_version(process.hip_runtime_version, 10**7, 10**5) for process in every)),
        _fact("NCCL", _distinct(process.nccl_version for process in every)),
        _fact("Trainer", _distinct(process.trainer for process in every)),
        _fact("Engine", _distinct(process.engine_name for process in every)),
        _fact("Options", ", ".join(word for key, word in SWITCHES.items() if getattr(run, key))),
        _fact(
            "Threads",
            _distinct(
                "" if process.torch_threads is None else str(process.torch_threads) for process in every
            ),
        ),
        _fact(
            "Calibrated",
            "yes, by kinetoscope calibrate" if any(process.attainable for process in every) else "",
        ),
        _fact("float32 matmul", _distinct(process.float32_matmul_precision for process in every)),
    ]
    return [fact for fact in facts if fact.text]


_MAIN = ("spans", "threads", "steps", "allocations")
_NOUNS: dict[str, tuple[str, str | None]] = {
    "spans": ("span", None),
    "threads": ("thread", None),
    "steps": ("step", None),
    "modules": ("module", None),
    "stacks": ("Python stack", None),
    "shapes": ("combination of input shapes", "combinations of input shapes"),
    "allocations": ("allocation or free", "allocations and frees"),
    "streams": ("device stream", None),
    "launches": ("launch", "launches"),
    "counters": ("counter value", None),
    "collectives": ("collective", None),
    "kernels": ("kernel", None),
    "copies": ("device copy or memset", "device copies and memsets"),
}


def contents(overview: Overview) -> list[str]:
    """Count spans, threads, steps and so on; counts of zero are left out."""
    rows = overview.counts | overview.work_counts
    return [units.count(rows[name], *noun) for name, noun in _NOUNS.items() if rows[name]]


def one_line(trace: TraceData) -> str:
    """Describe a trace in one line, as `repr` shows it."""
    name = f" {trace.path.name}" if trace.path is not None else ""
    state = f"incomplete ({missing})" if (missing := incomplete(trace)) else "complete"
    return printable(
        f"<Trace{name}: {', '.join(main_counts(trace))}, {units.duration(trace.duration_ns)}, {state}>"
    )


def main_counts(trace: TraceData) -> list[str]:
    """Count spans and threads, and steps and allocations if there are any."""
    rows = {name: len(trace.columns(name)) for name in _MAIN}
    rows["threads"] = int(host_threads(trace).sum())
    return [
        units.count(rows[name], *_NOUNS[name]) for name in _MAIN if rows[name] or name in ("spans", "threads")
    ]


def incomplete(trace: TraceData) -> str:
    """Summarize what is missing from a trace; empty if nothing is."""
    if trace.complete:
        return ""
    effect, short = consequence(loss["code"] for loss in trace.losses), _lost_in_short(trace)
    return f"{effect}: {short}" if effect else short or completeness(trace).removeprefix("no: ")


def main_facts(trace: TraceData) -> list[Paragraph]:
    """The few facts that are shown where a trace is printed."""
    facts = [
        _fact("Contents", ", ".join(main_counts(trace))),
        _fact("Duration", units.duration(trace.duration_ns)),
        _fact("Process", "" if trace.run_info.process is None else str(trace.run_info.process)),
        _fact("File", "" if trace.path is None else str(trace.path)),
        _fact("Complete", f"no: {missing}" if (missing := incomplete(trace)) else "yes"),
    ]
    return [fact for fact in facts if fact.text]


def _fact(label: str, text: str) -> Paragraph:
    return Paragraph(printable_lines(text), label)


def completeness(trace: TraceData) -> str:
    """Return whether a trace is complete, with the reason if it is not."""
    if not trace.run_info.complete and len(trace.columns("processes")) == 0:
        return "no: the recording was not stopped (the program was killed or is still running)"
    codes = [loss["code"] for loss in trace.losses]
    if effect := consequence(codes):
        return f"no: {effect}, see Missing"
    if affected := effects(codes):
        return f"yes, but without {units.listed(affected)}, see Missing"
    return "yes, nothing was lost"


def _incident(overview: Overview) -> str:
    incident = overview.incident
    return "" if incident is None else "\n".join([incident.title, *incident.notes])


def peaks(overview: Overview, *, with_time: bool = False) -> list[Sentence]:
    """The memory peak of each device, and the source line that held most of it, if known."""
    sentences = []
    for peak in overview.peaks[:_MOST_DEVICES]:
        of_device = peak_sentence(peak)
        text, values = of_device["text"], of_device["values"]
        if with_time:
            text, values = f"{text}, after {{}}", [*values, (peak.time_ns, "ns")]
        if line := overview.peak_lines[peak.device]:
            text, values = f"{text}; most by {line[0]}: {{}}", [*values, (line[1], "bytes")]
        sentences.append(sentence(text, *values))
    return sentences


def peak_sentence(peak: DevicePeak) -> Sentence:
    """The peak memory of a device, and how much of it is attributed."""
    text, sizes = f"{{}} {'allocated ' if peak.counted else ''}on {peak.device}", [peak.bytes]
    if peak.reserved_bytes:
        text += " ({} reserved)"
        sizes.append(peak.reserved_bytes)
    if not peak.counted and peak.earlier_bytes:
        text += " of tensors, {} of it allocated before the recording"
        sizes.append(peak.earlier_bytes)
    elif not peak.counted:
        text += " of tensors allocated while recording"
    elif peak.attributed_bytes < peak.bytes:
        text += ", {} of it attributed"
        sizes.append(peak.attributed_bytes)
    return sentence(text, *((size, "bytes") for size in sizes))


def _with_parentheses(text: str, addition: str) -> str:
    return f"{text} ({addition})" if text and addition else text


def _lost_in_short(trace: TraceData) -> str:
    counts: Counter[str] = Counter()
    for loss in lost(trace.losses):
        counts[loss["what"]] += loss["count"]
    return "; ".join(counted(subject, count) for subject, count in counts.items())


def _when(trace: TraceData) -> str:
    text = f"for {units.duration(trace.duration_ns)}"
    run = trace.run_info
    if (start_ns := run.start_realtime_ns) is not None:
        text = f"{datetime.fromtimestamp(start_ns // 10**9, UTC).astimezone():%Y-%m-%d %H:%M:%S %Z}, {text}"
    if run.process is not None:
        text += f", process {run.process}"
        if run.process_name:
            text += f" ({run.process_name})"
    if len(run.processes) > 1:
        text += f" and {units.count(len(run.processes) - 1, 'other')}"
    return text


def _process_lines(trace: TraceData) -> str:
    lines = [
        f"{'  ' * row['depth']}{row['name']} ({row['pid']}"
        + (f", rank {row['rank']}" if row["rank"] >= 0 else "")
        + f"), {units.duration(row['duration_ns'])}"
        + (f", {row['ended']}" if row["ended"] else "")
        for row in process_tree(trace)
    ]
    more = len(lines) - _MOST_PROCESSES
    rest = [f"and {more:,} more: see the table `processes`"] if more > 0 else []
    return "\n".join([*lines[:_MOST_PROCESSES], *rest])


def _clock(checks: ClockChecks) -> str:
    if checks.readings is None:
        return ""
    largest = units.duration(checks.largest_error_ns or 0)
    return f"checked {units.count(checks.readings, 'time')}, largest error {largest}"


def _shortened(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_LONGEST_VALUE]}... (full value in the table `info`)"


def _devices(run: RunInfo) -> str:
    named = Counter(device.name for device in run.devices or run.device_properties if device.name)
    return _distinct(name if times == 1 else f"{times} × {name}" for name, times in named.items())


def _ranks(every: list[RunInfo]) -> str:
    ranks = sorted({run.rank for run in every if run.rank is not None})
    if not ranks:
        return ""
    sizes = [run.world_size for run in every if run.world_size is not None]
    text = _numbers(ranks)
    if sizes:
        text += f" of {max(sizes)}"
    groups = max((len(run.process_groups) for run in every), default=0)
    parts = [
        text,
        _distinct(run.backend for run in every),
        units.count(groups, "process group") if groups else "",
    ]
    return ", ".join(part for part in parts if part)


def _numbers(numbers: list[int]) -> str:
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return _joined(map(str, numbers))


def _machine(run: RunInfo) -> str:
    counted = "" if run.cpu_count is None else units.count(run.cpu_count, "processor")
    return ", ".join(part for part in (run.machine, counted) if part)


def _version(version: int | None, major: int, minor: int) -> str:
    """Decode the version of a device's runtime from its number."""
    return f"{version // major}.{version % major // minor}" if version and version >= major else ""


def _distinct(values: Iterable[str]) -> str:
    return _joined(dict.fromkeys(_cut(value) for value in values if value))


def _joined(values: Iterable[str]) -> str:
    listed = list(values)
    more = len(listed) - _MOST_SHOWN
    if more > 0:
        listed = [*listed[:_MOST_SHOWN], f"{more} more"]
    return ", ".join(listed)


def _cut(text: str) -> str:
    return text[:LONGEST].encode(errors="replace").decode()
