"""The command `kinetoscope`: imports subcommands when they are called, and turns errors into one line and an exit code."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from kinetoscope._errors import KinetoscopeError
from kinetoscope._version import __version__
from kinetoscope.display import terminal

COMMANDS = {
    "run": "Profile a script or module.",
    "demo": "Find a mistake in a small training run.",
    "info": "Show what a trace contains and whether it is complete.",
    "findings": "Show what makes a run slow, and what to change.",
    "compare": "Compare two runs: what got slower, and how sure that is.",
    "ab": "Run two programs in turn, and compare them.",
    "history": "Show what many builds measured.",
    "check": "Check a run against a budget, for a build.",
    "table": "Print a table of a trace.",
    "view": "Show traces in the browser.",
    "report": "Write a trace as an HTML file, or print its summary.",
    "convert": "Convert a trace, or a part of it, to other formats.",
    "merge": "Merge the traces of the ranks of a job.",
    "summarize": "Reduce the traces of many ranks to a small file each.",
    "ranks": "Compare the ranks of a job by their summaries.",
    "sql": "Query a trace with SQL.",
    "last": "Show what happened last to a job with the flight recorder on.",
    "ps": "List the jobs of this machine with the flight recorder on.",
    "status": "Show the state of a job whose flight recorder is on.",
    "stacks": "Show the thread stacks of a job whose flight recorder is on.",
    "attach": "Turn on the flight recorder in a running program.",
    "capture": "Record the next steps of a job whose flight recorder is on.",
    "calibrate": "Measure how fast this machine runs operators.",
    "doctor": "Check which engine can record on this machine.",
    "skill": "Print instructions for coding agents.",
    "mcp": "Answer coding agents about traces.",
}

# These share standard output with a program, whose encoding must not be changed.
_RUNNING = ("run", "demo")

ERROR, USAGE_ERROR = 1, 2
# Of these, the exit codes 1 and 2 are verdicts.
_JUDGING = ("check", "ab")
JUDGING_ERROR = 3


class Commands(click.Group):
    """The subcommands, each in a module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names in the order of the help text."""
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
        """Find a subcommand; for a misspelled one, suggest the right name."""
        name = args[0]
        if name not in COMMANDS and (near := difflib.get_close_matches(name, COMMANDS, 1)):
            raise click.UsageError(f"unknown command {name!r}; did you mean {near[0]!r}?", ctx)
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
        """Run the subcommand; an error becomes one line on standard error.

        A subcommand that returns a function runs a program. It is called here, with few of our frames below it: they are
        part of every Python stack that is recorded.
        """
        words = sys.argv[1:] if args is None else list(args)
        judging = bool(words) and words[0] in _JUDGING
        failed, misused = (JUDGING_ERROR, JUDGING_ERROR) if judging else (ERROR, USAGE_ERROR)
        try:
            result = super().main(
                args, prog_name or "kinetoscope", complete_var, standalone_mode=False, **extra
            )
            sys.stdout.flush()  # a closed pipe is noticed here, not when Python ends
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(misused)
        except click.ClickException as error:
            terminal.complain(error.format_message())
            sys.exit(misused if isinstance(error, click.UsageError) else failed)
        except KinetoscopeError as error:
            terminal.complain(str(error))
            sys.exit(failed)
        except OSError as error:
            if isinstance(error, BrokenPipeError) and error.filename is None:
                # The reader closed standard output. Python would complain again when it flushes at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            else:
                terminal.complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            sys.exit(failed)
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
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, message="kinetoscope %(version)s")
def main() -> None:
    """Kinetoscope, a profiler for PyTorch: where the time and memory of a training run went."""
