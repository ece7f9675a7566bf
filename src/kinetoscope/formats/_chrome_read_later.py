"""Columns that are made when they are first asked for, from others that are too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any


class Later(Mapping[str, Any]):
    """Values by name, each a value or a function that makes it once. May be used from several threads."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take over values, and functions that make them: each whenever it is asked to."""
        self._values = dict(values)
        self._makers = {name: value for name, value in self._values.items() if callable(value)}
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> Any:
        """The value, made now if nobody has asked before."""
        with self._lock:
            value = self._values[name]
            if callable(value):
                value = self._values[name] = value()
            return value

    def __setitem__(self, name: str, value: Any) -> None:
        """Put a value, or a function that makes it, in the place of another."""
        with self._lock:
            self._values[name] = value
            self._makers.pop(name, None)

    def __contains__(self, name: object) -> bool:
        """Whether there is such a value; it is not made for that."""
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._values)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._values)

    def take(self, name: str) -> Any:
        """The value, which is not kept any longer."""
        value = self[name]
        with self._lock:
            self._values.pop(name, None)
            self._makers.pop(name, None)
        return value

    def rename(self, name: str, new: str) -> None:
        """Call a value or the function that makes it something else."""
        with self._lock:
            self._values[new] = self._values.pop(name)
            if name in self._makers:
                self._makers[new] = self._makers.pop(name)

    def release(self) -> None:
        """Let go of values whose functions, taken over at the beginning, can make them again."""
        with self._lock:
            self._values.update(self._makers)

    def given(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Those of some names that there are: values that are made, and functions for the others."""
        made: dict[str, Any] = {}
        for name in names:
            if name in self._values:
                value: Any = self._values[name]
                wanted: Callable[[], Any] = partial(self._handed_over, name)
                made[name] = wanted if callable(value) else value
        return made

    def _handed_over(self, name: str) -> Any:
        """The value for somebody who keeps it."""
        value = self[name]
        with self._lock:
            self._makers.pop(name, None)
        return value
