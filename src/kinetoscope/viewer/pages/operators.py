"""Operators, ranges and calls added up by name, and further by shape, line, stack or module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope._errors import ArgumentError
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.hierarchy import host_work, recorded_calls
from kinetoscope.model.kinds import is_device_work
from kinetoscope.model.names import frame_texts, stack_frames
from kinetoscope.model.rows import StackRow
from kinetoscope.model.schema import KIND_NAMES, Column, SpanKind, Table
from kinetoscope.model.strings import to_utf8
from kinetoscope.tables.device.launches import starters
from kinetoscope.tables.host.ops import OPS_SCHEMA, added_up, operator_keys, operator_names
from kinetoscope.tables.stacks import user_frames, user_stacks
from kinetoscope.torch_events.function_event import STEP_KEY
from kinetoscope.viewer.server.requests import MOST_ROWS, Limited, choice, number, whole_number
from kinetoscope.viewer.timeline.rows import span_tracks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.requests import Query

    Describe = Callable[[NDArray[np.intp]], list[dict[str, Any]]]


WAYS = ("name", "shape", "line", "stack", "module")
SORTS = ("work", "calls")
CALLER = " ← "
"""Between the frames of a stack in one text, the innermost first."""

_MOST_FRAMES = 16

OPERATORS_SCHEMA = Table(
    "operators",
    "All spans of one name and kind, as in `ops`, and of one place where grouped by place. Largest self time first.",
    (
        *OPS_SCHEMA.columns[:2],
        Column("place", "category", "", "What else they have in common: the sizes of their inputs, the innermost line of"
               " the user's code, its stack, or the module; null where it is not known."),
        *OPS_SCHEMA.columns[2:],
    ),
)  # fmt: skip


def operators(trace: Trace, query: Query) -> Limited:
    """Respond to `operators`: what ran on the host, added up `by` one of `WAYS`.

    With `of=calls` it is the recorded calls of Python functions and modules, which `ops` leaves out: they enclose work
    and do none that is not counted for the operators in them.

    Raises:
        ArgumentError: No such way, or another value of `of`.
    """
    way, sort = choice(query, "by", WAYS), choice(query, "of", SORTS)
    key = f"viewer: operators {way} {sort}"
    found, total = trace.cached(key, lambda: _added_up(trace, way, sort))
    return Limited(found, total)


def place_labels(trace: Trace, way: str) -> Labels:
    """For every span the key that it is grouped by, as a text; below 0 where it has none."""
    return trace.cached(f"viewer: places by {way}", lambda: _labels(trace, way))


def in_place(trace: Trace, query: Query) -> NDArray[np.bool_]:
    """Which spans have the `place` that a request names, when grouped `by` something; without `place`, which have none."""
    labels = place_labels(trace, choice(query, "by", WAYS[1:]))
    place = query.get("place")
    if place is None:
        found: NDArray[np.bool_] = labels.ids < 0
        return found
    numbers = [number for number, text in enumerate(labels.texts) if to_utf8(text) == place]
    return np.isin(labels.ids, numbers) if numbers else np.zeros(len(labels.ids), dtype=bool)


def _added_up(trace: Trace, way: str, sort: str) -> tuple[Any, int]:
    """The rows with the most self time, and how many there are."""
    where = (recorded_calls(trace) if sort == "calls" else host_work(trace)).mask
    keys, place = operator_keys(trace), None
    by = [keys]
    if way != "name":
        place = place_labels(trace, way)
        by = [keys, place.ids]
    group_of, first = _core.group(by, where)
    columns = added_up(trace, keys if place is None else group_of, group_of, first)
    columns["place"] = None if place is None else Labels(place.ids[first], place.texts)
    order = np.argsort(-columns["self_ns"], kind="stable")
    if sort == "calls":
        # The bytes and operations in a call are those of the work in it.
        columns |= dict.fromkeys(
            ("self_bytes", "flops", "bytes_moved", "flops_per_s", "arithmetic_intensity")
        )
    return to_arrow(OPERATORS_SCHEMA, columns, order[:MOST_ROWS]), len(order)


def _labels(trace: Trace, way: str) -> Labels:
    """The places of all spans, each text once."""
    spans = trace.columns("spans")
    if way == "shape":
        return _each_once(spans["shapes"], trace.columns("shapes")["dims"])
    if way == "module":
        return _each_once(spans["module"], trace.columns("modules")["path"])
    stacks = user_stacks(trace)
    place = np.append(stacks, np.int32(-1))[spans["stack"]]
    used = np.unique(place[place >= 0])
    texts = [""] * len(stacks)
    is_user, frames = user_frames(trace), frame_texts(trace)
    for row in used.tolist():
        texts[row] = _stack_text(trace, StackRow(row), 1 if way == "line" else _MOST_FRAMES, is_user, frames)
    return _each_once(place, texts)


def _stack_text(
    trace: Trace, stack: StackRow, most: int, is_user: NDArray[np.bool_], frames: Sequence[str]
) -> str:
    """The frames of the user's code of a stack that ends in one, the innermost first."""
    rows = stack_frames(trace, stack, None if most > 1 else 1)
    shown = [rows[0], *(row for row in rows[1:] if is_user[row])] if rows else []
    texts = [frames[row] for row in shown[:most]]
    return CALLER.join(texts if len(shown) <= most else [*texts, "…"])


