"""`kinetoscope report`: a trace as one page that opens without a server, or as text on the terminal."""

from __future__ import annotations

import click


@click.command("report")
@click.argument("path", metavar="TRACE")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The file to write; named after the trace, in this folder, if not given.",
)
@click.option(
    "--page", "pages", multiple=True, metavar="PAGE", help="Only this page, such as memory (repeatable)."
)
@click.option("--text", "as_text", is_flag=True, help="Print a summary on the terminal instead.")
def command(path: str, *, output: str | None, pages: tuple[str, ...], as_text: bool) -> None:
    """Write the viewer with a trace as one file, which opens by double click, without a server or the internet.

    TRACE is a path or a URL of whatever `kinetoscope info` reads. With --text nothing is written: where the time went
    is printed, as at the end of `kinetoscope run`.
    """
    from pathlib import Path, PurePath

    from kinetoscope.cli.opening import open_trace
    from kinetoscope.model import units

    if as_text:
        from kinetoscope.cli.summary import print_trace

        with open_trace(path) as trace:
            print_trace(trace, path)
        return
    from kinetoscope.viewer.report import PAGES, write_report

    name = PurePath(path).name
    target = Path(output or f"{name.partition('.')[0] or 'report'}.html")
    with open_trace(path) as trace:
        write_report(trace, name, target, pages or tuple(PAGES))
    click.echo(f"{target}  {units.size(target.stat().st_size)}")
