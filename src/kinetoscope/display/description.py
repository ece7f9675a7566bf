"""What a trace is, in words: the one description behind `kinetoscope info`, `repr`, notebooks and the viewer's overview."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kinetoscope.display import units
from kinetoscope.model.processes import infos
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.device.collectives import collectives
from kinetoscope.tables.host.processes import process_tree
from kinetoscope.tables.memory.peak import device_peaks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import rich.table

    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.memory.peak import DevicePeak

    Info = Mapping[str, Any]

LONGEST = 2000
"""A trace may hold text of any length; no description shows more characters of one."""

SWITCHES = {
    "record_shapes": "shapes",
    "profile_memory": "memory",
    "with_stack": "stacks",
    "with_modules": "modules",
    "with_flops": "FLOPs",
}
"""What was recorded besides operators, by the keyword of `profile` that turns it on."""

# The name of a runtime, its key, and the divisors that give the major and the minor version.
_RUNTIMES = (
    ("CUDA", "cuda_runtime_version", 1000, 10),
    ("CUDA driver", "cuda_driver_version", 1000, 10),
    ("HIP", "hip_runtime_version", 10**7, 10**5),
)
# Metadata that `describe` puts into words; all other keys are listed as they are.
_DESCRIBED = {
    "boot_id", "clock_checks", "command_line", "complete", "cpu_count", "cuda_driver_version", "cuda_runtime_version",
    "deviceProperties", "devices", "distributedInfo", "engine", "float32_matmul_precision", "hip_driver_version",
    "hip_runtime_version", "host", "host_name", "machine", "not_recorded", "parent_process", "process", "process_name",
    "processes", "program", "python_version", "registered_costs", "schemaVersion", "start_monotonic_ns",
    "start_realtime_ns", "stop_ns", "torch_version", "trainer", *SWITCHES,
}  # fmt: skip
_LONGEST_VALUE = 300
_MOST_SHOWN = 4
_MOST_PROCESSES = 24
_MOST_DEVICES = 16


@dataclass(frozen=True)
class Fact:
    """One line of a description.

    Attributes:
        label: What the text is about, such as `Host`.
        text: The text; lists have a line for each entry.
    """

    label: str
    text: str


def describe(trace: TraceData) -> list[Fact]:
    """Describe a trace: whether it is complete, what ran, when, where, how it was recorded, what it holds, what was lost.

    Args:
        trace: The trace.

    Returns:
        The facts in the order in which people read them; those that the trace does not state are left out.
    """
    facts = [
        Fact("Complete", completeness(trace)),
        Fact("Program", _joined_words(command_line(trace.info), ended(trace.info))),
        Fact("Recorded", _when(trace)),
        Fact("Processes", _process_lines(trace)),
        *environment(trace),
        Fact("Contents", ", ".join(contents(trace)) or "nothing"),
        Fact("Memory peak", "\n".join(map(peak_text, device_peaks(trace)[:_MOST_DEVICES]))),
        Fact("Lost", "\n".join(f"{count:,} {what}: {why}" for (what, why), count in lost(trace).items())),
        Fact("Clock", _clock(trace.info)),
        *(Fact(key, _shortened(value)) for key, value in sorted(trace.info.items()) if key not in _DESCRIBED),
    ]
    return [fact for fact in facts if fact.text]


def environment(trace: TraceData) -> list[Fact]:
    """Describe where and how a trace was recorded: devices, ranks, host, versions, engine and options.

    Args:
        trace: The trace; where it merges several processes, each different value is listed once.

    Returns:
        The facts that the trace states.
    """
    every = [trace.info, *infos(trace)]
    facts = [
        Fact("Devices", _devices(trace.info)),
        Fact("Ranks", _ranks(every)),
        Fact("Host", _distinct(every, lambda info: _text(info.get("host")) or _text(info.get("host_name")))),
        Fact("Machine", _distinct(every, _machine)),
        Fact("PyTorch", _distinct(every, lambda info: _text(info.get("torch_version")))),
        Fact("Python", _distinct(every, lambda info: _text(info.get("python_version")))),
        *(Fact(name, _distinct(every, _runtime(key, major, minor))) for name, key, major, minor in _RUNTIMES),
        Fact("NCCL", _distinct(every, lambda info: _text(_job(info).get("nccl_version")))),
        Fact("Trainer", _distinct(every, lambda info: _text(info.get("trainer")))),
        Fact("Engine", _distinct(every, lambda info: _text(info.get("engine")))),
        Fact("Options", ", ".join(word for key, word in SWITCHES.items() if trace.info.get(key))),
        Fact("float32 matmul", _distinct(every, lambda info: _text(info.get("float32_matmul_precision")))),
    ]
    return [fact for fact in facts if fact.text]


def contents(trace: TraceData) -> list[str]:
    """Count what a trace holds: spans, threads, steps and so on, kinds without any left out."""
    nouns: dict[str, tuple[str, str | None]] = {
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
    }
    rows = {name: len(trace.columns(name)) for name in nouns}
    # The stored table holds only the calls that describe themselves; there are others, and kernels without a call.
    rows["collectives"] = collectives(trace).num_rows
    if rows["streams"]:
        nouns |= {
            "kernels": ("kernel", None),
            "copies": ("device copy or memset", "device copies and memsets"),
        }
        kind = trace.column("spans", "kind")
        rows["kernels"] = int((kind == SpanKind.KERNEL).sum())
        rows["copies"] = int(((kind == SpanKind.MEMCPY) | (kind == SpanKind.MEMSET)).sum())
    return [units.count(number, *nouns[name]) for name, number in rows.items() if number]


def one_line(trace: TraceData) -> str:
    """Describe a trace in one line, as `repr` shows it."""
    name = f" {trace.path.name}" if trace.path is not None else ""
    state = f"incomplete ({missing})" if (missing := incomplete(trace)) else "complete"
    return f"<Trace{name}: {', '.join(main_counts(trace))}, {units.duration(trace.duration_ns)}, {state}>"


def main_counts(trace: TraceData) -> list[str]:
    """Count spans and threads, and steps, allocations and frees where there are any."""
    nouns: dict[str, tuple[str, str | None]] = {
        "spans": ("span", None),
        "threads": ("thread", None),
        "steps": ("step", None),
        "allocations": ("allocation or free", "allocations and frees"),
    }
    rows = {name: len(trace.columns(name)) for name in nouns}
    return [
        units.count(rows[name], *noun)
        for name, noun in nouns.items()
        if rows[name] or name in ("spans", "threads")
    ]


def incomplete(trace: TraceData) -> str:
    """Say what is missing from a trace in a few words; an empty text where nothing is."""
    return "" if trace.complete else _lost_in_short(trace) or completeness(trace).removeprefix("no: ")


def rich_table(trace: TraceData) -> rich.table.Table:
    """Make rich's table of a trace's main facts."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Trace", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    facts = [
        Fact("Contents", ", ".join(main_counts(trace))),
        Fact("Duration", units.duration(trace.duration_ns)),
        Fact("Process", str(trace.info.get("process", ""))),
        Fact("File", "" if trace.path is None else str(trace.path)),
        Fact("Complete", f"no: {missing}" if (missing := incomplete(trace)) else "yes"),
    ]
    for fact in facts:
        if fact.text:
            # As Text, so that square brackets in a path are not taken for markup.
            table.add_row(fact.label, Text(fact.text))
    return table


