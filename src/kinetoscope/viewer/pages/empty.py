"""The pages that have no data of a trace, with the reasons; they are dimmed in the navigation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.model.kinds import is_device_work
from kinetoscope.tables.stored import memory_recorded

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query

REPORTED: tuple[tuple[str, dict[str, str]], ...] = (("empty", {}),)
"""What a report includes."""


def empty(trace: Trace, query: Query) -> dict[str, str]:
    """Respond to `empty`: the reason for each page without data, by its name."""
    on_device = is_device_work(trace.column("spans", "kind"))
    reasons = {
        "timeline": (
            len(on_device) or len(trace.columns("counters")),
            "Nothing ran during the recording.",
        ),
        "operators": (
            len(on_device) > on_device.sum(),
            "Nothing ran on the host during the recording.",
        ),
        "kernels": (
            on_device.any(),
            "No device work: the program used no device, or the device's activity was not recorded.",
        ),
        "modules": (len(trace.columns("modules")), "No modules were recorded: use with_modules=True."),
        "stacks": (len(trace.columns("stacks")), "No Python stacks were recorded: use with_stack=True."),
        "memory": (memory_recorded(trace), "Memory was not recorded: use profile_memory=True."),
    }
    return {page: why for page, (has_any, why) in reasons.items() if not has_any}
