"""`kinetoscope sql`: query a trace."""

from __future__ import annotations

import click

from kinetoscope.cli.files import number_option, open_trace


@click.command("sql")
@click.argument("path", metavar="TRACE", type=click.Path(readable=False))
@click.argument("query")
@number_option(
    "--limit",
    help="Print at most N rows; 0 prints all.  [default: as many as the terminal has room for, else 50]",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print all rows as CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as a JSON list of objects.")
def command(path: str, query: str, *, limit: int | None, as_csv: bool, as_json: bool) -> None:
    """Query a trace with SQL (DuckDB). All tables of `kinetoscope table` are available.

    For example: kinetoscope sql run.ktrace "select name, sum(self_ns) as self_ns from spans group by name"

    A query can read and write files, as in `copy (select ...) to 'file.parquet'`.
    """
    from kinetoscope.display.arrow_text import print_rows

    with open_trace(path) as trace:
        rows = trace.sql(query)
    print_rows(rows, limit, 50, "--csv prints all", as_csv=as_csv, as_json=as_json)