def completeness(trace: TraceData) -> str:
    """Say whether anything is missing from a trace."""
    if trace.info.get("complete") is False and len(trace.columns("processes")) == 0:
        return "no: the recording was not stopped (the program was killed or is still running)"
    if trace.losses:
        return "no: some events were lost, as listed under Lost"
    return "yes, nothing was lost"


def lost(trace: TraceData) -> Counter[tuple[str, str]]:
    """Count what was lost, by kind and reason, over all processes and threads."""
    found: Counter[tuple[str, str]] = Counter()
    for loss in trace.losses:
        found[loss["what"], loss["why"]] += loss["count"]
    return found


def peak_text(peak: DevicePeak) -> str:
    """Say how much memory a device held at most, and how much of it the trace attributes."""
    text = f"{units.size(peak.bytes)} {'allocated ' if peak.counted else ''}on {peak.device}"
    if peak.reserved_bytes:
        text += f" ({units.size(peak.reserved_bytes)} reserved)"
    if not peak.counted:
        return f"{text} of tensors allocated while recording"
    if peak.attributed_bytes < peak.bytes:
        text += f", {units.size(peak.attributed_bytes)} of it attributed"
    return text


def command_line(info: Info) -> str:
    """Return the command line of the recorded program as one would type it; an empty text where it was not recorded."""
    program = info.get("program")
    if isinstance(program, dict) and isinstance(program.get("command"), list):
        return _cut(f"python {shlex.join(map(str, program['command']))}")
    words = info.get("command_line")
    if isinstance(words, list) and words:
        return _cut(f"python {shlex.join(map(str, words))}")
    return _cut(words) if isinstance(words, str) else ""


def ended(info: Info) -> str:
    """Say how the program ended, such as `exit code 0`; an empty text where that was not recorded."""
    program = info.get("program")
    return _text(program.get("ended")) if isinstance(program, dict) else ""


def _joined_words(text: str, addition: str) -> str:
    """A text with another one in parentheses, if there is one."""
    return f"{text} ({addition})" if text and addition else text


