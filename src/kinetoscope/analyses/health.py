"""The reliability of a trace: missing data, alignment of its clocks, overhead of the recording, and what was recorded."""

from __future__ import annotations

import re
from typing import Any, TypedDict, cast

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
    makers = (
        _recording, _losses, _ends, _launches, _early, _clock_check, _device_clock, _processes, _overhead, _coverage, _overlaps,
    )  # fmt: skip
    checks = [check for make in makers if (check := make(facts)) is not None]
    warnings = [check for check in checks if check["state"] == WARN]
    if facts["spans"] == facts["allocations"] == 0 and not warnings:
        return {"state": NOTE, "line": sentence("The trace is empty"), "checks": checks}
    if facts["running"] and not warnings:
        return {"state": NOTE, "line": sentence("Still being recorded"), "checks": checks}
    if not warnings and facts["losses"]["kinds"]:
        return {"state": NOTE, "line": _losses(facts)["finding"], "checks": checks}
    if not warnings:
        return {"state": GOOD, "line": sentence("Nothing is missing"), "checks": checks}
    line = warnings[0]["finding"]
    if more := len(warnings) - 1:
        line = sentence(
            f"{line['text']}, {{}} more {'warning' if more == 1 else 'warnings'}", *line["values"], more
        )
    return {"state": WARN, "line": line, "checks": checks}


def _check(state: str, title: str, finding: Sentence, meaning: Sentence | str = "") -> Check:
    meaning = sentence(meaning) if isinstance(meaning, str) else meaning
    return {"state": state, "title": title, "finding": finding, "meaning": meaning}


def _recording(facts: dict[str, Any]) -> Check:
    count, several = facts["not_stopped"], facts["processes"]["count"]
    if count == 0:
        return _check(GOOD, "Recording", sentence("Stopped cleanly"))
    if facts["running"]:
        return _check(NOTE, "Recording", sentence("Still recording"), "Shown is what was recorded so far.")
    if several > 1:
        meaning = (
            "They were killed, crashed, or were still running. The trace holds what they recorded until then."
        )
        return _check(
            WARN,
            "Recording",
            sentence(
                f"{{}} of {{}} processes {units.noun(count, 'was', 'were')} not stopped", count, several
            ),
            meaning,
        )
    meaning = "The program ended without stop(), or runs on another machine. The trace holds what it recorded until then."
    return _check(WARN, "Recording", sentence("The recording was not stopped"), meaning)


def _losses(facts: dict[str, Any]) -> Check:
    lost = facts["losses"]
    if lost["kinds"] == 0:
        return _check(
            GOOD, "Losses", sentence("Nothing was lost"), "No record was dropped, truncated or damaged."
        )
    meaning = "The table below lists what is missing, where, and why."
    if effect := lost["consequence"]:
        return _check(WARN, "Losses", sentence(f"{effect[0].upper()}{effect[1:]}"), meaning)
    if lost["affects"]:
        finding = sentence(f"Not complete: {units.listed(lost['affects'])}")
        return _check(NOTE, "Losses", finding, f"Other numbers are exact. {meaning}")
    return _check(NOTE, "Losses", sentence("Numbers are exact"), meaning)


def _ends(facts: dict[str, Any]) -> Check | None:
    spans, unfinished = facts["spans"], facts["unfinished"]
    if spans == 0:
        return None
    if unfinished == 0:
        return _check(GOOD, "Unfinished spans", sentence("All spans are finished"))
    finding = sentence(
        f"{{}} of {{}} {units.noun(spans, 'span')} {units.noun(unfinished, 'is', 'are')} unfinished",
        unfinished,
        spans,
    )
    return _check(
        NOTE,
        "Unfinished spans",
        finding,
        "They were still running when the recording ended, and are clipped there.",
    )


def _launches(facts: dict[str, Any]) -> Check | None:
    launched = facts["launches"]
    if launched is None:
        return None
    unused, values = "", cast("tuple[int, ...]", ())
    if launched["without_work"]:
        unused = (
            f"{{}} of {{}} {units.noun(launched['calls'], 'launch', 'launches')} {units.noun(launched['without_work'], 'has', 'have')} no device work: it ran outside the "
            "recorded time, or there was none to do."
        )
        values = (launched["without_work"], launched["calls"])
    lacking = launched["work"] - launched["tied"]
    if lacking == 0:
        finding = sentence(
            f"{units.noun(launched['work'], 'The', 'All')} {{}} {units.noun(launched['work'], 'kernel or copy is', 'kernels and copies are')} linked to "
            f"{units.noun(launched['work'], 'its', 'their')} launch",
            launched["work"],
        )
        return _check(GOOD, "Launches", finding, sentence(unused, *values))
    state = WARN if lacking > launched["work"] * 0.01 else NOTE
    finding = sentence(
        f"{{}} of {{}} kernels and copies {units.noun(lacking, 'has', 'have')} no launch",
        lacking,
        launched["work"],
    )
    why = "Their time is attributed to no operator, module or line: the launch came before the recording, or its record was lost. "
    return _check(state, "Launches", finding, sentence(why + unused, *values))


