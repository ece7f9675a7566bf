"""`kinetoscope demo`: a training run with a mistake in it, what Kinetoscope finds, and the run without the mistake."""

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
from kinetoscope.collect import RecordingOptions
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
        arguments: The program's own, without the number of steps.
        what: What is trained, in words.
    """

    name: str
    arguments: tuple[str, ...]
    what: str


_MODULE = "kinetoscope.examples.train_gpt"
# Small enough that the mistake, thousands of operators a step, is most of the step on every machine. One thread, because several
# that wait for each other are the slower, the busier the machine is with other things.
_SIZE = ("--width", "32", "--layers", "2", "--threads", "1")
EXAMPLES = (
    Example(
        "slow",
        (*_SIZE, "--loss-one-by-one"),
        "a small GPT on Alice in Wonderland, with a mistake: a loop computes the loss of one character at a time",
    ),
    Example(
        "mended", _SIZE, "the same GPT with the mistake mended: one call computes the loss of all characters"
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
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Train for N steps.",
)
def command(output: str, steps: int) -> None:
    """Profile the training of a small GPT with a mistake in it, train it again without, and compare the two.

    Prints what Kinetoscope finds, and writes the traces to a folder.
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
        printer.print(f"[bold]{number}/3  Training {example.what}")
        finished = _record(example, steps, folder, printer)
        overhead = overhead or measure_overhead(finished.options)
        all_finished.append(replace(finished, overhead=overhead))
        print_summary(all_finished[-1], printer, rows=5)
        printer.print()
    printer.print("[bold]3/3  Comparing the two")
    printer.print(_compared(all_finished, printer.width), markup=False, highlight=False, soft_wrap=True)
    printer.print()
    _say_what_next(printer, all_finished)


def _compared(all_finished: list[Finished], width: int) -> str:
    """Lines of a width about what changed from the first run to the second."""
    from kinetoscope.trace.opening import compare

    slow, mended = (str(finished.options.shown(finished.options.trace_path)) for finished in all_finished)
    return compare(slow, mended).to_text(3, width)


def _record(example: Example, steps: int, folder: Path, printer: Console) -> Finished:
    """Run an example under a recording, showing its loss as it falls."""
    from kinetoscope.launcher.options import LaunchOptions
    from kinetoscope.launcher.program import Program, take_name_of_python
    from kinetoscope.launcher.recording import ProgramRecording

    program = Program(_MODULE, (*example.arguments, "--steps", str(steps)), is_module=True)
    options = LaunchOptions(
        prefix=(folder / example.name).absolute(),
        recording=RecordingOptions.launched(profile_memory=True),
        chrome=True,
    )
    recording = ProgramRecording(program, options)
    take_name_of_python()
    with _put_back():
        try:
            with LossDisplay(printer, steps) as display, contextlib.redirect_stdout(display):
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
    import torch

    main, arguments, path = sys.modules["__main__"], sys.argv[:], sys.path[:]
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        sys.modules["__main__"], sys.argv[:], sys.path[:] = main, arguments, path


def _say_what_next(printer: Console, all_finished: list[Finished]) -> None:
    """Print the next commands to try."""
    first, second = all_finished
    trace, chrome = (
        first.options.shown(path) for path in (first.options.trace_path, first.options.chrome_path)
    )
    mended = second.options.shown(second.options.trace_path)
    printer.print("[bold]What next")
    for command_line, meaning in (
        (f"kinetoscope findings {trace}", "what makes the run slow, where, and what to change"),
        (f"kinetoscope compare {trace} {mended}", "all that changed"),
        (f"kinetoscope view {trace}", "the trace in the browser: timeline, flame graphs, memory"),
        (f"kinetoscope report {trace}", "the same as one HTML file"),
        (f"kinetoscope table {trace} modules", "all modules: forward, backward, memory"),
        (f"kinetoscope info {trace}", "what was recorded, where, and whether it is complete"),
        ("https://ui.perfetto.dev", f"open {chrome} there for its timeline"),
        ("kinetoscope run your_script.py", "your own program, without changes to it"),
    ):
        printer.print(f"  {command_line}", style="cyan", markup=False, soft_wrap=True)
        printer.print(f"      {meaning}", markup=False)


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
        """Keep the line with the last step."""
        if self._live is not None:
            self._live.update(self._line(), refresh=True)
            self._live.stop()

    def writable(self) -> bool:
        """Always true."""
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
        """Draw the progress, the loss, and its curve."""
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
    """The first step, the last one, and every tenth in between."""
    return frozenset({1, *(round(steps * tenth / 10) for tenth in range(1, 11))})
