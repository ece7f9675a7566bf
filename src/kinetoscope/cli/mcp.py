"""`kinetoscope mcp`: answer coding agents about traces, by the Model Context Protocol."""

from __future__ import annotations

import click


@click.command("mcp")
@click.argument("folders", metavar="[FOLDER]...", nargs=-1)
@click.option(
    "--source/--no-source",
    "source_text",
    default=False,
    help="Also answer with the text of the program's source lines.",
)
def command(folders: tuple[str, ...], *, source_text: bool) -> None:
    """Answer coding agents about the traces in these folders (the working directory by default), on standard input and output.

    An agent's configuration names this command, such as: {"command": "kinetoscope", "args": ["mcp", "runs"]}. Agents can read the traces in the
    folders, and nothing else.
    """
    from kinetoscope.integrations.agents import TraceAnswers, mcp_server

    mcp_server(TraceAnswers(folders or (".",), source_text=source_text)).run("stdio")
