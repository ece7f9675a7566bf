"""The page Overview: what ran where, the tiles with key numbers, and the top lists.

The breakdown of steps and the devices come directly from the tables `breakdown` and `devices`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc

from kinetoscope.analyses.description import environment
from kinetoscope.analyses.health import advised
from kinetoscope.analyses.overview import TOP, Overview, StepDurations
from kinetoscope.analyses.trace_blocks import ahead_sentence
from kinetoscope.display.sentence import Sentence, plain, sentence
from kinetoscope.model.arrow import to_arrow, to_numpy
from kinetoscope.model.dictionary import Column, Table
from kinetoscope.tables.device.utilization import edges_of
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Limited, Query

STRETCHES = 240
MOST_SERIES = 24


def load(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `load`: the table `utilization`, with a column for each device and counter.

    The column `time_ns` is the start of each stretch. The other columns, `series0` and so on, are described by their metadata.
    """
    table = trace.table("utilization", stretches=STRETCHES)
    columns: dict[str, Any] = {"time_ns": edges_of(trace, STRETCHES)[:-1]}
    fields = [Column("time_ns", "float64", "ns", "Where the stretch begins.")]
    first = table.take(np.arange(0, len(table), STRETCHES))
    ranks = first.filter(pc.is_valid(first["device"]))["rank"].unique()
    values = to_numpy(table["value"])
    for index, series in enumerate(first.slice(0, MOST_SERIES).to_pylist()):
        label = series["name"]
        if series["device"] is not None:
            rank = f" · rank {series['rank']}" if len(ranks) > 1 and series["rank"] is not None else ""
            label = f"{series['device']}{rank} busy"
        columns[f"series{index}"] = values[index * STRETCHES : (index + 1) * STRETCHES]
        fields.append(Column(f"series{index}", "float64", series["unit"] or "", label))
    return to_arrow(Table("load", "A stretch of time.", tuple(fields)), columns)


def top(trace: Trace, query: Query, name: str) -> Limited:
    """Respond to `top/ops`, `top/modules`, `top/lines` or `top/kernels`: the rows with the most `time`, as of `Overview.top`.

    Raises:
        LookupError: There is no such table.
        ArgumentError: `time` has an invalid value.
    """
    if name not in TOP:
        raise LookupError(name)
    return Limited(*trace.overview().top(name, query.get("time", "host")))


def tile(
    title: str, value: float | None, unit: str, more: Sentence, hint: Sentence | None = None
) -> dict[str, Any]:
    """Build a tile: a number with a title, a line below it, and a tooltip."""
    return {"title": title, "value": [value, unit], "more": more, "hint": hint or sentence("")}


def late(title: str, question: str) -> dict[str, str]:
    """Build a placeholder for a tile that takes longer to compute, and is returned by another request."""
    return {"title": title, "ask": question}


def counted(count: int, noun: str, nouns: str = "") -> Sentence:
    """Format a count with its noun."""
    return sentence(f"{{}} {noun if count == 1 else nouns or noun + 's'}", count)


def tiles(shown: Overview) -> list[dict[str, Any]]:
    """Return all tiles for which the trace has data."""
    counts = shown.counts | shown.work_counts
    processes, kernels, operators = (counts[name] for name in ("processes", "kernels", "operators"))
    recorded = (
        counted(processes, "process", "processes") if processes > 1 else counted(counts["threads"], "thread")
    )
    shown_tiles = [tile("Recorded", shown.trace.duration_ns, "ns", recorded)]
    if shown.trace.run_info.is_snapshot:
        return [*shown_tiles, late("Memory peak", "overview/memory")]
    if shown.steps is not None:
        shown_tiles.append(step_tile(shown, shown.steps))
    shown_tiles.append(busy_tile(shown))
    if shown.memory_recorded:
        shown_tiles.append(late("Memory peak", "overview/memory"))
    if kernels:
        shown_tiles.append(tile("Kernels", kernels, "", counted(operators, "operator")))
    else:
        shown_tiles.append(tile("Operators", operators, "", counted(counts["spans"], "span")))
    if counts["shapes"]:
        shown_tiles.append(late("Arithmetic", "overview/work"))
    return shown_tiles


