"""`kinetoscope capture`: record the next steps of a job whose flight recorder is on."""

from __future__ import annotations

from pathlib import Path

import click

from kinetoscope.cli.files import AS_JSON, file_option, number_option, show
from kinetoscope.cli.status import RANK


@click.command("capture")
@click.argument("target", metavar="TARGET")
@number_option("--steps", least=1, default=5, help="How many steps.")
@file_option(
    "-o",
    "--output",
    help="Write these steps as a trace, such as x.ktrace; with several ranks, x-rank0.ktrace and so on.",
)
@RANK
@click.option("--wait", metavar="TIME", default="5min", help="How long to wait for the steps.")
@AS_JSON
def command(
    target: str,
    *,
    steps: int,
    output: Path | None,
    rank: int | None,
    wait: str,
    as_json: bool,
) -> None:
    """Record the next steps of a running job whose flight recorder accepts requests, and write them as a trace.

    TARGET is the id of a process, or the name or folder of a job. The job keeps running. Ctrl-C cancels the capture.
    """
    from kinetoscope.display.terminal import echo
    from kinetoscope.flight.control.client import capture, targets, write_capture
    from kinetoscope.flight.jobs import HANGS
    from kinetoscope.flight.settings import folder_of_jobs
    from kinetoscope.model import units

    wait_s = units.parse_duration(wait) / 1e9
    ranks = targets(target, folder_of_jobs(), rank)
    for target_rank in ranks:
        if target_rank.files.state == HANGS and target_rank.files.log is not None and not as_json:
            echo(
                f"{target_rank.label} hangs in step {target_rank.files.log.number:,}: it is recorded from its next step on",
                err=True,
            )
    rows = []
    for target_rank, path in zip(ranks, capture(ranks, steps, wait_s), strict=True):
        if output is not None:
            name = f"{output.stem}-rank{target_rank.files.rank}{output.suffix}"
            path = write_capture(path, output if len(ranks) == 1 else output.with_name(name))
        rows.append({"rank": target_rank.files.rank, "path": str(path)})
    show(rows, [str(row["path"]) for row in rows], as_json=as_json)
