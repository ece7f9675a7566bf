"""`kinetoscope merge`: merge the traces of the ranks of a job."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope.cli.files import file_option, open_trace, refuse_to_overwrite, say_written
from kinetoscope.display.terminal import echo
from kinetoscope.model import units
from kinetoscope.model.losses import counted

if TYPE_CHECKING:
    from kinetoscope.trace import Trace

# By what the clock of a process was placed on the common axis.
_CLOCKS = {"own": "its own clock", "monotonic": "the machine's clock", "wall": "the wall clock"}


@click.command("merge")
@click.argument("sources", metavar="TRACE...", nargs=-1, required=True, type=click.Path(readable=False))
@file_option(
    "-o", "--output", metavar="OUT", required=True, help="Write to OUT; its suffix selects the format."
)
def command(sources: tuple[str, ...], output: Path) -> None:
    """Merge the traces of the ranks of one job, on one time axis.

    Each TRACE is the trace of one rank: a .ktrace file, a recording, or a Kineto trace (.json, .json.gz, .json.zst). OUT can
    have any format of `kinetoscope convert`; .ktrace keeps everything.

    Ranks on one machine share a clock. Clocks of several machines are aligned by the barriers of
    `profile(align_ranks=True)` and by collectives, and the printed error is a bound. Without either, wall clocks are
    used, and a warning says so.
    """
    from kinetoscope.combine.ranks import merge_named
    from kinetoscope.formats.suffixes import suffix_of

    suffix_of(output)
    refuse_to_overwrite(output, sources)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        merged = merge_named([open_trace(source) for source in sources], sources)
    for warning in caught:
        echo(f"warning: {warning.message}", err=True)
    merged.save(output)
    for line in _lines(merged):
        echo(line)
    for loss in merged.losses:
        echo(f"incomplete: {counted(loss['what'], loss['count'])}, {loss['where']}: {loss['why']}", err=True)
    say_written(output)


def _lines(merged: Trace) -> list[str]:
    lines = []
    for row in merged.table("processes").to_pylist():
        who = f"process {row['process']}" if row["rank"] is None else f"rank {row['rank']}"
        clock = _CLOCKS.get(row["clock"], row["clock"])
        error = row["error_ns"]
        exactness = "error unknown" if error is None else f"exact to {units.duration(error)}"
        where = f" on {row['host']}" if row["host"] else ""
        lines.append(
            f"{who}{where}: {units.count(row['spans'], 'span')}, starts at {units.duration(row['start_ns'])}, by {clock} ({exactness})"
        )
    return lines
