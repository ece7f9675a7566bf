"""`kinetoscope calibrate`: measure what this machine attains."""

from __future__ import annotations

import click

from kinetoscope import collect
from kinetoscope.cli.files import number_option


@click.command("calibrate")
@number_option(
    "--threads", least=1, help="Measure with N threads for each operator.  [default: torch's own number]"
)
def command(*, threads: int | None) -> None:
    """Measure how fast this machine runs operators of each family, for the account of a step.

    Takes about 10 seconds, once for each CPU, release of torch and number of threads; other programs should be idle. Later recordings
    have the result, so that the account says what their operators need on this machine.
    """
    from kinetoscope.display.terminal import echo
    from kinetoscope.model import units

    path, used = collect.calibrate(threads)
    echo(f"Measured with {units.count(used, 'thread')}: {path}")
