"""`kinetoscope demo`: profile the training runs that ship with the package."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kinetoscope._errors import MissingDependencyError

if TYPE_CHECKING:
    from rich.console import Console

    from kinetoscope.launch.overhead import Overhead
    from kinetoscope.launch.recording import Finished


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
    help="Where the traces go (kinetoscope-demo).",
)
@click.option("--steps", type=click.IntRange(min=1), help="Make this many steps of each run (100).")
def command(output: str, steps: int | None) -> None:
    """Profile two real training runs that ship with the package: a small GPT and a small convolutional net.

    Their traces are left in a folder, and a summary says where the time went.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError(
            "the demo trains with PyTorch, which is not installed here: `pip install torch`."
        )
    from kinetoscope.cli.summary import print_summary
    from kinetoscope.display.terminal import console
    from kinetoscope.launch.overhead import measure_overhead

    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    printer = console()
    overhead: Overhead | None = None
    all_finished = []
    for number, example in enumerate(EXAMPLES, 1):
        chosen = example if steps is None else replace(example, steps=steps)
        printer.print(f"[bold]{number}/{len(EXAMPLES)}  Training {chosen.what}, recorded as it is")
        finished = _record(chosen, folder, printer)
        overhead = overhead or measure_overhead(finished.wanted)
        all_finished.append(replace(finished, overhead=overhead))
        print_summary(all_finished[-1], printer, rows=5)
        printer.print()
    _say_what_next(printer, all_finished)


def _record(example: Example, folder: Path, printer: Console) -> Finished:
    """Run an example under a recording, showing its loss as it falls."""
    from kinetoscope.display.losses import LossDisplay
    from kinetoscope.launch.options import Wanted
    from kinetoscope.launch.program import Program
    from kinetoscope.launch.recording import ProgramRecording

    program = Program(example.module, ("--steps", str(example.steps)), is_module=True)
    wanted = Wanted(prefix=(folder / example.name).absolute(), memory=True, chrome=True)
    recording = ProgramRecording(program, wanted)
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
    """Say how to look at what was written."""
    first = all_finished[0]
    trace, chrome = (first.wanted.shown(path) for path in (first.wanted.trace_path, first.wanted.chrome_path))
    printer.print("[bold]What next")
    for command_line, meaning in (
        (f"kinetoscope view {trace}", "all of it in your browser: timeline, flame graphs, memory"),
        (f"kinetoscope report {trace}", "the same as one file that opens by double click"),
        (f"kinetoscope table {trace} modules", "every module: forward, backward, memory"),
        (f"kinetoscope info {trace}", "what was recorded, where, and how complete it is"),
        ("https://ui.perfetto.dev", f"the timeline: open {chrome} there"),
        ("kinetoscope run your_script.py", "your own program, as it is"),
    ):
        printer.print(f"  {command_line}", style="cyan", markup=False, soft_wrap=True)
        printer.print(f"      {meaning}", markup=False)
