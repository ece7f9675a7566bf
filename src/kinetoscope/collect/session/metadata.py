"""Metadata of a session's traces as JSON texts: checks of the user's keys and values, and flags of the session."""

from __future__ import annotations

import json
import os
import re

from kinetoscope._errors import ArgumentError, ArgumentTypeError, StateError

# Keys that the format of Chrome traces defines; a second key of the same name would make the file ambiguous.
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


def entry(key: str, value: str) -> dict[str, str]:
    """Return a user's key with its JSON text, both checked.

    Raises:
        ArgumentError: The text is not strict JSON, or the key is not a string, or reserved by the format.
    """
    if not isinstance(value, str):
        raise ArgumentTypeError(f"metadata {key!r}: {value!r} is not a JSON text. Pass json.dumps(value).")
    try:
        # Serialized again, because Python parses a number beyond the range of a double as infinity.
        json.dumps(json.loads(value, parse_constant=_refuse_constant), allow_nan=False)
    except (ValueError, RecursionError) as error:
        excerpt = value if len(value) <= 80 else value[:77] + "..."
        raise ArgumentError(
            f"metadata {key!r}: {excerpt!r} is not valid JSON ({error}). Pass json.dumps(value), or text with add_metadata."
        ) from error
    if not isinstance(key, str):
        raise ArgumentTypeError(f"metadata: the key {key!r} is not a string.")
    if key in _RESERVED:
        raise ArgumentError(
            f"metadata: the key {key!r} belongs to the trace format. Choose another one; reserved are: "
            f"{', '.join(sorted(_RESERVED))}."
        )
    # In valid JSON a surrogate can only be inside a string, where its escape means the same.
    return {key: _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", value)}


def quoted(key: str, value: str) -> str:
    """Return a user's text as a JSON string, with all special characters escaped."""
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"metadata {key!r}: {value!r} is not a string. Pass str(value), or JSON with add_metadata_json."
        )
    return json.dumps(value)


def execution_trace(observer: object) -> dict[str, str]:
    """Return the metadata that points to the execution trace of the same run, if its observer writes one."""
    path_of = getattr(observer, "get_output_file_path", None)
    if path_of is None:
        return {}
    try:
        path = path_of()
    except StateError:
        return {}
    return {"execution_trace": json.dumps(os.path.abspath(path))} if isinstance(path, str) and path else {}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
