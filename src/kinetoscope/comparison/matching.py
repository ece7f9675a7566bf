"""Which row of one run is which row of another: equal ones first, then those that a change of the program has renamed or moved."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

from kinetoscope.model.names import short_kernel_name

Key = tuple[Any, ...]
Item = TypeVar("Item")
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
    if kind in ("line", "work"):
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
    # file, function, line, text, operator, module
    "work": (lambda key: key, lambda key: (*key[:2], *key[3:]), lambda key: key[4:]),
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
    ours, theirs = set(base), dict.fromkeys(new)
    moved = sorted(theirs.keys() - ours)
    free = sorted(ours - theirs.keys())
    parts, free_parts = ([PurePath(file).parts[::-1] for file in files] for files in (moved, free))
    # Of tuples, it compares items.
    pairs = nearest(parts, free_parts, lambda *paths: len(os.path.commonprefix(paths)), 1)  # noqa: RUF071
    return {file: file for file in theirs} | {moved[file]: free[base_file] for file, base_file in pairs}


def nearest(
    ours: Sequence[Item], theirs: Sequence[Item], similarity: Callable[[Item, Item], float], least: float
) -> list[tuple[int, int]]:
    """Pair what is alike by at least so much, the most similar ones first: their places, each in one pair at most."""
    every = sorted(
        (-alike, our_index, their_index)
        for our_index, our_item in enumerate(ours)
        for their_index, their_item in enumerate(theirs)
        if (alike := similarity(our_item, their_item)) >= least
    )
    pairs: dict[int, int] = {}
    for _, our_index, their_index in every:
        if our_index not in pairs and their_index not in pairs.values():
            pairs[our_index] = their_index
    return list(pairs.items())
