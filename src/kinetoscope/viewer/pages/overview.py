"""Questions of the overview: what ran where, the numbers at its head, and what took most of the time.

The steps' parts and the devices come from the tables `breakdown` and `devices` as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinetoscope._errors import ArgumentError
from kinetoscope.analyses.warm_up import warm_up
from kinetoscope.display.description import command_line, environment
from kinetoscope.display.sentence import Sentence, sentence
from kinetoscope.model.arrow import number_array, text_array, to_arrow
from kinetoscope.model.kinds import is_device_work
from kinetoscope.model.processes import host_threads, of_processes
from kinetoscope.model.schema import Column, SpanKind, Table
from kinetoscope.model.strings import to_utf8
from kinetoscope.tables.breakdown import StepTime, host_shares, step_time
from kinetoscope.tables.costs.flops import counted_flops
from kinetoscope.tables.device.work import busy, device_work
from kinetoscope.tables.host.lines import lines_in
from kinetoscope.tables.host.modules import modules_in
from kinetoscope.tables.host.ops import operators_in
from kinetoscope.tables.memory.peak import device_peaks
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.tables.windows import start_up_steps
from kinetoscope.viewer.server.requests import Limited
from kinetoscope.viewer.timeline.tracks import counters_of

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.tables.intervals import Intervals
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.requests import Query
    from kinetoscope.viewer.timeline.tracks import Counter


# How busy devices were, and what was sampled of the machine, over the whole trace at the detail of a small chart.

STRETCHES = 240
MOST_SERIES = 24


def load(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `load`: the trace in equal stretches of time, and for each of them what devices and the machine did.

    The column `time_ns` is where each stretch begins. The others, `series0` and so on, have what they show as their
    meaning: of each device the percentage of the time in which it worked, then each sampled counter, of bytes the most
    and of everything else the mean, which is null before the first sample.
    """
    edges = np.linspace(0.0, max(trace.duration_ns, 1), STRETCHES + 1)
    columns: dict[str, Any] = {"time_ns": edges[:-1]}
    fields = [Column("time_ns", "float64", "ns", "Where the stretch begins.")]
    work, many = device_work(trace), len({device.rank for device in device_work(trace).devices}) > 1
    for device, did in zip(work.devices, busy(trace), strict=True):
        rank = f" · rank {device.rank}" if many else ""
        _add(
            columns,
            fields,
            "%",
            f"{device.name}{rank} busy",
            busy_percent(did.compute | did.communication | did.copies, edges),
        )
    for counter in counters_of(trace):
        if counter.detail == "sampled":
            _add(columns, fields, counter.unit, counter.label, sampled(counter, edges))
    kept = fields[: 1 + MOST_SERIES]
    return to_arrow(
        Table("load", "A stretch of time.", tuple(kept)), {one.name: columns[one.name] for one in kept}
    )


def busy_percent(worked: Intervals, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of each stretch between two edges in which something worked."""
    if len(worked) == 0:
        return np.zeros(len(edges) - 1)
    # How much work was done up to a time: flat between stretches of work, rising within them.
    turns = np.stack([worked.start_ns, worked.end_ns], axis=1).ravel()
    lasting = np.cumsum(worked.end_ns - worked.start_ns)
    done = np.stack([np.append(0, lasting[:-1]), lasting], axis=1).ravel()
    share: NDArray[np.float64] = 100 * np.diff(np.interp(edges, turns, done)) / np.diff(edges)
    return share.clip(0, 100)


def sampled(counter: Counter, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values of a counter between any two edges; each holds until the next."""
    time, value = counter.time_ns.astype(np.float64), counter.value
    rows = np.searchsorted(time, edges)
    if counter.unit == "bytes":
        first = np.maximum(rows[:-1] - 1, 0)
        pairs = np.stack([first, np.maximum(rows[1:], first + 1)], axis=1).ravel()
        found = np.maximum.reduceat(np.append(value, -np.inf), pairs)[::2]
    else:
        known = np.append(time, max(edges[-1], time[-1]) + 1)
        # In parts of the largest value, so that no sum overflows: a mean is never above it.
        largest = float(np.abs(value).max()) or 1.0
        sums = np.append(0, np.cumsum(value / largest * np.diff(known)))
        covered = np.diff(np.maximum(edges, time[0]))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.diff(np.interp(edges, known, sums)) / covered * largest
    return np.where(edges[1:] > time[0], found, np.nan)


def _add(
    columns: dict[str, Any], fields: list[Column], unit: str, label: str, values: NDArray[np.float64]
) -> None:
    """Put one more series to those that are there."""
    name = f"series{len(fields) - 1}"
    columns[name] = values
    fields.append(Column(name, "float64", unit, label))


# The first rows of tables by time, for lists of what took most.

MOST = 10
TIMES = ("host", "device")

# Of each table: its column for the time on devices, and those for `name`, `detail`, `kind`, `key`, `depth` and `count`.
_COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "ops": ("device_self_ns", {"name": "name", "kind": "kind", "count": "count"}),
    "modules": (
        "device_ns",
        {"name": "path", "detail": "class", "key": "id", "depth": "depth", "count": "total_operators"},
    ),
    "lines": (
        "device_self_ns",
        {"name": "file", "detail": "function", "key": "line", "count": "count"},
    ),
    "kernels": ("total_ns", {"name": "name", "detail": "operator", "kind": "category", "count": "count"}),
}  # fmt: skip
_TEXTS, _NUMBERS = ("name", "detail", "kind"), ("key", "depth", "count")