def _each_once(ids: NDArray[Any], texts: Sequence[str]) -> Labels:
    """The same labels, where rows of equal texts have one number and an empty text is none."""
    numbers: dict[str, int] = {}
    place = np.full(len(texts) + 1, -1, dtype=np.int32)
    for row in np.unique(ids[ids >= 0]).tolist():
        if texts[row]:
            place[row] = numbers.setdefault(texts[row], len(numbers))
    return Labels(place[ids], list(numbers))


_MOST_REPORTED = 80
MOST_REPORTED_CALLS = 50
"""Of one name, the longest first; the page requests as many from a report."""


def reported(trace: Trace) -> list[tuple[str, dict[str, str]]]:
    """What a report includes: all tables, and the details of the rows that a reader is likely to select."""
    requests: list[tuple[str, dict[str, str]]] = [("operators", {})]
    requests += [("operators", {"by": way}) for way in WAYS[1:]]
    names: dict[tuple[str, str], None] = {}
    for of in SORTS:
        if of != SORTS[0]:
            requests.append(("operators", {"of": of}))
        table = operators(trace, {"of": of}).table
        for column in ("self_ns", "total_ns", "device_ns"):
            first = table.sort_by([(column, "descending")]).slice(0, _MOST_REPORTED)
            names |= dict.fromkeys(zip(first["name"].to_pylist(), first["kind"].to_pylist(), strict=True))
    for name, kind in names:
        requests += [(path, {"name": name, "kind": kind}) for path in ("chosen", "histogram")]
        requests.append(("instances", {"name": name, "kind": kind, "limit": str(MOST_REPORTED_CALLS)}))
    return requests


# All spans of one name, one by one and by how long they took.

_MOST = 1_000
_BARS = 40

