"""The bytes of whatever a trace is read from: a path, an open file, or a URL; looked at once, from the start on."""

from __future__ import annotations

import builtins
import os
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    Openable = str | os.PathLike[str] | IO[bytes]


class ByteSource:
    """Bytes that are read once; a context manager that closes what it opened itself.

    Attributes:
        name: The path or URL, or what else tells a person which bytes these are.
        path: The file in the file system, None for everything else.
        url: The URL, None for everything else.
        total_bytes: How many bytes there are, None where nobody knows.
        read_bytes: How many of them have been read.
    """

    def __init__(
        self,
        file: IO[bytes],
        name: str,
        *,
        path: Path | None = None,
        url: str | None = None,
        total_bytes: int | None = None,
        close: Callable[[], Any] | None = None,
    ) -> None:
        self.name, self.path, self.url = name, path, url
        self.total_bytes = total_bytes
        self.read_bytes = 0
        self._file = file
        self._ahead = b""
        self._close = close

    @classmethod
    def of(cls, source: Openable) -> Self:
        """Open a path or a URL (anything with `://` in it), or take over an open binary file from where it stands.

        Raises:
            ArgumentError: An open file that gives text, or something that is neither a path nor a file.
            MissingDependencyError: A URL was given and `fsspec` is not installed.
            OSError: It cannot be read.
        """
        if hasattr(source, "read"):
            return cls._of_file(source)
        try:
            text = os.fspath(source)
        except TypeError:
            raise ArgumentError(
                f"{source!r} cannot be opened: give a path, a URL, or a file opened for reading bytes."
            ) from None
        if isinstance(text, bytes):
            text = os.fsdecode(text)
        if "://" in text:
            return cls._of_url(text)
        path = Path(text)
        file = builtins.open(path, "rb", buffering=0)  # noqa: SIM115  (closed by `close`)
        size = os.fstat(file.fileno()).st_size
        return cls(file, str(path), path=path, total_bytes=size or None, close=file.close)

    @classmethod
    def _of_file(cls, file: Any) -> Self:
        """Take over an open file; who opened it closes it."""
        name = getattr(file, "name", None)
        shown = name if isinstance(name, str) else f"<{type(file).__name__}>"
        if isinstance(file.read(0), str):
            raise ArgumentError(f"{shown} was opened as text; open it for reading bytes (mode 'rb').")
        return cls(file, shown, total_bytes=_rest_of(file))

    @classmethod
    def _of_url(cls, url: str) -> Self:
        """Open what a URL names, to be read as it arrives."""
        try:
            import fsspec
        except ImportError as error:
            raise MissingDependencyError(
                f"{url}: opening a URL needs fsspec: install it with `pip install fsspec` (and the package for its protocol)"
            ) from error
        filesystem, remote = fsspec.core.url_to_fs(url)
        file = filesystem.open(remote, "rb")
        size = getattr(file, "size", None)
        return cls(file, url, url=url, total_bytes=size if isinstance(size, int) else None, close=file.close)

    def peek(self, count: int) -> bytes:
        """Look at the first bytes of what is left; fewer than `count` only where there are no more."""
        while len(self._ahead) < count:
            more = self._file.read(count - len(self._ahead))
            if not more:
                break
            self._ahead += more
        return self._ahead[:count]

    def read(self, count: int) -> bytes:
        """The next bytes, at most `count` of them; none at the end."""
        if self._ahead:
            block, self._ahead = self._ahead[:count], self._ahead[count:]
        else:
            # A file that never blocks may have nothing yet; there is no waiting for such a one.
            block = self._file.read(count) or b""
        self.read_bytes += len(block)
        return block

    def read_into(self, buffer: memoryview) -> int:
        """Fill a buffer from its start with the next bytes, as far as they come at once; 0 at the end."""
        if self._ahead or not hasattr(self._file, "readinto"):
            block = self.read(len(buffer))
            buffer[: len(block)] = block
            return len(block)
        count: int = self._file.readinto(buffer) or 0
        self.read_bytes += count
        return count

    def copy_to(self, path: Path) -> None:
        """Write what is left to a new file."""
        with path.open("wb") as copy:
            copy.write(self.read(len(self._ahead)))
            shutil.copyfileobj(self._file, copy, 1 << 20)

    def close(self) -> None:
        """Close what was opened here."""
        if self._close is not None:
            self._close()
            self._close = None

    def __enter__(self) -> Self:
        """Return the source itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def _rest_of(file: Any) -> int | None:
    """How many bytes an open file still has, where it can tell."""
    try:
        if not file.seekable():
            return None
        here = file.tell()
        end = file.seek(0, os.SEEK_END)
        file.seek(here)
    except (AttributeError, OSError):
        return None
    return int(end - here)
