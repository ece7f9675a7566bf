"""`kinetoscope demo`: a training run with a mistake in it, how Kinetoscope finds it, and the proof that mending it helps."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import re
import statistics
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from kinetoscope._errors import MissingDependencyError
from kinetoscope.cli.files import file_option, number_option
from kinetoscope.collect import RecordingOptions
from kinetoscope.display.lines import cut, folded, lines_of, sparkline
from kinetoscope.display.terminal import console, reading_width
from kinetoscope.model import units

if TYPE_CHECKING:
    from kinetoscope.analyses.findings import Report
    from kinetoscope.launcher.recording import Finished
    from kinetoscope.trace import Trace


_MODULE = "kinetoscope.examples.train_gpt"
# Small enough that the mistake, thousands of operators a step, is most of the step on every machine. One thread, because several
# that wait for each other are the slower, the busier the machine is with other things.
_SIZE = ("--width", "32", "--layers", "2", "--threads", "1")
SLOW, MENDED = "slow", "mended"
ARGUMENTS = {SLOW: (*_SIZE, "--loss-one-by-one"), MENDED: _SIZE}
"""The arguments of the two training runs, without the number of steps; their files are named after them."""
# A single recording of each does not show the variation between runs.
ROUNDS, STEPS_A_ROUND = 5, 12
_INDENT = "   "
_LOSSES_SHOWN = 24


@click.command("demo")
@file_option(
    "-o", "--output", metavar="FOLDER", default="kinetoscope-demo", help="Write the traces to this folder."
)
@number_option("--steps", least=1, default=60, help="Train for N steps.")
def command(output: Path, steps: int) -> None:
    """Find a mistake in the training of a small GPT: where its time goes, the line, the mended run, and the proof.

    Trains on one CPU core for less than a minute, and writes the traces to a folder.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError(
            "the demo trains with PyTorch, which is not installed here: `pip install torch`."
        )

    output.mkdir(parents=True, exist_ok=True)
    Story(console(), output, steps).tell()


class Story:
    """The sections of the demo, each printed as soon as its results are known."""

    def __init__(self, printer: Console, folder: Path, steps: int) -> None:
        self._printer = printer
        self._folder = folder
        self._steps = steps
        self._width = reading_width(printer) - len(_INDENT)

    def tell(self) -> None:
        """Train the slow program and the mended one, and print what Kinetoscope finds."""
        self._begin("1  A slow training run")
        self._say(
            f"A small GPT learns to write like Alice in Wonderland. This records {units.count(self._steps, 'step')} of it:"
        )
        line = f"kinetoscope run --shapes --memory -m {_MODULE} {' '.join(ARGUMENTS[SLOW])} --steps {self._steps}"
        parts = textwrap.wrap(line, self._width, subsequent_indent="    ", break_on_hyphens=False)
        self._print(parts, "cyan")
        slow, losses = self._record(SLOW)
        self._say_what_was_recorded(slow)

        self._begin("2  Where the time of a step goes")
        report = slow.trace.overview().report
        self._show_waterfall(report)

        self._begin("3  The line")
        self._show_first_finding(report)

        self._begin("4  The mended run")
        self._say("One call computes the loss of all characters:")
        self._show_change()
        _, mended_losses = self._record(MENDED)

        self._begin("5  The proof")
        self._say(
            f"The loss after {units.count(self._steps, 'step')} was {losses[-1]:.3f} and is {mended_losses[-1]:.3f}."
        )
        self._compare()

        self._begin("What next")
        self._show_next(slow)

    def _begin(self, title: str) -> None:
        self._printer.print(Text(f"\n{title}", style="bold"))

    def _print(self, lines: Sequence[str], style: str = "") -> None:
        for line in lines:
            self._printer.print(Text(f"{_INDENT}{line}" if line else "", style=style), soft_wrap=True)

    def _say(self, text: str) -> None:
        self._print(textwrap.wrap(text, self._width))

    def _say_what_was_recorded(self, slow: Finished) -> None:
        from kinetoscope.launcher.overhead import measure_overhead, records_of

        overview = slow.trace.overview()
        for note in slow.messages:
            self._say(f"note: {note}")
        operators = overview.work_counts["operators"] // max(self._steps, 1)
        text = f"Each step runs {units.count(operators, 'operator')}."
        if overview.steps is not None:
            times = overview.steps.shown_ns
            usual = units.duration(statistics.median(times))
            self._say(f"{sparkline(times, 32)}  a step takes {usual} (median of {len(times)})")
        records = records_of(slow.trace)[0]
        overhead = measure_overhead(slow.options, records)
        if overhead is not None:
            share, _, _ = overhead.share(records)
            text += (
                f" Recording all of them took roughly {units.percent(share, 1.0)} of the time;"
                " in steps of fewer and larger operators it takes less."
            )
        self._say(text)

    def _show_waterfall(self, report: Report) -> None:
        from kinetoscope.analyses.findings import waterfall_blocks

        for line in lines_of(waterfall_blocks(report), self._width):
            self._printer.print(Text(_INDENT).append_text(line), soft_wrap=True)
        self._say(
            "The floor is what the operators of a step need on this machine. All that is above it has a cause."
        )

    def _show_first_finding(self, report: Report) -> None:
        from kinetoscope.analyses.findings import headline
        from kinetoscope.display.sentence import plain

        # That other programs used the CPU cores is not a mistake of this one.
        findings = [finding for finding in report.findings if finding.place]
        if not findings:
            self._say(report.no_problem)
            return
        self._print(textwrap.wrap(plain(headline(findings[0], report.whole_ns)), self._width), "yellow")
        self._say(findings[0].advice)
        code, first = _lines_of_loss()
        self._printer.print()
        for number, line in enumerate(code, first):
            here = number == findings[0].place.line
            self._print(
                [cut(f"{'>' if here else ' '} {number}  {line}", self._width)], "yellow" if here else ""
            )

    def _show_change(self) -> None:
        code, _ = _lines_of_loss()
        slow = code[next(first for first, line in enumerate(code) if "new_zeros" in line) :]
        mended = next(line for line in code if "cross_entropy" in line)
        self._print([f"- {line}" for line in slow], "red")
        self._print([f"+ {textwrap.indent(mended.strip(), '    ')}"], "green")

    def _compare(self) -> None:
        from kinetoscope.comparison.result import FASTER, headline
        from kinetoscope.trace.opening import compare

        self._say(f"Recording each {ROUNDS} times more in turn shows how sure the difference is:")
        recorded: dict[str, list[Trace]] = {SLOW: [], MENDED: []}
        for number in range(1, ROUNDS + 1):
            for example, traces in recorded.items():
                traces.append(self._record(example, min(self._steps, STEPS_A_ROUND), number)[0].trace)
        comparison = compare(recorded[SLOW], recorded[MENDED])
        self._printer.print()
        lines = comparison.to_brief_text(3, self._width).split("\n")
        verdict = len(folded(headline(comparison), self._width))
        self._print(lines[:verdict], "bold green" if comparison.verdict == FASTER else "bold")
        self._print(lines[verdict:])

    def _show_next(self, slow: Finished) -> None:
        trace = slow.options.shown(slow.options.trace_path)
        several = [str(self._folder / f"{example}-*.ktrace") for example in (SLOW, MENDED)]
        rows = (
            ("kinetoscope run train.py", "your own program, unchanged"),
            (f"kinetoscope view {trace}", "the trace in the browser"),
            (f"kinetoscope findings {trace}", "all findings"),
            (f"kinetoscope compare '{several[0]}' '{several[1]}'", "all that changed"),
            ("kinetoscope --help", "everything else"),
        )
        for line, meaning in rows:
            self._printer.print(Text.assemble(_INDENT, (line, "cyan"), f"  # {meaning}"), soft_wrap=True)

    def _record(
        self, example: str, steps: int | None = None, number: int | None = None
    ) -> tuple[Finished, list[float]]:
        from kinetoscope.launcher.options import LaunchOptions
        from kinetoscope.launcher.program import Program, take_name_of_python
        from kinetoscope.launcher.recording import ProgramRecording

        steps = steps or self._steps
        name = example if number is None else f"{example}-{number}"
        program = Program(_MODULE, (*ARGUMENTS[example], "--steps", str(steps)), is_module=True)
        options = LaunchOptions(
            prefix=(self._folder / name).absolute(),
            recording=RecordingOptions.launched(profile_memory=True, record_shapes=True),
        )
        recording = ProgramRecording(program, options)
        take_name_of_python()
        printer = self._printer if number is None else Console(quiet=True)
        display = LossDisplay(printer, steps, _INDENT)
        with _put_back():
            try:
                with display, contextlib.redirect_stdout(display):
                    recording.begin()
                    program.run()
            except BaseException:
                recording.finish("interrupted")
                raise
            finished = recording.finish("exit code 0")
        if finished is None:
            raise MissingDependencyError(f"the demo recorded nothing: {recording.why_nothing()}.")
        return finished, display.losses