INSTANCES_SCHEMA = Table(
    "instances",
    "A span of the requested name. Longest first.",
    (
        Column("span", "int32", "row of spans", "The span."),
        Column("track", "int32", "", "The track of the timeline it is on."),
        Column("row", "int32", "", "The row there."),
        Column("start_ns", "int64", "ns", "When it begins.", 0),
        Column("duration_ns", "int64", "ns", "How long it lasts.", 0),
        Column("self_ns", "int64", "ns", "Self time: the time outside of child spans.", 0),
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
    """Respond to `instances`: the longest `limit` spans of a `name` and `kind`, of those from `from_ns` to below `below_ns`.

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
    """Respond to `histogram`: how many spans of a `name` and `kind` took how long.

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
    """The spans of the name, kind and place that a request is about; all kinds without `kind`.

    Raises:
        ArgumentError: There is no name, or no such kind.
    """
    name, kind = query.get("name"), query.get("kind")
    if name is None:
        raise ArgumentError("the request needs the option 'name'")
    if kind is not None and kind not in KIND_NAMES:
        raise ArgumentError(f"kind={kind[:50]!r} is not valid: choose one of {', '.join(KIND_NAMES)}")
    spans = trace.columns("spans")
    if name == STEP_KEY:
        # The table `ops` puts all steps together under this name.
        found = np.flatnonzero(spans["kind"] == SpanKind.STEP)
    else:
        order, edges = _by_string(trace)
        same = [order[edges[text] : edges[text + 1]] for text in _strings(trace).get(name, [])]
        found = np.sort(np.concatenate(same)) if same else np.zeros(0, np.int64)
    if kind is not None:
        found = found[spans["kind"][found] == KIND_NAMES.index(kind)]
    if "by" in query:
        found = found[in_place(trace, query)[found]]
    return found


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


def _by_string(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The spans in order of their names, and where those of each string begin and end."""

    def make() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        name = trace.column("spans", "name")
        edges = np.zeros(len(trace.strings) + 1, np.int64)
        np.cumsum(np.bincount(name, minlength=len(trace.strings)), out=edges[1:])
        return np.argsort(name, kind="stable"), edges

    return trace.cached("viewer: spans by name", make)


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


# The spans of one name: where their time went, and what called them.

_MOST_PARTS = 40
_MOST_LAUNCHES_UP = 10_000


def chosen(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `chosen`: the spans of a `name` and `kind`, and of a `place` where `by` is given, in parts that add up.

    `total_ns` of a part is time of the outermost of these spans, so that the parts of each list add up to their total;
    that of work on devices is its own time, and adds up to `device_ns`.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    rows = named(trace, query)
    spans = trace.columns("spans")
    mark = np.zeros(len(spans) + 1, dtype=bool)
    mark[rows] = True
    inner = _core.descends_from_same(spans["parent"], mark[:-1].astype(np.int32)).astype(bool)
    outer = np.where(inner[rows], 0, spans["duration_ns"][rows])
    on_device = bool(len(rows)) and bool(is_device_work(spans["kind"][rows[:1]])[0])
    parts = {
        "step": _part(np.append(spans["step"], -1)[rows], outer, _steps(trace)),
        "module": _by_place(trace, "module", rows, outer),
    }
    device_ns = None
    if on_device:
        started = starters(trace).operator[rows]
        parts["operator"] = _by_name(trace, started, outer)
        parts["stream"] = _part(spans["stream"][rows], outer, _streams(trace))
        parts["launch"] = _launches(trace, rows, outer)
    else:
        parts["shape"] = _by_place(trace, "shape", rows, outer)
        parts["line"] = _by_place(trace, "line", rows, outer)
        parts["caller"] = _by_name(trace, spans["parent"][rows], outer)
        parts["inside"] = _inside(trace, mark)
        work = _started_within(trace, mark)
        parts["kernel"] = _by_name(trace, work, spans["duration_ns"][work])
        device_ns = int(spans["duration_ns"][work].sum())
    return {
        "count": len(rows),
        "total_ns": int(outer.sum()),
        "self_ns": int(spans["self_ns"][rows].sum()),
        "device_ns": device_ns,
        "parts": {name: rows for name, rows in parts.items() if rows},
    }


def _part(keys: NDArray[Any], time_ns: NDArray[np.int64], describe: Describe) -> list[dict[str, Any]]:
    """Time and calls by key, most time first; what is beyond the first `_MOST_PARTS` is the last row."""
    if len(keys) == 0:
        return []
    found, place = np.unique(keys, return_inverse=True)
    total = _core.group_sums(place.astype(np.int32), len(found), time_ns)
    count = np.bincount(place, minlength=len(found))
    order = np.lexsort((found, -count, -total))
    shown = order[:_MOST_PARTS]
    rows = [
        {**what, "count": int(count[at]), "total_ns": int(total[at])}
        for what, at in zip(describe(found[shown]), shown.tolist(), strict=True)
    ]
    rest = order[_MOST_PARTS:]
    if len(rest):
        rows.append({
            "label": None,
            "others": len(rest),
            "count": int(count[rest].sum()),
            "total_ns": int(total[rest].sum()),
        })  # fmt: skip
    return rows


def _by_place(
    trace: Trace, way: str, rows: NDArray[np.int64], time_ns: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Parts by a place of the spans; none where no span has one."""
    labels = place_labels(trace, way)
    ids = labels.ids[rows]
    if not (ids >= 0).any():
        return []
    return _part(ids, time_ns, lambda found: _texts(found, labels.texts))


def _by_name(trace: Trace, rows: NDArray[Any], time_ns: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Parts by name and kind of some spans, -1 for none; nothing where there is no span."""
    if not (rows >= 0).any():
        return []
    spans = trace.columns("spans")
    # The row -1 finds the last span, whose place is then taken by -1.
    keys = np.where(rows >= 0, operator_keys(trace)[rows].astype(np.int64), -2)
    unique, first = np.unique(keys, return_index=True)
    name, kind = spans["name"][rows[first]], spans["kind"][rows[first]]
    texts = operator_names(trace, name, kind)

    def describe(found: NDArray[np.intp]) -> list[dict[str, Any]]:
        labels = []
        for key in found.tolist():
            at = int(np.searchsorted(unique, key))
            text = to_utf8(texts[at])
            labels.append(
                {"label": None}
                if key == -2
                else {"label": text, "name": text, "kind": KIND_NAMES[int(kind[at])]}
            )
        return labels

    return _part(keys, time_ns, describe)


def _inside(trace: Trace, mark: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """What runs right in the spans, by name: what their self time leaves out."""
    spans = trace.columns("spans")
    parent, calls = spans["parent"], recorded_calls(trace).mask
    found = mark[parent]
    if calls.any():
        # Work is not made shorter by the calls in it, but a call by the work that runs right in it.
        is_call = np.append(calls, np.False_)
        caller = np.append(spans["caller"], np.int32(-1))
        found &= ~calls | is_call[parent]
        found |= ~calls & (caller[parent] != caller[:-1]) & mark[caller[:-1]]
    # One of the chosen within another one is counted in its self time, and is no part beside it.
    within = np.flatnonzero(found & ~mark[:-1] & (spans["lane"] == 0))
    return _by_name(trace, within, spans["duration_ns"][within])


def _started_within(trace: Trace, mark: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The work on devices that was started in the spans or what runs in them."""
    parent = np.append(trace.column("spans", "parent"), np.int32(-1))
    operator = starters(trace).operator[:-1]
    work = np.flatnonzero(operator >= 0)
    around, found = operator[work], np.zeros(len(work), dtype=bool)
    # Nesting is a few dozen deep at most, and each turn is over all launches at once.
    left = np.arange(len(work))
    for _ in range(_MOST_LAUNCHES_UP):
        if len(left) == 0:
            break
        hit = mark[around[left]]
        found[left[hit]] = True
        left = left[~hit]
        around[left] = parent[around[left]]
        left = left[around[left] >= 0]
    return work[found]


def _launches(trace: Trace, rows: NDArray[np.int64], time_ns: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Kernels by grid, block, registers and shared memory; nothing not recorded."""
    own = trace.columns("kernels")
    place = np.full(len(trace.columns("spans")), -1, dtype=np.int32)
    place[own["span"]] = np.arange(len(own), dtype=np.int32)
    at = place[rows]
    if not (at >= 0).any():
        return []
    names = [f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz"] + ["registers", "shared_bytes"]
    values = [np.append(own[name], -1)[at].astype(np.int64) for name in names]
    group, first = _core.group(values)
    labels = [
        {
            "label": "",
            **{
                name: (int(v) if (v := column[row]) >= 0 else None)
                for name, column in zip(names, values, strict=True)
            },
        }
        for row in first.tolist()
    ]
    return _part(group, time_ns, lambda found: [labels[number] for number in found.tolist()])


def _texts(found: NDArray[np.intp], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Keys that are places in a list of texts."""
    return [{"label": to_utf8(texts[number]) if number >= 0 else None} for number in found.tolist()]


def _steps(trace: Trace) -> Describe:
    """Steps by their numbers."""
    numbers = trace.column("steps", "number")
    return lambda found: [{"label": f"step {numbers[row]}" if row >= 0 else None} for row in found.tolist()]


def _streams(trace: Trace) -> Describe:
    """Streams by device and number."""
    streams = trace.columns("streams")
    index, number = streams["device_index"], streams["number"]
    return lambda found: [
        {"label": f"device {index[row]}, stream {number[row]}" if row >= 0 else None}
        for row in found.tolist()
    ]