def top(trace: Trace, query: Query, name: str) -> Limited:
    """Respond to `top/ops`, `top/modules`, `top/lines` or `top/kernels`: the rows with the most time.

    The option `time` says whose: `host` or `device`. On the host these are times in the steps, start-up left out, and shares of step
    time; ranges are no operators. On devices they are shares of all such time. Modules stay in the order of their tree; those of several processes that
    have one path and class are one.

    Returns:
        `name`, `detail`, `kind`, `key`, `depth`, `count`, `time_ns`, and `share` in percent.

    Raises:
        LookupError: Another table.
        ArgumentError: Another time.
    """
    if name not in _COLUMNS:
        raise LookupError(name)
    time = query.get("time", "host")
    if time not in TIMES:
        raise ArgumentError(f"time={time[:50]!r} is not valid: use 'host' or 'device'")
    return trace.cached(f"viewer: top {name} {time}", lambda: _top(trace, name, time))


def _top(trace: Trace, name: str, time: str) -> Limited:
    """Put the rows together."""
    if time == "host" and name != "kernels":
        return _of_host(trace, name)
    times, columns = _COLUMNS[name]
    found = trace.table(name)
    total = len(found)
    made: dict[str, Any] = {
        column: found[columns[column]].cast(pa.string())
        if column in columns
        else pa.nulls(len(found), pa.string())
        for column in _TEXTS
    }
    made |= {
        column: found[columns[column]].cast(pa.int64()) if column in columns else pa.nulls(len(found), pa.int64())
        for column in _NUMBERS
    }  # fmt: skip
    made["time_ns"] = found[times].cast(pa.int64())
    table = pa.table(made)
    if name == "modules" and len(trace.columns("processes")):
        table = _alike_together(table)
    if name == "kernels":
        whole = int(pc.sum(table["time_ns"]).as_py() or 0)
    else:
        whole = int(trace.column("spans", "device_self_ns").clip(0).sum())
    return _largest(table, name, whole, total)


def _of_host(trace: Trace, name: str) -> Limited:
    """The rows by their time on the host in the steps, as share of step time."""
    shares = host_shares(trace)
    makers = {"ops": operators_in, "modules": modules_in, "lines": lines_in}
    rows: list[dict[str, Any]] = makers[name](trace, shares)
    time = {"modules": "total_ns", "lines": "time_ns"}.get(name, "self_ns")
    _, columns = _COLUMNS[name]
    made: dict[str, Any] = {
        column: text_array(to_utf8(row[columns[column]]) for row in rows)
        if column in columns
        else pa.nulls(len(rows), pa.string())
        for column in _TEXTS
    }
    made |= {
        column: number_array(np.array([row[columns[column]] for row in rows], dtype=np.int64))
        if column in columns
        else pa.nulls(len(rows), pa.int64())
        for column in _NUMBERS
    }
    made["time_ns"] = number_array(np.array([row[time] for row in rows], dtype=np.int64))
    return _largest(pa.table(made), name, shares.whole_ns, len(rows))


def _largest(table: pa.Table, name: str, whole: int, total: int) -> Limited:
    """The rows with the most time, with their shares of a whole."""
    share = pc.divide(pc.multiply(table["time_ns"].cast(pa.float64()), 100.0), float(whole or 1))
    table = table.append_column("share", share).filter(pc.greater(table["time_ns"], 0))
    order = pc.sort_indices(table["time_ns"], sort_keys=[("", "descending")])[:MOST]
    if name == "modules":
        order = pc.take(order, pc.sort_indices(order))
    return Limited(table.take(order), total)


