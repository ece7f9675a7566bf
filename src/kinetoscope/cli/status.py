"""`kinetoscope status`: the state of jobs with the flight recorder on."""

from __future__ import annotations

import click

from kinetoscope.cli.files import AS_JSON, echo_json

RANK = click.option("--rank", metavar="N", type=int, help="Only this rank.")


@click.command("status")
@click.argument("target", metavar="TARGET")
@RANK
@AS_JSON
def command(target: str, *, rank: int | None, as_json: bool) -> None:
    """Show the state of a job whose flight recorder is on: step, overhead, incidents, and a running capture.

    TARGET is the id of a process, or the name or folder of a job. If the job does not respond,
    its files are read instead.
    """
    from kinetoscope.display.terminal import echo
    from kinetoscope.flight.control.client import targets
    from kinetoscope.flight.settings import folder_of_jobs
    from kinetoscope.model import units

    statuses = [process.status() for process in targets(target, folder_of_jobs(), rank)]
    if as_json:
        echo_json([{**status, "from_outside": why or None} for status, why in statuses])
        return
    for status, why in statuses:
        parts = [f"{status['job']} rank {status['rank']}: {status['state']}"]
        if status["step"] is not None:
            parts.append(f"step {status['step']:,} for {units.duration(status['in_step_ns'] or 0)}")
        if status["overhead"]:
            parts.append(f"overhead {status['overhead']}")
        if status["memory_bytes"]:
            parts.append(f"memory {units.size(status['memory_bytes'])}")
        if status["incidents"] is not None:
            parts.append(units.count(len(status["incidents"]), "incident"))
        if status["capture"]:
            parts.append(f"capture {status['capture']}")
        if status["problem"]:
            parts.append(status["problem"])
        echo(", ".join(parts))
        if why:
            echo(f"  read from outside: {why}")
