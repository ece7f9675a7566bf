"""Writing a file so that it appears under its name only when it is whole."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def file_path(given: Any) -> Path:
    """The name of a file.

    Raises:
        ArgumentError: Neither a string nor a path, or an empty one.
    """
    if isinstance(given, str | os.PathLike) and os.fspath(given) not in ("", b""):
        return Path(os.fsdecode(given))
    raise ArgumentError(f"path={given!r} is not valid: need the name of a file, as a string or a path")
