"""Checks of the arguments of a session that have nothing to do with activities."""

from __future__ import annotations

from typing import get_args

from kinetoscope._errors import ArgumentError
from kinetoscope.collect._choose import EngineName
from kinetoscope.collect._engine import Engine


def checked_engine(engine: EngineName | Engine) -> EngineName | Engine:
    """The name of an engine, or an engine itself, or an error that lists the names."""
    names = get_args(EngineName)
    if isinstance(engine, str) and engine not in names:
        raise ArgumentError(f"engine={engine!r} is not valid: choose one of {', '.join(map(repr, names))}.")
    return engine


def checked_ring_bytes(ring_bytes: int | None) -> int | None:
    """A size of the ring that can be used."""
    if ring_bytes is not None and ring_bytes <= 0:
        raise ArgumentError(
            f"ring_bytes={ring_bytes!r} is not valid: need a whole number of bytes above 0, or None."
        )
    return ring_bytes


def refuse_later_ones(**values: object) -> None:
    """Refuse an argument of torch's that is set but that this version does not act on."""
    for name, value in values.items():
        if value is not None and value is not False:
            raise ArgumentError(
                f"{name}={value!r}: {name} arrives in a later version of Kinetoscope and would be ignored today; "
                "leave it out."
            )
