"""The id of each recorded cycle, by which its trace can be found again elsewhere."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from kinetoscope._errors import ArgumentTypeError


def new_trace_id(callback: Callable[[], str] | None) -> str:
    """Ask the user's callback for an id; without one make a random one, 32 hexadecimal digits, as torch does.

    Raises:
        ArgumentError: The callback returned something that is no text.
    """
    if callback is None:
        return uuid.uuid4().hex.upper()
    made = callback()
    if not isinstance(made, str):
        raise ArgumentTypeError(
            f"custom_trace_id_callback returned {made!r}: it must return a string, the id of the trace."
        )
    return made
