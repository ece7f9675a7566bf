"""The reliability of a trace: missing data, alignment of its clocks, overhead of the recording, and what was recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypedDict

import numpy as np

from kinetoscope.display.sentence import Sentence, sentence
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import requested_calls
from kinetoscope.model.kinds import is_runtime_call
from kinetoscope.model.losses import NOT_STOPPED, UNFINISHED_SPANS, consequence, effects
from kinetoscope.model.rows import mask_of
from kinetoscope.model.run_info import NSIGHT, SNAPSHOT
from kinetoscope.model.schema import FLAG_UNFINISHED, SpanKind
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.costs.flops import covered_percent
from kinetoscope.tables.device.collectives import count_collectives
from kinetoscope.tables.device.work import device_work
from kinetoscope.tables.intervals import when_ran
from kinetoscope.tables.stored import memory_recorded


class Check(TypedDict):
    """One check of a trace.

    Attributes:
        state: `good`, `note` or `warn`.
        title: What was checked.
        finding: What was found.
        meaning: What that means for the numbers of the trace; may be empty.
    """

    state: str
    title: str
    finding: Sentence
    meaning: Sentence


Judgement = tuple[str, Sentence, Sentence | str]
"""The state of a check, what was found, and what that means."""

GOOD, NOTE, WARN = "good", "note", "warn"

# Times of some sources are whole microseconds.
_ROUNDING_NS = 1_000
_MOST_CLOCK_ERROR_NS = 100_000
_MOST_PROCESS_ERROR_NS = 1_000_000

# What can be recorded: what it is called, what it gives, and how to have it.
RECORDED: dict[str, tuple[str, str, str]] = {
    "operators": ("Operators", "times of operators and backward functions", "activities=[ProfilerActivity.CPU]"),
    "steps": ("Steps", "the time of each step, and where it went", "kinetoscope.steps(loader), prof.step() with a schedule, or an optimizer of torch"),
    "devices": ("Devices", "kernels, copies, utilization", "activities=[..., ProfilerActivity.CUDA]"),
    "shapes": ("Shapes", "FLOPs, bytes moved, operators by input shapes", "record_shapes=True, or kinetoscope run"),
    "memory": ("Memory", "memory over time, its peak, and who held it", "profile_memory=True, or --memory"),
    "stacks": ("Stacks", "source lines and flame graphs", "with_stack=True"),
    "modules": ("Modules", "time and memory of each layer", "with_modules=True"),
    "samples": ("Samples", "the lines of Python that run between operators", "samples=True, which is the default"),
    "python": ("Python calls", "functions as spans of the timeline", "python_calls=True"),
    "collectives": ("Collectives", "size and bandwidth of each collective", "torch.distributed in the program"),
    "counters": ("Counters", "samples over time", "sources=[SystemCounters()]"),
}  # fmt: skip

# How other sources have it; what they cannot have needs another recording.
_HOW_ELSEWHERE: dict[str, dict[str, str]] = {
    NSIGHT: {
        "operators": "nsys profile --pytorch=autograd-nvtx",
        "devices": "nsys profile --trace=cuda,nvtx",
        "memory": "nsys profile --cuda-memory-usage=true",
        "steps": "nsys profile --trace=cuda,nvtx, with an NVTX range ProfilerStep#N around each step",
    },
    SNAPSHOT: dict.fromkeys(("memory", "stacks"), "torch.cuda.memory._record_memory_history()"),
}
_ANOTHER_RECORDING = "kinetoscope run"
# What torch's profiler does not have, or has by another option.
_WITH_KINETO = {"samples": _ANOTHER_RECORDING, "counters": _ANOTHER_RECORDING, "python": "with_stack=True"}


def how_to_record(trace: TraceData, what: str) -> str:
    """How to have something of `RECORDED` in a trace from the same source; empty where it was turned on, and there was none."""
    run = trace.run_info
    if _requested(trace, what):
        return ""
    if run.recorded_by:
        return _HOW_ELSEWHERE.get(run.recorded_by, {}).get(what, _ANOTHER_RECORDING)
    return _WITH_KINETO.get(what, RECORDED[what][2]) if run.engine == "kineto" else RECORDED[what][2]


def advised(trace: TraceData, what: str) -> str:
    """The end of a sentence: how to record something of `RECORDED` that a trace lacks."""
    how = how_to_record(trace, what)
    return f": use {how}" if how else ", although that was turned on"


def _requested(trace: TraceData, what: str) -> bool | None:
    """Whether an option turned something of `RECORDED` on; None where no option says so."""
    run = trace.run_info
    if what == "memory":
        return memory_recorded(trace) or run.profile_memory
    return {
        "shapes": run.record_shapes or run.deep_steps,
        "stacks": run.with_stack,
        "modules": run.with_modules,
    }.get(what)


def judged(facts: dict[str, Any]) -> dict[str, Any]:
    """Judge what `health` found.

    Args:
        facts: The numbers, as `numbers` returns them, with `running` and `losses`.

    Returns:
        `state` (`good`, `note` or `warn`), `line` (all of it in one sentence), and `checks`: each with `state`, `title`, `finding`
        (what was found) and `meaning`.
    """
    checks: list[Check] = []
    for title, judge in _CHECKS.items():
        if (judgement := judge(facts)) is not None:
            state, finding, text = judgement
            meaning = sentence(text) if isinstance(text, str) else text
            checks.append({"state": state, "title": title, "finding": finding, "meaning": meaning})
    warnings = [check for check in checks if check["state"] == WARN]
    if warnings:
        line, more = warnings[0]["finding"], len(warnings) - 1
        if more:
            line = sentence(f"{line['text']}, {{}} more {units.noun(more, 'warning')}", *line["values"], more)
        return {"state": WARN, "line": line, "checks": checks}
    state, line = GOOD, sentence("Nothing is missing")
    if facts["spans"] == facts["allocations"] == 0:
        state, line = NOTE, sentence("The trace is empty")
    elif facts["running"]:
        state, line = NOTE, sentence("Still being recorded")
    elif facts["losses"]["kinds"]:
        state, line = NOTE, _losses(facts)[1]
    return {"state": state, "line": line, "checks": checks}


def _recording(facts: dict[str, Any]) -> Judgement:
    count, several = facts["not_stopped"], facts["processes"]["count"]
    if count == 0:
        return GOOD, sentence("Stopped cleanly"), ""
    if facts["running"]:
        return NOTE, sentence("Still recording"), "Shown is what was recorded so far."
    if several > 1:
        meaning = (
            "They were killed, crashed, or were still running. The trace holds what they recorded until then."
        )
        text = f"{{}} of {{}} processes {units.noun(count, 'was', 'were')} not stopped"
        return WARN, sentence(text, count, several), meaning
    meaning = "The program ended without stop(), or runs on another machine. The trace holds what it recorded until then."
    return WARN, sentence("The recording was not stopped"), meaning


def _losses(facts: dict[str, Any]) -> Judgement:
    lost = facts["losses"]
    if lost["kinds"] == 0:
        return GOOD, sentence("Nothing was lost"), "No record was dropped, truncated or damaged."
    meaning = "The table below lists what is missing, where, and why."
    if effect := lost["consequence"]:
        return WARN, sentence(f"{effect[0].upper()}{effect[1:]}"), meaning
    if lost["affects"]:
        finding = sentence(f"Not complete: {units.listed(lost['affects'])}")
        return NOTE, finding, f"Other numbers are exact. {meaning}"
    return NOTE, sentence("Numbers are exact"), meaning


def _ends(facts: dict[str, Any]) -> Judgement | None:
    spans, unfinished = facts["spans"], facts["unfinished"]
    if spans == 0:
        return None
    if unfinished == 0:
        return GOOD, sentence("All spans are finished"), ""
    text = f"{{}} of {{}} {units.noun(spans, 'span')} {units.noun(unfinished, 'is', 'are')} unfinished"
    meaning = "They were still running when the recording ended, and are clipped there."
    return NOTE, sentence(text, unfinished, spans), meaning


def _launches(facts: dict[str, Any]) -> Judgement | None:
    launched = facts["launches"]
    if launched is None:
        return None
    work, calls, without_work = launched["work"], launched["calls"], launched["without_work"]
    unused, values = "", list[int]()
    if without_work:
        unused = (
            f"{{}} of {{}} {units.noun(calls, 'launch', 'launches')} {units.noun(without_work, 'has', 'have')} no device work: it ran outside the "
            "recorded time, or there was none to do."
        )
        values = [without_work, calls]
    lacking = work - launched["tied"]
    if lacking == 0:
        text = f"{units.noun(work, 'The', 'All')} {{}} {units.noun(work, 'kernel or copy is', 'kernels and copies are')}"
        finding = sentence(f"{text} linked to {units.noun(work, 'its', 'their')} launch", work)
        return GOOD, finding, sentence(unused, *values)
    text = f"{{}} of {{}} kernels and copies {units.noun(lacking, 'has', 'have')} no launch"
    why = "Their time is attributed to no operator, module or line: the launch came before the recording, or its record was lost. "
    state = WARN if lacking > work * 0.01 else NOTE
    return state, sentence(text, lacking, work), sentence(why + unused, *values)


def _early(facts: dict[str, Any]) -> Judgement | None:
    launched = facts["launches"]
    if launched is None or launched["tied"] == 0:
        return None
    if launched["earliest_ns"] <= _ROUNDING_NS:
        return GOOD, sentence("No kernel or copy starts before its launch"), ""
    early, tied = launched["early"], launched["tied"]
    starts = units.noun(early, "starts before its", "start before their")
    meaning = "By up to {}: the clocks of host and device are off by at least that much."
    return (
        WARN if early > tied * 0.01 else NOTE,
        sentence(f"{{}} of {{}} kernels and copies {starts} launch", early, tied),
        sentence(meaning, (launched["earliest_ns"], "ns")),
    )


def _clock_check(facts: dict[str, Any]) -> Judgement | None:
    clock = facts["clock"] or {}
    if "readings" not in clock:
        return None
    error, times = clock.get("largest_error_ns", 0), units.noun(clock["readings"], "time")
    off = [(error, "ns")] if error else []
    text = f"Checked {{}} {times}, {'at most {}' if error else 'never'} off"
    state = WARN if error > _MOST_CLOCK_ERROR_NS else GOOD
    return state, sentence(text, clock["readings"], *off), "The recorder's clock compared with the system's."


def _device_clock(facts: dict[str, Any]) -> Judgement | None:
    clock = facts["clock"] or {}
    calls, crossing = clock.get("device_calls", 0), clock.get("device_calls_crossing", 0)
    if calls == 0:
        return None
    meaning = "Operators and runtime calls were timed by two clocks."
    if crossing == 0:
        lie = units.noun(calls, "call lies within its operator", "calls lie within their operators")
        return GOOD, sentence(f"{units.noun(calls, 'The', 'All')} {{}} runtime {lie}", calls), meaning
    lie = units.noun(crossing, "does not lie within its operator", "do not lie within their operators")
    finding = sentence(f"{{}} of {{}} runtime calls {lie}", crossing, calls)
    return WARN if crossing > calls * 0.01 else GOOD, finding, meaning


def _processes(facts: dict[str, Any]) -> Judgement | None:
    processes = facts["processes"]
    count, unknown = processes["count"], processes["unknown_clocks"]
    if count < 2:
        return None
    if unknown:
        finding = sentence("The clocks of {} of {} processes could not be aligned", unknown, count)
        meaning = "They are shown as if they had started together: do not compare times across processes."
        return WARN, finding, meaning
    error = processes["largest_error_ns"]
    meaning = "Events on two processes that are closer together than this may have happened in either order."
    state = NOTE if error > _MOST_PROCESS_ERROR_NS else GOOD
    return state, sentence("{} processes, at most {} off", count, (error, "ns")), meaning if error else ""


def _overhead(facts: dict[str, Any]) -> Judgement | None:
    overhead = facts["overhead"]
    if overhead["spans"] == 0:
        return None
    share = 100.0 * overhead["time_ns"] / overhead["duration_ns"] if overhead["duration_ns"] else 0.0
    state = WARN if share > 5 else NOTE if share > 1 else GOOD
    recorded_spans = f"The profiler recorded {{}} overhead {units.noun(overhead['spans'], 'span')}"
    return (
        state,
        sentence("The profiler itself took {}, {} of the trace", (overhead["time_ns"], "ns"), (share, "%")),
        sentence(f"{recorded_spans}, in which the program waited.", overhead["spans"]),
    )


def _coverage(facts: dict[str, Any]) -> Judgement | None:
    share = facts["covered_percent"]
    if share is None:
        return None
    finding = sentence("Covers {} of operator time", (share, "%"))
    meaning = "" if share == 100 else "FLOPs and bytes leave out the rest; see the table flops_coverage."
    return NOTE if share < 80 else GOOD, finding, meaning


def _overlaps(facts: dict[str, Any]) -> Judgement | None:
    count = facts["overlapping"]
    if count == 0:
        return None
    overlap = units.noun(count, "span partly overlaps others on its", "spans partly overlap others on their")
    meaning = "They are kept out of the tree and have no self time, so that no moment counts twice."
    state = NOTE if count > facts["spans"] * 0.05 else GOOD
    return state, sentence(f"{{}} {overlap} thread", count), meaning


_CHECKS: dict[str, Callable[[dict[str, Any]], Judgement | None]] = {
    "Recording": _recording,
    "Losses": _losses,
    "Unfinished spans": _ends,
    "Launches": _launches,
    "Host and device clocks": _early,
    "Clock": _clock_check,
    "Device clock": _device_clock,
    "Process clocks": _processes,
    "Overhead": _overhead,
    "FLOPs coverage": _coverage,
    "Nesting": _overlaps,
}

# What is missing from every recording that goes on.
UNTIL_STOPPED = (NOT_STOPPED, UNFINISHED_SPANS)
# Calls that start work on a device: cudaLaunchKernel, hipModuleLaunchKernel, cudaGraphLaunch, cudaMemcpyAsync, hipMemsetAsync.
_STARTS = re.compile(r"launch|memcpy|memset", re.IGNORECASE)


def health(trace: TraceData, *, running: bool) -> dict[str, Any]:
    """Assess the reliability of a trace.

    Args:
        trace: The trace.
        running: The process that writes it is still recording, so its unfinished end is no loss.

    Returns:
        The numbers (`spans`, `unfinished`, `launches`, `clock`, `processes`, `overhead`, `losses`), the verdict (`state`, `line`,
        `checks`), and `recorded`: what the trace holds of all that can be recorded, and how to record the rest.
    """
    facts = {
        **numbers(trace),
        "running": running,
        "losses": losses(trace, UNTIL_STOPPED if running else ()),
    }
    return {**facts, **judged(facts), "recorded": recorded(trace)}


def losses(trace: TraceData, expected: tuple[str, ...]) -> dict[str, Any]:
    """How many kinds of losses are unexpected, what they leave incomplete, and what they do to numbers (`consequence`)."""
    codes = [code for code in trace.columns("losses")["code"] if code not in expected]
    return {"kinds": len(codes), "affects": effects(codes), "consequence": consequence(codes)}


@derived
def numbers(trace: TraceData) -> dict[str, Any]:
    """The numbers that do not depend on whether the process is still recording."""
    spans, processes = trace.columns("spans"), trace.columns("processes")
    errors = processes["error_ns"]
    return {
        "not_stopped": trace.columns("losses")["code"].count(NOT_STOPPED)
        or int(not trace.run_info.complete and len(processes) == 0),
        "spans": len(spans),
        "allocations": len(trace.columns("allocations")),
        "unfinished": int(((spans["flags"] & FLAG_UNFINISHED) != 0).sum()),
        "overlapping": int((spans["lane"] > 0).sum()),
        "launches": launches(trace),
        "clock": {
            name: value for name, value in vars(trace.run_info.clock_checks).items() if value is not None
        }
        or None,
        "processes": {
            "count": max(1, len(processes)),
            "unknown_clocks": int((errors < 0).sum()),
            "largest_error_ns": int(errors.max(initial=0)),
        },
        "overhead": overhead(trace),
        "covered_percent": covered_percent(trace) if len(trace.columns("shapes")) else None,
    }


def launches(trace: TraceData) -> dict[str, int] | None:
    """How many pieces of device work are linked to their launch; None without devices.

    `calls` are calls of the host that start work by their names; those `without_work` started none that is in the trace.
    `early` pieces begin before their call does.
    """
    work = device_work(trace).rows
    if len(work) == 0:
        return None
    spans, links = trace.columns("spans"), trace.columns("launches")
    linked = (links["host"] >= 0) & (links["device"] >= 0)
    host, device = links["host"][linked], links["device"][linked]
    is_work = mask_of(work, len(spans))
    tied, starting = np.zeros((2, len(spans)), bool)
    tied[device] = True
    starting[host] = True
    kind = spans["kind"]
    named = np.zeros(len(trace.strings), bool)
    calls = np.flatnonzero(is_runtime_call(kind))
    for name in np.unique(spans["name"][calls]).tolist():
        named[name] = _STARTS.search(trace.strings[name]) is not None
    calls = calls[named[spans["name"][calls]]]
    ahead_ns = (spans["start_ns"][host] - spans["start_ns"][device])[is_work[device]]
    return {
        "work": len(work),
        "tied": int((tied & is_work).sum()),
        "calls": len(calls),
        "without_work": int((~starting[calls]).sum()),
        "early": int((ahead_ns > 0).sum()),
        "earliest_ns": max(0, int(ahead_ns.max(initial=0))),
    }


def overhead(trace: TraceData) -> dict[str, int]:
    """How much time the profiler itself took, as its overhead spans say; moments on several threads count once."""
    rows = np.flatnonzero(trace.column("spans", "kind") == SpanKind.OVERHEAD)
    return {
        "spans": len(rows),
        "time_ns": when_ran(trace, rows).total_ns,
        "duration_ns": trace.duration_ns,
    }


def recorded(trace: TraceData) -> list[dict[str, Any]]:
    """What a trace holds of all that can be recorded: rows, what it gives, how to record it, and whether it was turned on."""
    kind = Groups(trace.column("spans", "kind"), len(SpanKind)).sizes()
    rows = {
        "operators": int(kind[SpanKind.OPERATOR] + kind[SpanKind.BACKWARD]),
        "devices": len(device_work(trace).rows),
        "memory": len(trace.columns("allocations")),
        "python": int(requested_calls(trace).sum()),
        "collectives": count_collectives(trace),
    }
    return [
        {
            "title": RECORDED[signal][0],
            "gives": RECORDED[signal][1],
            "how": how_to_record(trace, signal),
            "rows": rows[signal] if signal in rows else len(trace.columns(signal)),
            "requested": None if (requested := _requested(trace, signal)) is None else bool(requested),
        }
        for signal in RECORDED
    ]