def step_tile(shown: Overview, steps: StepDurations) -> dict[str, Any]:
    """Build the tile of the step duration."""
    usual = steps.count - steps.start_up
    if steps.numbers < steps.count:
        text = f"{{}} step{'' if steps.numbers == 1 else 's'} on {{}} processes"
        more = sentence(text, steps.numbers, steps.processes)
    elif steps.count == 1:
        more = sentence("the only step")
    else:
        more = sentence("mean of {}, 95 % ≤ {}", usual, (steps.p95_ns, "ns"))
    words, main = shown.step_kinds_in_words, shown.main_kind
    ahead = plain(ahead_sentence(steps)) if steps.ahead_ns else ""
    hints = [f"{text[0].upper()}{text[1:]}." for text in (words, shown.warm_up.text, ahead) if text]
    if steps.start_up:
        hints = ["The first step includes what ran before the loop and is not counted here.", *hints]
    hint = sentence(" ".join(hints).replace("{}", "{ }")) if hints else None
    if words and main is not None:
        more = sentence("{} · {} of other kinds", main["count"], usual - main["count"])
        return tile("Step, main kind", main["total_ns"] / main["count"], "ns", more, hint)
    return tile("Step", steps.mean_ns, "ns", more, hint)


def busy_tile(shown: Overview) -> dict[str, Any]:
    """Build the tile of utilization: the share of time in which devices were busy or, without devices, operators ran."""
    counted_places = shown.places_that_count
    shares = [
        device.percent
        for device in shown.utilization
        if device.place in counted_places and device.place.duration_ns
    ]
    on_host = shown.work_counts["device_work"] == 0
    scope = "of step time" if shown.steps else "of recorded time"
    more = sentence(scope)
    if len(shares) > 1:
        more = sentence(
            f"{scope}, {{}} {'processes' if on_host else 'devices'}: {{}} to {{}}",
            len(shares), (min(shares), "%"), (max(shares), "%"),
        )  # fmt: skip
    activity = (
        "an operator or backward function ran" if on_host else "the device computed, communicated or copied"
    )
    title = "In operators" if on_host else "Device busy"
    return tile(title, shown.busy_percent, "%", more, sentence(f"The share {scope} during which {activity}."))


def memory_tile(peaks: list[dict[str, Any]]) -> dict[str, Any]:
    """Build the tile of peak memory, from the peaks of all devices, the largest first."""
    tensors = "The most bytes of tensors that were live at the same time"
    if not peaks:
        return tile(
            "Memory peak", None, "bytes", sentence("no allocations recorded"), sentence(f"{tensors}.")
        )
    first = peaks[0]
    attributed, when = (first["attributed_bytes"], "bytes"), (first["time_ns"], "ns")
    numbers: dict[str, list[tuple[float | None, str]]] = {}
    if first["attributed_bytes"] < first["bytes"]:
        numbers["{} attributed"] = [attributed]
    if size := first["size_bytes"]:
        numbers["{} of {}"] = [(100 * first["bytes"] / size, "%"), (size, "bytes")]
    numbers = numbers or {"after {}": [when]}
    more = sentence(
        " · ".join([first["device"], *numbers]), *(part for parts in numbers.values() for part in parts)
    )
    if not first["counted"]:
        hint = sentence(
            f"{tensors}, of those whose allocation was recorded. The allocator's own counters were not recorded."
        )
    else:
        hint = sentence(
            "The peak of the allocator's allocated bytes, {} after the start. Up to {} of it is attributed: "
            "its allocation and owner were recorded.",
            when, attributed,
        )  # fmt: skip
    return tile("Memory peak", first["bytes"], "bytes", more, hint)


def work_tile(work: dict[str, Any]) -> dict[str, Any]:
    """Build the tile of achieved FLOP/s, with the share of the device's peak if that is known."""
    speed, share, flops = work["flops_per_s"], work["mfu_percent"], work["flops"]
    if flops is None:
        more = sentence("covers {} of operator time", (work["covered_percent"], "%"))
        return tile("Arithmetic", None, "FLOP/s", more, sentence(work["why"].replace("{}", "{ }")))
    kinds = work.get("kinds", ())[:_MOST_KINDS]
    unit, name = ("FLOP/s", "flops_per_s") if share is None else ("%", "mfu_percent")
    text = "{} in total, covering {} of operator time."
    values = [(flops, "FLOP"), (work["covered_percent"], "%")]
    if len(kinds) > 1:
        text += f" In steps of each kind, most time first: {', '.join(['{}'] * len(kinds))}."
        values += [(kind[name], unit) for kind in kinds]
    covered = sentence(text, *values)
    if share is None:
        return tile("Arithmetic", speed, "FLOP/s", sentence("{} in total", (flops, "FLOP")), covered)
    text = "Model FLOPs utilization (MFU): the time that the matrix operations take at the peak speed of the devices, as a share of the step. "
    hint = sentence(text + covered["text"], *covered["values"])
    return tile("MFU", share, "%", sentence("{}", (speed, "FLOP/s")), hint)


