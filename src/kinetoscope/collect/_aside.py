"""Work that gives its result only once and must therefore not be cut short by an interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from kinetoscope._errors import StateError

Result = TypeVar("Result")


class Aside(Generic[Result]):
    """Runs a function once, on a thread of its own; interrupts go to the main thread, which only waits."""

    def __init__(self, work: Callable[[bool], Result]) -> None:
        """Keep `work`, which is told whether threads can be had."""
        self._work: Callable[[bool], Result] | None = work
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done: tuple[Result | None, BaseException | None] | None = None

    def result(self) -> Result:
        """What the function returned or raised. It is begun by the first call; if that is interrupted, a later one waits on.

        Raises:
            StateError: The thread is gone, as in a forked child.
        """
        with self._lock:
            work, self._work = self._work, None
            if work is not None:
                thread = threading.Thread(
                    target=self._run, args=(work, True), name="kinetoscope", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:
                    # There are no threads to be had, as when the interpreter is ending.
                    self._run(work, may_start_threads=False)
                else:
                    self._thread = thread
        if self._thread is not None:
            self._thread.join()
        if self._done is None:
            raise StateError(
                "this recording is being read by the process that forked this one: read it there."
            )
        made, failure = self._done
        if failure is not None:
            raise failure
        return made  # type: ignore[return-value]

    def _run(self, work: Callable[[bool], Result], may_start_threads: bool) -> None:
        try:
            self._done = work(may_start_threads), None
        except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
            self._done = None, error
