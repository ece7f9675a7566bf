"""`kinetoscope ps`: the jobs of this machine with the flight recorder on."""

from __future__ import annotations

from pathlib import Path

import click

from kinetoscope.cli.files import AS_JSON, show


@click.command("ps")
@click.argument("folder", metavar="[FOLDER]", required=False, type=click.Path(exists=True, file_okay=False))
@AS_JSON
def command(folder: str | None, *, as_json: bool) -> None:
    """List the processes that record with `kinetoscope.leave_on`: rank, process, state and step.

    FOLDER is the folder of all jobs; by default that of this user (`KINETOSCOPE_DIR`).
    """
    from kinetoscope.flight.jobs import ENDED, attempts_in
    from kinetoscope.flight.settings import folder_of_jobs

    rows = [
        {
            "job": attempt.name,
            "rank": ring.rank,
            "process": ring.process,
            "state": ring.state,
            "step": None if ring.log is None else ring.log.number,
            "incidents": len(attempt.incidents()),
            "path": str(ring.recording),
        }
        for attempt in attempts_in(folder_of_jobs() if folder is None else Path(folder))
        for ring in attempt.rings()
        if ring.state != ENDED
    ]
    lines = [
        f"{row['job']}  rank {row['rank']}  process {row['process']}  {row['state']}  step {row['step']}  "
        f"{row['incidents']} incidents  {row['path']}"
        for row in rows
    ]
    show(rows, lines or ["no job with the flight recorder on"], as_json=as_json)
