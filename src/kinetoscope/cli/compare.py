"""`kinetoscope compare`: what takes longer or less in one run than in another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetoscope.cli import files
from kinetoscope.display.terminal import console, echo
from kinetoscope.model import units

if TYPE_CHECKING:
    from kinetoscope.comparison.result import Comparison

WARM_UP = files.number_option(
    "--warm-up",
    help="Leave out the first N steps of each recording.  [default: those that compile or are slow]",
)
_OPTIONS = (
    click.option(
        "--percent",
        metavar="P",
        type=float,
        default=1.0,
        help="Differences of times count from P percent of a step on.",
    ),
    click.option(
        "--least",
        "least_ns",
        metavar="TIME",
        default="10us",
        callback=lambda _context, _option, text: float(units.parse_duration(text)),
        help="Differences of times count from TIME a step on.",
    ),
    click.option(
        "--confidence",
        metavar="C",
        type=float,
        default=0.99,
        help="How sure a difference has to be, below 1.",
    ),
    WARM_UP,
    files.number_option(
        "--rows", default=10, help="Print at most N rows of each kind; 0 prints all that changed."
    ),
    files.AS_JSON,
    files.file_option(
        "--html",
        "html_file",
        help="Also write the viewer's page Compare to FILE, which opens without a server.",
    ),
)


def comparison_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a comparison: when a difference counts, and how it is shown."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def show_comparison(comparison: Comparison, rows: int, html_file: Path | None, *, as_json: bool) -> None:
    """Print a comparison, and write the viewer's page of it; its recordings must still be there."""
    if html_file is not None:
        from kinetoscope.viewer.server.report import comparison_page, write_page

        bases, news = comparison.base.names, comparison.new.names
        files.refuse_to_overwrite(html_file, [*bases, *news])
        with files.open_trace(bases[0]) as base, files.open_trace(news[0]) as new:
            text = comparison_page(comparison, base, new)
        write_page(text, html_file)
    echo(comparison.to_json() if as_json else comparison.to_text(rows, console().width))


@click.command("compare")
@click.argument("base", metavar="BASE", type=click.Path(readable=False))
@click.argument("new", metavar="NEW", type=click.Path(readable=False))
@comparison_options
def command(
    base: str, new: str, *, rows: int, as_json: bool, html_file: Path | None, **conditions: Any
) -> None:
    """Compare two runs: what takes longer or less, how sure that is, and which counts changed.

    BASE and NEW are each a trace or, for several recordings of one program, a folder of traces or a quoted pattern such as
    'base-*.ktrace'. Record the two in turn (A, B, A, B), as `kinetoscope ab` does: recordings next to each other share the state
    of the machine.

    The exit code is 0 whatever the verdict; `kinetoscope check` is what fails a build.
    """
    from kinetoscope.trace.opening import compare

    comparison = compare(files.recordings(base), files.recordings(new), **conditions)
    show_comparison(comparison, rows, html_file, as_json=as_json)
