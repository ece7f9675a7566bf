"""The stacks of Python's threads, by the program itself."""

from __future__ import annotations

import sys
import threading
import traceback


def thread_stacks() -> dict[str, list[str]]:
    """The lines of each thread's stack, outermost first, by the name and id of the thread; without the calling one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(number, '')} ({number})": traceback.format_stack(frame)
        for number, frame in sys._current_frames().items()
        if number != threading.get_ident()
    }
