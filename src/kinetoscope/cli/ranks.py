"""`kinetoscope ranks`: the ranks of a job side by side, and those for which the others wait."""

from __future__ import annotations

import click

TABLES = ("ranks", "stragglers", "collective_arrivals", "clocks", "durations")


@click.command("ranks")
@click.argument("sources", metavar="SUMMARIES...", nargs=-1, required=True)
@click.option("--table", "name", type=click.Choice(TABLES), help="Print this table only.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Print at most N rows of a table; 0 prints all.",
)
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print the table as CSV, with times in nanoseconds; needs --table."
)
def command(sources: tuple[str, ...], *, name: str | None, limit: int, as_csv: bool) -> None:
    """Compare the ranks of a job: their steps, their lateness at collectives, and the stragglers.

    SUMMARIES are files of `kinetoscope summarize`, or folders of them.
    """
    from kinetoscope.display.terminal import console
    from kinetoscope.display.text_table import print_csv, print_table
    from kinetoscope.model import units
    from kinetoscope.summaries.job import Job

    if as_csv and name is None:
        raise click.UsageError(f"--csv prints one table: add --table {'|'.join(TABLES)}")
    job = Job.open(*sources)
    tables = {one: getattr(job, one)() for one in ((name,) if name else TABLES[:2])}
    if as_csv:
        print_csv(tables[str(name)])
        return
    for one, rows in tables.items():
        if one == "stragglers" and rows.num_rows == 0:
            click.echo("No rank is late again and again." if len(job) > 1 else "There is one rank only.")
        else:
            print_table(console(), rows, limit, f"--table {one} --csv")
    if name is None:
        for row in tables["stragglers"].to_pylist():
            longer = f": {row['phase']} takes {units.duration(row['extra_ns'])} more" if row["phase"] else ""
            click.echo(
                f"Rank {row['rank']} is {units.duration(row['late_ns'])} late in a step ({row['late_percent']:.1f}% of it){longer}."
            )
