"""From where to where a copy goes, by what its source calls it."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

# `Memcpy HtoD (Pageable -> Device)` and `Memset (Device)` of CUPTI and roctracer, `Memcpy M2D` of Intel's tracer.
_SHORT = re.compile(r"(?<![A-Za-z])([HDPAMS])(?:to|2)([HDPAMS])(?![a-z])")
_BETWEEN = re.compile(r"\(\s*(\w[\w ]*?)\s*->\s*(\w[\w ]*?)\s*\)")
_FILLED = re.compile(r"\(\s*(\w[\w ]*?)\s*\)")
# `CopyHostToDevice`, `hipMemcpyDeviceToHost`, `DEVICE_TO_HOST`.
_LONG = re.compile(r"(host|device|peer)_?to_?(host|device|peer)", re.IGNORECASE)
# What Intel calls memory is the host's, shared memory is either's, and an array is memory of a device.
_SIDES = {"H": "H", "M": "H", "D": "D", "A": "D", "S": "S", "P": "P"}
_DEVICE_MEMORY = frozenset({"device", "array", "device array"})


class Direction(NamedTuple):
    """Between which sides and which kinds of memory a copy goes; empty where that is not known.

    Attributes:
        name: `HtoD`, `DtoH`, `DtoD`, `HtoH` or `PtoP`; a filling has none.
        source: The kind of memory that is read, such as `pageable` or `pinned`.
        target: The kind of memory that is written.
    """

    name: str = ""
    source: str = ""
    target: str = ""


def direction_of(name: str, arguments: str, *, fills: bool) -> Direction:
    """Say from where to where something goes.

    Args:
        name: What the source calls it.
        arguments: What else the source said of it, as JSON; empty without.
        fills: Whether it fills memory and reads none.
    """
    told = _told(arguments)
    if fills:
        found = _FILLED.search(name)
        return Direction(target=(found[1] if found else told).lower())
    between = _BETWEEN.search(name)
    source, target = (between[1].lower(), between[2].lower()) if between else ("", "")
    for text in (name, told):
        if short := _SHORT.search(text):
            return Direction(f"{_SIDES[short[1]]}to{_SIDES[short[2]]}", source, target)
        if long := _LONG.search(text):
            return Direction(f"{long[1][0].upper()}to{long[2][0].upper()}", source, target)
    if source and target:
        sides = ("D" if memory in _DEVICE_MEMORY else "H" for memory in (source, target))
        return Direction("to".join(sides), source, target)
    return Direction()


def _told(arguments: str) -> str:
    """What ROCm calls the kind and MTIA the direction."""
    try:
        known = json.loads(arguments) if arguments else None
    except ValueError:
        known = None
    if isinstance(known, dict):
        for key in ("kind", "direction"):
            if isinstance(known.get(key), str):
                return str(known[key])
    return ""
