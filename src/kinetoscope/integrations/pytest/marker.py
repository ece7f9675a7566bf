"""Parses the marker `kinetoscope` of a test. Loaded in every run of pytest, so it imports nothing heavy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.comparison.limits import LIMITS, WARMUP, Limits

_OF_MEMORY = ("max_allocations", "max_peak_bytes")
_FRACTIONS = ("max_step_ms",)

# What is recorded by default: all that shows where something happened.
SETTINGS = {
    "profile_memory": True,
    "with_stack": True,
    "with_modules": True,
    "record_shapes": False,
    "with_flops": False,
    "module_spans": False,
    "python_calls": False,
}
MARKER = (
    f"kinetoscope({', '.join(f'{name}=None' for name in LIMITS)}, {WARMUP}=0, "
    f"{', '.join(f'{name}={value}' for name, value in SETTINGS.items())}): "
    "record this test, and fail it when it does more than a limit allows"
)


def limits_of(marks: Sequence[Mapping[str, Any]], positional: Sequence[Sequence[Any]] = ()) -> Limits:
    """Combine the markers of a test; for each limit, the nearest marker counts.

    Args:
        marks: The keywords of each marker, the nearest to the test first.
        positional: The positional arguments of each, which must be empty.

    Returns:
        The limits.

    Raises:
        ArgumentError: A keyword is unknown, a value is invalid, or a limit needs something that is not recorded.
    """
    for unnamed in positional:
        if unnamed:
            raise ArgumentError(
                f"the marker kinetoscope was given {unnamed[0]!r} without a name; write it as a keyword, such as max_operators=100"
            )
    keywords: dict[str, Any] = {}
    for mark in reversed(marks):
        keywords.update(mark)
    allowed: dict[str, float] = {}
    settings = dict(SETTINGS)
    warmup_steps = 0
    for name, value in keywords.items():
        if name in LIMITS:
            if value is not None:
                allowed[name] = _number(name, value)
        elif name == WARMUP:
            warmup_steps = int(_number(name, value))
        elif name in SETTINGS:
            if not isinstance(value, bool):
                raise ArgumentError(
                    f"{name}={value!r} is not valid for the marker kinetoscope; use True or False"
                )
            settings[name] = value
        else:
            raise ArgumentError(_unknown(name))
    for name in _OF_MEMORY:
        if name in allowed and not settings["profile_memory"]:
            raise ArgumentError(f"{name} needs profile_memory=True: without it no allocation is recorded")
    return Limits({name: allowed[name] for name in LIMITS if name in allowed}, warmup_steps, settings)


def _number(name: str, value: Any) -> float:
    """Check a limit: a whole number from 0 on, or a time above 0; bytes may be a text such as `64MiB`."""
    if name == "max_peak_bytes" and isinstance(value, str):
        from kinetoscope.model.units import parse_size

        try:
            return parse_size(value)
        except ArgumentError as error:
            raise ArgumentError(
                f"{name}={value!r} is not valid for the marker kinetoscope; use a number of bytes such as 65536 or '64MiB'"
            ) from error
    fraction = name in _FRACTIONS
    fits = isinstance(value, int | float if fraction else int) and not isinstance(value, bool)
    if fits and (0 < value < float("inf") if fraction else value >= 0):
        number: float = value
        return number
    needed = "a number above 0" if fraction else "a whole number, 0 or more"
    raise ArgumentError(f"{name}={value!r} is not valid for the marker kinetoscope; use {needed}")


def _unknown(name: str) -> str:
    keywords = [*LIMITS, WARMUP, *SETTINGS]
    near = difflib.get_close_matches(name, keywords, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it knows: {', '.join(keywords)}"
    return f"the marker kinetoscope has no keyword {name!r}; {hint}"
