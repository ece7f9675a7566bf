"""`kinetoscope sql`: ask a trace a question."""

from __future__ import annotations

import click


@click.command("sql")
@click.argument("path", metavar="TRACE")
@click.argument("query")
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="Print N rows (50), 0 for all.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all rows as CSV.")
def command(path: str, query: str, *, limit: int | None, as_csv: bool) -> None:
    """Ask a trace a question in DuckDB's SQL; every table of `kinetoscope table` can be named.

    The query runs with the rights of whoever types it: it may read and write files, as in
    `copy (select ...) to 'file.parquet'`. Queries on the page of `kinetoscope view` may not.

    For example: kinetoscope sql run.ktrace "select name, sum(self_ns) as self_ns from spans group by name"
    """
    from kinetoscope.cli.opening import open_trace
    from kinetoscope.display import grid
    from kinetoscope.display.terminal import console

    with open_trace(path) as trace:
        found = trace.sql(query)
    if as_csv:
        grid.print_csv(found.slice(0, limit) if limit else found)
    else:
        grid.print_table(console(), found, 50 if limit is None else limit, "--csv prints all")
