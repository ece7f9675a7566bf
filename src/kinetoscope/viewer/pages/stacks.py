"""Routes of the flame graphs and flame charts: each parses its options and returns what `analyses.flame` and `analyses.flame_chart` have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetoscope.analyses import flame as flame_graphs
from kinetoscope.analyses import flame_chart as flame_charts
from kinetoscope.model.processes import processes, thread_processes
from kinetoscope.tables.stacks import user_frames
from kinetoscope.viewer.requests import choice, number
from kinetoscope.viewer.timeline.tracks import median_step, process_label, thread_labels

if TYPE_CHECKING:
    import pyarrow

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.requests import Query


def flame_choices(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `flame_choices`: the available flame graphs, and how much of the trace they cover."""
    rows = processes(trace).to_pylist()
    several = list(range(len(rows))) if len(rows) > 1 else []
    measures = []
    for by, unit in flame_graphs.MEASURES.items():
        weights = [flame_graphs.weights_of(trace, by, process) for process in (-1, *several)]
        measures.append({
            "by": by,
            "unit": unit,
            "total": [one.total for one in weights],
            "known": [int(one.of_stack.sum()) for one in weights],
        })  # fmt: skip
    return {
        "stacks": len(trace.columns("stacks")),
        "library": bool(len(trace.columns("frames")) and not user_frames(trace).all()),
        "own": bool(len(trace.columns("frames")) and user_frames(trace).any()),
        "measures": measures,
        "processes": [process_label(rows[row]) for row in several],
    }


def flame(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `flame`: the options are those of `flame_graph`, with `library=hide` to leave out the frames of torch.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    return flame_graphs.flame_graph(trace, **_options(trace, query))


def flame_operators(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `flame_operators`; the options are those of `flame`.

    Raises:
        ArgumentError: An option that cannot be used.
    """
    return flame_graphs.flame_operators(trace, **_options(trace, query))


FINE_SHARE = 20_000
"""A chart without a window, as reports have it, has boxes as short as what it shows divided by this, if they are not too many."""
MOST_BOXES = 40_000
MOST_CHARTS = 4
"""A report has the flame charts of this many threads."""


def flame_chart_choices(trace: Trace, query: Query) -> dict[str, Any]:
    """Respond to `flame_chart/choices`: the threads that have a flame chart, and what is shown of them at first."""
    rows, process = processes(trace).to_pylist(), thread_processes(trace)
    labels = thread_labels(trace)
    user = user_frames(trace)
    return {
        "threads": [
            {
                "thread": one.thread,
                "label": labels[one.thread],
                "process": process_label(rows[max(int(process[one.thread]), 0)]) if len(rows) > 1 else None,
                "start_ns": one.start_ns,
                "end_ns": one.end_ns,
                "spans": one.spans,
                "overlapping": one.overlapping,
            }
            for one in flame_charts.chart_threads(trace)
        ],
        "median_step": median_step(trace),
        "stacks": len(trace.columns("stacks")) > 0,
        "library": bool(len(user) and not user.all() and user.any()),
    }


def flame_chart(trace: Trace, query: Query) -> pyarrow.Table:
    """Respond to `flame_chart?thread=[&library=hide][&start=&end=]`; without a window, that of a median step, with shorter boxes.

    Raises:
        ArgumentError: There is no such thread, or the window is not valid.
    """
    thread = int(number(query, "thread"))
    library = choice(query, "library", ("show", "hide")) == "show"
    if "start" in query or "end" in query:
        start, end = int(number(query, "start")), int(number(query, "end"))
        return flame_charts.flame_chart(trace, thread=thread, start_ns=start, end_ns=end, library=library)
    start, end = _home(trace, thread)
    least = (end - start) // FINE_SHARE
    while True:
        found = flame_charts.flame_chart(
            trace, thread=thread, start_ns=start, end_ns=end, library=library, least_ns=least
        )
        if found.num_rows <= MOST_BOXES or least >= end - start:
            return found
        least = 2 * max(least, 1)


def _home(trace: Trace, thread: int) -> tuple[int, int]:
    """What is shown of a thread at first: a median step in which it ran, else all of it."""
    own = next((one for one in flame_charts.chart_threads(trace) if one.thread == thread), None)
    step = median_step(trace)
    if own is None:
        return 0, 1
    if step is not None and step[0] < own.end_ns and step[1] > own.start_ns:
        return step[0], step[1]
    return own.start_ns, max(own.end_ns, own.start_ns + 1)


def _options(trace: Trace, query: Query) -> dict[str, Any]:
    """The options of a flame graph."""
    rows = [str(row) for row in range(-1, len(trace.columns("processes")))]
    return {name: query[name] for name in ("by", "order") if name in query} | {
        "library": choice(query, "library", ("show", "hide")) == "show",
        "process": int(choice(query, "process", rows)),
    }


def reported(trace: Trace) -> tuple[tuple[str, dict[str, str]], ...]:
    """List the requests for a report: all flame graphs of all processes together, and the flame charts of some threads."""
    found: list[tuple[str, dict[str, str]]] = [("flame_choices", {})]
    choices = flame_choices(trace, {})
    for measure in choices["measures"]:
        if not measure["known"][0]:
            continue
        for order in flame_graphs.ORDERS:
            for library in ("", "hide") if choices["library"] else ("",):
                query = {"by": measure["by"], "order": order, "library": library}
                query = {name: value for name, value in query.items() if value}
                found += [("flame", query), ("flame_operators", query)]
    charts = flame_chart_choices(trace, {})
    if charts["threads"] and charts["stacks"]:
        found.append(("flame_chart/choices", {}))
    for thread in charts["threads"][: MOST_CHARTS if charts["stacks"] else 0]:
        for library in ("", "hide") if charts["library"] else ("",):
            query = {"thread": str(thread["thread"]), "library": library}
            found.append(("flame_chart", {name: value for name, value in query.items() if value}))
    return tuple(found)
