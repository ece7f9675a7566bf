"""`kinetoscope view`: show traces in the browser."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click

from kinetoscope.cli.files import open_trace
from kinetoscope.display.terminal import echo


@click.command("view")
@click.argument("paths", metavar="TRACE...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Port of the local server.  [default: the first free one from 8765]",
)
@click.option("--browser/--no-browser", default=True, help="Open the browser, or only print the address.")
def command(paths: tuple[str, ...], *, port: int | None, browser: bool) -> None:
    """Show traces in the browser, from a server that only this machine can reach. Press Ctrl-C to stop it.

    TRACE is a path or URL of a trace, or a folder of summaries (see `kinetoscope summarize`). It may also be a job whose flight recorder is on: the
    id of a process, the name of the job or its folder; then a comparison of its ranks as they are now is shown, and their rings, which are followed while it runs. A file that changes, such as the recording of a running program, is read again while
    the page is open.
    """
    from kinetoscope.flight.control.client import ranks_left_on
    from kinetoscope.flight.settings import folder_of_jobs
    from kinetoscope.flight.slow_ranks import job_of_rings
    from kinetoscope.viewer.server.serve import Viewer, open_browser

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    sources: list[Any] = []
    for path in paths:
        ranks = ranks_left_on(path, folder_of_jobs())
        job = job_of_rings(ranks[0].attempt.rings()) if len(ranks) > 1 else None
        sources += [job] if job is not None else []
        sources += [str(rank.files.recording) for rank in ranks] or [path]
    with Viewer(sources, port, open_trace) as viewer:
        for problem in viewer.problems:
            echo(f"kinetoscope: {problem}", err=True)
        echo(viewer.address)
        if (not browser or not open_browser(viewer)) and "SSH_CONNECTION" in os.environ:
            tunnel = viewer.address.split("/")[2].rpartition(":")[2]
            echo(
                f"On your own machine, run ssh -L {tunnel}:127.0.0.1:{tunnel} HOST with the name of this one as HOST, and then "
                "open the address there.",
                err=True,
            )
        sys.stdout.flush()
        viewer.wait()


def _end(number: int, _frame: Any) -> None:
    sys.exit(128 + number)