def _early(facts: dict[str, Any]) -> Check | None:
    launched = facts["launches"]
    if launched is None or launched["tied"] == 0:
        return None
    if launched["earliest_ns"] <= _ROUNDING_NS:
        return _check(GOOD, "Host and device clocks", sentence("No kernel or copy starts before its launch"))
    state = WARN if launched["early"] > launched["tied"] * 0.01 else NOTE
    finding = sentence(
        f"{{}} of {{}} kernels and copies {units.noun(launched['early'], 'starts before its', 'start before their')} launch",
        launched["early"],
        launched["tied"],
    )
    meaning = sentence(
        "By up to {}: the clocks of host and device are off by at least that much.",
        (launched["earliest_ns"], "ns"),
    )
    return _check(state, "Host and device clocks", finding, meaning)


def _clock_check(facts: dict[str, Any]) -> Check | None:
    clock = facts["clock"] or {}
    if "readings" not in clock:
        return None
    error, times = clock.get("largest_error_ns", 0), units.noun(clock["readings"], "time")
    finding = (
        sentence(f"Checked {{}} {times}, at most {{}} off", clock["readings"], (error, "ns"))
        if error
        else sentence(f"Checked {{}} {times}, never off", clock["readings"])
    )
    meaning = "The recorder's clock compared with the system's."
    return _check(WARN if error > _MOST_CLOCK_ERROR_NS else GOOD, "Clock", finding, meaning)


def _device_clock(facts: dict[str, Any]) -> Check | None:
    clock = facts["clock"] or {}
    calls, crossing = clock.get("device_calls", 0), clock.get("device_calls_crossing", 0)
    if calls == 0:
        return None
    meaning = sentence("Operators and runtime calls were timed by two clocks.")
    if crossing == 0:
        return _check(
            GOOD,
            "Device clock",
            sentence(
                f"{units.noun(calls, 'The', 'All')} {{}} runtime {units.noun(calls, 'call lies within its operator', 'calls lie within their operators')}",
                calls,
            ),
            meaning,
        )
    finding = sentence(
        f"{{}} of {{}} runtime calls {units.noun(crossing, 'does not lie within its operator', 'do not lie within their operators')}",
        crossing,
        calls,
    )
    return _check(WARN if crossing > calls * 0.01 else GOOD, "Device clock", finding, meaning)


def _processes(facts: dict[str, Any]) -> Check | None:
    processes = facts["processes"]
    if processes["count"] < 2:
        return None
    if processes["unknown_clocks"]:
        finding = sentence(
            "The clocks of {} of {} processes could not be aligned",
            processes["unknown_clocks"],
            processes["count"],
        )
        meaning = "They are shown as if they had started together: do not compare times across processes."
        return _check(WARN, "Process clocks", finding, meaning)
    error = processes["largest_error_ns"]
    finding = sentence("{} processes, at most {} off", processes["count"], (error, "ns"))
    meaning = (
        "Events on two processes that are closer together than this may have happened in either order."
        if error
        else ""
    )
    return _check(NOTE if error > _MOST_PROCESS_ERROR_NS else GOOD, "Process clocks", finding, meaning)


def _overhead(facts: dict[str, Any]) -> Check | None:
    overhead = facts["overhead"]
    if overhead["spans"] == 0:
        return None
    share = 100.0 * overhead["time_ns"] / overhead["duration_ns"] if overhead["duration_ns"] else 0.0
    state = WARN if share > 5 else NOTE if share > 1 else GOOD
    finding = sentence(
        "The profiler itself took {}, {} of the trace", (overhead["time_ns"], "ns"), (share, "%")
    )
    meaning = sentence(
        f"The profiler recorded {{}} overhead {units.noun(overhead['spans'], 'span')}, in which the program waited.",
        overhead["spans"],
    )
    return _check(state, "Overhead", finding, meaning)


def _coverage(facts: dict[str, Any]) -> Check | None:
    share = facts["covered_percent"]
    if share is None:
        return None
    finding = sentence("Covers {} of operator time", (share, "%"))
    meaning = "" if share == 100 else "FLOPs and bytes leave out the rest; see the table flops_coverage."
    return _check(NOTE if share < 80 else GOOD, "FLOPs coverage", finding, meaning)


def _overlaps(facts: dict[str, Any]) -> Check | None:
    if facts["overlapping"] == 0:
        return None
    finding = sentence(
        f"{{}} {units.noun(facts['overlapping'], 'span partly overlaps others on its', 'spans partly overlap others on their')} thread",
        facts["overlapping"],
    )
    meaning = "They are kept out of the tree and have no self time, so that no moment counts twice."
    return _check(NOTE if facts["overlapping"] > facts["spans"] * 0.05 else GOOD, "Nesting", finding, meaning)


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
