"""`kinetoscope status`: the state of jobs that are left on."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kinetoscope.cli.compare import AS_JSON

RANK = click.option("--rank", metavar="N", type=int, help="Only this rank.")
TOKEN_FILE = click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The token for HOST:PORT.  [default: KINETOSCOPE_TOKEN_FILE]",
)


@click.command("status")
@click.argument("target", metavar="TARGET")
@RANK
@TOKEN_FILE
@AS_JSON
def command(target: str, *, rank: int | None, token_file: Path | None, as_json: bool) -> None:
    """Show the state of a job that is left on: step, overhead, incidents, and a capture that is running.

    TARGET is the id of a process, the name of a job or its folder, or HOST:PORT. If the job does not respond,
    its files are read instead.
    """
    from kinetoscope.display.terminal import echo
    from kinetoscope.flight.control.client import targets
    from kinetoscope.flight.settings import folder_of_jobs
    from kinetoscope.model import units

    found = [one.status() for one in targets(target, folder_of_jobs(), rank, token_file)]
    if as_json:
        echo(
            json.dumps([{**status, "from_outside": why or None} for status, why in found], ensure_ascii=False)
        )
        return
    for status, why in found:
        parts = [f"{status['job']} rank {status['rank']}: {status['state']}"]
        if status["step"] is not None:
            parts.append(f"step {status['step']:,} for {units.duration(status['in_step_ns'] or 0)}")
        if status["overhead"]:
            parts.append(f"overhead {status['overhead']}")
        if status["memory_bytes"]:
            parts.append(f"memory {units.size(status['memory_bytes'])}")
        if status["incidents"] is not None:
            parts.append(units.count(len(status["incidents"]), "incident"))
        if running := status["capture"] or status["capture_not_answered"]:
            parts.append(f"capture {running}")
        if status["problem"]:
            parts.append(status["problem"])
        echo(", ".join(parts))
        if why:
            echo(f"  read from outside: {why}")
        elif not status["answered"]:
            echo("  the program itself does not answer now")
