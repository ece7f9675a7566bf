"""What is seen on a terminal while a program is being recorded, without getting in the way of the program's own output."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope.display import units

if TYPE_CHECKING:
    from kinetoscope.launch.children import Children

INTERVAL_S = 0.5
_UP_AND_CLEAR = "\x1b[1A\r\x1b[2K"


class ProgressLine:
    """One line on a terminal, brought up to date for as long as nothing else has been written below it.

    The line is always ended, so whatever the program prints starts on a line of its own. Once the program has
    written anything at all (the kernel counts it), the line is left as it is: the program then tells its own progress.
    """

    def __init__(self, live_path: Path, shown_as: str, children: Children | None = None) -> None:
        """Show nothing yet; `children` counts the processes that record, too."""
        self._live_path = live_path
        self._children = children
        self._shown_as = shown_as
        self._engine = ""
        self._done = threading.Event()
        self._started_s = 0.0
        self._quiet_until: tuple[int, int] | None = None

    def begin(self, engine: str) -> None:
        """Show the line, if there is a terminal to show it on."""
        if sys.__stderr__ is None or not sys.__stderr__.isatty():
            return
        self._engine, self._started_s = engine, time.monotonic()
        self._write("", self._text())
        threading.Thread(target=self._keep_current, name="kinetoscope-progress", daemon=True).start()

    def end(self) -> None:
        """Leave the line as it is."""
        self._done.set()

    def _keep_current(self) -> None:
        """Rewrite the line until somebody else writes."""
        while not self._done.wait(INTERVAL_S):
            if self._quiet_until is None or self._written() != self._quiet_until:
                return
            self._write(_UP_AND_CLEAR, self._text())

    def _text(self) -> str:
        """What the line says."""
        text = f"kinetoscope: recording to {self._shown_as} ({self._engine} engine)"
        seconds = time.monotonic() - self._started_s
        with suppress(OSError):
            held = self._live_path.stat().st_blocks * 512
            if seconds >= INTERVAL_S:
                text += f", {units.duration(seconds * 1e9)}, {units.size(held)}"
        if self._children is not None and (count := self._children.count):
            text += f", and {units.count(count, 'child', 'children')}"
        return text

    def _written(self) -> tuple[int, int] | None:
        """How many bytes the program has written, and how many processes it has that nobody looks at; None: unknown.

        Where children are followed, what they write counts as well, and their number does not.
        """
        found = _written_by(os.getpid())
        if found is None or self._children is None:
            return None if found is None else (found[0], len(found[1]))
        written, waiting = found
        while waiting:
            # One that has just ended is counted with its parent.
            more, born = _written_by(waiting.pop()) or (0, [])
            written, waiting = written + more, waiting + born
        return written, 0

    def _write(self, before: str, text: str) -> None:
        """Write the line, and note how much this process has then written in all."""
        # A line that wraps could not be taken back.
        width = max(20, _columns() - 1)
        line = f"{before}{text[:width]}\n".encode()
        written = self._written()
        with suppress(OSError):
            os.write(2, line)
        self._quiet_until = None if written is None else (written[0] + len(line), written[1])


def _columns() -> int:
    """How wide the terminal is; 80 where it does not know."""
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80


def _written_by(process: int) -> tuple[int, list[int]] | None:
    """How many bytes a process has written, and its children; None where the kernel does not tell."""
    try:
        counts = Path(f"/proc/{process}/io").read_text(encoding="ascii")
        children = [
            int(child)
            for task in Path(f"/proc/{process}/task").glob("*/children")
            for child in task.read_text(encoding="ascii").split()
        ]
        return int(counts.split("wchar:")[1].split()[0]), children
    except (OSError, IndexError, ValueError):
        return None
