"""What a recording says in words: values of its metadata, and Python's names of its threads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_python_names(threads: Mapping[str, Any], names: object) -> dict[str, Any]:
    """The threads, those that Python knew at the end under Python's name for them."""
    if not isinstance(names, dict):
        return dict(threads)
    shown = [
        str(names.get(str(number), name))
        for number, name in zip(threads["os_tid"], threads["name"], strict=True)
    ]
    return {**threads, "name": shown}


def from_json(text: str) -> Any:
    """Read a metadata value; what is no JSON after all stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
