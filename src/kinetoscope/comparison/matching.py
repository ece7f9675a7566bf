"""Which row of one run is which row of another: equal ones first, then those that a change of the program has renamed or moved."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

from kinetoscope.model.names import short_kernel_name

Key = tuple[Any, ...]
# What two rows must have in common, None for rows that are not looked at.
Level = Callable[[Key], Hashable | None]

_NUMBER = re.compile(r"\d+")
_TEMPLATE = re.compile(r"<.*>", re.DOTALL)
_LINE_NUMBER = re.compile(r"\(\d+\)")


def matched(kind: str, base: Sequence[Key], new: Sequence[Key]) -> list[tuple[int, int]]:
    """Match rows of a kind, level by level of `LEVELS`: what has the same in common is matched in order.

    Args:
        kind: The kind of row.
        base: The keys of one side.
        new: The keys of the other; the files of lines may lie in another folder.

    Returns:
        The pairs of places, those of both sides first, then those of the base and of the other side that have no partner, which is -1.
    """
    if kind == "line":
        files = same_files((key[0] for key in base), (key[0] for key in new))
        new = [(files[key[0]], *key[1:]) for key in new]
    pairs: list[tuple[int, int]] = []
    left = [*range(len(base))], [*range(len(new))]
    for level in LEVELS[kind]:
        waiting: dict[Hashable, list[int]] = {}
        for row in left[1]:
            if (common := level(new[row])) is not None:
                waiting.setdefault(common, []).append(row)
        taken: set[int] = set()
        alone: list[int] = []
        for row in left[0]:
            partners = waiting.get(level(base[row]))
            if partners:
                partner = partners.pop(0)
                pairs.append((row, partner))
                taken.add(partner)
            else:
                alone.append(row)
        left = alone, [row for row in left[1] if row not in taken]
    return [*sorted(pairs), *((row, -1) for row in left[0]), *((-1, row) for row in left[1])]


# For each kind of row what two rows must have in common, the strictest first. Lines of a file that are in order stay in order.
LEVELS: dict[str, tuple[Level, ...]] = {
    "part": (lambda key: key,),
    # path, class
    "module": (lambda key: key, lambda key: key[0]),
    # name, sizes, module
    "operator": (lambda key: key, lambda key: (key[0], key[2]), lambda key: (key[0], key[1])),
    # file, function, line, text
    "line": (
        lambda key: key,
        lambda key: (key[0], key[1], key[3]) if key[3] else None,
        lambda key: (key[0], key[3]) if key[3] else None,
        lambda key: (key[0], key[1], key[2]),
        lambda key: (key[0], key[1]),
    ),
    "kernel": (lambda key: key, lambda key: short_kernel_name(key[0]), lambda key: skeleton(key[0])),
    # name, size of the group, bytes
    "collective": (lambda key: key, lambda key: key[:2], lambda key: key[0]),
    # device, category, module, operator, line
    "memory": (
        lambda key: key,
        lambda key: (*key[:4], _LINE_NUMBER.sub("", key[4])),
        lambda key: key[:4],
    ),
}


def skeleton(name: str) -> str:
    """The name of a kernel without its arguments, those of its templates, and numbers such as those of tiles."""
    text = name.replace("(anonymous namespace)", "anonymous").removeprefix("void ")
    return _NUMBER.sub("#", _TEMPLATE.sub("", text).partition("(")[0])


def same_files(base: Iterable[str], new: Iterable[str]) -> dict[str, str]:
    """For files of one run the names that another run has for them: the same program may lie in another folder.

    Args:
        base: The files of the base.
        new: The files of the other side.

    Returns:
        For each file of the other side the one of the base that is called alike, else itself. No two have the same.
    """
    ours = set(base)
    theirs = dict.fromkeys(new)
    free = [file for file in ours if file not in theirs]
    base_name = {file: file for file in theirs}
    lengths = sorted(
        (-_common(free_file, their_file), their_file, free_file)
        for their_file in theirs
        if their_file not in ours
        for free_file in free
        if PurePath(free_file).name == PurePath(their_file).name
    )
    used: set[str] = set()
    for _, new_file, base_file in lengths:
        if base_name[new_file] == new_file and base_file not in used:
            base_name[new_file] = base_file
            used.add(base_file)
    return base_name


def _common(ours: str, theirs: str) -> int:
    """How many of the last parts of two paths are the same."""
    count = 0
    for first, second in zip(reversed(PurePath(ours).parts), reversed(PurePath(theirs).parts), strict=False):
        if first != second:
            break
        count += 1
    return count