def _alike_together(table: pa.Table) -> pa.Table:
    """Add up the modules of one path and class, each in the place of the first."""
    keys = ["name", "detail", "depth"]
    sums = table.append_column("place", number_array(np.arange(len(table)))).group_by(keys)
    added = sums.aggregate([("key", "min"), ("count", "sum"), ("time_ns", "sum"), ("place", "min")])
    added = added.sort_by("place_min")
    made = {name: added[name] for name in keys}
    made |= {"key": added["key_min"], "count": added["count_sum"], "time_ns": added["time_ns_sum"]}
    made["kind"] = pa.nulls(len(added), pa.string())
    return pa.table({name: made[name] for name in table.column_names})


# The numbers at the top of the overview.


def tile(
    title: str, value: float | None, unit: str, more: Sentence, hint: Sentence | None = None
) -> dict[str, Any]:
    """A number with its title, the line below it, and its tooltip."""
    return {"title": title, "value": [value, unit], "more": more, "hint": hint or sentence("")}


def late(title: str, question: str) -> dict[str, str]:
    """A number that takes longer to compute: another request returns it as `tile`."""
    return {"title": title, "ask": question}


def counted(count: int, noun: str, nouns: str = "") -> Sentence:
    """A count and what is counted."""
    return sentence(f"{{}} {noun if count == 1 else nouns or noun + 's'}", count)


