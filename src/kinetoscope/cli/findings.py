"""`kinetoscope findings`: what makes a run slow, and what to change."""

from __future__ import annotations

import click

from kinetoscope.cli.files import AS_JSON, echo_json, number_option, open_trace


@click.command("findings")
@click.argument("path", metavar="TRACE", type=click.Path(readable=False))
@AS_JSON
@number_option("--max", "most", default=7, help="Print at most N findings; 0 prints all.")
def command(path: str, *, as_json: bool, most: int) -> None:
    """Show what makes a run slow: each finding with its largest possible gain, what to change, and where.

    The exit code is 0 whether there are findings or not.
    """
    from kinetoscope.analyses.findings import as_dict, examine, finding_blocks
    from kinetoscope.display.lines import print_blocks
    from kinetoscope.display.terminal import console, reading_width

    with open_trace(path) as trace:
        report = examine(trace)
        if as_json:
            echo_json(as_dict(report, most))
            return
        printer = console()
        print_blocks(printer, finding_blocks(report, most), reading_width(printer))
