"""`kinetoscope ranks`: the ranks of a job side by side, and those for which the others wait."""

from __future__ import annotations

from pathlib import Path, PurePath

import click

from kinetoscope.cli.files import echo_json, file_option, number_option, refuse_to_overwrite, say_written
from kinetoscope.display.terminal import console, echo, reading_width
from kinetoscope.model.dictionary import tables_of

TABLES = tuple(tables_of("job"))

# What a table without rows means.
_EMPTY = {
    "stragglers": "No rank is late again and again.",
    "links": "No two ranks communicated with each other alone, in a group of two or by send and receive: from collectives of more ranks, a slow "
    "link cannot be found.",
    "coordinates": "The traces describe no process groups that are smaller than the job.",
    "without_lateness": "No steps and collectives of several ranks were recorded, so lateness cannot be left out.",
    "collective_arrivals": "No collective is in the summaries of several ranks.",
}


@click.command("ranks")
@click.argument("sources", metavar="SUMMARIES...", nargs=-1, required=True, type=click.Path(readable=False))
@click.option("--table", "name", type=click.Choice(TABLES), help="Print this table only.")
@click.option(
    "--by",
    type=click.Choice(("rank", "kind")),
    default="rank",
    help="Of the table ranks: a row for each rank, or for its steps of each kind, such as training and evaluation.",
)
@number_option("--limit", default=20, help="Print at most N rows of a table; 0 prints all.")
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print the table as CSV, with times in nanoseconds; needs --table."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON with stable keys: what was found, and all rows of the tables.",
)
@file_option("--html", help="Write the map of ranks and steps to FILE, one page that opens anywhere.")
def command(
    sources: tuple[str, ...],
    *,
    name: str | None,
    by: str,
    limit: int,
    as_csv: bool,
    as_json: bool,
    html: Path | None,
) -> None:
    """Compare the ranks of a job: what makes it slow, the steps of the ranks, their lateness at collectives, and the stragglers.

    SUMMARIES are files of `kinetoscope summarize`, or folders of them. It may also be a job whose flight recorder is on: the id of a process, the name of the job or its folder; then the last
    steps of its ranks are compared.
    """
    from kinetoscope.analyses.findings import as_dict, finding_blocks
    from kinetoscope.display.arrow_text import json_rows, print_csv, print_table
    from kinetoscope.display.blocks import GAP, Paragraph
    from kinetoscope.display.lines import print_blocks
    from kinetoscope.display.sentence import kinds_in_words
    from kinetoscope.flight.control.client import ranks_left_on
    from kinetoscope.flight.settings import folder_of_jobs
    from kinetoscope.flight.slow_ranks import compared
    from kinetoscope.summaries.job import Job

    if html is not None and (as_csv or as_json or name is not None):
        raise click.UsageError("--html writes a page, not a table: leave out --table, --csv and --json")
    if as_csv and as_json:
        raise click.UsageError("--csv and --json cannot be combined: choose one")
    if by != "rank" and name != "ranks":
        raise click.UsageError("--by is only for the table ranks: add --table ranks")
    if as_csv and name is None:
        raise click.UsageError(f"--csv prints one table: add --table {'|'.join(TABLES)}")
    ranks = ranks_left_on(sources[0], folder_of_jobs()) if len(sources) == 1 else []
    job = compared(ranks[0].attempt) if ranks else Job.open(*sources)
    for note in job.notes:
        echo(note, err=True)
    if html is not None:
        from kinetoscope.viewer.server.report import job_page, write_page

        refuse_to_overwrite(html, sources)
        say_written(write_page(job_page(job, PurePath(sources[0]).name), html))
        return
    kinds = job.step_kinds()
    several = ["step_kinds"] if len(kinds) > 1 or as_json else []
    chosen = [name] if name else ["ranks", "stragglers", *several]
    tables = {table: job.ranks(by) if table == "ranks" else getattr(job, table)() for table in chosen}
    if as_csv:
        print_csv(tables[str(name)])
        return
    if as_json:
        facts = {
            "ranks": len(job),
            "report": as_dict(job.report, most=0),
            "tables": {table: list(json_rows(rows)) for table, rows in tables.items()},
        }
        echo_json(facts)
        return
    printer = console()
    if name is None:
        blocks = finding_blocks(job.report)
        if len(kinds) > 1:
            words = kinds_in_words(kinds.to_pylist(), "steps", "step_ns")
            blocks.append(Paragraph(f"{words}, on all ranks together"))
        print_blocks(printer, [*blocks, GAP], reading_width(printer))
    for table, rows in tables.items():
        if rows.num_rows == 0:
            echo(_EMPTY.get(table, "No rows.") if len(job) > 1 else "There is one rank only.")
        else:
            print_table(printer, rows, limit, f"--table {table} --csv")
