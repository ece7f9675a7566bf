"""`kinetoscope view`: look at traces in a browser."""

from __future__ import annotations

import webbrowser

import click


@click.command("view")
@click.argument("paths", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="The port of the local server; a free one if not given."
)
@click.option("--browser/--no-browser", default=True, help="Open a browser, or only print the address.")
def command(paths: tuple[str, ...], *, port: int | None, browser: bool) -> None:
    """Look at traces in a browser: a server on this machine that only this machine can reach. Ctrl-C ends it."""
    from pathlib import PurePath

    from kinetoscope.cli._opening import open_trace
    from kinetoscope.viewer._server import Server

    traces = [(PurePath(path).name, open_trace(path)) for path in paths]
    server = Server(lambda: traces, port)
    click.echo(server.address)
    if browser:
        webbrowser.open(server.address)
    server.run()