def _lost_in_short(trace: TraceData) -> str:
    """What was lost, without the reasons."""
    counts: Counter[str] = Counter()
    for (what, _), count in lost(trace).items():
        counts[what] += count
    return "; ".join(f"{count:,} {what}" for what, count in counts.items())


def _when(trace: TraceData) -> str:
    """When it was recorded, for how long, and in which process."""
    text = f"for {units.duration(trace.duration_ns)}"
    start_ns = trace.info.get("start_realtime_ns")
    if isinstance(start_ns, int) and start_ns > 0:
        text = f"{datetime.fromtimestamp(start_ns // 10**9, UTC).astimezone():%Y-%m-%d %H:%M:%S %Z}, {text}"
    if "process" in trace.info:
        text += f", process {trace.info['process']}"
        if isinstance(name := trace.info.get("process_name"), str):
            text += f" ({name})"
    if isinstance(others := trace.info.get("processes"), list) and len(others) > 1:
        text += f" and {units.count(len(others) - 1, 'other')}"
    return text


def _process_lines(trace: TraceData) -> str:
    """The tree of processes, a line each, and how they ended."""
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


def _clock(info: Info) -> str:
    """How far the clock was off where it was checked."""
    checks = info.get("clock_checks")
    if not isinstance(checks, dict):
        return ""
    largest = units.duration(checks.get("largest_error_ns", 0))
    return f"checked {units.count(checks.get('readings', 0), 'time')}, at most {largest} off"


def _shortened(value: object) -> str:
    """Metadata as JSON, or its beginning."""
    text = json.dumps(value, ensure_ascii=False)
    return (
        text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... (in full in the table `info`)"
    )


def _devices(info: Info) -> str:
    """The devices of the machine, equal ones counted."""
    stated = info.get("devices")
    stated = stated if isinstance(stated, list) and stated else info.get("deviceProperties")
    entries = stated if isinstance(stated, list) else []
    names = (_text(entry.get("name")) for entry in entries if isinstance(entry, dict))
    named = Counter(name for name in names if name)
    return _joined(name if times == 1 else f"{times} × {name}" for name, times in named.items())


def _ranks(every: list[Info]) -> str:
    """Which ranks of how many the trace holds, how they communicate, and in how many process groups."""
    found = sorted({number for info in every if (number := _rank(info)) is not None})
    if not found:
        return ""
    sizes = [size for info in every if (size := _whole(_job(info).get("world_size"))) is not None]
    text = _numbers(found)
    if sizes:
        text += f" of {max(sizes)}"
    groups = max(
        (len(listed) for info in every if isinstance(listed := _job(info).get("pg_config"), list)), default=0
    )
    parts = [
        text,
        _distinct(every, lambda info: _text(_job(info).get("backend"))),
        units.count(groups, "process group") if groups else "",
    ]
    return ", ".join(part for part in parts if part)


def _numbers(numbers: list[int]) -> str:
    """Ascending numbers, a gapless run of three or more as its ends."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return _joined(map(str, numbers))


def _machine(info: Info) -> str:
    """The machine's architecture, and how many processors it has."""
    processors = _whole(info.get("cpu_count"))
    counted = "" if processors is None else units.count(processors, "processor")
    return ", ".join(part for part in (_text(info.get("machine")), counted) if part)


def _runtime(key: str, major: int, minor: int) -> Callable[[Info], str]:
    """Reads the version of a device's runtime, which is one number."""

    def read(info: Info) -> str:
        version = _whole(info.get(key))
        return f"{version // major}.{version % major // minor}" if version and version >= major else ""

    return read


def _rank(info: Info) -> int | None:
    """The rank of a process."""
    job = _job(info)
    return _whole(job.get("rank") if "rank" in job else info.get("rank"))


def _job(info: Info) -> Info:
    """Metadata of the distributed job."""
    stated = info.get("distributedInfo")
    return stated if isinstance(stated, dict) else {}


def _distinct(every: list[Info], read: Callable[[Info], str]) -> str:
    """The values of all processes, each different one once."""
    return _joined(dict.fromkeys(value for info in every if (value := read(info))))


def _joined(values: Iterable[str]) -> str:
    """Some values, and how many more there are."""
    listed = list(values)
    more = len(listed) - _MOST_SHOWN
    if more > 0:
        listed = [*listed[:_MOST_SHOWN], f"{more} more"]
    return ", ".join(listed)


def _whole(value: object) -> int | None:
    """A whole number from 0 on; None for anything else that a file may hold."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def _text(value: object) -> str:
    """A text, or an empty one for anything else that a file may hold."""
    return _cut(value) if isinstance(value, str) and value.strip() else ""


def _cut(text: str) -> str:
    """A text of a length that can be shown, which can be written as UTF-8."""
    return text[:LONGEST].encode(errors="replace").decode()
