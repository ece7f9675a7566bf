"""How a trace introduces itself in a terminal; for notebooks see `kinetoscope.display.trace_page`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.display.units import duration

if TYPE_CHECKING:
    import rich.table

    from kinetoscope.model.trace_data import TraceData


def facts(trace: TraceData) -> dict[str, str]:
    """The few facts that identify a trace, in words."""
    known = {"spans": f"{len(trace.columns('spans')):,}", "threads": f"{len(trace.columns('threads')):,}"}
    steps = len(trace.columns("steps"))
    if steps:
        known["steps"] = f"{steps:,}"
    allocations = len(trace.columns("allocations"))
    if allocations:
        known["allocations and frees"] = f"{allocations:,}"
    known["duration"] = duration(trace.duration_ns)
    if "process" in trace.info:
        known["process"] = str(trace.info["process"])
    if trace.path is not None:
        known["file"] = str(trace.path)
    lost: dict[str, int] = {}
    for loss in trace.losses:
        lost[loss["what"]] = lost.get(loss["what"], 0) + loss["count"]
    known["complete"] = (
        "yes" if not lost else "no: " + "; ".join(f"{count:,} x {what}" for what, count in lost.items())
    )
    return known


def one_line(trace: TraceData) -> str:
    """Say it in one line."""
    known = facts(trace)
    where = f" {trace.path.name}" if trace.path is not None else ""
    amounts = ", ".join(f"{known[name]} {name}" for name in ("spans", "threads", "steps") if name in known)
    state = "complete" if trace.complete else f"incomplete ({known['complete'].removeprefix('no: ')})"
    return f"<Trace{where}: {amounts}, {known['duration']}, {state}>"


def rich_table(trace: TraceData) -> rich.table.Table:
    """Make rich's table of the facts."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Trace", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in facts(trace).items():
        # As Text, so that square brackets in a path are not taken for markup.
        table.add_row(name, Text(value))
    return table
