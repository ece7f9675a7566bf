"""`kinetoscope report`: a trace as one HTML file, or as text on the terminal."""

from __future__ import annotations

from pathlib import Path, PurePath

import click

from kinetoscope.cli.files import file_option, open_trace, refuse_to_overwrite, say_written


@click.command("report")
@click.argument("path", metavar="TRACE", type=click.Path(readable=False))
@file_option("-o", "--output", help="Write to FILE.  [default: the name of the trace, in the current folder]")
@click.option(
    "--page",
    "pages",
    multiple=True,
    metavar="PAGE",
    help="Include only this page, such as memory (repeatable).",
)
@click.option("--text", "as_text", is_flag=True, help="Print a summary instead of writing a file.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON with stable keys.")
def command(path: str, *, output: Path | None, pages: tuple[str, ...], as_text: bool, as_json: bool) -> None:
    """Write a trace as one HTML file, with the pages of `kinetoscope view`. It opens without a server or the internet.

    TRACE is a path or URL of a trace, or - for standard input. With --text, the summary that `kinetoscope run` prints at its
    end is printed for any trace; with --json, its blocks.
    """
    if as_text or as_json:
        from kinetoscope.cli.summary import print_trace

        with open_trace(path) as trace:
            print_trace(trace, path, as_json=as_json)
        return
    from kinetoscope.viewer.server.report import PAGES, report_page, write_page

    name = PurePath(path).name
    target = output or Path(f"{name.partition('.')[0] or 'report'}.html")
    refuse_to_overwrite(target, [path])
    with open_trace(path) as trace:
        page = report_page(trace, name, pages=pages or tuple(PAGES))
    say_written(write_page(page, target))
