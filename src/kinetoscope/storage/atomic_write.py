"""Writing a file so that it appears under its name only when it is whole."""

from __future__ import annotations

import gzip
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from kinetoscope._errors import ArgumentError


@contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
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


# Files that a native writer makes block by block: whole under their name or not at all, compressed where it says so.

_GZIP_LEVEL = 5


class BlockWriter(Protocol):
    """What the native writers have in common."""

    def write_to(self, file: int) -> int:
        """Write all blocks to an open file."""

    def __iter__(self) -> Iterator[bytes]:
        """The blocks."""

    def __next__(self) -> bytes:
        """The next block."""


def write_blocks(writer: BlockWriter, path: str | os.PathLike[str]) -> None:
    """Write everything that a writer makes to a file.

    Args:
        writer: The writer.
        path: The file; a name that ends in `.gz` or `.zst` is compressed. It appears under its name only when it is
            whole.

    Raises:
        OSError: The file cannot be written; nothing is left of it.
    """
    path = Path(path)
    with _destination(path) as file:
        if path.name.endswith(".gz"):
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                packed.writelines(writer)
        elif path.name.endswith(".zst"):
            # Only here: whoever writes another file need not wait for it.
            import pyarrow as pa

            with pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as stream:
                for block in writer:
                    stream.write(block)
        else:
            writer.write_to(file.fileno())


@contextmanager
def _destination(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to: a new one that replaces an old file at the end, or a device or pipe as it is."""
    # A link stays a link: what it points to is open_atomically.
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
    else:
        with open_atomically(path) as file:
            yield file
