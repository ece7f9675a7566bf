"""`kinetoscope run`: profile a program, with a progress line and a summary."""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetoscope._errors import ArgumentError
from kinetoscope.collect import OPTIONS, RecordingOptions
from kinetoscope.display.terminal import echo
from kinetoscope.launcher.children import Children
from kinetoscope.launcher.options import LaunchOptions, options_for
from kinetoscope.launcher.program import Program, installed_script, run_left_on
from kinetoscope.launcher.run import ProgramRun, RunObserver
from kinetoscope.launcher.unrecorded import descendants
from kinetoscope.model import units

if TYPE_CHECKING:
    from kinetoscope.launcher.recording import Finished

INTERVAL_S = 0.5
_UP_AND_CLEAR = "\x1b[1A\r\x1b[2K"


class RunCommand(click.Command):
    """The command, which warns of its options after the program's name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and print a hint."""
        words_given = list(args)
        rest = super().parse_args(ctx, args)
        words = ctx.params["arguments"]
        # `--` before the program, or before its arguments, means that these options are for the program.
        separated = words_given[-len(words) - 2 :][:1] == ["--"]
        if not separated and os.environ.get("RANK", "0") == "0":
            options = {name for option in self.params for name in (*option.opts, *option.secondary_opts)}
            named = dict.fromkeys(word.partition("=")[0] for word in takewhile("--".__ne__, words))
            if misplaced := [name for name in named if name.startswith("--") and name in options]:
                verbs = ("comes after the program and belongs", "come after the program and belong")
                echo(
                    f"kinetoscope: {', '.join(misplaced)} {units.noun(len(misplaced), *verbs)} to it: options of `kinetoscope run` come before {ctx.params['program']} "
                    "(write -- before the program if this is intended).",
                    err=True,
                )
        return rest


def _recording_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(list(OPTIONS.values())):
        if not option.flag:
            continue
        settings: dict[str, Any] = {"help": f"{option.help} {option.flag_help}".rstrip()}
        flags = f"--{option.flag}"
        if option.is_switch and option.when_launched:
            flags = f"{flags}/--no-{option.flag}"
            settings["default"] = True
        elif option.is_switch:
            settings["is_flag"] = True
        elif option.choices:
            settings |= {
                "type": click.Choice(option.choices),
                "default": option.default,
            }
        else:
            settings["metavar"] = option.metavar
        command = click.option(flags, option.name, **settings)(command)
    return command


def _read(given: Mapping[str, Any]) -> RecordingOptions:
    values = dict(given)
    for name, value in given.items():
        if value is not None and (read := OPTIONS[name].read) is not None:
            values[name] = read(value)
    return RecordingOptions.launched(**values)


@click.command(
    "run",
    cls=RunCommand,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="[OPTIONS]",
)
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is the name of a module, as for `python -m`.")
@click.option(
    "-o",
    "--output",
    metavar="PREFIX",
    help="Write PREFIX.ktrace.  [default: the program's name]",
)
@_recording_options
@click.option(
    "--children", is_flag=True, help="Record all processes that the program starts, not only spawned ones."
)
@click.option(
    "--steps",
    metavar="A:B",
    help="Record only optimizer steps A to B, counted from 0, without B. A or B may be left out.",
)
@click.option("--chrome", is_flag=True, help="Also write PREFIX.json.gz, for Perfetto and chrome://tracing.")
@click.option(
    "--install",
    is_flag=True,
    help="Replace torch.profiler in the program, and record only what the program profiles with it.",
)
@click.option(
    "--summaries",
    metavar="FOLDER",
    help="Also write a summary of this rank to FOLDER, to compare all ranks with `kinetoscope ranks FOLDER`.",
)
@click.option(
    "--leave-on",
    is_flag=True,
    help="Record the last steps all the time, within a budget, and keep a copy when something happens; write no trace at the end. The "
    "environment chooses the budget (KINETOSCOPE_BUDGET), and more.",
)
@click.option("--no-summary", is_flag=True, help="Do not print a summary at the end.")
@click.argument("program", metavar="PROGRAM", type=click.Path(readable=False))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(
    program: str,
    arguments: tuple[str, ...],
    *,
    is_module: bool,
    output: str | None,
    steps: str | None,
    chrome: bool,
    install: bool,
    children: bool,
    summaries: str | None,
    leave_on: bool,
    no_summary: bool,
    **recording: Any,
) -> Callable[[], None]:
    """Profile a Python script or, with -m, a module. The program needs no changes.

    It keeps its arguments, standard input, signals and exit code. Recording starts when the program imports torch, and
    steps are found from its optimizer. The recording is in PREFIX.recording while the program runs, and stays readable
    if the program is killed. At the end it becomes PREFIX.ktrace, and a summary is printed to standard error.

    Options come before PROGRAM; everything after it belongs to the program. An installed command that is a Python script, such as
    torchrun or accelerate, is run with --children.
    """
    if not is_module and (script := installed_script(program)) is not None:
        program, children = script, True
    to_run = Program(program, arguments, is_module)
    if leave_on:
        _refuse_with_leave_on()
        return lambda: run_left_on(to_run)
    options = options_for(
        to_run,
        output,
        Path.cwd(),
        os.environ,
        lambda text: echo(f"kinetoscope: {text}", err=True),
        recording=_read(recording),
        chrome=chrome or bool(output and output.endswith((".json", ".json.gz"))),
        summaries=summaries,
        steps=None if steps is None else _parse_steps(steps),
        install=install,
        children=children,
    )
    return ProgramRun(
        to_run, options, ProgressLine(options, shlex.join(to_run.command_line), summary=not no_summary)
    ).execute


