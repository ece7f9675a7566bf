"""Arrows between spans: from a launch to the work on a device, and from a forward operator to its backward function."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.trace_data import calls_of
from kinetoscope.tables.device.starters import starters
from kinetoscope.viewer.server.answers import Limited, span_of_time, whole_number
from kinetoscope.viewer.timeline.rows import span_tracks
from kinetoscope.viewer.timeline.tracks import chosen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query


# Which spans are tied to which: around each other, launched by one another, forward and backward, carried out by.

MOST_LINKS = 20
"""Of one sort; a step launches thousands of kernels, and its facts say how many."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """From which span to which, by the first."""

    source: NDArray[np.int32]
    target: NDArray[np.int32]

    def of(self, first: int, last: int) -> NDArray[np.int32]:
        """The targets of the spans from `first` up to, not with, `last`."""
        low, high = np.searchsorted(self.source, (first, last))
        return self.target[low:high]


def launched(trace: Trace) -> Pairs:
    """From each span of the host that started work on a device to that work."""

    def make() -> Pairs:
        own = trace.columns("launches")
        return _pairs(own["host"], own["device"])

    return trace.cached("viewer: launched", make)


def backward(trace: Trace) -> Pairs:
    """From each forward operator to the backward functions that it made."""

    def make() -> Pairs:
        forward = trace.column("spans", "forward")
        rows = np.flatnonzero(forward >= 0).astype(np.int32)
        return _pairs(forward[rows], rows)

    return trace.cached("viewer: backward", make)


def links_of(trace: Trace, row: int) -> list[dict[str, Any]]:
    """The links of one span, each with its label and what a page shows of the other span."""
    found: list[tuple[str, list[int]]] = []
    spans = trace.columns("spans")
    found.append(("in", [int(spans["parent"][row])]))
    if calls_of(trace) is not None:
        found.append(("called in", [int(spans["caller"][row])]))
    if len(trace.columns("launches")):
        by = starters(trace)
        call, operator = int(by.call[row]), int(by.operator[row])
        found.append(("launched by", [call]))
        found.append(("launched for", [operator if operator != call else -1]))
        found.append(("launched", launched(trace).of(row, _beyond(trace, row)).tolist()))
    found.append(("forward", [int(spans["forward"][row])]))
    found.append(("backward", backward(trace).of(row, row + 1).tolist()))
    for label, other in carried_out(trace).get(row, ()):
        found.append((label, [other]))
    pairs = [(label, other) for label, others in found for other in others[:MOST_LINKS] if other >= 0]
    pairs = list(dict.fromkeys(pairs))
    tracks, rows = span_tracks(trace).places(np.array([other for _, other in pairs], np.int32))
    return [
        {
            "label": label,
            "span": other,
            "name": trace.strings[int(spans["name"][other])],
            "track": track,
            "row": place,
            "start_ns": int(spans["start_ns"][other]),
            "duration_ns": int(spans["duration_ns"][other]),
        }
        for (label, other), track, place in zip(pairs, tracks.tolist(), rows.tolist(), strict=True)
    ]


def launches_within(trace: Trace, row: int) -> int:
    """How many pieces of device work a span and those inside it started."""
    return len(launched(trace).of(row, _beyond(trace, row)))


def _beyond(trace: Trace, row: int) -> int:
    """The first row behind a span whose span begins when it has ended, or on another thread."""
    spans = trace.columns("spans")
    thread, start = spans["thread"], spans["start_ns"]
    last = int(np.searchsorted(thread, thread[row] + 1))
    end = min(int(start[row]) + int(spans["duration_ns"][row]), np.iinfo(np.int64).max)
    return max(row + 1, row + int(np.searchsorted(start[row:last], end)))


def beyond(trace: Trace) -> NDArray[np.int64]:
    """For every span what `_beyond` says of one."""
    spans = trace.columns("spans")
    thread, start, rows = spans["thread"], spans["start_ns"], np.arange(len(spans))
    found = rows + 1
    edges = np.flatnonzero(np.diff(thread, prepend=-1, append=-1))
    for first, last in pairwise(edges.tolist()):
        begin = start[first:last]
        lasts = np.minimum(spans["duration_ns"][first:last], np.iinfo(np.int64).max - np.maximum(begin, 0))
        found[first:last] = first + np.searchsorted(begin, begin + lasts)
    return np.maximum(found, rows + 1)


def _pairs(source: NDArray[np.int32], target: NDArray[np.int32]) -> Pairs:
    """Pairs in the order of their sources, of equal ones in that of time."""
    known = np.flatnonzero((source >= 0) & (target >= 0))
    source, target = source[known], target[known]
    order = np.lexsort((target, source))
    return Pairs(source[order], target[order])


def carried_out(trace: Trace) -> dict[int, list[tuple[str, int]]]:
    """For each call between ranks what carried it out, and the other way round."""

    def make() -> dict[int, list[tuple[str, int]]]:
        if "collectives" not in trace.table_names:
            return {}
        table = trace.table("collectives")
        found: dict[int, list[tuple[str, int]]] = {}
        for call, transfer in zip(
            *(table[name].to_pylist() for name in ("span", "transfer_span")), strict=True
        ):
            if call is not None and transfer is not None and call != transfer:
                found.setdefault(call, []).append(("carried out by", transfer))
                found.setdefault(transfer, []).append(("carries out", call))
        return found

    return trace.cached("viewer: collectives", make)


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
