"""`KINETOSCOPE=on` and `kinetoscope run --leave-on`: for a program that was not changed, from its import of torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kinetoscope._after_import import AfterImport
from kinetoscope.flight.settings import SWITCH

_OWN_PROGRAMS = ("kinetoscope", "kinetoscope.launcher")


def leave_on_from_torch() -> None:
    """Leave this program on from its import of torch; a step is one of its first optimizer, until it calls `step()`."""
    torch_import = AfterImport("torch", _torch_is_imported)
    torch_import.wait()
    os.register_at_fork(after_in_child=torch_import.give_up)


def _torch_is_imported() -> None:
    """Leave it on. Whatever is wrong, with the environment for example, is one line and never an exception."""
    from kinetoscope.display.terminal import complain

    try:
        from kinetoscope.flight.flight import leave_on

        leave_on()
    except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
        complain(f"the program is not left on: {error}")


def begin_if_asked() -> None:
    """Leave this program on if the environment says so and it is not a command of ours."""
    words = [Path(word).name for word in sys.orig_argv[:3]]
    if os.environ.get(SWITCH, "").lower() == "on" and not any(word in _OWN_PROGRAMS for word in words):
        leave_on_from_torch()
