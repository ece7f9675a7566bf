"""All spans of one name, one by one and by how long they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.schema import KIND_NAMES, Column, SpanKind, Table
from kinetoscope.model.strings import to_utf8
from kinetoscope.torch_events.function_event import STEP_KEY
from kinetoscope.viewer.pages.operators import in_place
from kinetoscope.viewer.server.answers import Limited, number, whole_number
from kinetoscope.viewer.timeline.rows import span_tracks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query

_MOST = 1_000
_BARS = 40

INSTANCES_SCHEMA = Table(
    "instances",
    "A span of the name that was asked for. Longest first.",
    (
        Column("span", "int32", "row of spans", "The span."),
        Column("track", "int32", "", "The track of the timeline it is on."),
        Column("row", "int32", "", "The row there."),
        Column("start_ns", "int64", "ns", "When it begins.", 0),
        Column("duration_ns", "int64", "ns", "How long it lasts.", 0),
        Column("self_ns", "int64", "ns", "The same without that of the spans inside it.", 0),
        Column("step", "int64", "", "The number of the step it began in."),
        Column(
            "module",
            "category",
            "",
            "The path of the module it ran in; in backward that of its forward operator.",
        ),
        Column("shapes", "category", "", "The sizes of its inputs, as JSON."),
    ),
)


def instances(trace: Trace, query: Query) -> Limited:
    """Answer `instances`: the longest `limit` spans of a `name` and `kind`, of those from `from_ns` to below `below_ns`.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    limit, rows = whole_number(query, "limit", _MOST), named(trace, query)
    spans = trace.columns("spans")
    if "from_ns" in query or "below_ns" in query:
        shortest, longer = number(query, "from_ns", 0), number(query, "below_ns", 2.0**63)
        duration = spans["duration_ns"][rows]
        rows = rows[(duration >= shortest) & (duration < longer)]
    total = len(rows)
    if total > limit:
        rows = rows[np.argpartition(-spans["duration_ns"][rows], limit)[:limit]]
    rows = rows[np.lexsort((rows, -spans["duration_ns"][rows]))]
    track, row = span_tracks(trace).places(rows)
    columns: dict[str, Any] = {
        "span": rows,
        "track": track,
        "row": row,
        **{name: spans[name][rows] for name in ("start_ns", "duration_ns", "self_ns")},
        "step": np.append(trace.column("steps", "number"), -1)[spans["step"][rows]],
        "module": Labels(spans["module"][rows], trace.columns("modules")["path"]),
        "shapes": Labels(spans["shapes"][rows], trace.columns("shapes")["dims"]),
    }
    return Limited(to_arrow(INSTANCES_SCHEMA, columns), total)


def histogram(trace: Trace, query: Query) -> dict[str, Any]:
    """Answer `histogram`: how many spans of a `name` and `kind` took how long.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    durations = np.sort(trace.column("spans", "duration_ns")[named(trace, query)])
    edges = bar_edges(durations)
    counts = np.diff(np.searchsorted(durations, edges)) if len(edges) else edges
    calls = len(durations)
    facts = {"min_ns": 0, "median_ns": calls // 2, "p95_ns": int(calls * 0.95), "max_ns": calls - 1}
    return {
        "edges_ns": edges.tolist(),
        "counts": counts.tolist(),
        "calls": calls,
        "total_ns": int(durations.sum()),
        "mean_ns": float(durations.mean()) if calls else None,
        **{name: int(durations[place]) if calls else None for name, place in facts.items()},
    }


def named(trace: Trace, query: Query) -> NDArray[np.int64]:
    """The spans of the name and kind that a question is about, and of its place; all kinds without `kind`.

    Raises:
        ArgumentError: There is no name, or no such kind.
    """
    name, kind = query.get("name"), query.get("kind")
    if name is None:
        raise ArgumentError("the question needs the option 'name'")
    if kind is not None and kind not in KIND_NAMES:
        raise ArgumentError(f"kind={kind[:50]!r} is not valid: choose one of {', '.join(KIND_NAMES)}")
    spans = trace.columns("spans")
    if name == STEP_KEY:
        # The table `ops` puts all steps together under this name.
        found = spans["kind"] == SpanKind.STEP
    else:
        wanted = np.zeros(len(trace.strings), dtype=bool)
        wanted[_strings(trace).get(name, [])] = True
        found = wanted[spans["name"]]
    if kind is not None:
        found &= spans["kind"] == KIND_NAMES.index(kind)
    if "by" in query:
        found &= in_place(trace, query)
    return np.flatnonzero(found)


def bar_edges(durations: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the bars of sorted durations begin and the last one ends: each is longer than the one before by one factor.

    What takes no time has a bar of its own.
    """
    if len(durations) == 0:
        return np.zeros(0, np.int64)
    low, high = max(int(durations[0]), 1), int(durations[-1]) + 1
    between = np.geomspace(low, max(high, low), _BARS + 1)[1:-1].round().astype(np.int64)
    ends = [0, 1] if durations[0] <= 0 else [low]
    edges: NDArray[np.int64] = np.unique(np.concatenate((ends, np.clip(between, low, high), [high])))
    return edges


def _strings(trace: Trace) -> dict[str, list[int]]:
    """Each name of spans as pages spell it, and the strings that are spelt so."""

    def make() -> dict[str, list[int]]:
        used = np.zeros(len(trace.strings), dtype=bool)
        used[trace.column("spans", "name")] = True
        found: dict[str, list[int]] = {}
        for row in np.flatnonzero(used).tolist():
            found.setdefault(to_utf8(trace.strings[row]), []).append(row)
        return found

    return trace.cached("viewer: names of spans", make)
