"""`kinetoscope convert`: write a trace, or a part of it, in other formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope._errors import ArgumentError
from kinetoscope.cli.files import open_trace, refuse_to_overwrite, say_written
from kinetoscope.formats.suffixes import OF_A_TABLE, OF_A_TRACE, Format, suffix_of
from kinetoscope.model import units

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


_HELP = """Convert a trace, or a part of it. The suffix of each OUTPUT selects its format.

TRACE is a .ktrace file, a recording, a trace of Kineto or another tool (.json, .json.gz, .json.zst), a URL, or - for
standard input.

\b
{formats}

Filters apply in this order: ranks, steps, window. Window times count from the start of what the others kept.
"""
_PAGE = Format("memory page", (".memory.html",), "the memory page of the viewer")


def _help() -> str:
    lines = [f"{' '.join(form.suffixes):<37}{form.purpose}" for form in (*OF_A_TRACE, _PAGE, *OF_A_TABLE)]
    return _HELP.format(formats="\n".join(lines))


@click.command("convert", help=_help())
@click.argument("source", metavar="TRACE", type=click.Path(readable=False))
@click.argument("outputs", metavar="OUTPUT...", nargs=-1, required=True)
@click.option(
    "--window",
    metavar="START:END",
    help="Keep only this time range, counted from the start, such as 1.5s:2s, 100ms: or :250us.",
)
@click.option(
    "--steps", metavar="N,A-B", help="Keep only these steps, such as 2-4,7 (numbers of the table `steps`)."
)
@click.option("--ranks", metavar="N,A-B", help="Keep only these ranks of a distributed job.")
@click.option(
    "--device",
    type=click.Choice(["time", "launch"]),
    help="Select device work by when it ran, clipped at the edges (time), or by when it was launched, as a whole (launch)."
    "  [default: time for --window, launch for --steps]",
)
@click.option(
    "--table", metavar="NAME", help="Table to write to .parquet, .arrow or .feather.  [default: spans]"
)
def command(
    source: str,
    outputs: tuple[str, ...],
    *,
    window: str | None,
    steps: str | None,
    ranks: str | None,
    device: str | None,
    table: str | None,
) -> None:
    """Convert a trace, or a part of it; see the help."""
    from rich.markup import escape

    from kinetoscope.display.terminal import console
    from kinetoscope.viewer.server.report import write_memory_page

    targets = [Path(output) for output in outputs]
    for target in targets:
        if not _is_memory_page(target):
            suffix_of(target)
        refuse_to_overwrite(target, [source])
    span_ns = None if window is None else units.parse_window(window)
    chosen_steps = None if steps is None else units.parse_numbers("--steps", steps)
    chosen_ranks = None if ranks is None else units.parse_numbers("--ranks", ranks)
    if device is not None and span_ns is None and chosen_steps is None:
        raise ArgumentError("--device selects device work for --window or --steps: add one of them.")
    with open_trace(source) as trace:
        part = trace
        if chosen_ranks is not None:
            part = part.select_ranks(chosen_ranks)
        if chosen_steps is not None:
            part = part.select_steps(chosen_steps, device=device or "launch")
        if span_ns is not None:
            part = part.window(*span_ns, device=device or "time")
        for target in targets:
            with console(stderr=True).status(escape(f"writing {target}")):
                if _is_memory_page(target):
                    write_memory_page(part, target)
                else:
                    part.save(target, table=table)
            say_written(target, _selected(part, trace))


def _is_memory_page(path: Path) -> bool:
    """Whether a file is written by the viewer, not by `Trace.save`."""
    return path.name.lower().endswith(_PAGE.suffixes)


def _selected(part: Trace, whole: Trace) -> str:
    if part is whole:
        return ""
    spans, spans_in_all = len(part.columns("spans")), len(whole.columns("spans"))
    return f", {spans:,} of {units.count(spans_in_all, 'span')}, {units.duration(part.duration_ns)}"
