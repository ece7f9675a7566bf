"""`kinetoscope summarize`: reduce the traces of many ranks to one small file each."""

from __future__ import annotations

import click

from kinetoscope.cli.files import number_option, recordings
from kinetoscope.display.terminal import console, echo


@click.command("summarize")
@click.argument("sources", metavar="TRACE...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option(
    "-o", "--output", metavar="FOLDER", required=True, help="Write one Parquet file per rank to FOLDER."
)
@click.option(
    "--engine",
    type=click.Choice(("here", "processes", "dask", "ray")),
    default="processes",
    help="Where to read the traces: in this process, in several, or on a Dask or Ray cluster.",
)
@number_option("--workers", least=1, help="Start N processes.  [default: one for each CPU core]")
@click.option(
    "--address",
    metavar="ADDRESS",
    help="Use this Dask or Ray cluster, such as tcp://host:8786 or ray://host:10001.  [default: one on this machine]",
)
def command(
    sources: tuple[str, ...], output: str, *, engine: str, workers: int | None, address: str | None
) -> None:
    """Reduce the trace of each rank of a job to a summary of at most a megabyte.

    TRACE is a file, a folder with traces, a URL, or a pattern such as s3://bucket/run/*.json.gz.

    A summary has the steps and their parts, the collectives, how long operators, kernels and modules ran, memory, findings and losses.
    `kinetoscope ranks FOLDER` reads those of all ranks together, without the traces.
    """
    from rich.progress import Progress

    from kinetoscope.summaries.job import summarize

    traces = [trace for source in sources for trace in recordings(source)]
    if len(traces) == 1 and address is None:
        engine = "here"

    printer = console(stderr=True)
    with Progress(console=printer, transient=True, disable=not printer.is_terminal) as bar:
        task = bar.add_task("Summarizing", total=len(traces))
        job = summarize(
            *traces,
            output=output,
            progress=lambda _: bar.advance(task),
            engine=engine,
            workers=workers,
            address=address,
        )
    echo(f"{output}: {len(job)} {'summary' if len(job) == 1 else 'summaries'}")
