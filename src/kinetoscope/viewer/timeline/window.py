"""A window of the timeline at the resolution of the screen: for each pixel of a row, the items that begin in it.

Reports have the same code in TypeScript, so every operation must give bit-identical results in both: pixels begin at
`start + i * (end - start) / width`, in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kinetoscope.model.arrow import Labels, compact, number_array, text_array
from kinetoscope.model.schema import KIND_NAMES
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Query, window_of
from kinetoscope.viewer.timeline.rows import NamedItems, Rows
from kinetoscope.viewer.timeline.tracks import chosen

MOST_LETTERS = 2_000
"""Of a name; nobody reads more in a box or a tooltip."""


@dataclass(frozen=True, eq=False)
class VisibleBoxes:
    """The boxes that are drawn for some rows.

    Attributes:
        row: The row of each box.
        item: The first item of each box.
        count: The number of items of each box.
    """

    row: NDArray[np.int32]
    item: NDArray[np.int64]
    count: NDArray[np.int64]


def window(trace: Trace, query: Query) -> pa.Table:
    """Respond to `window`: the boxes of some tracks from `start` to `end`, for `width` pixels.

    Raises:
        ArgumentError: There are no such tracks, or the window is not valid.
    """
    start, end, width = window_of(query)
    drawn = NamedItems(trace, **_TYPES)
    for track in chosen(trace, query):
        boxes = visible_boxes(track.rows, track.first, track.count, start, end, width)
        if len(boxes.item) == 0:
            continue
        rows, item, last = track.rows, boxes.item, boxes.item + boxes.count - 1
        begin = rows.start_ns[item]
        drawn.add(
            rows,
            item,
            track=np.full(len(item), track.id, np.int32),
            row=boxes.row - np.int32(track.first),
            start=begin.astype(np.float64),
            duration=(rows.start_ns[last] - begin + rows.duration_ns(last)).astype(np.float64),
            busy=(rows.sum_ns[last + 1] - rows.sum_ns[item]).astype(np.float64),
            count=boxes.count.astype(np.int32),
        )
    columns = drawn.columns()
    names, texts = compact(Labels(columns.pop("name"), drawn.texts))
    cut = [text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + "…" for text in texts]
    arrays = {name: number_array(values) for name, values in columns.items() if name != "kind"}
    arrays["name"] = pa.DictionaryArray.from_arrays(number_array(names), text_array(cut))
    kinds = number_array(columns["kind"].astype(np.int32))
    arrays["kind"] = pa.DictionaryArray.from_arrays(kinds, text_array(KIND_NAMES))
    return pa.table(arrays)


_TYPES = {
    "track": np.int32, "row": np.int32, "start": np.float64, "duration": np.float64, "busy": np.float64,
    "count": np.int32,
}  # fmt: skip


def visible_boxes(rows: Rows, first: int, count: int, start: float, end: float, width: int) -> VisibleBoxes:
    """Return the boxes of some rows in a window.

    Items that begin in the same pixel of a row are one box; but the last of them is a box of its own if it is wider than a pixel.
    An item that begins before the window and reaches into it is a box, too.

    Args:
        rows: The rows.
        first: The index of the first row.
        count: The number of rows.
        start: Start of the window.
        end: End of the window; items that begin there are outside.
        width: The number of pixels.
    """
    # The first nanosecond of each pixel, and the first after the last pixel.
    pixels = np.ceil(start + np.arange(width + 1) * (end - start) / width).astype(np.int64)
    wide = (end - start) / width
    nothing = np.zeros(0, np.int64)
    boxes: list[tuple[NDArray[Any], ...]] = [(nothing.astype(np.int32), nothing, nothing)]
    starts, edges = rows.start_ns, rows.edges
    for row in range(first, first + count):
        low, high = int(edges[row]), int(edges[row + 1])
        if low == high or starts[low] >= pixels[-1]:
            continue
        firsts = starts[low:high].searchsorted(pixels) + low
        box_rows = firsts[:-1][firsts[1:] > firsts[:-1]]
        counts = np.diff(np.append(box_rows, firsts[-1]))
        before = int(firsts[0]) - 1
        if before >= low and starts[before] + rows.duration_ns(np.array(before)) > start:
            box_rows, counts = np.append(before, box_rows), np.append(1, counts)
        if len(box_rows) == 0:
            continue
        last = box_rows + counts - 1
        apart = np.flatnonzero((counts > 1) & (rows.duration_ns(last) > wide))
        if len(apart):
            counts[apart] -= 1
            box_rows = np.insert(box_rows, apart + 1, last[apart])
            counts = np.insert(counts, apart + 1, 1)
        boxes.append((np.full(len(box_rows), row, np.int32), box_rows, counts))
    return VisibleBoxes(*(np.concatenate(columns) for columns in zip(*boxes, strict=True)))