MOST_PLACES, MOST_NAMED = 12, 1000
_MOST_KINDS = 4


def overview(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `overview`: what ran where, counts of the trace's contents, and statistics of the steps."""
    trace_overview = trace.overview()
    counts = trace_overview.counts | trace_overview.work_counts
    return {
        "program": trace_overview.command or None,
        "ended": trace.run_info.program_ended or None,
        "start_realtime_ns": trace.run_info.start_realtime_ns,
        "duration_ns": trace.duration_ns,
        "facts": [{"label": fact.label, "value": fact.text} for fact in environment(trace)],
        "processes": max(1, counts["processes"]),
        "process_names": process_names(trace),
        **{name: counts[name] for name in _COUNTS},
        "memory": trace_overview.memory_recorded,
        "steps": steps(trace_overview),
        "utilization": utilization(trace_overview),
        "requests": trace_overview.requests,
        "incident": incident(trace_overview),
        "without_times": without_times(trace),
        "tiles": tiles(trace_overview),
    }


def without_times(trace: Trace) -> str:
    """Why a trace has no times to show; empty if it has."""
    if trace.run_info.is_snapshot:
        return "This is a memory snapshot: it has what the allocator did, and nothing of what took time."
    if len(trace.columns("spans")):
        return ""
    return f"The trace has no spans: nothing ran during the recording, or it was not recorded{advised(trace, 'operators')}."


_COUNTS = (
    "spans", "operators", "kernels", "device_work", "threads", "modules", "stacks", "shapes", "allocations", "collectives",
    "counters",
)  # fmt: skip


def incident(shown: Overview) -> dict[str, Any] | None:
    """Return what happened, and when the recording ends; None if the trace is not of an incident."""
    incident = shown.incident
    if incident is None:
        return None
    return {"title": incident.title, "notes": incident.notes, "end_ns": shown.trace.duration_ns}


def steps(shown: Overview) -> dict[str, Any] | None:
    """Return statistics of the step durations; None without steps."""
    if shown.steps is None:
        return None
    numbers = {name: value for name, value in asdict(shown.steps).items() if not isinstance(value, tuple)}
    kinds = [{name: row[name] for name in ("kind", "most_of")} for row in shown.step_kinds]
    return numbers | {"kinds": kinds}


def process_names(trace: Trace) -> dict[str, str]:
    """Return the labels of the processes by process id, if the trace has several."""
    table = trace.columns("processes")
    names = zip(table["pid"].tolist(), table["name"], strict=True)
    return {str(pid): name[:200] for pid, name in list(names)[:MOST_NAMED] if pid >= 0}


def utilization(shown: Overview) -> list[dict[str, Any]]:
    """Return the utilization of each device, or of each process without one: at most `MOST_PLACES`."""
    return [
        {
            "title": " · ".join(shown.place_names(device.place)),
            "percent": device.percent,
            "model": device.model,
            "working_ns": device.place.working_ns,
            "duration_ns": device.place.duration_ns,
            "steps": device.place.steps,
            "on_host": device.place.device == "cpu",
        }
        for device in shown.utilization[:MOST_PLACES]
    ]


def part(trace: Trace, query: Query, name: str) -> dict[str, Any]:
    """Respond to `overview/work` and `overview/memory`, which take longer to compute.

    Raises:
        LookupError: `name` is another one.
    """
    trace_overview = trace.overview()
    if name == "work":
        work = asdict(trace_overview.work)
        return {**work, "tile": work_tile(work)}
    if name == "memory":
        peaks = memory_peaks(trace_overview)
        return {"peaks": peaks, "tile": memory_tile(peaks)}
    raise LookupError(name)


def memory_peaks(shown: Overview) -> list[dict[str, Any]]:
    """Return the peak memory of each device, the largest first, with the attributed bytes by category."""
    names = ("device", "bytes", "time_ns", "counted", "attributed_bytes", "reserved_bytes")
    return [
        {name: getattr(peak, name) for name in names}
        | {
            "size_bytes": shown.device_bytes.get(peak.device),
            "categories": shown.peak_categories(peak.device),
        }
        for peak in (shown.peaks if shown.memory_recorded else ())
    ]


ROUTES = {"load": load, "overview": overview, "overview/": part, "top/": top}
