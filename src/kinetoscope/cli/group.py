"""The command itself: finds its subcommands lazily, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from kinetoscope._errors import KinetoscopeError
from kinetoscope._version import __version__
from kinetoscope.display import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "run": "Profile a program as it is.",
    "demo": "Profile a real training run that ships with the package.",
    "info": "Say what a trace is and whether it is complete.",
    "findings": "Say what makes a run slow, and what to change.",
    "table": "Print a table of a trace.",
    "view": "Look at traces in a browser.",
    "report": "Write a page that opens without a server, or print a summary.",
    "convert": "Write a trace, or a part of it, in other formats.",
    "merge": "Put the traces of the ranks of a job into one.",
    "sql": "Ask a trace a question in SQL.",
    "doctor": "Say which engine records on this machine, and why.",
}

# The output of these is also that of a program, to which nothing may be done.
_RUNNING = ("run", "demo")

ERROR, USAGE_ERROR = 1, 2


class Commands(click.Group):
    """The group of subcommands, each in the file of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names in the order of a first visit."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in _RUNNING:
            terminal.allow_any_text()
        command: click.Command = importlib.import_module(f"kinetoscope.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand; a name that nearly is one is a question."""
        name = args[0]
        if name not in COMMANDS and (near := difflib.get_close_matches(name, COMMANDS, 1)):
            raise click.UsageError(f"there is no command {name!r}; did you mean {near[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the subcommand; a mistake becomes one line on standard error.

        A subcommand that returns a function has a program to run, and it is run here, with nearly nothing of ours
        below it on the stack: what lies there is part of every Python stack that is recorded.
        """
        try:
            result = super().main(
                args, prog_name or "kinetoscope", complete_var, standalone_mode=False, **extra
            )
            sys.stdout.flush()  # a reader that has enough is noticed here, not when Python ends
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(USAGE_ERROR)
        except click.ClickException as error:
            terminal.complain(error.format_message())
            sys.exit(USAGE_ERROR if isinstance(error, click.UsageError) else ERROR)
        except KinetoscopeError as error:
            terminal.complain(str(error))
            sys.exit(ERROR)
        except BrokenPipeError:
            # Whoever read our output has enough. Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(ERROR)
        except OSError as error:
            terminal.complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            sys.exit(ERROR)
        except (KeyboardInterrupt, click.Abort):
            terminal.complain("interrupted")
            sys.exit(128 + 2)
        if callable(result):
            return result()
        if standalone_mode:
            sys.exit(result if isinstance(result, int) else 0)
        return result


@click.command(
    "kinetoscope",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="kinetoscope %(version)s")
def main() -> None:
    """A profiler for PyTorch: records a training run cheaply and says where the time went."""
