"""Tables as lines of plain text, for messages that need neither a terminal nor rich: verdicts of tests, reports of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], alignment: str, indent: str = "  ") -> list[str]:
    """Align the cells of a table.

    Args:
        rows: The rows, headings included; the last column is as wide as its text.
        alignment: `<` (left) or `>` (right) for each column.
        indent: What each line begins with.

    Returns:
        A line for each row, without spaces at its end.
    """
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(alignment) - 1)]
    return [
        (
            indent
            + "  ".join(
                [
                    *(
                        f"{cell:{side}{width}}"
                        for cell, side, width in zip(row, alignment, widths, strict=False)
                    ),
                    row[-1],
                ]
            )
        ).rstrip()
        for row in rows
    ]
