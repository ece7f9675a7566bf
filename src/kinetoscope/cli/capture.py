"""`kinetoscope capture`: record the next steps of a job that is left on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope._errors import ArgumentError
from kinetoscope.cli.compare import AS_JSON
from kinetoscope.cli.status import RANK, TOKEN_FILE

if TYPE_CHECKING:
    from kinetoscope.flight.control.client import ControlTarget


@click.command("capture")
@click.argument("target", metavar="TARGET")
@click.option(
    "--steps", metavar="N", default=5, show_default=True, type=click.IntRange(1), help="How many steps."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write these steps as a trace, such as x.ktrace; with several ranks, x-rank0.ktrace and so on.",
)
@RANK
@click.option(
    "--wait", metavar="TIME", default="5min", show_default=True, help="How long to wait for the steps."
)
@TOKEN_FILE
@AS_JSON
def command(
    target: str,
    *,
    steps: int,
    output: Path | None,
    rank: int | None,
    wait: str,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Record the next steps of a running job that was left on with control, and write them as a trace.

    TARGET is the id of a process, the name of a job or its folder, or HOST:PORT. The job keeps running.
    """
    from kinetoscope.display.terminal import echo
    from kinetoscope.flight.control.client import begin_capture, targets, wait_for_capture, write_capture
    from kinetoscope.flight.settings import folder_of_jobs
    from kinetoscope.model import units

    wait_s = units.parse_duration(wait) / 1e9
    found = targets(target, folder_of_jobs(), rank, token_file)
    if output is not None and any(one.files is None for one in found):
        raise ArgumentError(
            "-o: the capture stays on the machine of the job, for HOST:PORT; copy it from the path that is printed."
        )
    asked = [(one, begin_capture(one, steps)) for one in found]
    rows = []
    for one, said in asked:
        if not as_json and said.get("note"):
            echo(f"{one.label} {said['note']}", err=True)
        wait_for_capture(one, said["path"], wait_s)
        path = Path(said["path"])
        if output is not None:
            path = write_capture(path, output if len(found) == 1 else _name_of_rank(output, one))
        rows.append({"rank": None if one.files is None else one.files.rank, "path": str(path)})
    if as_json:
        echo(json.dumps(rows, ensure_ascii=False))
        return
    for row in rows:
        echo(str(row["path"]))


def _name_of_rank(output: Path, target: ControlTarget) -> Path:
    rank = 0 if target.files is None else target.files.rank
    return output.with_name(f"{output.stem}-rank{rank}{output.suffix}")
