"""`kinetoscope summarize`: reduce the traces of many ranks to one small file each."""

from __future__ import annotations

import click


@click.command("summarize")
@click.argument("sources", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="FOLDER", required=True, help="Write one Parquet file per rank to FOLDER."
)
def command(sources: tuple[str, ...], output: str) -> None:
    """Reduce the trace of each rank of a job to a summary of at most a megabyte.

    A summary has the steps and their parts, the collectives, how long operators, kernels and modules ran, memory, findings and losses.
    `kinetoscope ranks FOLDER` reads those of all ranks together, without the traces.
    """
    from rich.progress import Progress

    from kinetoscope.display.terminal import console
    from kinetoscope.summaries.job import summarize

    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("Summarizing", total=len(sources))
        job = summarize(*sources, output=output, progress=lambda _: bar.advance(task))
    click.echo(f"{output}: {len(job)} {'summary' if len(job) == 1 else 'summaries'}")
