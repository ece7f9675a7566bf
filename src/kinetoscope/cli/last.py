"""`kinetoscope last`: what happened last to a job with the flight recorder on."""

from __future__ import annotations

import click

from kinetoscope.cli.files import AS_JSON, show


@click.command("last")
@click.argument("target", metavar="[PID|FOLDER]", required=False)
@AS_JSON
def command(target: str | None, *, as_json: bool) -> None:
    """Show the newest incident of the jobs with the flight recorder on, or where a hanging job is right now.

    Nothing in the job has to respond: its files are read, and the stack of a living process from its memory. PID is a process of the job, FOLDER that of a job, of an incident, or
    of all jobs; without one, all jobs of this user (`KINETOSCOPE_DIR`).
    """
    from kinetoscope.flight.last import last_event
    from kinetoscope.flight.settings import folder_of_jobs

    event = last_event(target, folder_of_jobs())
    show(event.as_dict(), event.lines(), as_json=as_json)
