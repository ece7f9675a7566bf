"""What ran in which Python functions, as flame graphs: time on the host, time on devices, or memory allocated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope import _core
from kinetoscope._errors import ArgumentError
from kinetoscope.tables._event_facts import STEP_KEY
from kinetoscope.tables._source import user_frames
from kinetoscope.tables._visible import event_names, host_spans
from kinetoscope.tables.stacks import span_stacks
from kinetoscope.trace import Column, SpanKind, Table
from kinetoscope.trace._arrow import Labels, to_arrow
from kinetoscope.trace._processes import processes, thread_processes
from kinetoscope.trace._schema import KIND_NAMES
from kinetoscope.trace._steps import MARK
from kinetoscope.viewer._flame import Flame, inverted, shown_stacks, upright
from kinetoscope.viewer._timeline import process_label
from kinetoscope.viewer._window import few_texts

if TYPE_CHECKING:
    import pyarrow
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer._answers import Query

MEASURES = {"cpu": "ns", "device": "ns", "bytes": "bytes"}
# Built-in methods are recorded with the object that they are of, another one each time.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
ORDERS = {"callees": upright, "callers": inverted}


@dataclass(frozen=True)
class _Weights:
    """What weighs in the stacks by one measure, in one process or in all.

    Attributes:
        total: What weighs in all, also where no stack is known.
        of_stack: The sum for each stack.
        count: How many spans or allocations that is of.
    """

    total: int
    of_stack: NDArray[np.int64]
    count: NDArray[np.int64]


def flame_choices(trace: Trace, query: Query) -> dict[str, Any]:
    """Answer `flame_choices`: what flame graphs there are, and how much of the trace they show."""
    rows = processes(trace).to_pylist()
    several = list(range(len(rows))) if len(rows) > 1 else []
    measures = []
    for by, unit in MEASURES.items():
        weights = [_weights(trace, by, process) for process in (-1, *several)]
        measures.append({
            "by": by,
            "unit": unit,
            "total": [one.total for one in weights],
            "known": [int(one.of_stack.sum()) for one in weights],
        })  # fmt: skip
    return {
        "stacks": len(trace.columns("stacks")),
        "library": bool(len(trace.columns("frames")) and not user_frames(trace).all()),
        "measures": measures,
        "processes": [process_label(rows[row]) for row in several],
    }


def flame(trace: Trace, query: Query) -> pyarrow.Table:
    """Answer `flame`: the tree of one flame graph.

    The options: `by` is cpu, device or bytes; `order` is callees or callers; `library=hide` leaves out the frames of
    torch itself; `process` is the place of a process among those of `flame_choices`.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    options = _options(trace, query)
    tree, by = _tree(trace, options), options[0]
    frames, strings = trace.columns("frames"), trace.strings
    real = {name: np.append(frames[name], -1)[tree.frame] for name in ("function", "file", "line")}
    shown: dict[str, Any] = {
        name: Labels(*few_texts(real[name], _and_none(strings))) for name in ("function", "file")
    }
    shown["function"] = Labels(
        shown["function"].ids, [_ADDRESS.sub("", text) for text in shown["function"].texts]
    )
    columns = {
        "parent": tree.parent,
        **shown,
        "line": real["line"],
        "user": np.append(user_frames(trace), False)[tree.frame] if len(frames) else tree.frame >= 0,
        "rest": tree.rest,
        "total": tree.total,
        "own": tree.own,
        "count": tree.count,
    }
    return to_arrow(_flame_schema(MEASURES[by]), columns)


