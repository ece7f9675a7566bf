"""`kinetoscope stacks`: where the threads of a job are."""

from __future__ import annotations

import click

from kinetoscope.cli.output import AS_JSON, echo_json
from kinetoscope.cli.status import RANK


@click.command("stacks")
@click.argument("target", metavar="TARGET")
@RANK
@AS_JSON
def command(target: str, *, rank: int | None, as_json: bool) -> None:
    """Show the stacks of all threads of a job that is left on.

    TARGET is the id of a process, or the name or folder of a job. A job with control reports its stacks itself. Otherwise,
    or if it does not respond, they are read from its memory, or the last samples in its ring are shown, with their age.
    """
    from kinetoscope.display.terminal import echo
    from kinetoscope.flight.control.client import targets
    from kinetoscope.flight.settings import folder_of_jobs

    rows = [{"rank": job.files.rank, **job.stacks()} for job in targets(target, folder_of_jobs(), rank)]
    if as_json:
        echo_json(rows)
        return
    for row in rows:
        if len(rows) > 1:
            echo(f"rank {row['rank']}:")
        echo(str(row["stacks"]).rstrip("\n"))
