"""`kinetoscope table`: print a table of a trace."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from kinetoscope._errors import ArgumentError
from kinetoscope.cli.files import number_option, open_trace


def tables(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of tables that begin so."""
    from kinetoscope.trace.tables import TABLES

    return [CompletionItem(name) for name in TABLES if name.startswith(incomplete)]


@click.command("table")
@click.argument("path", metavar="TRACE", type=click.Path(readable=False))
@click.argument("name", metavar="[NAME]", default="ops", shell_complete=tables)
@click.option("--sort", metavar="COLUMN", help="Sort by COLUMN, numbers in descending order.")
@number_option(
    "--limit",
    help="Print at most N rows; 0 prints all.  [default: as many as the terminal has room for, else 20]",
)
@click.option(
    "--by",
    metavar="WAY",
    help="Group rows by WAY, such as module (ops), launch (kernels) or category (memory_peak).",
)
@click.option(
    "--where",
    "wheres",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Print only rows with this value, such as name=aten::mm (repeatable).",
)
@click.option("--columns", metavar="A,B,...", help="Print only these columns.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all rows as CSV, with times in nanoseconds.")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as a JSON list of objects.")
def command(
    path: str,
    name: str,
    *,
    sort: str | None,
    limit: int | None,
    by: str | None,
    wheres: tuple[str, ...],
    columns: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Print a table of a trace. The default NAME is ops, the table of operators.

    Common tables: ops, modules, steps, lines, stacks, memory, kernels, breakdown, spans, threads, losses, info.
    """
    from kinetoscope.display.arrow_text import choose_columns, print_rows, put_first, sort_rows

    where: dict[str, list[str | None]] = {}
    for condition in wheres:
        column, equals, value = condition.partition("=")
        if not equals:
            raise ArgumentError(f"--where {condition} is not valid: use COLUMN=VALUE, such as name=aten::mm")
        where.setdefault(column, []).append(value or None)
    with open_trace(path) as trace:
        rows = trace.table(name, where=where or None, **({} if by is None else {"by": by}))
    if sort is not None:
        rows = sort_rows(rows, sort)
    if columns is not None:
        rows = choose_columns(rows, [column.strip() for column in columns.split(",")])
    elif not as_csv and not as_json:
        rows = put_first(rows, name)
    print_rows(rows, limit, 20, "--columns A,B or --csv", as_csv=as_csv, as_json=as_json)