def _refuse_with_leave_on() -> None:
    context = click.get_current_context()
    no_options = ("leave_on", "is_module", "program", "arguments")
    options = [
        option.opts[-1]
        for option in context.command.params
        if option.name not in no_options
        and context.get_parameter_source(option.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if options:
        raise ArgumentError(
            f"{', '.join(options)} cannot be combined with --leave-on, which writes no trace at the end."
        )


def _parse_steps(text: str) -> tuple[int, int | None]:
    match = re.fullmatch(r"(\d*):(\d*)", text.strip())
    if match is None or (match[2] and int(match[2]) <= int(match[1] or 0)):
        raise ArgumentError(
            f"--steps {text} is not a range of steps: write A:B, such as 10:20 for the ten steps from 10 to 19."
        )
    return int(match[1] or 0), int(match[2]) if match[2] else None


class ProgressLine(RunObserver):
    """A line on a terminal, updated until something else is written, and the summary at the end.

    The line ends with a line break, so the program's output starts on a new line. Once the program has written anything (the kernel counts bytes), the
    line stays as it is.
    """

    def __init__(self, options: LaunchOptions, title: str = "", *, summary: bool = False) -> None:
        """Show nothing yet. With `summary`, a summary called `title` follows at the end."""
        self.measures_overhead = summary
        self._title = title
        self._has_heading = False
        self._live_path = options.live_path
        self._shown_as = options.shown(options.live_path)
        self._children = Children(options)
        self._engine = ""
        self._done = threading.Event()
        self._started_s = 0.0
        self._quiet_until: int | None = None

    def started(self, engine: str) -> None:
        """Show the line, if standard error is a terminal."""
        self._engine = engine
        if sys.__stderr__ is None or not sys.__stderr__.isatty():
            return
        self._started_s = time.monotonic()
        self._write("", self._text())
        threading.Thread(target=self._update, name="kinetoscope-progress", daemon=True).start()

    def stopped(self) -> None:
        """Stop updating the progress line."""
        self._done.set()

    def recorded(self) -> None:
        """Print the first line of the summary, if there is something to sum up."""
        if self.measures_overhead and self._engine:
            from kinetoscope.cli.summary import print_heading

            # The recording is not saved yet: a standard error that the program closed or replaced must not lose it.
            with suppress(AttributeError, ValueError, OSError):
                print_heading(self._title)
                self._has_heading = True

    def finished(self, finished: Finished) -> None:
        """Print the summary."""
        if self.measures_overhead:
            from kinetoscope.cli.summary import print_summary

            print_summary(finished, below_heading=self._has_heading)

    def _update(self) -> None:
        while not self._done.wait(INTERVAL_S):
            if self._quiet_until is None or _written_bytes() != self._quiet_until:
                return
            self._write(_UP_AND_CLEAR, self._text())

    def _text(self) -> str:
        text = f"kinetoscope: recording to {self._shown_as} ({self._engine} engine)"
        seconds = time.monotonic() - self._started_s
        with suppress(OSError):
            held = self._live_path.stat().st_blocks * 512
            if seconds >= INTERVAL_S:
                text += f", {units.duration(seconds * 1e9)}, {units.size(held)}"
        if count := self._children.count:
            text += f", {units.count(count, 'child process', 'child processes')}"
        return text

    def _write(self, before: str, text: str) -> None:
        # A line that wraps could not be replaced.
        width = max(20, _columns() - 1)
        line = f"{before}{text[:width]}\n".encode()
        written_bytes = _written_bytes()
        with suppress(OSError):
            os.write(2, line)
        self._quiet_until = None if written_bytes is None else written_bytes + len(line)


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


def _written_bytes() -> int | None:
    """Bytes written by the program and its children so far; None if the kernel does not report it."""
    total_bytes = 0
    for process in descendants():
        try:
            counts = Path(f"/proc/{process}/io").read_text(encoding="ascii")
            total_bytes += int(counts.split("wchar:")[1].split()[0])
        except (OSError, IndexError, ValueError):
            # One that has just ended is counted with its parent.
            if process == os.getpid():
                return None
    return total_bytes
