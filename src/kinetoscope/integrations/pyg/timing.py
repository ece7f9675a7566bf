"""`timeit`: how long a block or a function takes, the accelerator's work included."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, Self

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.integrations.pyg.checks import (
    checked_function,
    synchronize,
)


class timeit(ContextDecorator):  # noqa: N801  (PyG's name)
    """Times a `with` block, or each call of the function it decorates.

    The accelerator, if one is in use, is waited for at both ends. Blocks of one `timeit` may lie in each other and run in
    several threads; `duration` is that of the one that ended last.

    Args:
        log: Print `Time: ...s` at the end of each.
        avg_time_divisor: Divide the time by this number, such as the number of rounds of a loop; 0 and 1 do not divide.

    Attributes:
        duration: How long the last block took, in seconds; there is none before the first has ended.

    Raises:
        ArgumentError: `avg_time_divisor` is no number from 0 on.
    """

    duration: float
    _clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, log: bool = True, avg_time_divisor: int = 0) -> None:
        untyped: Any = avg_time_divisor
        if isinstance(untyped, bool) or not isinstance(untyped, int | float) or not untyped >= 0:
            raise ArgumentError(f"avg_time_divisor={avg_time_divisor!r} is not valid: need a number >= 0.")
        if callable(log):
            raise ArgumentError("@timeit is used without parentheses: write `@timeit()`.")
        self.log = log
        self.avg_time_divisor = avg_time_divisor
        self._of_thread = _Starts()

    def __call__(self, func: Any) -> Any:
        """Time every call of a function.

        Raises:
            ArgumentError: It is no function, or one whose call returns before it has run.
        """
        checked_function(func, "timeit()")
        return super().__call__(func)

    def __enter__(self) -> Self:
        synchronize()
        self._of_thread.open.append(self._clock())
        return self

    def __exit__(self, *_error: object) -> None:
        starts = self._of_thread
        starts.ended = [starts.open.pop()]
        self._end(starts.ended[-1])

    def reset(self) -> None:
        """Set `duration` to the time so far, print it, and restart.

        After the end of a block the time is that since its beginning.

        Raises:
            StateError: No block was begun in this thread.
        """
        starts = self._of_thread
        begun = starts.open or starts.ended
        if not begun:
            raise StateError("this timer was not started: call reset() in or after its `with` block.")
        self._end(begun[-1])
        begun[-1] = self._clock()

    def _end(self, start: float) -> None:
        """Set and print the duration since a start."""
        synchronize()
        self.duration = self._clock() - start
        if self.avg_time_divisor > 1:
            self.duration /= self.avg_time_divisor
        if self.log:
            print(f"Time: {self.duration:.8f}s", flush=True)


class _Starts(threading.local):
    """When the blocks of one thread were begun: those that are open, and the one that ended last."""

    def __init__(self) -> None:
        self.open: list[float] = []
        self.ended: list[float] = []