def flame_operators(trace: Trace, query: Query) -> pyarrow.Table:
    """Answer `flame_operators`: what weighs in each node of a flame graph, by name; the options are those of `flame`.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    options = _options(trace, query)
    tree, spans = _tree(trace, options), trace.columns("spans")
    span, stack, value = _heavy(trace, options[0], options[3])
    known = np.flatnonzero(stack >= 0)
    span, node = span[known], tree.of_stack[stack[known]]
    names = np.append(event_names(trace), np.int32(-1))[span]
    kinds = np.append(spans["kind"].astype(np.int32), np.int32(-1))[span]
    group, first = _core.group([node, names, kinds])
    node, value = node[first], _core.group_sums(group, len(first), value[known])
    places, texts = few_texts(names[first], _and_none(trace.strings))
    columns: dict[str, Any] = {
        "node": node,
        "name": Labels(places, [STEP_KEY if text.startswith(MARK) else text for text in texts]),
        "kind": Labels(kinds[first], KIND_NAMES),
        "count": _core.group_counts(group, len(first)),
        "value": value,
    }
    order = np.lexsort((places, -value, node))
    return to_arrow(_operators_schema(MEASURES[options[0]]), columns).take(order)


def reported(trace: Trace) -> tuple[tuple[str, dict[str, str]], ...]:
    """The questions that a report answers: all flame graphs of all processes together."""
    found: list[tuple[str, dict[str, str]]] = [("flame_choices", {})]
    choices = flame_choices(trace, {})
    for measure in choices["measures"]:
        if not measure["known"][0]:
            continue
        for order in ORDERS:
            for library in ("", "hide") if choices["library"] else ("",):
                query = {"by": measure["by"], "order": order, "library": library}
                query = {name: value for name, value in query.items() if value}
                found += [("flame", query), ("flame_operators", query)]
    return tuple(found)


def _options(trace: Trace, query: Query) -> tuple[str, str, bool, int]:
    """The measure, the order, whether frames of torch are left out, and the row of the process or -1.

    Raises:
        ArgumentError: One cannot be used.
    """
    by, order = query.get("by", "cpu"), query.get("order", "callees")
    library, process = query.get("library", "show"), query.get("process", "-1")
    for name, value, known in (
        ("by", by, list(MEASURES)),
        ("order", order, list(ORDERS)),
        ("library", library, ["show", "hide"]),
        ("process", process, ["-1", *map(str, range(len(trace.columns("processes"))))]),
    ):
        if value not in known:
            raise ArgumentError(f"{name}={value[:50]!r} is not valid: choose one of {', '.join(known)[:200]}")
    return by, order, library == "hide", int(process)


def _tree(trace: Trace, options: tuple[str, str, bool, int]) -> Flame:
    """The tree of a flame graph, made once."""
    by, order, hide, process = options

    def make() -> Flame:
        stacks, weights = trace.columns("stacks"), _weights(trace, by, process)
        frame = np.append(_like_frames(trace), np.int32(-1))[stacks["frame"]]
        shown = shown_stacks(stacks["parent"], frame, user_frames(trace) if hide else None)
        return ORDERS[order](shown, weights.of_stack, weights.count)

    return trace.cached(f"viewer: flame {options}", make)


def _like_frames(trace: Trace) -> NDArray[np.int32]:
    """For each frame the first that differs from it in nothing but the addresses of objects in its name."""

    def make() -> NDArray[np.int32]:
        frames, strings = trace.columns("frames"), trace.strings
        like = np.arange(len(frames), dtype=np.int32)
        functions, files, lines = (frames[name].tolist() for name in ("function", "file", "line"))
        named = {row: _ADDRESS.sub("", strings[row]) for row in set(functions) if " at 0x" in strings[row]}
        first: dict[tuple[str, int, int], int] = {}
        for frame, function in enumerate(functions):
            if function in named:
                key = (named[function], files[frame], lines[frame])
                like[frame] = first.setdefault(key, frame)
        return like

    return trace.cached("viewer: like frames", make)


def _weights(trace: Trace, by: str, process: int) -> _Weights:
    """What weighs in the stacks by one measure, in one process or, for -1, in all; added up once."""

    def make() -> _Weights:
        _, stack, value = _heavy(trace, by, process)
        stacks = len(trace.columns("stacks"))
        of_stack, count = _core.group_sums(stack, stacks, value), _core.group_counts(stack, stacks)
        return _Weights(int(value.sum()), of_stack, count)

    return trace.cached(f"viewer: weights of stacks {by} {process}", make)


def _heavy(
    trace: Trace, by: str, process: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """What weighs anything: the span of each or -1, its stack or -1, and its weight."""
    span, stack, value = _allocated(trace) if by == "bytes" else _times(trace, by)
    heavy = value > 0
    if process >= 0:
        threads = trace.columns("allocations" if by == "bytes" else "spans")["thread"]
        heavy &= thread_processes(trace)[threads] == process
    rows = np.flatnonzero(heavy)
    return span[rows], stack[rows], value[rows]


def _times(trace: Trace, by: str) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """For each span its row, its stack, and its own time on the host or that on devices of what it launched itself."""
    spans = trace.columns("spans")
    # A step is marked from one place, and its time is spent in others.
    work = host_spans(trace) & (spans["kind"] != SpanKind.STEP)
    value = np.where(work, spans["self_ns"], 0) if by == "cpu" else spans["device_self_ns"]
    return np.arange(len(spans)), span_stacks(trace), value


def _allocated(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """For each allocation its span, its stack or else that of its span, and its size."""
    blocks = trace.columns("allocations")
    of_span = np.append(trace.column("spans", "stack"), np.int32(-1))[blocks["span"]]
    stack = np.where(blocks["stack"] >= 0, blocks["stack"], of_span)
    # What was there before the recording began was allocated by nobody in it.
    size = np.where(blocks["time_ns"] >= 0, blocks["bytes"], 0)
    return blocks["span"].astype(np.int64), stack, size


def _and_none(texts: list[str]) -> list[str]:
    """The same texts, with an empty one for the place -1."""
    return [*texts, ""]


def _flame_schema(unit: str) -> Table:
    """The columns of a flame graph."""
    return Table(
        "flame",
        "A frame of a flame graph: those inside it follow it, the heaviest first.",
        (
            Column("parent", "int32", "", "The row of the frame around it; null for none."),
            Column("function", "category", "", "The function; empty for stacks without a frame to show."),
            Column("file", "category", "", "Its file."),
            Column("line", "int32", "", "The line being executed."),
            Column("user", "bool", "", "Whether it is neither torch's nor ours."),
            Column("rest", "int32", "", "How many small frames it stands for; 0 for a frame of its own.", 0),
            Column("total", "int64", unit, "What was spent in it and in those inside it.", 0),
            Column("own", "int64", unit, "The same without those inside it.", 0),
            Column("count", "int64", "", "How many spans or allocations that is of.", 0),
        ),
    )


def _operators_schema(unit: str) -> Table:
    """The columns of what weighs in a flame graph."""
    return Table(
        "flame_operators",
        "What was spent in exactly one frame of a flame graph by the spans of one name and kind.",
        (
            Column("node", "int32", "", "The row of the frame.", 0),
            Column(
                "name", "category", "", "The name of the spans; empty for what was allocated outside of any."
            ),
            Column("kind", "category", "", "Their kind."),
            Column("count", "int64", "", "How many spans or allocations.", 0),
            Column("value", "int64", unit, "What was spent.", 0),
        ),
    )
