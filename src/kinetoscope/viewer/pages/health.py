"""How far a trace can be trusted: what is missing, how its clocks fit, what recording cost, and what was recorded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.device_time import calls_runtime
from kinetoscope.model.losses import NOT_STOPPED
from kinetoscope.model.schema import FLAG_UNFINISHED, SpanKind
from kinetoscope.tables.costs.flops import covered_percent
from kinetoscope.tables.device.work import device_work
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.viewer.pages.checks import RECORDED, judged
from kinetoscope.viewer.server.open_traces import is_running

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (
    ("health", {}),
    ("table/losses", {}),
    ("table/processes", {}),
    ("table/info", {}),
)
"""What a report must answer of this."""

# What is missing from every recording that goes on.
UNTIL_STOPPED = (NOT_STOPPED, "spans without an end")
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
    lost = [count for what, count in zip(table["what"], table["count"], strict=True) if what not in expected]
    return {"kinds": len(lost), "count": int(sum(lost))}


def numbers(trace: Trace) -> dict[str, Any]:
    """The numbers by which one can judge how far the trace holds what happened; those that stay as they are."""
    spans, processes = trace.columns("spans"), trace.columns("processes")
    errors = processes["error_ns"]
    return {
        "not_stopped": sum(what == NOT_STOPPED for what in trace.columns("losses")["what"])
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
