"""The metadata of a session as JSON texts: flags, process group, devices, and the user's own keys."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from kinetoscope._errors import ArgumentError, ArgumentTypeError, StateError

# Keys that a Chrome trace has by its format; a second one of that name would make the file ambiguous.
_RESERVED = frozenset(
    {
        "traceEvents",
        "schemaVersion",
        "displayTimeUnit",
        "baseTimeNanoseconds",
        "traceName",
        "deviceProperties",
    }
)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Metadata:
    """The user's metadata of a session: for every cycle, and for the next one only."""

    def __init__(self) -> None:
        """Begin without any."""
        self._every_cycle: dict[str, str] = {}
        self._next_cycle: dict[str, str] = {}

    def preset(self, key: str, value: str) -> None:
        """Store a JSON text for every cycle."""
        self._every_cycle[_usable_key(key)] = json_text(key, value)

    def add(self, key: str, value: str) -> None:
        """Store a JSON text for the cycle that records now or next."""
        self._next_cycle[_usable_key(key)] = json_text(key, value)

    def gathered(self) -> dict[str, str]:
        """All that belongs to the cycle that records now or next."""
        return self._every_cycle | self._next_cycle

    @property
    def preset_ones(self) -> dict[str, str]:
        """The JSON texts for every cycle."""
        return dict(self._every_cycle)

    def end_cycle(self) -> None:
        """Forget what was for this cycle only."""
        self._next_cycle.clear()


def quoted(key: str, value: str) -> str:
    """A user's text as a JSON string, whatever characters it has."""
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"metadata {key!r}: {value!r} is not a string. Pass str(value), or JSON with add_metadata_json."
        )
    return json.dumps(value)


def json_text(key: str, value: str) -> str:
    """A user's JSON text, proven to be strict JSON that can be written as UTF-8."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"metadata {key!r}: {value!r} is not a JSON text. Pass json.dumps(value).")
    try:
        # Written again, because a number beyond the range of a double is read as an infinity.
        json.dumps(json.loads(value, parse_constant=_refuse_constant), allow_nan=False)
    except (ValueError, RecursionError) as error:
        shown = value if len(value) <= 80 else value[:77] + "..."
        raise ArgumentError(
            f"metadata {key!r}: {shown!r} is not valid JSON ({error}). Pass json.dumps(value), or text with add_metadata."
        ) from error
    # In valid JSON a surrogate can only be inside a string, where its escape means the same.
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", value)


def flags(switches: Mapping[str, bool]) -> dict[str, str]:
    """The switches that are on, each as the number 1."""
    return {name: "1" for name, on in switches.items() if on}


def execution_trace(observer: object) -> dict[str, str]:
    """The path of the execution trace of the same run, if its observer has one."""
    place = getattr(observer, "get_output_file_path", None)
    if place is None:
        return {}
    try:
        path = place()
    except StateError:
        return {}
    return {"execution_trace": json.dumps(os.path.abspath(path))} if isinstance(path, str) and path else {}


def _usable_key(key: str) -> str:
    """A key that is allowed at the top level of a trace file, or an error."""
    if not isinstance(key, str):
        raise ArgumentTypeError(f"metadata: the key {key!r} is not a string.")
    if key in _RESERVED:
        raise ArgumentError(
            f"metadata: the key {key!r} belongs to the trace format. Choose another one; taken are: "
            f"{', '.join(sorted(_RESERVED))}."
        )
    return key


def _refuse_constant(name: str) -> None:
    """Turn the NaN and Infinity that Python's parser lets through into an error."""
    raise ValueError(f"{name} is not JSON")
