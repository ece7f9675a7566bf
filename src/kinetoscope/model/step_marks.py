"""How the iterations of an engine are named in a recording: as a range in the step, whose name has this form.

`kinetoscope.step prefill {"requests": 4, "tokens": 512}` says what kind of step it is, with its arguments.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

PREFIX = "kinetoscope.step "


class StepMark(NamedTuple):
    """What a range says of the step that it is in.

    Attributes:
        name: The kind of the step, such as `prefill`.
        arguments: The arguments of the step, as the JSON text of an object; empty without arguments.
    """

    name: str
    arguments: str = ""


def step_mark(name: str, arguments: str) -> str:
    """Return the name of the range; `arguments` is JSON text of an object, or empty."""
    return f"{PREFIX}{name} {arguments}".rstrip()


def parse_step_mark(text: str) -> StepMark | None:
    """Return what the name of a range says of its step; None if it says nothing of it."""
    if not text.startswith(PREFIX):
        return None
    name, brace, rest = text.removeprefix(PREFIX).partition(" {")
    if not name:
        return None
    if not brace:
        return StepMark(name)
    try:
        value: Any = json.loads("{" + rest)
    except (ValueError, RecursionError):
        return None
    return StepMark(name, "{" + rest) if isinstance(value, dict) else None
