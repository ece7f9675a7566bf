"""What single and averaged events are made of: names, shapes, the events inside, the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._device import DeviceType
from kinetoscope.tables._visible import visible_spans
from kinetoscope.trace._steps import MARK

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

STEP_KEY = "ProfilerStep*"


def children(trace: Trace, row: int) -> list[int]:
    """The rows directly inside a row, in order of time."""

    def index() -> tuple[Any, Any]:
        visible = visible_spans(trace)
        parent = (
            visible.parent if visible.absorbed is None else np.where(visible.absorbed, -1, visible.parent)
        )
        order = np.argsort(parent, kind="stable")
        return order, parent[order]

    order, parents = trace.cached("event_children", index)
    first, last = np.searchsorted(parents, [row, row + 1])
    found: list[int] = order[first:last].tolist()
    return found


def used_device(trace: Trace) -> str | None:
    """torch's word for the device that was profiled beside the host."""
    types = trace.column("streams", "device_type")
    return DeviceType(int(types[0])).name.lower() if len(types) else None


def event_name(recorded: str) -> str:
    """The name of an event: as recorded, but all steps share one."""
    return STEP_KEY if recorded.startswith(MARK) else recorded


def flat_shapes(dims: list[Any]) -> list[Any]:
    """Replace the shapes of a list of tensors by an empty one."""
    return [[] if dim and isinstance(dim, list) and isinstance(dim[0], list) else dim for dim in dims]
