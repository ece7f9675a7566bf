"""`kinetoscope skill`: instructions for agents that work with Kinetoscope."""

from __future__ import annotations

from pathlib import Path

import click

from kinetoscope.display.terminal import echo

PATH = Path(__file__).parents[1] / "skill" / "SKILL.md"


@click.command("skill")
def command() -> None:
    """Print the instructions for coding agents: how to record, find, prove and compare.

    The text goes to standard output, the path of its file to standard error. To give it to an agent that reads skills from a
    folder, write it there: kinetoscope skill > SKILL.md
    """
    echo(str(PATH), err=True)
    echo(PATH.read_text(encoding="utf-8"))
