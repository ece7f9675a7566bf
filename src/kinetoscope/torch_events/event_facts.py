"""What torch puts into its events, found in a trace: names, shapes, scalar arguments, the events inside, autograd's numbers and launches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kinetoscope.model.names import device_name
from kinetoscope.model.rows import SpanRow
from kinetoscope.model.schema import (
    ENGINE_WRAPPER,
    SCOPE_BACKWARD,
    DeviceType,
)
from kinetoscope.model.steps import MARK, STEP_KEY
from kinetoscope.model.trace_data import derived
from kinetoscope.torch_events.event_numbers import event_of_launch
from kinetoscope.torch_events.event_tree import event_tree, visible_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


def device_type(number: int) -> Any:
    """Return torch's own enum value if the program uses torch, so that comparing with it works; else ours."""
    # Looked up and not imported: reading a trace must neither need nor load torch.
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "autograd"):
        return torch.autograd.DeviceType(number)
    return DeviceType(number)


def passes_as(thing: object, name: str) -> Any:
    """The class that `isinstance` finds besides the real one: torch's of this name, if the program has loaded it."""
    torchs = sys.modules.get("torch.autograd.profiler_util")
    return type(thing) if torchs is None else getattr(torchs, name)


SCALARS = ("Scalar", "ScalarList")
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}


def python_values(texts: list[Any], types: list[Any]) -> list[Any]:
    """Return the inputs of a call as torch's `concrete_inputs` has them.

    Args:
        texts: What was recorded of each input: the text of a scalar or of a list of scalars, empty for a tensor.
        types: The type of each input; only inputs of type `Scalar` and `ScalarList` are numbers.

    Returns:
        For each input its number, truth value or list of these, or None without. A text that is no number stays
        as it is: strings and devices, which torch leaves out.
    """
    known = [*types, *[""] * (len(texts) - len(types))]
    return [_value(text, kind in SCALARS) for text, kind in zip(texts, known, strict=False)]


def _value(text: Any, is_scalar: bool) -> Any:
    """Read one input."""
    if not isinstance(text, str):
        return text
    if not text:
        return None
    if not is_scalar:
        return text
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [_scalar(part.strip()) for part in inner.split(",")] if inner else []
    return _scalar(text)


def _scalar(text: str) -> Any:
    """Read one number or truth value."""
    if text in _WORDS:
        return _WORDS[text]
    for read in (int, float, complex):
        try:
            return read(text)
        except ValueError:
            continue
    return text


@derived
def _by_parent(trace: TraceData) -> tuple[Any, Any]:
    """The rows of events in order of the event around them, and that of each."""
    visible = visible_spans(trace)
    parent = visible.parent if visible.absorbed is None else np.where(visible.absorbed, -1, visible.parent)
    order = np.argsort(parent, kind="stable")
    return order, parent[order]


def children(trace: TraceData, row: SpanRow) -> list[SpanRow]:
    """The rows directly inside a row, in order of time."""
    order, parents = _by_parent(trace)
    first, last = np.searchsorted(parents, [row, row + 1])
    found: list[SpanRow] = order[first:last].tolist()
    return found


def used_device(trace: TraceData) -> str | None:
    """torch's name of the device that was profiled besides the host."""
    types = trace.column("streams", "device_type")
    return device_name(int(types[0]), -1) if len(types) else None


def event_name(recorded: str) -> str:
    """The name of an event: as recorded, but all steps share one."""
    return STEP_KEY if recorded.startswith(MARK) else recorded


def flat_shapes(dims: list[Any]) -> list[Any]:
    """Replace the shapes of a list of tensors by an empty one."""
    return [[] if dim and isinstance(dim, list) and isinstance(dim[0], list) else dim for dim in dims]


class Autograd(NamedTuple):
    """Of every span autograd's sequence number, and the thread (a row of `threads`) its forward ran on."""

    sequence: NDArray[np.int64]
    forward_thread: NDArray[np.int32]


class Arrows(NamedTuple):
    """Of every span the arrow that links it with the other end of a forward-backward pair, 0 without; where it starts."""

    number: NDArray[np.int64]
    starts: NDArray[np.bool_]


@derived
def autograd(trace: TraceData) -> Autograd:
    """Autograd's columns; the engine's wrapper around a backward function has those of the function."""
    spans, tree = trace.columns("spans"), event_tree(trace)
    sequence, thread = spans["sequence"].copy(), spans["forward_thread"].copy()
    rows = np.flatnonzero(spans["scope"] == SCOPE_BACKWARD)
    around = tree.parent[rows]
    is_wrapper = np.array([text.startswith(ENGINE_WRAPPER) for text in trace.strings], dtype=bool)
    wrapped = (around >= 0) & is_wrapper[spans["name"][around]]
    for values in (sequence, thread):
        values[around[wrapped]] = values[rows[wrapped]]
    # torch names a forward thread only where a number says which call on it is meant.
    thread[sequence < 0] = -1
    return Autograd(sequence, thread)


@derived
def arrows(trace: TraceData) -> Arrows:
    """Which forward operators and backward functions belong together."""
    forward = trace.column("spans", "forward")
    number, starts = np.zeros(len(forward), dtype=np.int64), np.zeros(len(forward), dtype=bool)
    ends = np.flatnonzero(forward >= 0)
    # The numbers of the arrows in Chrome traces; several backward functions of one operator have that of the first.
    _, first, place = np.unique(forward[ends], return_index=True, return_inverse=True)
    number[ends] = number[forward[ends]] = first[place] + 1
    starts[forward[ends]] = True
    return Arrows(number, starts)


class Launches(NamedTuple):
    """Which event started which device event, both ways, sorted to be searched."""

    hosts: NDArray[np.int32]
    started: NDArray[np.int32]
    devices: NDArray[np.int32]
    starters: NDArray[np.int32]

    def started_by(self, row: SpanRow) -> list[SpanRow]:
        """The device events that an event started, in the order of the launches."""
        first, last = np.searchsorted(self.hosts, [row, row + 1])
        found: list[SpanRow] = self.started[first:last].tolist()
        return found

    def starter_of(self, row: SpanRow) -> SpanRow:
        """The event that started a device event, -1 without."""
        place = int(np.searchsorted(self.devices, row))
        known = place < len(self.devices) and self.devices[place] == row
        return SpanRow(int(self.starters[place]) if known else -1)


@derived
def launches(trace: TraceData) -> Launches:
    """The launches of a trace by the events that people see."""
    host, device = event_of_launch(trace), trace.column("launches", "device")
    by_host, by_device = np.argsort(host, kind="stable"), np.argsort(device, kind="stable")
    return Launches(host[by_host], device[by_host], device[by_device], host[by_device])
