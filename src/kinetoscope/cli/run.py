"""`kinetoscope run`: profile a program as it is."""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope.display.terminal import complain
from kinetoscope.display.units import parse_size
from kinetoscope.launch.children import Children, let_go_of_outer_run
from kinetoscope.launch.installed import InstalledRecording
from kinetoscope.launch.options import Wanted
from kinetoscope.launch.program import CannotRun, Program, show_exception
from kinetoscope.launch.recording import ProgramRecording

if TYPE_CHECKING:
    from kinetoscope.launch.overhead import Overhead
    from kinetoscope.trace import Trace


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="[OPTIONS]",
)
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as for `python -m`.")
@click.option(
    "-o", "--output", metavar="PREFIX", help="Name the files PREFIX.ktrace and so on (the program's name)."
)
@click.option("--shapes", is_flag=True, help="Record the shapes, types and scalars of inputs.")
@click.option("--memory", is_flag=True, help="Record every allocation and free.")
@click.option(
    "--stack/--no-stack",
    default=True,
    help="Record Python stacks (yes; our recorder always does, they cost it next to nothing).",
)
@click.option(
    "--modules/--no-modules", default=True, help="Record the nn.Module of each operator (yes; as for stacks)."
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "native", "kineto"]),
    default="auto",
    help="What records: our recorder, torch's collector, or ours where it can (auto).",
)
@click.option(
    "--steps", metavar="A:B", help="Record optimizer steps A to B only, counted from 0, B not among them."
)
@click.option("--ring", metavar="SIZE", help="Keep the newest SIZE bytes of the recording, such as 64M.")
@click.option("--chrome", is_flag=True, help="Also write PREFIX.json.gz, for Perfetto and chrome://tracing.")
@click.option(
    "--install",
    is_flag=True,
    help="Record what the program itself profiles: its torch.profiler becomes Kinetoscope.",
)
@click.option(
    "--children",
    is_flag=True,
    help="Record the processes that the program starts, too: forks, and every Python that imports torch.",
)
@click.option("--no-summary", is_flag=True, help="Print no summary at the end.")
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(
    program: str,
    arguments: tuple[str, ...],
    *,
    is_module: bool,
    output: str | None,
    shapes: bool,
    memory: bool,
    stack: bool,
    modules: bool,
    engine: str,
    steps: str | None,
    ring: str | None,
    chrome: bool,
    install: bool,
    children: bool,
    no_summary: bool,
) -> Callable[[], None]:
    """Profile a Python script, or with -m a module, as it is.

    It keeps its arguments, standard input, signals and exit code. Recording begins when it imports torch, and steps
    are found from its optimizer. The recording is kept in PREFIX.recording while it runs, where even a killed
    program leaves it readable; at the end it becomes PREFIX.ktrace and a summary is printed on standard error.

    With --children, the processes that it starts are recorded as well, and theirs, and all are in PREFIX.ktrace, on one
    clock. Meanwhile their recordings are in the folder PREFIX.children.

    With --install, torch.profiler is Kinetoscope inside the program, and only what the program profiles with it is
    recorded, as the program asks for; at the end all of that is in PREFIX.ktrace too.
    """
    if children and (install or engine == "kineto"):
        raise ArgumentError(
            f"--children with {'--install' if install else '--engine kineto'}: children record with our own recorder, from "
            "their beginning. Leave one of the two out."
        )
    if install:
        _refuse_what_the_program_decides(shapes=shapes, memory=memory, steps=steps, ring=ring)
    to_run = Program(program, arguments, is_module)
    wanted = Wanted(
        prefix=_prefix(output, to_run),
        shapes=shapes,
        memory=memory,
        stack=stack,
        modules=modules,
        engine=engine,
        chrome=chrome or bool(output and output.endswith((".json", ".json.gz"))),
        ring_bytes=None if ring is None else parse_size(ring),
        steps=None if steps is None else _parse_steps(steps),
        install=install,
        children=children,
    )
    # Found out now, and not by the program when it imports torch.
    wanted.prefix.parent.mkdir(parents=True, exist_ok=True)
    return Run(to_run, wanted, summary=not no_summary).execute


