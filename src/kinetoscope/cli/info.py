"""`kinetoscope info`: what a trace is and whether it is complete."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetoscope.display import units
from kinetoscope.tables.host.processes import process_tree
from kinetoscope.tables.memory.peak import device_peaks
from kinetoscope.viewer.pages.run_facts import RUNTIMES, SWITCHES

if TYPE_CHECKING:
    from kinetoscope.tables.memory.peak import DevicePeak
    from kinetoscope.trace import Trace

# Said in words in lines of their own.
_TOLD = {
    "clock_checks", "command_line", "complete", "cpu_count", "cuda_driver_version", "cuda_runtime_version", "devices",
    "deviceProperties", "distributedInfo", "engine", "hip_driver_version", "hip_runtime_version", "host", "host_name",
    "machine", "parent_process", "process", "process_name", "processes", "program", "python_version", "registered_costs", "schemaVersion",
    "boot_id", "not_recorded", "start_monotonic_ns", "start_realtime_ns", "stop_ns", "torch_version",
}  # fmt: skip
# Longer values are cut; the table `info` has them whole.
_LONGEST_VALUE = 300
_MOST_PROCESSES = 24
_MOST_DEVICES = 16


@click.command("info")
@click.argument("path", metavar="TRACE")
@click.option(
    "--command-line/--no-command-line",
    "told",
    default=True,
    help="Say which command line ran; it may hold what is not for everybody.",
)
def command(path: str, *, told: bool) -> None:
    """Say what a trace is, where it was made, what it holds, and whether it is complete.

    It may also be the recording of a program that was killed or still runs.
    """
    from kinetoscope.cli.opening import open_trace
    from kinetoscope.display.terminal import console, print_fact

    printer = console()
    with open_trace(path) as trace:
        facts = describe(trace, path)
    if not told:
        facts = [fact for fact in facts if fact[0] != "program"]
    label_width = max(len(label) for label, _ in facts) + 2
    for label, value in facts:
        print_fact(printer, label, value, label_width)


def describe(trace: Trace, path: str) -> list[tuple[str, str]]:
    """Say what is known of a trace, as labels and texts."""
    info = trace.info
    facts = [("trace", f"{path}, {_size(path, trace)}"), ("complete", completeness(trace))]
    if ran := command_line(info):
        facts.append(("program", ran))
    facts.append(("recorded", _when(trace)))
    facts += _processes(trace)
    if where := _where(info):
        facts.append(("on", where))
    if ranks := _rank(info):
        facts.append(("rank", ranks))
    switches = [word for key, word in SWITCHES.items() if info.get(key)]
    if "engine" in info or switches:
        facts.append(("with", ", ".join([f"{info.get('engine', 'unknown')} engine", *switches])))
    facts.append(("holds", _amounts(trace)))
    facts += [
        ("" if place else "memory peak", peak_text(peak))
        for place, peak in enumerate(device_peaks(trace)[:_MOST_DEVICES])
    ]
    if trace.losses:
        facts += [("lost", f"{count:,} {what}: {why}") for (what, why), count in summed_losses(trace).items()]
    if isinstance(checks := info.get("clock_checks"), dict):
        worst = units.duration(checks.get("largest_error_ns", 0))
        facts.append(
            ("clock", f"checked {units.count(checks.get('readings', 0), 'time')}, {worst} off at most")
        )
    facts += [
        (key, _cut(json.dumps(value, ensure_ascii=False)))
        for key, value in sorted(info.items())
        if key not in _TOLD | set(SWITCHES)
    ]
    return facts


def completeness(trace: Trace) -> str:
    """Say whether anything is missing."""
    if trace.info.get("complete") is False and len(trace.columns("processes")) == 0:
        return "no: the recording was not stopped (the program was killed, or still runs)"
    if trace.losses:
        return "no, see what was lost"
    return "yes, nothing was lost"


def peak_text(peak: DevicePeak) -> str:
    """Say how much memory a device held at most, and how much of it the trace can attribute."""
    told = f"{units.size(peak.bytes)} {'allocated ' if peak.counted else ''}on {peak.device}"
    if peak.reserved_bytes:
        told += f" ({units.size(peak.reserved_bytes)} reserved)"
    if not peak.counted:
        return f"{told} of tensors allocated while recording"
    if peak.attributed_bytes < peak.bytes:
        told += f", {units.size(peak.attributed_bytes)} of it attributed"
    return told


def summed_losses(trace: Trace) -> Counter[tuple[str, str]]:
    """How much was lost of each kind and for each reason, wherever it was."""
    lost: Counter[tuple[str, str]] = Counter()
    for loss in trace.losses:
        lost[loss["what"], loss["why"]] += loss["count"]
    return lost


def command_line(info: dict[str, Any]) -> str:
    """Say what ran, and how it ended."""
    program = info.get("program")
    if isinstance(program, dict) and isinstance(program.get("command"), list):
        ended = f" ({program['ended']})" if "ended" in program else ""
        return f"python {shlex.join(map(str, program['command']))}{ended}"
    words = info.get("command_line")
    return f"python {shlex.join(map(str, words))}" if isinstance(words, list) else ""


def _size(path: str, trace: Trace) -> str:
    """Say how large the file is, and what that means for one span."""
    spans = len(trace.columns("spans"))
    try:
        held = Path(path).stat().st_size
    except OSError:
        return "not a local file"
    each = f", {held / spans:.1f} bytes a span" if spans else ""
    return f"{units.size(held)}{each}"


def _when(trace: Trace) -> str:
    """Say when it was recorded, and for how long."""
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


def _processes(trace: Trace) -> list[tuple[str, str]]:
    """Say which processes there are, as a tree, and how they ended."""
    tree = process_tree(trace)
    told = [
        f"{'  ' * row['depth']}{row['name']} ({row['pid']}"
        + (f", rank {row['rank']}" if row["rank"] >= 0 else "")
        + f"), {units.duration(row['duration_ns'])}"
        + (f", {row['ended']}" if row["ended"] else "")
        for row in tree
    ]
    more = len(told) - _MOST_PROCESSES
    told = [*told[:_MOST_PROCESSES], *([f"and {more:,} more: see the table `processes`"] if more > 0 else [])]
    return [("processes" if place == 0 else "", line) for place, line in enumerate(told)]


def _rank(info: dict[str, Any]) -> str:
    """Say which part of a distributed run it is."""
    known = info.get("distributedInfo")
    if not isinstance(known, dict) or type(known.get("rank")) is not int:
        return ""
    text = f"{known['rank']}"
    if type(known.get("world_size")) is int:
        text += f" of {known['world_size']}"
    if isinstance(known.get("backend"), str):
        text += f", {known['backend']}"
    if isinstance(known.get("nccl_version"), str):
        text += f" {known['nccl_version']}"
    if isinstance(groups := known.get("pg_config"), list) and groups:
        text += f", {units.count(len(groups), 'process group')}"
    return text


def _cut(text: str) -> str:
    """A value, or its beginning."""
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... (whole in the table `info`)"


def _where(info: dict[str, Any]) -> str:
    """Say on which machine, under which versions."""
    parts = [str(info[key]) for key in ("host", "machine") if key in info]
    if isinstance(processors := info.get("cpu_count"), int):
        parts.append(units.count(processors, "processor"))
    devices = info.get("devices")
    named = Counter(
        entry["name"]
        for entry in (devices if isinstance(devices, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    )
    parts += [name if times == 1 else f"{times} x {name}" for name, times in named.items()]
    parts += [
        f"{name} {info[key]}"
        for name, key in (("Python", "python_version"), ("torch", "torch_version"))
        if key in info
    ]
    for name, key, major, minor in RUNTIMES:
        version = info.get(key)
        if type(version) is int and version >= major:
            parts.append(f"{name} {version // major}.{version % major // minor}")
    return ", ".join(parts)


def _amounts(trace: Trace) -> str:
    """Say how many rows its tables have, empty ones left out."""
    from kinetoscope.model.schema import SpanKind

    nouns: dict[str, tuple[str, str | None]] = {
        "spans": ("span", None),
        "threads": ("thread", None),
        "steps": ("step", None),
        "modules": ("module", None),
        "stacks": ("Python stack", None),
        "shapes": ("combination of shapes", "combinations of shapes"),
        "allocations": ("allocation or free", "allocations and frees"),
        "streams": ("device stream", None),
        "launches": ("launch", "launches"),
        "counters": ("counter value", None),
        "collectives": ("collective", None),
    }
    rows = {name: len(trace.columns(name)) for name in nouns}
    # The stored table has what calls say of themselves; there are others, and kernels without a call.
    rows["collectives"] = trace.table("collectives").num_rows
    if rows["streams"]:
        nouns |= {
            "kernels": ("kernel", None),
            "copies": ("copy or filling of memory", "copies and fillings of memory"),
        }
        kind = trace.column("spans", "kind")
        rows["kernels"] = int((kind == SpanKind.KERNEL).sum())
        rows["copies"] = int(((kind == SpanKind.MEMCPY) | (kind == SpanKind.MEMSET)).sum())
    held = [units.count(number, *nouns[name]) for name, number in rows.items() if number]
    return ", ".join(held) or "nothing"
