"""The command `kinetoscope`: one file for each subcommand, loaded when it is called."""

from kinetoscope.cli.group import main

__all__ = ["main"]
