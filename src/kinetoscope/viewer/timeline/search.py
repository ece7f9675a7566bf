"""Search for items of the timeline by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.schema import KIND_NAMES
from kinetoscope.model.strings import to_utf8
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Limited, Query, number, whole_number
from kinetoscope.viewer.timeline.rows import NamedItems, Rows, Track, labels_of
from kinetoscope.viewer.timeline.tracks import timeline

_MOST = 1_000


def search(trace: Trace, query: Query) -> Limited:
    """Respond to `search`: the first `limit` items from time `from` on whose names contain `text`, ignoring case.

    The total also counts items before that time.

    Raises:
        ArgumentError: An option has an invalid value.
    """
    text, limit = query.get("text", "").casefold(), whole_number(query, "limit", _MOST)
    since_ns = number(query, "from") if "from" in query else -np.inf
    total = 0
    matches = NamedItems(trace, start_ns=np.int64, duration_ns=np.int64, track=np.int32, row=np.int64)
    for rows, tracks in _stores(trace):
        ids, words, *_ = labels_of(trace, rows, np.arange(len(rows.start_ns)))
        items = np.flatnonzero(_with(words, text)[ids])
        total += len(items)
        items = items[rows.start_ns[items] >= since_ns]
        items = items[np.argsort(rows.start_ns[items], kind="stable")[:limit]]
        row = np.searchsorted(rows.edges, items, side="right") - 1
        firsts = np.array([track.first for track in tracks])
        track = np.searchsorted(firsts, row, side="right") - 1
        ids = np.array([track.id for track in tracks], np.int32)[track]
        times = {"start_ns": rows.start_ns[items], "duration_ns": rows.duration_ns(items)}
        matches.add(rows, items, **times, track=ids, row=row - firsts[track])
    columns: dict[str, Any] = matches.columns()
    order = np.argsort(columns["start_ns"], kind="stable")[:limit]
    columns |= {"name": Labels(columns["name"], matches.texts), "kind": Labels(columns["kind"], KIND_NAMES)}
    return Limited(to_arrow("viewer: search", columns, order), total)


def _stores(trace: Trace) -> list[tuple[Rows, list[Track]]]:
    tracks_of: dict[int, tuple[Rows, list[Track]]] = {}
    for track in timeline(trace):
        tracks_of.setdefault(id(track.rows), (track.rows, []))[1].append(track)
    return [(rows, sorted(tracks, key=lambda track: track.first)) for rows, tracks in tracks_of.values()]


def _with(texts: Sequence[str], part: str) -> NDArray[np.bool_]:
    """Return which texts, as they are shown, contain `part`, which is in lowercase, ignoring case; none if it is empty."""
    if not part:
        return np.zeros(max(len(texts), 1), dtype=bool)
    return np.fromiter((part in to_utf8(text).casefold() for text in texts), np.bool_, len(texts))
