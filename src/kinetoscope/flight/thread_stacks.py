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
    frames = sys._current_frames()
    # This frame must not hold itself: that would keep alive what its callers refer to.
    del frames[threading.get_ident()]
    first_main = sorted(
        frames, key=lambda thread: (thread != main, names.get(thread, "").startswith("kinetoscope"), thread)
    )
    return {
        f"{names.get(thread, '')} ({thread})": traceback.format_stack(frames[thread]) for thread in first_main
    }
