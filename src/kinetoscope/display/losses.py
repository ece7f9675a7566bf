"""The loss of a training run as it falls: reads what the examples print, and shows it on one line."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kinetoscope.display import units

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.console import Console

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
        """Take what is printed, line by line; what tells no loss is passed on."""
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
