"""Files that a native writer makes block by block: whole under their name or not at all, compressed where it says so."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from kinetoscope.storage.whole_file import replaced

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
    # A link stays a link: what it points to is replaced.
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
    else:
        with replaced(path) as file:
            yield file
