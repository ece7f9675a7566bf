"""Names and other texts from traces as text that is safe to print: what a terminal would interpret is written as an escape."""

from __future__ import annotations


def printable(text: str) -> str:
    """Write control characters, line breaks and lone surrogates as escapes, so that no name breaks a table."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def printable_lines(text: str) -> str:
    """The same for a text of several lines: its line breaks stay."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))