def tiles(trace: Trace, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all that can be computed.

    Args:
        trace: The trace.
        facts: The rest of the answer to `overview`.
    """
    processes, kernels, operators = (facts[name] for name in ("processes", "kernels", "operators"))
    recorded = (
        counted(processes, "process", "processes") if processes > 1 else counted(facts["threads"], "thread")
    )
    found = [tile("Recorded", facts["duration_ns"], "ns", recorded)]
    if facts["steps"]:
        found.append(step_tile(facts["steps"]))
    found.append(busy_tile(trace, facts))
    if facts["memory"]:
        found.append(late("Memory peak", "overview/memory"))
    found.append(
        tile("Kernels", kernels, "", counted(operators, "operator"))
        if kernels
        else tile("Operators", operators, "", counted(facts["spans"], "span"))
    )
    if facts["shapes"]:
        found.append(late("Arithmetic", "overview/work"))
    return found


def step_tile(steps: dict[str, Any]) -> dict[str, Any]:
    """How long a step takes, where the trace has steps."""
    count, numbers = steps["count"], steps["numbers"]
    if numbers < count:
        text = f"{{}} step{'' if numbers == 1 else 's'} on {{}} processes"
        more = sentence(text, numbers, steps["processes"])
    elif count == 1:
        more = sentence("the only step")
    else:
        more = sentence("of {}, 95 % ≤ {}", count, (steps["p95_ns"], "ns"))
    start_up = (
        "The first step includes what ran before the loop and is not counted here."
        if steps["start_up"]
        else ""
    )
    hints = [start_up, f"{warm[0].upper()}{warm[1:]}." if (warm := steps.get("warm_up", "")) else ""]
    hint = sentence(" ".join(filter(None, hints))) if any(hints) else None
    return tile("Step" if count == 1 else "Median step", steps["median_ns"], "ns", more, hint)


def busy_tile(trace: Trace, facts: dict[str, Any]) -> dict[str, Any]:
    """How much of the steps, or of the trace, devices worked, or operators ran where there is no device.

    Processes without steps, such as workers that load data, do not count where others have steps.
    """
    places = [place for place in step_time(trace) if place.steps or not facts["steps"]]
    shares = [100 * place.working_ns / place.duration_ns for place in places if place.duration_ns]
    on_host = facts["device_work"] == 0
    of = "of step time" if facts["steps"] else "of recorded time"
    more = sentence(of)
    if len(shares) > 1:
        more = sentence(
            f"{of}, {{}} {'processes' if on_host else 'devices'}: {{}} to {{}}",
            len(shares), (min(shares), "%"), (max(shares), "%"),
        )  # fmt: skip
    what = (
        "an operator or backward function ran" if on_host else "the device computed, communicated or copied"
    )
    whole = sum(place.duration_ns for place in places)
    share = 100 * sum(place.working_ns for place in places) / whole if whole else None
    title = "In operators" if on_host else "Device busy"
    return tile(title, share, "%", more, sentence(f"The share {of} during which {what}."))


def memory_tile(peaks: list[dict[str, Any]]) -> dict[str, Any]:
    """The most memory of any device, by its peaks, the largest first."""
    if not peaks:
        none = sentence("no allocations recorded")
        return tile(
            "Memory peak",
            None,
            "bytes",
            none,
            sentence("The most bytes of tensors that were live at the same time."),
        )
    first = peaks[0]
    whole, attributed = (first["bytes"], "bytes"), (first["attributed_bytes"], "bytes")
    when, size = (first["time_ns"], "ns"), first["size_bytes"]
    parts: list[tuple[str, list[tuple[float | None, str]]]] = []
    if attributed < whole:
        parts.append(("{} attributed", [attributed]))
    if size:
        parts.append(("{} of {}", [(100 * first["bytes"] / size, "%"), (size, "bytes")]))
    parts = parts or [("after {}", [when])]
    more = sentence(
        " · ".join([first["device"], *(text for text, _ in parts)]),
        *(one for _, values in parts for one in values),
    )
    if not first["counted"]:
        hint = sentence(
            "The most bytes of tensors that were live at the same time, of those whose allocation was recorded. "
            "The allocator's own counters were not recorded."
        )
    else:
        hint = sentence(
            "The peak of the allocator's allocated bytes, {} after the start. Up to {} of it is attributed: "
            "its allocation and owner were recorded.",
            when, attributed,
        )  # fmt: skip
    return tile("Memory peak", first["bytes"], "bytes", more, hint)


def work_tile(work: dict[str, Any]) -> dict[str, Any]:
    """How fast operations were done, and the share of the peak where that is known."""
    speed, share, flops = work["flops_per_s"], work["mfu_percent"], work["flops"]
    if flops is None:
        more = sentence("covers {} of operator time", (work["covered_percent"], "%"))
        return tile("Arithmetic", None, "FLOP/s", more, sentence(work["why"].replace("{}", "{ }")))
    covered = sentence("{} in total, covering {} of operator time.", (flops, "FLOP"), (work["covered_percent"], "%"))  # fmt: skip
    if share is None:
        return tile("Arithmetic", speed, "FLOP/s", sentence("{} in total", (flops, "FLOP")), covered)
    text = "Model FLOPs utilization (MFU): the time that the matrix operations take at the peak speed of the devices, as a share of the step. "
    hint = sentence(text + covered["text"], *covered["values"])
    return tile("MFU", share, "%", sentence("{}", (speed, "FLOP/s")), hint)


MOST_PLACES, MOST_NAMED = 12, 1000

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (
    ("load", {}),
    ("overview", {}),
    ("overview/work", {}),
    ("overview/memory", {}),
    ("table/breakdown", {}),
    ("table/devices", {}),
    ("table/step_difference", {}),
    ("health", {}),
    *((f"top/{name}", {"time": time}) for name in ("ops", "modules", "lines") for time in ("host", "device")),
    ("top/kernels", {}),
)
"""What a report includes."""


def overview(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `overview`: what ran where, how much of what there is, and how long the steps took."""
    kind, began = trace.column("spans", "kind"), trace.run_info.start_realtime_ns
    of_kind = np.bincount(kind, minlength=len(SpanKind))
    rows = {
        name: len(trace.columns(name))
        for name in ("modules", "stacks", "shapes", "allocations", "collectives", "counters")
    }
    found = {
        "program": command_line(trace.run_info) or None,
        "ended": trace.run_info.program_ended or None,
        "start_realtime_ns": began,
        "duration_ns": trace.duration_ns,
        "facts": [{"label": fact.label, "value": fact.text} for fact in environment(trace)],
        "processes": max(1, len(trace.columns("processes"))),
        "process_names": process_names(trace),
        "spans": len(kind),
        "operators": int(of_kind[[SpanKind.OPERATOR, SpanKind.BACKWARD, SpanKind.FUSED_KERNEL]].sum()),
        "kernels": int(of_kind[SpanKind.KERNEL]),
        "device_work": int(is_device_work(kind).sum()),
        "threads": int(host_threads(trace).sum()),
        **rows,
        "memory": memory_recorded(trace),
        "steps": steps(trace),
        "utilization": utilization(trace),
    }
    return {**found, "tiles": tiles(trace, found)}


def steps(trace: Trace) -> dict[str, Any] | None:
    """How long the steps took, those with start-up excluded; None without any."""
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
        "warm_up": warm_up(trace).text,
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
    """Respond to `overview/work` and `overview/memory`, which take longer to find.

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
