"""Questions of the overview: what ran where, the numbers at its head, and what took most of the time.

The steps' parts and the devices come from the tables `breakdown` and `devices` as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._windows import start_up_steps
from kinetoscope.tables.breakdown import StepTime, step_time
from kinetoscope.tables.flops import counted_flops
from kinetoscope.tables.memory_peak import device_peaks
from kinetoscope.trace import SpanKind
from kinetoscope.trace._device_time import works_on_device
from kinetoscope.trace._processes import of_processes
from kinetoscope.trace._shown import memory_recorded
from kinetoscope.viewer._run_facts import ended, program, run_facts
from kinetoscope.viewer._tiles import memory_tile, tiles, work_tile

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer._answers import Query

MOST_PLACES, MOST_NAMED = 12, 1000

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (
    ("overview", {}),
    ("overview/work", {}),
    ("overview/memory", {}),
    ("table/breakdown", {}),
    ("table/devices", {}),
    ("health", {}),
    *((f"top/{name}", {"time": time}) for name in ("ops", "modules", "lines") for time in ("host", "device")),
    ("top/kernels", {}),
)
"""What a report must answer of this."""


def overview(trace: Trace, query: Query) -> dict[str, Any]:
    """Answer `overview`: what ran where, how much of what there is, and how long the steps took."""
    kind, began = trace.column("spans", "kind"), trace.info.get("start_realtime_ns")
    of_kind = np.bincount(kind, minlength=len(SpanKind))
    rows = {
        name: len(trace.columns(name))
        for name in ("threads", "modules", "stacks", "shapes", "allocations", "collectives", "counters")
    }
    found = {
        "program": program(trace.info),
        "ended": ended(trace.info),
        "start_realtime_ns": began if type(began) is int and 0 < began < 2**63 else None,
        "duration_ns": trace.duration_ns,
        "facts": run_facts(trace),
        "processes": max(1, len(trace.columns("processes"))),
        "process_names": process_names(trace),
        "spans": len(kind),
        "operators": int(of_kind[SpanKind.OPERATOR] + of_kind[SpanKind.BACKWARD]),
        "kernels": int(of_kind[SpanKind.KERNEL]),
        "device_work": int(works_on_device(kind).sum()),
        **rows,
        "memory": memory_recorded(trace),
        "steps": steps(trace),
        "utilization": utilization(trace),
    }
    return {**found, "tiles": tiles(trace, found)}


def steps(trace: Trace) -> dict[str, Any] | None:
    """How long the steps took, those left out that hold start-up; None without any."""
    own = trace.columns("steps")
    if len(own) == 0:
        return None
    counted = ~start_up_steps(trace)
    duration = own["duration_ns"][counted]
    return {
        "count": len(own),
        "numbers": len(np.unique(own["number"])),
        "processes": len(np.unique(own["process_row"])),
        "median_ns": float(np.median(duration)),
        "min_ns": int(duration.min()),
        "max_ns": int(duration.max()),
        "p95_ns": float(np.percentile(duration, 95)),
        "start_up": int((~counted).sum()),
    }


def process_names(trace: Trace) -> dict[str, str]:
    """What the processes of a trace of several are called, by their numbers in the system."""
    table = trace.columns("processes")
    names = zip(table["pid"].tolist(), table["name"], strict=True)
    return {str(pid): name[:200] for pid, name in list(names)[:MOST_NAMED] if pid >= 0}


def utilization(trace: Trace) -> list[dict[str, Any]]:
    """How busy each device was, or each process that used none: the share of its step time or, without steps, of its recorded time.

    At most `MOST_PLACES`, those first that have steps, and of each sort the busiest.
    """
    models = {
        (row["process"], row["device"]): row["model"]
        for row in trace.table("devices").select(["process", "device", "model"]).to_pylist()
    }
    pids = of_processes(trace, np.array([place.process for place in step_time(trace)], np.int32))[
        "process"
    ].tolist()
    rows = list(zip(step_time(trace), pids, strict=True))
    rows.sort(key=lambda row: (row[0].steps == 0, -_share(row[0].working_ns, row[0].duration_ns)))
    return [
        {
            "title": place_title(trace, place),
            "percent": _share(place.working_ns, place.duration_ns),
            "model": models.get((None if pid < 0 else pid, place.device)),
            "working_ns": place.working_ns,
            "duration_ns": place.duration_ns,
            "steps": place.steps,
            "on_host": place.device == "cpu",
        }
        for place, pid in rows[:MOST_PLACES]
    ]


def place_title(trace: Trace, place: StepTime) -> str:
    """What the place of a breakdown is called: its process, where there are several, or its rank, and its device."""
    named = place.process >= 0 and (place.rank < 0 or place.steps == 0)
    name = trace.columns("processes")["name"][place.process] if named else ""
    return " · ".join(filter(None, (name, f"rank {place.rank}" if place.rank >= 0 else "", place.device)))


def part(trace: Trace, query: Query, name: str) -> dict[str, Any]:
    """Answer `overview/work` and `overview/memory`, which take longer to find.

    Raises:
        LookupError: It is none of them.
    """
    if name == "work":
        found = work(trace)
        return {**found, "tile": work_tile(found)}
    if name == "memory":
        peaks = trace.cached("viewer: memory peaks", lambda: memory_peaks(trace))
        return {"peaks": peaks, "tile": memory_tile(peaks)}
    raise LookupError(name)


def work(trace: Trace) -> dict[str, Any]:
    """How many operations were counted, how fast, and how near to the peak of the devices.

    With steps these are the numbers of the median step that has any, without them those of the whole trace. Where too little is
    known of what was computed, they are None and `why` says why.
    """
    counted = counted_flops(trace)
    found: dict[str, Any] = {
        "flops": counted.flops, "covered_percent": counted.covered_percent, "why": counted.why,
        "flops_per_s": None, "mfu_percent": None,
    }  # fmt: skip
    if counted.flops is None:
        return found
    table = trace.table("steps")
    rates = [rate for rate in table["flops_per_s"].to_pylist() if rate is not None]
    used = [mfu for mfu in table["mfu"].to_pylist() if mfu is not None]
    of_trace = counted.flops * 1e9 / trace.duration_ns if counted.flops and trace.duration_ns else None
    found["flops_per_s"] = float(np.median(rates)) if rates else of_trace
    found["mfu_percent"] = 100.0 * float(np.median(used)) if used else None
    return found


def memory_peaks(trace: Trace) -> list[dict[str, Any]]:
    """The most memory of each device, the largest first, how much of it is attributed, and to which categories."""
    if not memory_recorded(trace):
        return []
    listed = trace.table("devices").select(["device", "memory_bytes"]).to_pylist()
    size = {row["device"]: row["memory_bytes"] for row in listed}
    found = []
    for peak in device_peaks(trace):
        held = trace.table("memory_peak", device=peak.device).select(["category", "bytes"])
        sums = held.group_by("category").aggregate([("bytes", "sum")]).to_pylist()
        categories = [{"category": row["category"], "bytes": row["bytes_sum"]} for row in sums]
        found.append({
            "device": peak.device,
            "bytes": peak.bytes,
            "time_ns": peak.time_ns,
            "counted": peak.counted,
            "attributed_bytes": peak.attributed_bytes,
            "reserved_bytes": peak.reserved_bytes,
            "size_bytes": size.get(peak.device),
            "categories": sorted(categories, key=lambda row: (-row["bytes"], row["category"] or "")),
        })  # fmt: skip
    return found


def _share(part: int, whole: int) -> float:
    """A share in percent; 0 of nothing."""
    return 100.0 * part / whole if whole else 0.0
