"""How far a trace can be trusted: what is missing, how its clocks fit, what recording cost, and what was recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from kinetoscope.model.device_time import calls_runtime
from kinetoscope.model.losses import NOT_STOPPED, UNFINISHED_SPANS
from kinetoscope.model.schema import FLAG_UNFINISHED, SpanKind
from kinetoscope.tables.costs.flops import covered_percent
from kinetoscope.tables.device.work import device_work
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.viewer.server.open_traces import is_running

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.requests import Query


# What the numbers about a trace's health mean, in words.
#
# Sentences go to the page with places for their numbers, which it writes as all others there: `{}` stands for the next of `values`,
# each a number and its unit.

Said: TypeAlias = "dict[str, Any]"
Check: TypeAlias = "dict[str, Any]"

GOOD, NOTE, WARN = "good", "note", "warn"

# Times of some sources are whole microseconds.
_ROUNDING_NS = 1_000
_MOST_CLOCK_ERROR_NS = 100_000
_MOST_PROCESS_ERROR_NS = 1_000_000

# What can be recorded: what it is called, what it gives, and how to have it.
RECORDED: dict[str, tuple[str, str, str]] = {
    "operators": ("Operators", "times of operators and backward functions", "activities=[ProfilerActivity.CPU]"),
    "steps": ("Steps", "times of each step, and where they went", "prof.step() in the loop, or an optimizer of torch"),
    "devices": ("Devices", "kernels, copies, utilisation", "activities=[..., ProfilerActivity.CUDA]"),
    "shapes": ("Shapes", "FLOPs, bytes moved, operators by their inputs", "record_shapes=True, or --shapes"),
    "memory": ("Memory", "its curve, its peak and who held it", "profile_memory=True, or --memory"),
    "stacks": ("Stacks", "source lines and flame graphs", "with_stack=True"),
    "modules": ("Modules", "time and memory of each layer", "with_modules=True"),
    "python": ("Python calls", "functions as spans of the timeline", "python_calls=True"),
    "collectives": ("Collectives", "size and speed of calls between ranks", "torch.distributed in the program"),
    "counters": ("Counters", "samples over time", "sources=[SystemCounters()]"),
}  # fmt: skip


def said(text: str, *values: tuple[float | None, str] | int) -> Said:
    """A sentence and its numbers; one without a unit is a count."""
    return {"text": text, "values": [(value, "") if isinstance(value, int) else value for value in values]}


def judged(facts: dict[str, Any]) -> dict[str, Any]:
    """Judge what `health` found.

    Args:
        facts: The numbers, as `kinetoscope.viewer.pages.health:numbers` gives them.

    Returns:
        `state` (`good`, `note` or `warn`), `line` (all of it in one sentence), and `checks`: each with `state`, `title`, `told`
        (what was found) and `meaning`.
    """
    makers = (
        _recording, _losses, _ends, _launches, _early, _clock_check, _device_clock, _processes, _overhead, _coverage, _overlaps,
    )  # fmt: skip
    checks = [check for make in makers if (check := make(facts)) is not None]
    warnings = [check for check in checks if check["state"] == WARN]
    if facts["spans"] == 0 and not warnings:
        return {"state": NOTE, "line": said("The trace is empty"), "checks": checks}
    if facts["running"] and not warnings:
        return {"state": NOTE, "line": said("Still being recorded"), "checks": checks}
    if not warnings:
        return {"state": GOOD, "line": said("Nothing is missing"), "checks": checks}
    line = warnings[0]["told"]
    if more := len(warnings) - 1:
        line = said(
            f"{line['text']}, {{}} more {'warning' if more == 1 else 'warnings'}", *line["values"], more
        )
    return {"state": WARN, "line": line, "checks": checks}


def _check(state: str, title: str, told: Said, meaning: Said | str = "") -> Check:
    """One check."""
    meaning = said(meaning) if isinstance(meaning, str) else meaning
    return {"state": state, "title": title, "told": told, "meaning": meaning}


def _recording(facts: dict[str, Any]) -> Check:
    count, several = facts["not_stopped"], facts["processes"]["count"]
    if count == 0:
        return _check(GOOD, "Recording", said("Stopped cleanly"))
    if facts["running"]:
        return _check(NOTE, "Recording", said("Still recording"), "What was recorded until now is here.")
    if several > 1:
        meaning = "They were killed or crashed, or still ran: what they had recorded by then is here."
        return _check(WARN, "Recording", said("{} of {} processes never stopped", count, several), meaning)
    meaning = "The program ended, or runs elsewhere, without stop(): what it had recorded by then is here."
    return _check(WARN, "Recording", said("Never stopped"), meaning)


def _losses(facts: dict[str, Any]) -> Check:
    kinds, count = facts["losses"]["kinds"], facts["losses"]["count"]
    if kinds == 0:
        return _check(GOOD, "Losses", said("Nothing was lost"), "No record was dropped, cut or damaged.")
    of = said("{} losses of one kind", count) if kinds == 1 else said("{} losses of {} kinds", count, kinds)
    return _check(WARN, "Losses", of, "The table below says what is missing, where and why.")


def _ends(facts: dict[str, Any]) -> Check | None:
    spans, unfinished = facts["spans"], facts["unfinished"]
    if spans == 0:
        return None
    if unfinished == 0:
        return _check(GOOD, "Ends", said("All spans have an end"))
    told = said("{} of {} spans have no end", unfinished, spans)
    return _check(NOTE, "Ends", told, "They were still running when the recording ended, and are cut there.")


def _launches(facts: dict[str, Any]) -> Check | None:
    found = facts["launches"]
    if found is None:
        return None
    unused, values = "", cast("tuple[int, ...]", ())
    if found["without_work"]:
        unused = (
            "{} of {} calls that start work show none: it ran outside the recorded time, or none was needed."
        )
        values = (found["without_work"], found["calls"])
    lacking = found["work"] - found["tied"]
    if lacking == 0:
        told = said("All {} kernels and copies have the call that started them", found["work"])
        return _check(GOOD, "Launches", told, said(unused, *values))
    state = WARN if lacking > found["work"] * 0.01 else NOTE
    told = said("{} of {} kernels and copies lack the call that started them", lacking, found["work"])
    why = "Their time counts for no operator, module or line: the call came before the recording, or its record was lost. "
    return _check(state, "Launches", told, said(why + unused, *values))


def _early(facts: dict[str, Any]) -> Check | None:
    found = facts["launches"]
    if found is None or found["tied"] == 0:
        return None
    if found["earliest_ns"] <= _ROUNDING_NS:
        return _check(GOOD, "Host and device", said("No kernel or copy begins before its call"))
    state = WARN if found["early"] > found["tied"] * 0.01 else NOTE
    told = said("{} of {} kernels and copies begin before their call", found["early"], found["tied"])
    meaning = said("By up to {}: so far at least the clocks disagree.", (found["earliest_ns"], "ns"))
    return _check(state, "Host and device", told, meaning)


def _clock_check(facts: dict[str, Any]) -> Check | None:
    found = facts["clock"] or {}
    if "readings" not in found:
        return None
    error = found.get("largest_error_ns", 0)
    told = (
        said("Checked {} times, {} off at most", found["readings"], (error, "ns"))
        if error
        else said("Checked {} times, never off", found["readings"])
    )
    meaning = "The recorder's own clock against that of the system."
    return _check(WARN if error > _MOST_CLOCK_ERROR_NS else GOOD, "Clock", told, meaning)


def _device_clock(facts: dict[str, Any]) -> Check | None:
    found = facts["clock"] or {}
    calls, astride = found.get("device_calls", 0), found.get("device_calls_astride", 0)
    if calls == 0:
        return None
    meaning = said("Operators and calls of the device's runtime were timed by two clocks.")
    if shift := found.get("device_shift_ns", 0):
        meaning = said(f"{meaning['text']} The device's times were moved by {{}} to fit.", (shift, "ns"))
    if astride == 0:
        return _check(
            GOOD, "Clock of the device", said("All {} calls lie within their operators", calls), meaning
        )
    told = said("{} of {} calls do not lie within their operators", astride, calls)
    return _check(WARN if astride > calls * 0.01 else GOOD, "Clock of the device", told, meaning)


def _processes(facts: dict[str, Any]) -> Check | None:
    found = facts["processes"]
    if found["count"] < 2:
        return None
    if found["unknown_clocks"]:
        told = said(
            "Nobody knows how the clocks of {} of {} processes stood", found["unknown_clocks"], found["count"]
        )
        meaning = (
            "They are shown as if they had begun together: do not compare moments of different processes."
        )
        return _check(WARN, "Clocks of processes", told, meaning)
    error = found["largest_error_ns"]
    told = said("{} processes, {} off at most", found["count"], (error, "ns"))
    meaning = (
        "What is closer together than that on two processes may have happened in either order."
        if error
        else ""
    )
    return _check(NOTE if error > _MOST_PROCESS_ERROR_NS else GOOD, "Clocks of processes", told, meaning)


def _overhead(facts: dict[str, Any]) -> Check | None:
    found = facts["overhead"]
    if found["spans"] == 0:
        return None
    share = 100.0 * found["time_ns"] / found["duration_ns"] if found["duration_ns"] else 0.0
    state = WARN if share > 5 else NOTE if share > 1 else GOOD
    told = said("The profiler worked for {}, {} of the trace", (found["time_ns"], "ns"), (share, "%"))
    meaning = said("So it says itself, in {} spans of the kind overhead; the program waited.", found["spans"])
    return _check(state, "Overhead", told, meaning)


def _coverage(facts: dict[str, Any]) -> Check | None:
    share = facts["covered_percent"]
    if share is None:
        return None
    told = said("Known for {} of the operators' time", (share, "%"))
    meaning = "" if share == 100 else "FLOPs and bytes leave out the rest: see the table flops_coverage."
    return _check(NOTE if share < 80 else GOOD, "Counted operations", told, meaning)


def _overlaps(facts: dict[str, Any]) -> Check | None:
    if facts["overlapping"] == 0:
        return None
    told = said("{} spans partly overlap others of their thread", facts["overlapping"])
    meaning = "They stand beside the tree and have no time of their own, so that no moment counts twice."
    return _check(NOTE if facts["overlapping"] > facts["spans"] * 0.05 else GOOD, "Nesting", told, meaning)


REPORTED: tuple[tuple[str, dict[str, str]], ...] = (
    ("health", {}),
    ("table/losses", {}),
    ("table/processes", {}),
    ("table/info", {}),
)
"""What a report must answer of this."""

# What is missing from every recording that goes on.
UNTIL_STOPPED = (NOT_STOPPED, UNFINISHED_SPANS)
# Calls that start work on a device: cudaLaunchKernel, hipModuleLaunchKernel, cudaGraphLaunch, cudaMemcpyAsync, hipMemsetAsync.
_STARTS = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
_CLOCK_FACTS = (
    "readings", "largest_error_ns", "device_calls", "device_calls_astride", "device_shift_ns", "device_largest_astride_ns",
)  # fmt: skip


def health(trace: Trace, query: Query) -> dict[str, Any]:
    """Answer `health`: how far the trace holds what happened, and what was recorded."""
    # Not kept: a process can end at any time.
    running = is_running(trace)
    found = {
        **trace.cached("viewer: health", lambda: numbers(trace)),
        "running": running,
        "losses": losses(trace, UNTIL_STOPPED if running else ()),
    }
    return {**found, **judged(found), "recorded": recorded(trace)}


def losses(trace: Trace, expected: tuple[str, ...]) -> dict[str, int]:
    """How many kinds of losses there are besides those that are expected, and how many in all."""
    table = trace.columns("losses")
    lost = [count for code, count in zip(table["code"], table["count"], strict=True) if code not in expected]
    return {"kinds": len(lost), "count": int(sum(lost))}


def numbers(trace: Trace) -> dict[str, Any]:
    """The numbers by which one can judge how far the trace holds what happened; those that stay as they are."""
    spans, processes = trace.columns("spans"), trace.columns("processes")
    errors = processes["error_ns"]
    return {
        "not_stopped": trace.columns("losses")["code"].count(NOT_STOPPED)
        or int(trace.info.get("complete") is False and len(processes) == 0),
        "spans": len(spans),
        "unfinished": int(((spans["flags"] & FLAG_UNFINISHED) != 0).sum()),
        "overlapping": int((spans["lane"] > 0).sum()),
        "launches": launches(trace),
        "clock": _clock(trace.info.get("clock_checks")),
        "processes": {
            "count": max(1, len(processes)),
            "unknown_clocks": int((errors < 0).sum()),
            "largest_error_ns": int(errors.max(initial=0)),
        },
        "overhead": overhead(trace),
        "covered_percent": covered_percent(trace) if len(trace.columns("shapes")) else None,
    }


def launches(trace: Trace) -> dict[str, int] | None:
    """How many pieces of a device's work are tied to the call that started them; None without devices.

    `calls` are calls of the host that start work by their names; those `without_work` started none that is in the trace.
    `early` pieces begin before their call does.
    """
    work = device_work(trace).rows
    if len(work) == 0:
        return None
    spans, own = trace.columns("spans"), trace.columns("launches")
    known = (own["host"] >= 0) & (own["device"] >= 0)
    host, device = own["host"][known], own["device"][known]
    is_work = np.zeros(len(spans), bool)
    is_work[work] = True
    tied, starting = np.zeros((2, len(spans)), bool)
    tied[device] = True
    starting[host] = True
    kind = spans["kind"]
    named = np.zeros(len(trace.strings), bool)
    calls = np.flatnonzero(calls_runtime(kind))
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


def overhead(trace: Trace) -> dict[str, int]:
    """How much time a profiler says that it took itself, moments on several threads counted once."""
    spans = trace.columns("spans")
    rows = np.flatnonzero(spans["kind"] == SpanKind.OVERHEAD)
    start = spans["start_ns"][rows]
    return {
        "spans": len(rows),
        "time_ns": Intervals.of(start, start + spans["duration_ns"][rows]).total_ns,
        "duration_ns": trace.duration_ns,
    }


def recorded(trace: Trace) -> list[dict[str, Any]]:
    """How many rows there are of all that can be recorded, and whether it was asked for where the trace says so."""
    kind = np.bincount(trace.column("spans", "kind"), minlength=len(SpanKind))
    told = trace.info
    rows = {
        "operators": (int(kind[SpanKind.OPERATOR] + kind[SpanKind.BACKWARD]), None),
        "steps": (len(trace.columns("steps")), None),
        "devices": (len(device_work(trace).rows), None),
        "shapes": (len(trace.columns("shapes")), told.get("record_shapes")),
        "memory": (len(trace.columns("allocations")), memory_recorded(trace) or told.get("profile_memory")),
        "stacks": (len(trace.columns("stacks")), told.get("with_stack")),
        "modules": (len(trace.columns("modules")), told.get("with_modules")),
        "python": (int(kind[SpanKind.PYTHON] + kind[SpanKind.MODULE]), None),
        "collectives": (
            trace.cached("viewer: count of collectives", lambda: len(trace.table("collectives"))),
            None,
        ),
        "counters": (len(trace.columns("counters")), None),
    }
    return [
        {
            "title": RECORDED[what][0],
            "gives": RECORDED[what][1],
            "how": RECORDED[what][2],
            "rows": count,
            "asked": None if asked is None else bool(asked),
        }
        for what, (count, asked) in rows.items()
    ]


def _clock(told: object) -> dict[str, int] | None:
    """What checks of clocks found, as far as it is numbers."""
    if not isinstance(told, dict):
        return None
    found = {name: told[name] for name in _CLOCK_FACTS if type(told.get(name)) is int}
    return {name: value for name, value in found.items() if abs(value) < 2**53} or None
