"""Write files that appear under their names only when they are complete."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from kinetoscope._errors import ArgumentError


@contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file next to `path` for writing; rename it to `path` on success, remove it on any error.

    Raises:
        OSError: The folder cannot be written to, or `path` is a folder itself.
    """
    if path.is_dir():
        # Found now, and not when all is written to a file that cannot be renamed.
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # Not `tempfile`: its files are readable by their owner only, and the final file should have default permissions.
    unfinished = path.with_name(f".{path.name[:100]}.{os.urandom(4).hex()}")
    try:
        try:
            file = unfinished.open("xb")
        except OSError as error:
            # The user does not know the temporary name.
            named = path if path.parent.is_dir() else path.parent
            raise type(error)(error.errno, error.strerror, str(named)) from None
        with file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def file_path(path: Any) -> Path:
    """Return a file name argument as a path.

    Raises:
        ArgumentError: It is neither a string nor a path, or it is empty.
    """
    if isinstance(path, str | os.PathLike) and os.fspath(path) not in ("", b""):
        return Path(os.fsdecode(path))
    raise ArgumentError(f"path={path!r} is not valid: need a file name, as a non-empty string or a path")


_GZIP_LEVEL = 5


class BlockWriter(Protocol):
    """The interface that the native writers share."""

    def write_to(self, file: int) -> int:
        """Write all blocks to an open file."""

    def __iter__(self) -> Iterator[bytes]:
        """Return the iterator over the blocks."""

    def __next__(self) -> bytes:
        """Return the next block."""


def write_blocks(writer: BlockWriter, path: str | os.PathLike[str]) -> None:
    """Write all blocks of a native writer to a file, which appears under its name only when it is complete.

    Args:
        writer: The native writer.
        path: The file; compressed if its name ends in `.gz` or `.zst`.

    Raises:
        OSError: The file cannot be written; no partial file remains.
    """
    path = Path(path)
    with _destination(path) as file:
        if path.name.endswith(".gz"):
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                packed.writelines(writer)
        elif path.name.endswith(".zst"):
            # Imported here because the import is slow and other suffixes do not need it.
            import pyarrow as pa

            with pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as stream:
                for block in writer:
                    stream.write(block)
        else:
            writer.write_to(file.fileno())


@contextmanager
def _destination(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for writing: a regular file is replaced on success, a device or pipe is written to directly."""
    # A symbolic link stays a link: its target is replaced.
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
    else:
        with open_atomically(path) as file:
            yield file
