"""Warnings that point at the line of the user's program that called Kinetoscope."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress

_OWN_PACKAGES = ("kinetoscope.collect", "kinetoscope.flight", "kinetoscope.integrations")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, with the innermost caller outside of the packages that record as the location of the warning."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OWN_PACKAGES):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warn_safely(message: str) -> None:
    """Warn; where warnings are errors, the program and its threads still must not fail."""
    with suppress(Warning):
        warn_user(message)
