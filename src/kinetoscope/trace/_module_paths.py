"""Dotted module paths, from which instance holds which."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kinetoscope.trace._columns import Columns


def module_paths(modules: Columns, strings: list[str]) -> dict[str, Any]:
    """Return `path`, `depth` and `holder` of every module.

    Below a root the path is the one `root.named_modules()` gives; a root's own is its class name. Where two roots
    would share paths, all paths of these roots begin with the root's name; roots of one class are numbered.

    Args:
        modules: The modules, with parent, caller, name and class.
        strings: The string table.

    Returns:
        The three columns.
    """
    parents, callers = modules["parent"].tolist(), modules["caller"].tolist()
    names = [strings[name] for name in modules["name"].tolist()]
    classes = [strings[name] or "Module" for name in modules["class"].tolist()]
    # A module that no other one registers (kept in a plain list, say) is shown below the one that called it.
    holders = [parent if parent >= 0 else caller for parent, caller in zip(parents, callers, strict=True)]
    order = _holders_first(holders)
    depth = [0] * len(holders)
    root = list(range(len(holders)))
    below = [""] * len(holders)
    for row in order:
        holder = holders[row]
        if holder >= 0:
            depth[row] = depth[holder] + 1
            root[row] = root[holder]
            part = names[row] or classes[row]
            below[row] = f"{below[holder]}.{part}" if below[holder] else part
    roots = _root_names(classes, [row for row in order if holders[row] < 0])
    mixed = _sharing_roots(below, root)
    path = [
        roots[row]
        if holders[row] < 0
        else f"{roots[root[row]]}.{below[row]}"
        if root[row] in mixed
        else below[row]
        for row in range(len(holders))
    ]
    return {
        "path": path,
        "depth": np.array(depth, dtype=np.int32),
        "holder": np.array(holders, dtype=np.int32),
    }


def _holders_first(holders: list[int]) -> list[int]:
    """Order rows so that a holder comes before what it holds; cut any circle where it is found."""
    state = [0] * len(holders)
    order: list[int] = []
    for start in range(len(holders)):
        chain: list[int] = []
        row = start
        while row >= 0 and state[row] == 0:
            state[row] = 1
            chain.append(row)
            row = holders[row]
        if row >= 0 and state[row] == 1:
            holders[chain[-1]] = -1
        for done in reversed(chain):
            state[done] = 2
            order.append(done)
    return order


def _root_names(classes: list[str], roots: list[int]) -> dict[int, str]:
    """Name each root by its class, with a number from the second of a class on."""
    count: Counter[str] = Counter()
    named: dict[int, str] = {}
    for row in sorted(roots):
        count[classes[row]] += 1
        number = count[classes[row]]
        named[row] = classes[row] if number == 1 else f"{classes[row]}#{number}"
    return named


def _sharing_roots(below: list[str], root: list[int]) -> set[int]:
    """Find the roots that have a path in common with another root."""
    owner: dict[str, int] = {}
    mixed: set[int] = set()
    for path, at in zip(below, root, strict=True):
        if path and owner.setdefault(path, at) != at:
            mixed.update((owner[path], at))
    return mixed
