"""Writing a file so that it appears under its name only when it is whole."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Give a file beside `path` to write to; on success it takes that name, on any error it is removed.

    Raises:
        OSError: The folder cannot be written to.
    """
    # Not from `tempfile`, whose files only their owner may read: the finished one shall be like any new file.
    unfinished = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    try:
        try:
            file = unfinished.open("xb")
        except OSError as error:
            # Nobody knows the name that it has meanwhile.
            known = path if path.parent.is_dir() else path.parent
            raise type(error)(error.errno, error.strerror, str(known)) from None
        with file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
