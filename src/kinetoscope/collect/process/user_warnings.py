"""Warnings that point at the line of the user's program, however deep inside of these rooms they are raised."""

from __future__ import annotations

import sys
import warnings

_ROOMS = ("kinetoscope.collect", "kinetoscope.integrations")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn as if the innermost caller outside of these rooms had called `warnings.warn` itself."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_ROOMS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
