"""`kinetoscope findings`: what makes a run slow, in words."""

from __future__ import annotations

import json

import click


@click.command("findings")
@click.argument("path", metavar="TRACE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs, with stable keys.")
@click.option(
    "--max",
    "most",
    metavar="N",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    help="Print N findings at most, 0 for all.",
)
def command(path: str, *, as_json: bool, most: int) -> None:
    """Say what makes a run slow: what was found, what could be gained at most, what to change, and where.

    Nothing is printed about a healthy run but that nothing was found. The command exits with 0 either way.
    """
    from rich.text import Text

    from kinetoscope.analyses.findings import as_dict, examine, lines
    from kinetoscope.cli.opening import open_trace
    from kinetoscope.display.terminal import UNLIMITED, console

    with open_trace(path) as trace:
        report = examine(trace)
        if as_json:
            click.echo(json.dumps(as_dict(trace, report, most), ensure_ascii=False))
            return
        printer = console()
        width = 100 if printer.width >= UNLIMITED else max(40, min(100, printer.width))
        for text, style in lines(trace, report, most, width):
            printer.print(Text(text, style=style), soft_wrap=True)
