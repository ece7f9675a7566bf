"""`kinetoscope view`: look at traces in a browser."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click


@click.command("view")
@click.argument("paths", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="The port of the local server; the first free one from 8765 on if not given.",
)
@click.option("--browser/--no-browser", default=True, help="Open a browser, or only print the address.")
@click.option(
    "--perfetto-ui",
    metavar="URL",
    default="https://ui.perfetto.dev",
    show_default=True,
    help="Where Perfetto's page is, to which a window can be handed over.",
)
def command(paths: tuple[str, ...], *, port: int | None, browser: bool, perfetto_ui: str) -> None:
    """Look at traces in a browser: a server on this machine that only this machine can reach. Ctrl-C ends it.

    TRACE is a path or a URL of whatever `kinetoscope info` reads. A file that changes, such as a recording that still
    runs, is read again while it is looked at.
    """
    from kinetoscope.cli.opening import open_trace
    from kinetoscope.viewer.server.serve import open_browser, opened

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    with opened(paths, port, perfetto_ui, open_trace) as viewer:
        for problem in viewer.problems:
            click.echo(f"kinetoscope: {problem}", err=True)
        click.echo(viewer.address)
        if (not browser or not open_browser(viewer)) and "SSH_CONNECTION" in os.environ:
            tunnel = viewer.address.split("/")[2].rpartition(":")[2]
            click.echo(
                f"From the machine you sit at: ssh -L {tunnel}:127.0.0.1:{tunnel} and the name of this one, "
                "then open the address there.",
                err=True,
            )
        sys.stdout.flush()
        viewer.wait()


def _end(number: int, _frame: Any) -> None:
    """Leave in order, so that nothing is left behind."""
    sys.exit(128 + number)
