"""`kinetoscope merge`: the traces of the ranks of a job as one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope._errors import ArgumentError
from kinetoscope.model import units

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

# The words for how a clock was found.
_CLOCKS = {"own": "its own clock", "monotonic": "the machine's clock", "wall": "the clock on the wall"}


@click.command("merge")
@click.argument("sources", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="OUT", required=True, help="Where to write, in the format its suffix names."
)
def command(sources: tuple[str, ...], output: str) -> None:
    """Put the traces of the ranks of one job into one, on one axis of time.

    Each TRACE is that of one rank: a .ktrace file, a recording, or a trace of Kineto as .json, .json.gz or .json.zst. The
    formats of OUT are those of `kinetoscope convert`; .ktrace keeps everything.

    Ranks of one machine have one clock. Those of several are compared by what they noted when they aligned their clocks
    (`profile(align_ranks=True)`), and by the collectives that they carried out together; what is printed as the error
    is a bound then. Where there is neither, the clocks on the wall are believed, and it is said.
    """
    from kinetoscope.cli.opening import open_trace
    from kinetoscope.combine.ranks import merge_named
    from kinetoscope.formats.suffixes import suffix_of

    target = Path(output)
    suffix_of(target)
    for source in sources:
        if target.exists() and Path(source).exists() and target.samefile(source):
            raise ArgumentError(f"{target} is one of the traces: name another file to write to.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        merged = merge_named([open_trace(source) for source in sources], sources)
    for warning in caught:
        click.echo(f"warning: {warning.message}", err=True)
    merged.save(target)
    for line in _lines(merged):
        click.echo(line)
    for loss in merged.losses:
        click.echo(f"incomplete: {loss['count']:,} {loss['what']}, {loss['where']}: {loss['why']}", err=True)
    click.echo(f"{target}: {units.size(target.stat().st_size) if target.is_file() else 'written'}")


def _lines(merged: Trace) -> list[str]:
    """What is to be said of each process: when it began, by which clock, and how surely."""
    lines = []
    for row in merged.table("processes").to_pylist():
        who = f"process {row['process']}" if row["rank"] is None else f"rank {row['rank']}"
        clock = _CLOCKS.get(row["clock"], row["clock"])
        error = row["error_ns"]
        sure = "by an unknown error" if error is None else f"to within {units.duration(error)}"
        where = f" on {row['host']}" if row["host"] else ""
        lines.append(
            f"{who}{where}: {units.count(row['spans'], 'span')} from {units.duration(row['start_ns'])} on, by {clock}, {sure}"
        )
    return lines
