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
    """Show the state of a job whose flight recorder is on: step, overhead, incidents, a running capture, and ranks for which the others wait.

    TARGET is the id of a process, or the name or folder of a job. If the job does not respond,
    its files are read instead.
    """
    from kinetoscope.display.terminal import echo
    from kinetoscope.flight.control.client import targets
    from kinetoscope.flight.settings import folder_of_jobs
    from kinetoscope.flight.slow_ranks import slow_ranks
    from kinetoscope.model import units

    processes = targets(target, folder_of_jobs(), rank)
    late = slow_ranks(processes[0].attempt.rings())
    statuses = [process.status() for process in processes]
    # Ranks that hold up the others come first.
    statuses.sort(key=lambda status: [*late, status[0]["rank"]].index(status[0]["rank"]))
    if as_json:
        facts = [
            {"holds_up": late.get(status["rank"]), "from_outside": why or None} for status, why in statuses
        ]
        echo_json([{**status, **more} for (status, _), more in zip(statuses, facts, strict=True)])
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
        if status["rank"] in late:
            echo(f"  {late[status['rank']]}")
        if why:
            echo(f"  read from outside: {why}")