class Run:
    """One run of a program under a recording, from the command line to the exit code."""

    def __init__(self, program: Program, wanted: Wanted, *, summary: bool) -> None:
        from kinetoscope.cli.progress import ProgressLine

        self._program = program
        self._wanted = wanted
        self._summary = summary
        self._children = Children(wanted) if wanted.children else None
        self._progress = ProgressLine(wanted.live_path, wanted.shown(wanted.live_path), self._children)
        recording = InstalledRecording if wanted.install else ProgramRecording
        self._recording = recording(program, wanted, self._torch_is_there, self._progress.begin)
        self._ended = "exit code 0"
        self._process = os.getpid()
        self._trace: Trace | None = None
        self._overhead: Overhead | None = None
        self._failure: Exception | None = None
        self._is_closed = self._is_finished = False

    def execute(self) -> None:
        """Run the program, and leave as it leaves."""
        let_go_of_outer_run()
        if self._children is not None:
            self._children.begin(self._leave)
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=self._after_fork)
        try:
            self._recording.begin()
            self._program.run()
        except CannotRun as error:
            atexit.unregister(self._finish)
            if self._children is not None:
                self._children.stop_following()
                self._children.clear()
            complain(str(error))
            sys.exit(error.exit_code)
        except SystemExit as error:
            self._ended = _exit_in_words(error.code)
            raise
        except KeyboardInterrupt as error:
            self._ended = "interrupted"
            show_exception(error)
            # Passed on, so that Python ends the process the way it ends on an interrupt: by the signal.
            sys.excepthook = lambda *_: None
            raise
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is the program's)
            self._ended = f"ended by {type(error).__name__}"
            show_exception(error)
            sys.exit(1)
        finally:
            if self._children is not None and os.getpid() == self._process:
                # The libraries that write files import it, and once Python ends that is too late. Torch has it.
                importlib.import_module("concurrent.futures.thread")

    def _torch_is_there(self) -> None:
        """Choose the moment of the end, as soon as torch is imported.

        At exit Python waits for the program's threads and then calls exit handlers, the last one first. So the recording
        ends after the handlers that the program registers from now on, but before the engine's, and before those of
        torch, which take torch to pieces. Children are put together at the very end, when `multiprocessing` has waited
        for its own.
        """
        importlib.import_module("kinetoscope.collect.engines.native")
        if self._children is None:
            atexit.unregister(self._finish)
            atexit.register(self._finish)
        else:
            atexit.register(self._close)
            self._children.follow_forks(self._recording)

    def _after_fork(self) -> None:
        """In a fork: what is recorded, or waited for, is the parent's."""
        waiting = self._recording.state == "waiting for torch"
        self._recording.leave_alone()
        if waiting and self._children is not None:
            self._children.follow_this_fork()

    def _leave(self, status: int) -> None:
        """The program leaves without Python's exit."""
        self._ended = f"exit code {status & 0xFF}"
        self._finish()

    def _finish(self) -> None:
        """Write the files and the summary, but not in a fork of the process that records."""
        if os.getpid() != self._process or self._is_finished:
            return
        self._is_finished = True
        try:
            self._tell()
        finally:
            self._leave_no_unwritten_words()

    def _close(self) -> None:
        """Close the program's own recording, while torch is still whole; a second call does nothing."""
        if os.getpid() != self._process or self._is_closed:
            return
        self._is_closed = True
        self._progress.end()
        try:
            self._trace = self._recording.end(self._ended)
            # With --install the program chose what to record, each time anew: there is no one cost of it.
            if self._trace is not None and self._summary and not self._wanted.install:
                from kinetoscope.launch.overhead import measure_overhead

                self._overhead = measure_overhead(self._wanted)
        except (KinetoscopeError, OSError) as error:
            self._failure = error

    def _leave_no_unwritten_words(self) -> None:
        """Forget what standard error cannot take: Python would change the exit code when it tries again."""
        try:
            sys.stderr.flush()
        except (AttributeError, ValueError):
            return
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    def _tell(self) -> None:
        """Finish the recording and print what came of it."""
        with suppress(AttributeError, ValueError, OSError):  # closed, replaced or broken by the program
            sys.stdout.flush()
        try:
            self._close()
            if self._failure is not None:
                raise self._failure
            trace = self._trace if self._children is None else self._with_children(self._children)
            if trace is None:
                click.echo(f"kinetoscope: nothing was recorded: {self._recording.why_nothing()}.", err=True)
                return
            finished = self._recording.write(trace, self._ended)
            if self._children is not None:
                self._children.clear()
            if self._summary:
                from kinetoscope.cli.summary import print_summary

                print_summary(replace(finished, overhead=self._overhead))
        except (KinetoscopeError, OSError) as error:
            complain(f"{error}{self._what_is_left()}")
        except KeyboardInterrupt:
            complain(f"interrupted{self._what_is_left()}")
        if self._ended == "interrupted":
            # Python ends by the signal when the last code it ran from outside was interrupted; loading an extension
            # module above may have run some. Nothing is printed: the hook is the silent one.
            ctypes.pythonapi.PyRun_SimpleString(b"raise KeyboardInterrupt")

    def _with_children(self, children: Children) -> Trace | None:
        """What the program and its children recorded."""
        children.stop_following()
        joined = children.join(self._trace, os.path.basename(self._program.target))
        if joined.trace is not None and self._trace is None:
            joined.trace.info["program"] = json.loads(self._recording.description(self._ended))
        self._recording.notes += joined.notes
        return joined.trace

    def _what_is_left(self) -> str:
        """Say where the recording is when it could not be finished."""
        live = self._wanted.live_path
        return (
            f" (the recording is in {self._wanted.shown(live)}, which kinetoscope opens too)"
            if live.exists()
            else ""
        )


