"""Replace attributes of code that is not ours for a while."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Replacements:
    """What is replaced now: attributes of modules, classes and objects, and entries of dictionaries."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._replaced)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, also one in another process, has replaced nothing."""
        return Replacements, ()

    def put(self, owner: Any, name: str, ours: Any) -> None:
        """Replace an attribute, or an entry of a dictionary; a method of a class is replaced for one object of it."""
        self._replaced.append((owner, name, _entries(owner).get(name, _ABSENT), ours))
        _set(owner, name, ours)

    def restore(self) -> None:
        """Restore what was replaced, unless other code has replaced it meanwhile."""
        while self._replaced:
            owner, name, before, ours = self._replaced[-1]
            if _entries(owner).get(name) is ours:
                _set(owner, name, before)
            # Removed last: after an interrupt, the next call continues here.
            self._replaced.pop()


def _entries(owner: Any) -> Any:
    return owner if isinstance(owner, dict) else vars(owner)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    elif value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
