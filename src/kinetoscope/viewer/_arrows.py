"""Arrows between spans: from a launch to the work on a device, and from a forward operator to its backward function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.viewer._answers import Limited, whole_number
from kinetoscope.viewer._links import backward, launched
from kinetoscope.viewer._rows import span_tracks
from kinetoscope.viewer._timeline import chosen
from kinetoscope.viewer._window import span_of_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer._answers import Query

SORTS = ("launch", "backward")
_MOST = 2_000


@dataclass(frozen=True, eq=False)
class Arrows:
    """All arrows of a trace.

    Attributes:
        source: The span each comes from.
        target: The span it goes to.
        early_ns: When it begins, or ends where that is before.
        late_ns: The other end.
        sort: Its place in `SORTS`.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    early_ns: NDArray[np.int64]
    late_ns: NDArray[np.int64]
    sort: NDArray[np.int32]


def all_arrows(trace: Trace) -> Arrows:
    """Find the arrows of a trace, once."""

    def make() -> Arrows:
        pairs, start = (launched(trace), backward(trace)), trace.column("spans", "start_ns")
        source = np.concatenate([pair.source for pair in pairs])
        target = np.concatenate([pair.target for pair in pairs])
        sort = np.repeat(np.arange(len(pairs), dtype=np.int32), [len(pair.source) for pair in pairs])
        early, late = np.minimum(start[source], start[target]), np.maximum(start[source], start[target])
        return Arrows(source, target, early, late, sort)

    return trace.cached("viewer: arrows", make)


def arrows(trace: Trace, query: Query) -> Limited:
    """Answer `arrows`: those that touch a window and have both ends on the chosen tracks, evenly thinned to `limit`.

    Raises:
        ArgumentError: No such tracks, or a window that is none.
    """
    import pyarrow as pa

    start, end = span_of_time(query)
    limit = whole_number(query, "limit", _MOST)
    found, laid = all_arrows(trace), span_tracks(trace)
    wanted = np.zeros(len(laid.tracks), dtype=bool)
    ids = {track.id for track in chosen(trace, query)}
    wanted[[place for place, track in enumerate(laid.tracks) if track.id in ids]] = True
    rows = np.flatnonzero((found.early_ns < end) & (found.late_ns >= start))
    for ends in (found.source, found.target):
        rows = rows[wanted[laid.track_of_row[laid.row_of_span[ends[rows]]]]]
    total = len(rows)
    if total > limit:
        rows = rows[np.linspace(0, total - 1, limit).astype(np.int64)]
    source, target = found.source[rows], found.target[rows]
    begins = trace.column("spans", "start_ns")
    columns = {"from": source, "to": target}
    for name, spans in (("from", source), ("to", target)):
        columns[f"{name}_track"], columns[f"{name}_row"] = laid.places(spans)
        columns[f"{name}_time"] = begins[spans].astype(np.float64)
    arrays = {name: pa.array(values) for name, values in columns.items()}
    arrays["sort"] = pa.DictionaryArray.from_arrays(pa.array(found.sort[rows]), pa.array(SORTS))
    return Limited(pa.table(arrays), total)
