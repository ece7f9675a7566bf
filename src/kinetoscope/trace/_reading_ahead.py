"""A second thread that makes blocks while the first one uses them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

# Blocks that wait at most: enough that neither side waits for the other's odd slow block.
_DEPTH = 4


def ahead(blocks: Generator[bytes]) -> Generator[bytes]:
    """Yield `blocks`, made in a second thread a few blocks ahead of their use.

    What `blocks` raises is raised here, after all that came before. The thread has ended, and `blocks` is closed,
    when the returned iterator is exhausted, closed, or has raised.
    """
    made: deque[bytes] = deque()
    changed = threading.Condition()
    failure: list[BaseException] = []
    ended = stopped = False

    def make() -> None:
        nonlocal ended
        try:
            for block in blocks:
                with changed:
                    changed.wait_for(lambda: len(made) < _DEPTH or stopped)
                    if stopped:
                        break
                    made.append(block)
                    changed.notify_all()
            blocks.close()
        except BaseException as error:  # noqa: BLE001  (it crosses to the other thread)
            failure.append(error)
        with changed:
            ended = True
            changed.notify_all()

    thread = threading.Thread(target=make, name="kinetoscope-reading-ahead", daemon=True)
    thread.start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: bool(made) or ended)
                block = made.popleft() if made else None
                changed.notify_all()
            if block is None:
                break
            yield block
    finally:
        with changed:
            stopped = True
            changed.notify_all()
        thread.join()
    if failure:
        raise failure[0]
