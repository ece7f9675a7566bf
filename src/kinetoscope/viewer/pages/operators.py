"""Operators, ranges and calls added up by name, and further by shape, line, stack or module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope._errors import ArgumentError
from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.names import frame_texts, stack_frames
from kinetoscope.model.schema import Column, Table
from kinetoscope.model.strings import to_utf8
from kinetoscope.tables.host.ops import OPS_SCHEMA, added_up, operator_keys
from kinetoscope.tables.host.source_lines import user_frames, user_stacks
from kinetoscope.tables.host.visible import elsewhere, python_calls
from kinetoscope.viewer.pages.tables import MOST_ROWS
from kinetoscope.viewer.server.answers import Limited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.answers import Query

WAYS = ("name", "shape", "line", "stack", "module")
SORTS = ("work", "calls")
CALLER = " ← "
"""Between the frames of a stack in one text, the innermost first."""

_MOST_FRAMES = 16

OPERATORS_SCHEMA = Table(
    "operators",
    "All spans of one name and kind, as in `ops`, and of one place where that is asked for. Largest self time first.",
    (
        *OPS_SCHEMA.columns[:2],
        Column("place", "category", "", "What else they have in common: the sizes of their inputs, the innermost line of"
               " the user's code, its stack, or the module; null where it is not known."),
        *OPS_SCHEMA.columns[2:],
    ),
)  # fmt: skip


def operators(trace: Trace, query: Query) -> Limited:
    """Answer `operators`: what ran on the host, added up `by` one of `WAYS`.

    With `of=calls` it is the recorded calls of Python functions and modules, which `ops` leaves out: they enclose work
    and do none that is not counted for the operators in them.

    Raises:
        ArgumentError: No such way, or another value of `of`.
    """
    way, sort = choice(query, "by", WAYS), choice(query, "of", SORTS)
    key = f"viewer: operators {way} {sort}"
    found, total = trace.cached(key, lambda: _added_up(trace, way, sort))
    return Limited(found, total)


def choice(query: Query, name: str, values: Sequence[str]) -> str:
    """Return an option that is one of some values, the first where it is left out.

    Raises:
        ArgumentError: It is another one.
    """
    value = query.get(name, values[0])
    if value not in values:
        raise ArgumentError(f"{name}={value[:50]!r} is not valid: use one of {', '.join(values)}")
    return value


def place_labels(trace: Trace, way: str) -> Labels:
    """For every span the place that a way of adding up tells apart, as a text; below 0 where it has none."""
    return trace.cached(f"viewer: places by {way}", lambda: _labels(trace, way))


def in_place(trace: Trace, query: Query) -> NDArray[np.bool_]:
    """Which spans have the `place` that an option names, of those that `by` tells apart; without one, which have none."""
    labels = place_labels(trace, choice(query, "by", WAYS[1:]))
    place = query.get("place")
    if place is None:
        found: NDArray[np.bool_] = labels.ids < 0
        return found
    numbers = [number for number, text in enumerate(labels.texts) if to_utf8(text) == place]
    return np.isin(labels.ids, numbers) if numbers else np.zeros(len(labels.ids), dtype=bool)


def _added_up(trace: Trace, way: str, sort: str) -> tuple[Any, int]:
    """The rows with the most self time, and how many there are."""
    others, calls = elsewhere(trace), python_calls(trace)
    if sort == "calls":
        where = np.zeros(len(trace.columns("spans")), dtype=bool) if calls is None else calls
    else:
        where = np.ones(len(trace.columns("spans")), dtype=bool) if others is None else ~others
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
    return to_arrow(OPERATORS_SCHEMA, columns).take(order[:MOST_ROWS]), len(order)


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
        texts[row] = _stack_text(trace, row, 1 if way == "line" else _MOST_FRAMES, is_user, frames)
    return _each_once(place, texts)


def _stack_text(
    trace: Trace, stack: int, most: int, is_user: NDArray[np.bool_], frames: Sequence[str]
) -> str:
    """The frames of the user's code of a stack that ends in one, the innermost first."""
    rows = stack_frames(trace, stack, None if most > 1 else 1)
    shown = [rows[0], *(row for row in rows[1:] if is_user[row])] if rows else []
    told = [frames[row] for row in shown[:most]]
    return CALLER.join(told if len(shown) <= most else [*told, "…"])


def _each_once(ids: NDArray[Any], texts: Sequence[str]) -> Labels:
    """The same labels, where rows of equal texts have one number and an empty text is none."""
    numbers: dict[str, int] = {}
    place = np.full(len(texts) + 1, -1, dtype=np.int32)
    for row in np.unique(ids[ids >= 0]).tolist():
        if texts[row]:
            place[row] = numbers.setdefault(texts[row], len(numbers))
    return Labels(place[ids], list(numbers))


_MOST_REPORTED = 80


def reported(trace: Trace) -> list[tuple[str, dict[str, str]]]:
    """The questions that a report must answer: all tables, and all about the rows that a reader is likely to choose."""
    asked: list[tuple[str, dict[str, str]]] = [("operators", {})]
    asked += [("operators", {"by": way}) for way in WAYS[1:]]
    names: dict[tuple[str, str], None] = {}
    for of in SORTS:
        if of != SORTS[0]:
            asked.append(("operators", {"of": of}))
        table = operators(trace, {"of": of}).table
        for column in ("self_ns", "total_ns", "device_ns"):
            first = table.sort_by([(column, "descending")]).slice(0, _MOST_REPORTED)
            names |= dict.fromkeys(zip(first["name"].to_pylist(), first["kind"].to_pylist(), strict=True))
    for name, kind in names:
        asked += [(path, {"name": name, "kind": kind}) for path in ("chosen", "histogram")]
    return asked