def _prefix(output: str | None, program: Program) -> Path:
    """Choose the files' names: as asked for, or after the program and not in the way of earlier ones."""
    rank = f"-rank{os.environ['RANK']}" if os.environ.get("RANK", "").isdigit() else ""
    if output is not None:
        prefix = re.sub(r"\.(ktrace|json|json\.gz|recording)$", "", output)
        if not os.path.basename(prefix) or Path(prefix).is_dir():
            raise ArgumentError(
                f"-o {output} names no file: write the beginning of a file name, such as -o runs/first."
            )
        return Path(prefix + rank).absolute()
    stem = program.name + rank
    for number in range(1, 10_000):
        prefix_path = Path(stem if number == 1 else f"{stem}-{number}")
        if not any(
            Path(f"{prefix_path}{suffix}").exists()
            for suffix in (".ktrace", ".recording", ".json.gz", ".children")
        ):
            return prefix_path.absolute()
    raise ArgumentError(f"there are thousands of {stem}-N.ktrace files here: choose a name with -o PREFIX.")


def _parse_steps(text: str) -> tuple[int, int | None]:
    """Read a range of steps such as `10:20`, `10:` or `:20`."""
    found = re.fullmatch(r"(\d*):(\d*)", text.strip())
    if found is None or (found[2] and int(found[2]) <= int(found[1] or 0)):
        raise ArgumentError(
            f"--steps {text} is no range of steps: write FIRST:END, such as 10:20 for ten steps."
        )
    return int(found[1] or 0), int(found[2]) if found[2] else None


def _refuse_what_the_program_decides(**options: object) -> None:
    """Say so when an option asks for what, with --install, the program asks of torch.profiler itself."""
    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise ArgumentError(
            f"{', '.join(given)}: with --install the program decides what is recorded, by what it asks of torch.profiler. "
            "Leave one of the two out."
        )


def _exit_in_words(code: object) -> str:
    """Say what a program exits with."""
    if code is None or isinstance(code, int):
        return f"exit code {int(code or 0) & 0xFF}"
    return "exit code 1"
