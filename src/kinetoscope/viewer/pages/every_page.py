"""Requests of every page: which pages have no data, and why; how to record missing data; the text of source lines."""

from __future__ import annotations

from kinetoscope.analyses.health import RECORDED, advised
from kinetoscope.model.kinds import is_device_work
from kinetoscope.model.strings import to_utf8
from kinetoscope.tables.host.source_lines import source_lines
from kinetoscope.tables.stored import memory_recorded
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Query


def empty(trace: Trace, query: Query) -> dict[str, str]:
    """Respond to `empty`: the reason for each page without data, by its name; the navigation dims them."""
    on_device = is_device_work(trace.column("spans", "kind"))
    snapshot = "A memory snapshot has only kind the allocator did." if trace.run_info.is_snapshot else ""
    modules, stacks, memory, devices = (
        advised(trace, kind) for kind in ("modules", "stacks", "memory", "devices")
    )
    reasons = {
        "timeline": (
            len(on_device) or len(trace.columns("counters")),
            snapshot or "Nothing ran during the recording.",
        ),
        "operators": (
            len(on_device) > on_device.sum(),
            snapshot or "Nothing ran on the host during the recording.",
        ),
        "kernels": (
            on_device.any(),
            snapshot
            or f"No device work: the program used no device, or its activity was not recorded{devices}.",
        ),
        "modules": (len(trace.columns("modules")), f"No modules were recorded{modules}."),
        "stacks": (len(trace.columns("stacks")), f"No Python stacks were recorded{stacks}."),
        "memory": (memory_recorded(trace), f"Memory was not recorded{memory}."),
    }
    return {page: why for page, (has_any, why) in reasons.items() if not has_any}


def advice(trace: Trace, query: Query) -> dict[str, str]:
    """Respond to `advice`: how to record each kind of data, for the end of a sentence, without a period."""
    return {kind: advised(trace, kind) for kind in RECORDED}


def source(trace: Trace, query: Query) -> dict[str, dict[str, str]]:
    """Respond to `source`: the stored lines of each file, by line number."""
    return {
        to_utf8(file): {str(number): to_utf8(text) for number, text in lines.items()}
        for file, lines in source_lines(trace).items()
    }


ROUTES = {"advice": advice, "empty": empty, "source": source}
