"""`kinetoscope stacks`: where the threads of a job are."""

from __future__ import annotations

import click

from kinetoscope.cli.files import AS_JSON, show
from kinetoscope.cli.status import RANK


@click.command("stacks")
@click.argument("target", metavar="TARGET")
@RANK
@AS_JSON
def command(target: str, *, rank: int | None, as_json: bool) -> None:
    """Show the thread stacks of a job whose flight recorder is on.

    TARGET is the id of a process, or the name or folder of a job. A job with control reports its stacks itself. Otherwise,
    or if it does not respond, they are read from its memory, or the last samples in its ring are shown, with their age.
    """
    from kinetoscope.flight.control.client import targets
    from kinetoscope.flight.settings import folder_of_jobs

    rows = [{"rank": job.files.rank, **job.stacks()} for job in targets(target, folder_of_jobs(), rank)]
    heads = [f"rank {row['rank']}:\n" if len(rows) > 1 else "" for row in rows]
    lines = [head + str(row["stacks"]).rstrip("\n") for head, row in zip(heads, rows, strict=True)]
    show(rows, lines, as_json=as_json)
