"""The columns of everything that a Perfetto trace shows as slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.formats._chrome_spans import shown_spans
from kinetoscope.formats.chrome import CATEGORIES, DEVICE_CATEGORIES
from kinetoscope.trace import SpanKind
from kinetoscope.trace._calls import call_mask
from kinetoscope.trace._schema import FLAG_INSTANT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.formats._chrome_spans import ShownSpans
    from kinetoscope.tables.shown_stacks import ShownStacks
    from kinetoscope.trace import Trace

_NATIVE = ("start_ns", "duration_ns", "name", "thread", "lane")


@dataclass(frozen=True)
class Slices:
    """Slices in the order of the file: the same spans and rebuilt calls that a Chrome trace shows.

    Attributes:
        shown: What both formats show, as columns with a row for each slice.
        native: What the native writer takes of spans.
        categories: The names of the categories that `native` has rows of.
    """

    shown: ShownSpans
    native: dict[str, NDArray[Any]]
    categories: list[str]

    def of_spans(self, values: NDArray[Any]) -> NDArray[Any]:
        """A column of `spans` with a row for each slice; -1 for rebuilt calls."""
        if self.shown.moved is None:
            return np.ascontiguousarray(values)
        spread = np.full(len(self.native["start_ns"]), -1, values.dtype)
        spread[self.shown.moved[:-1]] = values
        return spread


def chosen_slices(trace: Trace, stacks: ShownStacks) -> Slices:
    """Choose what is shown as slices.

    Args:
        trace: The trace.
        stacks: Its stacks as slices show them.

    Returns:
        The slices.
    """
    shown = shown_spans(trace, stacks)
    columns = shown.columns
    native = {name: columns[name] for name in _NATIVE}
    native["category"], categories = _categories(shown)
    instant = (columns["flags"] & FLAG_INSTANT != 0).astype(np.uint8)
    if instant.any():
        native["instant"] = instant
    frame = np.append(trace.column("stacks", "frame"), np.int32(-1)).astype(np.int32)
    native["location"] = frame[columns["stack"]]
    if (calls := call_mask(columns["kind"])).any():
        # Which calls are around a call is what its track shows.
        columns["stack"] = np.where(calls, np.int32(-1), columns["stack"])
    return Slices(shown, native, categories)


def _categories(shown: ShownSpans) -> tuple[NDArray[np.int32], list[str]]:
    """The category of each slice: what its source called it, or what Kineto calls its kind."""
    names = [CATEGORIES[kind] for kind in SpanKind]
    category = shown.columns["kind"].astype(np.int32)
    if "stream" in shown.columns:
        category[shown.columns["stream"] >= 0] += np.int32(len(names))
        names += [DEVICE_CATEGORIES.get(kind, CATEGORIES[kind]) for kind in SpanKind]
    if "category" in shown.columns:
        given = shown.columns["category"]
        used, place = np.unique(given, return_inverse=True)
        category = np.where(given > 0, place.astype(np.int32) + np.int32(len(names)), category)
        names += [shown.strings[string] for string in used.tolist()]
    return category, names
