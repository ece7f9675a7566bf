"""Collapsed stacks, the format that FlameGraph and its relatives read; written only.

One line for each stack: the names of its frames from the root, joined by `;`, one space, and a whole number of
microseconds. The number is the time of the operators that ran with exactly this stack; in backward that is the stack
of the forward operator.

Safe frames: every white space, control character and `;` within a frame is written as `_`. So a line has one
space, and no reader can take the end of a frame for the number or for a second one, as in `model.py(3): layer 12`.

Rounding: times are kept in nanoseconds until equal stacks are added up. The whole microseconds of all lines together
are the rounded sum of all times; what rounding down leaves goes to the stacks that lose most by it. Stacks that
come to 0 are left out, as no reader shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetoscope.storage.whole_file import file_path, replaced

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


NS_PER_US = 1000


def write_stacks(weights: Mapping[tuple[str, ...], int], path: str | os.PathLike[str]) -> None:
    """Write stacks with their times.

    Args:
        weights: For each stack, as frames from the root, nanoseconds.
        path: Where to write; the file appears under its name only when it is whole.

    Raises:
        ArgumentError: The path is none.
        OSError: The file cannot be written.
    """
    with replaced(file_path(path)) as file:
        for line in collapsed_lines(weights):
            file.write(line.encode(errors="backslashreplace") + b"\n")


def collapsed_lines(weights: Mapping[tuple[str, ...], int]) -> list[str]:
    """Return one line for each stack that comes to at least a microsecond, in the order given."""
    sums: dict[str, int] = {}
    for frames, nanoseconds in weights.items():
        text = ";".join(_safe(frame) for frame in frames)
        sums[text] = sums.get(text, 0) + nanoseconds
    whole = _whole_microseconds(list(sums.values()))
    return [f"{text} {number}" for text, number in zip(sums, whole, strict=True) if number > 0]


def _whole_microseconds(nanoseconds: list[int]) -> list[int]:
    """Round so that the sum is the rounded sum: down, then up by one where most was lost."""
    whole = [value // NS_PER_US for value in nanoseconds]
    left = (sum(nanoseconds) + NS_PER_US // 2) // NS_PER_US - sum(whole)
    most_lost = sorted(range(len(whole)), key=lambda place: -(nanoseconds[place] % NS_PER_US))
    for place in most_lost[:left]:
        whole[place] += 1
    return whole


def _safe(frame: str) -> str:
    """A frame without what separates frames, numbers and lines."""
    if not frame:
        return "_"
    return "".join(
        "_" if character == ";" or character.isspace() or not (character.isprintable() or "\ud800" <= character <= "\udfff")
        else character
        for character in frame
    )  # fmt: skip
