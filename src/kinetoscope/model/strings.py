r"""Strings that may hold lone surrogates, and Arrow, Parquet and DuckDB, which want valid UTF-8.

Names come from programs, and a program can put anything into a name. Python keeps an undecodable byte, or half of a
UTF-16 pair, as a lone surrogate (U+D800 to U+DFFF); UTF-8 has no form for it. In tables and files each one is written
as ``\u{d800}``. So that nothing is ambiguous, backslashes right before such a spelling are doubled, whether it was in
the name already or stands for a surrogate: an odd number of backslashes means a surrogate, an even number means text.
All other strings are left exactly as they are, and `from_utf8` gives back exactly what `to_utf8` was given.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kinetoscope.model.rows import StringRow

_TO_ESCAPE = re.compile(r"(\\*)([\ud800-\udfff])|(\\+)(u\{d[89a-f][0-9a-f]{2}\})")
_ESCAPED = re.compile(r"(\\+)u\{(d[89a-f][0-9a-f]{2})\}")


def to_utf8(text: str) -> str:
    """Return the text in a form that valid UTF-8 can hold; nearly always the text itself."""
    if text.isascii() and "\\u{d" not in text:
        return text
    return _TO_ESCAPE.sub(_escape, text)


def from_utf8(text: str) -> str:
    """Undo `to_utf8`."""
    return _ESCAPED.sub(_unescape, text) if "\\u{d" in text else text


def _escape(match: re.Match[str]) -> str:
    """Double the backslashes before a surrogate or before what looks like an escaped one."""
    before, surrogate, backslashes, spelled = match.groups()
    if surrogate is None:
        return backslashes * 2 + str(spelled)
    return f"{before * 2}\\u{{{ord(surrogate):x}}}"


def _unescape(match: re.Match[str]) -> str:
    """Halve the backslashes; an odd one stands for a surrogate."""
    backslashes, digits = match.groups()
    half = "\\" * (len(backslashes) // 2)
    return half + chr(int(digits, 16)) if len(backslashes) % 2 else f"{half}u{{{digits}}}"


def parsed_json(text: str | bytes) -> Any:
    """The value of a JSON text; None for null, and for a text that is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class StringTable:
    """A table of strings that grows; a text that is in it already is not added again."""

    def __init__(self, texts: list[str]) -> None:
        """Extend `texts` in place; a text that is in it twice is found at its first row."""
        self.texts = texts
        self._row_of: dict[str, int] | None = None

    def row(self, text: str) -> StringRow:
        """The row of a text, which is added where it is new."""
        if self._row_of is None:
            self._row_of = {text: row for row, text in reversed(list(enumerate(self.texts)))}
        row = self._row_of.setdefault(text, len(self.texts))
        if row == len(self.texts):
            self.texts.append(text)
        return StringRow(row)
