"""The stacks of Python's threads, by the program itself."""

from __future__ import annotations

import sys
import threading
import traceback


def thread_stacks() -> dict[str, list[str]]:
    """The lines of each thread's stack, outermost first, by the name and id of the thread; without the calling one.

    The main thread comes first, and those of Kinetoscope last.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(
        sys._current_frames().items(),
        key=lambda one: (one[0] != main, names.get(one[0], "").startswith("kinetoscope"), one[0]),
    )
    return {
        f"{names.get(number, '')} ({number})": traceback.format_stack(frame)
        for number, frame in frames
        if number != threading.get_ident()
    }
