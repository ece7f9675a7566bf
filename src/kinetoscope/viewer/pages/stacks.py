"""Routes of the flame graphs: each parses its options and returns what `analyses.flame` has."""

from __future__ import annotations

from typing import Any

import pyarrow

from kinetoscope.analyses import flame as flame_graphs
from kinetoscope.model.processes import processes
from kinetoscope.tables.stacks import user_frames
from kinetoscope.trace import Trace
from kinetoscope.viewer.requests import Query, choice
from kinetoscope.viewer.timeline.tracks import process_label


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
            "total": [weight.total for weight in weights],
            "known": [int(weight.of_stack.sum()) for weight in weights],
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


def _options(trace: Trace, query: Query) -> dict[str, Any]:
    rows = [str(row) for row in range(-1, len(trace.columns("processes")))]
    return {name: query[name] for name in ("by", "order") if name in query} | {
        "library": choice(query, "library", ("show", "hide")) == "show",
        "process": int(choice(query, "process", rows)),
    }


def reported(trace: Trace) -> tuple[tuple[str, dict[str, str]], ...]:
    """List the requests for a report: all flame graphs of all processes together."""
    requests: list[tuple[str, dict[str, str]]] = [("flame_choices", {})]
    choices = flame_choices(trace, {})
    for measure in choices["measures"]:
        if not measure["known"][0]:
            continue
        for order in flame_graphs.ORDERS:
            for library in ("", "hide") if choices["library"] else ("",):
                query = {"by": measure["by"], "order": order, "library": library}
                query = {name: value for name, value in query.items() if value}
                requests += [("flame", query), ("flame_operators", query)]
    return tuple(requests)


ROUTES = {"flame": flame, "flame_choices": flame_choices, "flame_operators": flame_operators}
