"""Paths of Unix sockets, which may have 107 bytes only: a longer one is reached through its open folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUFFIX = ".control"
"""What the name of a control socket ends with."""

_MOST_BYTES = 107


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """The path, or another one of the same file that is short enough for a socket.

    Raises:
        OSError: The folder cannot be opened.
    """
    if len(os.fsencode(path)) <= _MOST_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
