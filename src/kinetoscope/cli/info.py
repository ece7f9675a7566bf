"""`kinetoscope info`: what a trace is and whether it is complete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetoscope.analyses.description import describe, incomplete
from kinetoscope.cli.files import AS_JSON, echo_json, open_trace
from kinetoscope.display.blocks import Paragraph
from kinetoscope.model import units
from kinetoscope.model.losses import lost

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


@click.command("info")
@click.argument("path", metavar="TRACE", type=click.Path(readable=False))
@click.option(
    "--command-line/--no-command-line",
    "with_command_line",
    default=True,
    help="Show the recorded command line, which may hold secrets.",
)
@AS_JSON
def command(path: str, *, with_command_line: bool, as_json: bool) -> None:
    """Show what a trace is, where it was recorded, what it holds, and whether it is complete.

    TRACE may also be the recording of a program that was killed or is still running.
    """
    from kinetoscope.display.lines import print_blocks
    from kinetoscope.display.terminal import console

    printer = console()
    with open_trace(path) as trace:
        facts = [Paragraph(f"{path}, {_size(path, trace)}", "Trace"), *describe(trace.overview())]
        facts = [fact for fact in facts if with_command_line or fact.label != "Program"]
        if as_json:
            echo_json(_as_dict(path, trace) | {"facts": {fact.label: fact.text for fact in facts}})
            return
    print_blocks(printer, facts, printer.width)


def _as_dict(path: str, trace: Trace) -> dict[str, Any]:
    overview = trace.overview()
    return {
        "path": path,
        "complete": trace.complete,
        "incomplete": incomplete(trace),
        "duration_ns": trace.duration_ns,
        "counts": {name: int(count) for name, count in (overview.counts | overview.work_counts).items()},
        "losses": lost(trace.losses),
    }


def _size(path: str, trace: Trace) -> str:
    """The size of the file and, if it has many spans, its size per span."""
    spans = len(trace.columns("spans"))
    try:
        size_bytes = Path(path).stat().st_size
    except OSError:
        return "not a local file"
    per_span = f", {size_bytes / spans:.1f} bytes per span" if spans >= _ENOUGH_SPANS else ""
    return f"{units.size(size_bytes)}{per_span}"


# Below this, the size per span is mostly that of the tables without rows.
_ENOUGH_SPANS = 1000
