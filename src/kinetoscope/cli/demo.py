"""`kinetoscope demo`: profile the training runs that ship with the package."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kinetoscope._errors import MissingDependencyError
from kinetoscope.collect.session.options import RecordingOptions
from kinetoscope.model import units

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.console import Console

    from kinetoscope.launcher.overhead import Overhead
    from kinetoscope.launcher.recording import Finished


@dataclass(frozen=True)
class Example:
    """One of the training runs.

    Attributes:
        name: Its files are named after it.
        module: The module of the package that is run.
        what: What is trained, in words.
        steps: How many optimizer steps it makes.
    """

    name: str
    module: str
    what: str
    steps: int


EXAMPLES = (
    Example("gpt", "kinetoscope.examples.train_gpt", "a small GPT on Alice in Wonderland", 100),
    Example(
        "convnet", "kinetoscope.examples.train_convnet", "a small convolutional net on drawn digits", 100
    ),
)


@click.command("demo")
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    default="kinetoscope-demo",
    show_default=True,
    help="Write the traces to this folder.",
)
@click.option("--steps", metavar="N", type=click.IntRange(min=1), help="Train for N steps.  [default: 100]")
def command(output: str, steps: int | None) -> None:
    """Profile two training runs that come with the package: a small GPT and a small convolutional net.

    Prints a summary of each, and writes their traces to a folder.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError(
            "the demo trains with PyTorch, which is not installed here: `pip install torch`."
        )
    from kinetoscope.cli.summary import print_summary
    from kinetoscope.display.terminal import console
    from kinetoscope.launcher.overhead import measure_overhead

    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    printer = console()
    overhead: Overhead | None = None
    all_finished = []
    for number, example in enumerate(EXAMPLES, 1):
        chosen = example if steps is None else replace(example, steps=steps)
        printer.print(f"[bold]{number}/{len(EXAMPLES)}  Training {chosen.what}")
        finished = _record(chosen, folder, printer)
        overhead = overhead or measure_overhead(finished.options)
        all_finished.append(replace(finished, overhead=overhead))
        print_summary(all_finished[-1], printer, rows=5)
        printer.print()
    _say_what_next(printer, all_finished)


def _record(example: Example, folder: Path, printer: Console) -> Finished:
    """Run an example under a recording, showing its loss as it falls."""
    from kinetoscope.launcher.options import LaunchOptions
    from kinetoscope.launcher.program import Program, take_name_of_python
    from kinetoscope.launcher.recording import ProgramRecording

    program = Program(example.module, ("--steps", str(example.steps)), is_module=True)
    options = LaunchOptions(
        prefix=(folder / example.name).absolute(),
        recording=RecordingOptions(with_stack=True, with_modules=True, profile_memory=True),
        chrome=True,
    )
    recording = ProgramRecording(program, options)
    take_name_of_python()
    with _put_back():
        try:
            with LossDisplay(printer, example.steps) as display, contextlib.redirect_stdout(display):
                recording.begin()
                program.run()
        except BaseException:
            recording.finish("interrupted")
            raise
        finished = recording.finish("exit code 0")
    if finished is None:
        raise MissingDependencyError(f"the demo recorded nothing: {recording.why_nothing()}.")
    return finished


@contextlib.contextmanager
def _put_back() -> Iterator[None]:
    """Undo what running a program as `__main__` changes in this process."""
    main, arguments, path = sys.modules["__main__"], sys.argv[:], sys.path[:]
    try:
        yield
    finally:
        sys.modules["__main__"], sys.argv[:], sys.path[:] = main, arguments, path


def _say_what_next(printer: Console, all_finished: list[Finished]) -> None:
    """Print the next commands to try."""
    first = all_finished[0]
    trace, chrome = (
        first.options.shown(path) for path in (first.options.trace_path, first.options.chrome_path)
    )
    printer.print("[bold]What next")
    for command_line, meaning in (
        (f"kinetoscope view {trace}", "the trace in the browser: timeline, flame graphs, memory"),
        (f"kinetoscope report {trace}", "the same as one HTML file"),
        (f"kinetoscope table {trace} modules", "all modules: forward, backward, memory"),
        (f"kinetoscope info {trace}", "what was recorded, where, and whether it is complete"),
        ("https://ui.perfetto.dev", f"open {chrome} there for its timeline"),
        ("kinetoscope run your_script.py", "your own program, without changes to it"),
    ):
        printer.print(f"  {command_line}", style="cyan", markup=False, soft_wrap=True)
        printer.print(f"      {meaning}", markup=False)


# The loss of a training run as it falls: reads what the examples print, and shows it on one line.

_STEP = re.compile(r"step\s+(\d+)/\d+\s+loss\s+([\d.]+)")


class LossDisplay(io.TextIOBase):
    """Stands in for standard output while an example trains.

    On a terminal the newest step replaces the one before; elsewhere a line is printed every tenth of the way.
    """

    def __init__(self, printer: Console, steps: int) -> None:
        self._printer = printer
        self._steps = steps
        self._losses: list[float] = []
        self._unfinished = ""
        self._live = (
            Live(self._line(), console=printer, refresh_per_second=10) if printer.is_terminal else None
        )

    @property
    def losses(self) -> tuple[float, ...]:
        """The losses seen so far."""
        return tuple(self._losses)

    def __enter__(self) -> Self:
        """Show the line."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the line with the last step on it."""
        if self._live is not None:
            self._live.update(self._line(), refresh=True)
            self._live.stop()

    def writable(self) -> bool:
        """It is there to be written to."""
        return True

    def write(self, text: str) -> int:
        """Read printed lines; those without a loss are passed on."""
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in lines:
            found = _STEP.match(line)
            if found is None:
                self._printer.print(Text(line))
                continue
            self._losses.append(float(found[2]))
            if self._live is not None:
                self._live.update(self._line())
            elif len(self._losses) in _milestones(self._steps):
                self._printer.print(Text(line.strip()))
        return len(text)

    def _line(self) -> Table:
        """Draw the progress, the loss, and the way it came down."""
        done = len(self._losses)
        grid = Table.grid(padding=(0, 2, 0, 0))
        cells: list[ProgressBar | Text] = [
            ProgressBar(total=self._steps, completed=done, width=20),
            Text(f"step {done}/{self._steps}"),
            Text(f"loss {self._losses[-1]:.3f}" if done else "loss –", style="bold"),
            Text(units.sparkline(self._losses, 24), style="green"),
        ]
        room = self._printer.width - 44
        if room < 24:
            cells[3] = Text(units.sparkline(self._losses, max(0, room)), style="green")
        grid.add_row(*cells)
        return grid


def _milestones(steps: int) -> frozenset[int]:
    """The first step, the last, and every tenth of the way."""
    return frozenset({1, *(round(steps * tenth / 10) for tenth in range(1, 11))})
