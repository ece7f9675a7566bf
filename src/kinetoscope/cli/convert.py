"""`kinetoscope convert`: write a trace in another format."""

from __future__ import annotations

from pathlib import Path

import click

from kinetoscope._errors import ArgumentError
from kinetoscope.cli import _units


@click.command("convert")
@click.argument("source", metavar="TRACE")
@click.argument("output", metavar="OUTPUT")
def command(source: str, output: str) -> None:
    """Write a trace to OUTPUT, in the format its suffix names.

    .ktrace is our own, with every table; .parquet is the spans, for other programs; .json and .json.gz are for Perfetto
    and chrome://tracing.
    """
    from kinetoscope.cli._opening import open_trace

    target = Path(output)
    if target.exists() and target.samefile(source):
        raise ArgumentError(f"{output} is the trace itself: name another file to write to.")
    with open_trace(source) as trace:
        trace.save(target)
    click.echo(f"{output}: {_units.size(target.stat().st_size)}")
