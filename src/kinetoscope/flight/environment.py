"""`KINETOSCOPE=on` and `kinetoscope run --leave-on`: for a program that was not changed, from its import of torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._after_import import AfterImport
from kinetoscope.flight.settings import SWITCH

if TYPE_CHECKING:
    from kinetoscope.flight.flight import FlightRecorder

_OWN_PROGRAMS = ("kinetoscope", "kinetoscope.launcher")


class LeftOn:
    """A program that is left on from its import of torch; a step is one of its first optimizer, until it calls `step()`.

    Attributes:
        recorder: The flight recorder; None until torch is imported.
    """

    def __init__(self) -> None:
        self.recorder: FlightRecorder | None = None
        self._torch_import = AfterImport("torch", self._torch_imported)

    def begin(self) -> None:
        """Wait for the import of torch; a program without torch is never recorded."""
        self._torch_import.wait()
        os.register_at_fork(after_in_child=self._torch_import.give_up)

    def _torch_imported(self) -> None:
        """Leave it on. Whatever is wrong, with the environment for example, is one line and never an exception."""
        from kinetoscope.display.terminal import complain

        try:
            from kinetoscope.flight.flight import leave_on

            self.recorder = leave_on()
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            complain(f"the program is not left on: {error}")


# That of the process.
_LEFT_ON: list[LeftOn] = []


def begin_if_asked() -> None:
    """Leave this program on if the environment says so and it is not a command of ours."""
    words = [Path(word).name for word in sys.orig_argv[:3]]
    if any(word in _OWN_PROGRAMS for word in words):
        return
    if os.environ.get(SWITCH, "").lower() == "on" and not _LEFT_ON:
        _LEFT_ON.append(LeftOn())
        _LEFT_ON[0].begin()