def _lines_of_loss() -> tuple[list[str], int]:
    from kinetoscope.examples import train_gpt

    lines, first = inspect.getsourcelines(train_gpt.mean_loss)
    return [line.rstrip("\n") for line in lines], first


@contextlib.contextmanager
def _put_back() -> Iterator[None]:
    """On exit, restore what running a program as `__main__` changes in this process."""
    import torch

    main, arguments, path = sys.modules["__main__"], sys.argv[:], sys.path[:]
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        sys.modules["__main__"], sys.argv[:], sys.path[:] = main, arguments, path


_STEP = re.compile(r"step\s+(\d+)/\d+\s+loss\s+([\d.]+)")


class LossDisplay(io.TextIOBase):
    """Replaces standard output while an example trains.

    On a terminal the newest step replaces the one before; elsewhere only the last one is printed.

    Attributes:
        losses: The losses in what the program has printed so far, the oldest first.
    """

    def __init__(self, printer: Console, steps: int, indent: str = "") -> None:
        """Create a display without losses.

        Args:
            printer: Where to show the loss.
            steps: How many steps there will be.
            indent: What each line begins with.
        """
        self.losses: list[float] = []
        self._printer = printer
        self._steps = steps
        self._indent = indent
        self._unfinished = ""
        # Not while a recording is timed that nobody watches.
        is_watched = printer.is_terminal and not printer.quiet
        self._live = Live(
            get_renderable=self._line, console=printer, refresh_per_second=10, auto_refresh=is_watched
        )

    def __enter__(self) -> Self:
        """Begin to show the newest step."""
        self._live.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop, and leave the line with the last step."""
        self._live.stop()

    def write(self, text: str) -> int:
        """Read printed lines; those without a loss are passed on."""
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in lines:
            match = _STEP.match(line)
            if match is None:
                self._printer.print(Text(f"{self._indent}{line}"))
            else:
                self.losses.append(float(match[2]))
        return len(text)

    def _line(self) -> Text:
        done = len(self.losses)
        loss = f"loss {self.losses[-1]:.3f}" if done else "loss –"
        line = Text.assemble(self._indent, f"step {done}/{self._steps}  ", (loss, "bold"), "  ")
        room = max(0, min(_LOSSES_SHOWN, self._printer.width - line.cell_len - 1))
        return line.append(sparkline(self.losses, room), style="green")
