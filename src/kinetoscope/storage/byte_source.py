"""The bytes that a trace is read from: a path, an open file, or a URL, read once from the start."""

from __future__ import annotations

import builtins
import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from kinetoscope._errors import ArgumentError, FormatError, KinetoscopeError, MissingDependencyError, needed

Openable = str | os.PathLike[str] | IO[bytes]


# How long to wait for the writer of a named pipe, which may start at the same time; and how often to look.
_WRITER_S, _LOOK_S = 5.0, 0.02


@dataclass(eq=False)
class ByteSource:
    """Bytes that can be read once; a context manager that closes only what it opened itself.

    Attributes:
        file: What is read.
        name: The path, the URL, or another name for messages.
        path: The path of a local file, else None.
        url: The URL, else None.
        total_bytes: The size, None if unknown.
        release: Closes the file; None if the caller does.
        ahead: What was read already, and comes first.
        read_bytes: The number of bytes read so far.
        failure: The error that reading ended with, if it did.
    """

    file: IO[bytes] = field(repr=False)
    name: str
    path: Path | None = None
    url: str | None = None
    total_bytes: int | None = None
    release: Callable[[], Any] | None = None
    ahead: bytes = b""
    read_bytes: int = field(default=0, init=False)
    failure: OSError | None = field(default=None, init=False)
    # As of a file, for what decompresses it.
    closed: ClassVar = False

    @classmethod
    def of(cls, source: Openable) -> Self:
        """Open a path or a URL (anything that contains `://`), or read an open binary file from its current position.

        Raises:
            ArgumentError: The file was opened in text mode, or `source` is neither a path nor a file.
            MissingDependencyError: `source` is a URL and `fsspec` is not installed.
            OSError: `source` cannot be opened.
        """
        if hasattr(source, "read"):
            return cls._of_file(source)
        try:
            text = os.fspath(source)
        except TypeError:
            raise ArgumentError(
                f"{source!r} cannot be opened: pass a path, a URL, or a file opened in binary mode."
            ) from None
        if isinstance(text, bytes):
            text = os.fsdecode(text)
        if "://" in text:
            return cls._of_url(text)
        path = Path(text)
        if path.is_fifo():
            file, ahead = _open_pipe(path)
            # Without a path: it cannot be opened a second time.
            return cls(file, str(path), release=file.close, ahead=ahead)
        file = builtins.open(path, "rb", buffering=0)  # noqa: SIM115  (closed by `close`)
        size = os.fstat(file.fileno()).st_size
        return cls(file, str(path), path=path, total_bytes=size or None, release=file.close)

    @classmethod
    def _of_file(cls, file: Any) -> Self:
        name = getattr(file, "name", None)
        label = name if isinstance(name, str) else f"<{type(file).__name__}>"
        if isinstance(file.read(0), str):
            raise ArgumentError(f"{label} was opened in text mode; open it in binary mode ('rb').")
        return cls(file, label, total_bytes=_remaining_bytes(file))

    @classmethod
    def _of_url(cls, url: str) -> Self:
        filesystem, remote = _remote(url)
        with _named(url):
            file = filesystem.open(remote, "rb")
        size = getattr(file, "size", None)
        return cls(
            file, url, url=url, total_bytes=size if isinstance(size, int) else None, release=file.close
        )

    def _read(self, count: int) -> bytes | None:
        try:
            if self.url is None:
                return self.file.read(count)
            with _named(self.url):
                return self.file.read(count)
        except OSError as error:
            self.failure = error
            raise

    def peek(self, count: int) -> bytes:
        """Return the next `count` bytes without consuming them; fewer only at the end."""
        while len(self.ahead) < count:
            more = self._read(count - len(self.ahead))
            if not more:
                break
            self.ahead += more
        return self.ahead[:count]

    def read(self, count: int) -> bytes:
        """Return up to `count` next bytes, empty at the end."""
        if self.ahead:
            block, self.ahead = self.ahead[:count], self.ahead[count:]
        else:
            # A non-blocking file returns None if no bytes are ready; this counts as the end.
            block = self._read(count) or b""
        self.read_bytes += len(block)
        return block

    def copy_to(self, path: Path) -> None:
        """Write the remaining bytes to a new file."""
        import shutil

        with path.open("wb") as copy:
            copy.write(self.read(len(self.ahead)))
            shutil.copyfileobj(self.file, copy, 1 << 20)

    def close(self) -> None:
        """Close the underlying file if this object opened it."""
        if self.release is not None:
            self.release()
            self.release = None

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the source."""
        self.close()


def read_text_file(path: Path, most_bytes: int) -> str:
    """Read a small file that people write.

    Raises:
        FormatError: It is larger, or not UTF-8.
        OSError: It cannot be read.
    """
    with ByteSource.of(path) as source:
        content = b""
        while len(content) <= most_bytes and (block := source.read(most_bytes + 1 - len(content))):
            content += block
    if len(content) > most_bytes:
        raise FormatError(f"{path}: larger than {most_bytes:,} bytes, too large for such a file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a text in UTF-8: {error}") from error


def _open_pipe(path: Path) -> tuple[IO[bytes], bytes]:
    """Open a named pipe, and read what is in it; OSError if no writer comes in time."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    until_s = time.monotonic() + _WRITER_S
    while True:
        try:
            ahead = os.read(number, 1 << 16)
        except BlockingIOError:
            ahead = b""
            break  # it is there, and has not written yet
        if ahead:
            break
        if time.monotonic() >= until_s:
            os.close(number)
            message = "a named pipe that nothing writes to: start its writer first"
            raise OSError(errno.ENODATA, message, str(path))
        time.sleep(_LOOK_S)
    os.set_blocking(number, True)
    return builtins.open(number, "rb", buffering=0), ahead


def _remaining_bytes(file: Any) -> int | None:
    try:
        if not file.seekable():
            return None
        here = file.tell()
        end = file.seek(0, os.SEEK_END)
        file.seek(here)
    except (AttributeError, OSError):
        return None
    return int(end - here)


def urls_like(pattern: str) -> list[str]:
    """The URLs that match a pattern such as `s3://bucket/run/*.json.gz`, in order.

    Raises:
        MissingDependencyError: `fsspec` is not installed.
        OSError: The store cannot be reached.
    """
    filesystem, remote = _remote(pattern)
    with _named(pattern):
        return sorted(filesystem.unstrip_protocol(path) for path in filesystem.glob(remote))


def _remote(url: str) -> tuple[Any, str]:
    with needed(
        f"{url}: opening a URL needs fsspec: install it with `pip install fsspec` (and the package for its protocol)"
    ):
        import fsspec
    with _named(url):
        filesystem, path = fsspec.core.url_to_fs(url)
    return filesystem, path


@contextmanager
def _named(url: str) -> Iterator[None]:
    """Convert a store's exceptions, of any kind, to ours, with the URL."""
    try:
        yield
    except (OSError, KinetoscopeError):
        raise
    except ImportError as error:
        raise MissingDependencyError(f"{url}: {error}") from error
    except ValueError as error:
        raise ArgumentError(f"{url}: {error}") from error
    except Exception as error:  # whatever its package raises
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", url) from error
