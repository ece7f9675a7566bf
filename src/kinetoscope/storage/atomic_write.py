"""Write files: a regular file appears under its name only when it is complete, and nothing else is ever replaced."""

from __future__ import annotations

import errno
import gzip
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from kinetoscope._errors import ArgumentError

if TYPE_CHECKING:
    import kinetoscope._core as _core

# How long to wait for the reader of a named pipe, which may start at the same time; and how often to look.
_READER_S, _LOOK_S = 5.0, 0.02
# Names of the open files of a process, such as /dev/stdout, which is a link to one.
_OPEN_FILES = re.compile(r"/proc/(\d+)(/task/\d+)?/fd")
_MOST_LINKS = 40


@contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing, which appears at `path` complete, or not at all after an error.

    A regular file, also behind a symbolic link, is replaced by a file with the same permissions and, if allowed, the same owner. The bytes are sent to a
    named pipe, a character device such as `/dev/null`, or an open file of this process such as `/dev/stdout`, which are not replaced.

    Raises:
        OSError: The folder or the file cannot be written to, `path` is a folder, a block device or a socket, or nobody reads
            from the pipe.
    """
    try:
        there: os.stat_result | None = path.stat()
    except FileNotFoundError:
        there = None
    if there is not None and not stat.S_ISREG(there.st_mode):
        # Checked now, not after writing.
        _refuse_unwritable(path, there.st_mode)
    if there is None or not is_stream(path):
        with _replacing(path, there) as file:
            yield file
        return
    # Some formats need a seekable file, and bytes of a failed write must not be sent.
    with tempfile.TemporaryFile() as content:
        # Some writers close what they write to.
        copy = os.dup(content.fileno())
        with os.fdopen(copy, "rb") as written:
            yield content
            content.close()
            written.seek(0)
            _send(written, path, there)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file, as `open_atomically` does.

    Raises:
        OSError: See `open_atomically`.
    """
    with open_atomically(path) as file:
        file.write(content)


@contextmanager
def _replacing(path: Path, old: os.stat_result | None) -> Iterator[IO[bytes]]:
    """Open a temporary file next to a regular file; rename it to that on success, remove it on any error."""
    # A symbolic link stays a link, also one to a file that does not exist yet.
    target = Path(os.path.realpath(path))
    if old is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    # Not `tempfile`: its files are readable by their owner only, and a new file should have default permissions.
    unfinished = target.with_name(f".{os.fsdecode(os.fsencode(target.name)[:100])}.{os.urandom(4).hex()}")
    try:
        try:
            descriptor = os.open(
                unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if old is None else 0o600
            )
        except OSError as error:
            # The user does not know the temporary name.
            named = path if target.parent.is_dir() else target.parent
            raise type(error)(error.errno, error.strerror, str(named)) from None
        with os.fdopen(descriptor, "wb") as file:
            if old is not None:
                _take_permissions(descriptor, old)
            yield file
        try:
            unfinished.replace(target)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from None
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _take_permissions(file: int, old: os.stat_result) -> None:
    """Copy owner, group and permissions from the file to be replaced, as far as allowed."""
    mode = stat.S_IMODE(old.st_mode) & 0o777
    new = os.fstat(file)
    if new.st_uid != old.st_uid:
        with suppress(OSError):  # only root may give files away
            os.fchown(file, old.st_uid, -1)
    if new.st_gid != old.st_gid:
        try:
            os.fchown(file, -1, old.st_gid)
        except OSError:
            # The permissions of the old group are not for another group.
            mode = mode & ~0o070 | (mode & 0o007) << 3
    with suppress(OSError):  # some file systems have no permissions
        os.fchmod(file, mode)


def is_stream(path: Path) -> bool:
    """Whether bytes written to `path` go to a device, a pipe or an open file, without making or replacing a file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or _open_file(path) is not None


def _refuse_unwritable(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        kind = "a block device" if stat.S_ISBLK(mode) else "a socket"
        raise OSError(errno.EINVAL, f"{kind} cannot be written to: choose a file", str(path))


def _open_file(path: Path) -> tuple[int, int] | None:
    """The process and descriptor behind a path such as `/dev/stdout`; None for other paths."""
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(path.parent)
        if (match := _OPEN_FILES.fullmatch(folder)) is not None and path.name.isdecimal():
            return int(match[1]), int(path.name)
        try:
            path = Path(folder, os.readlink(Path(folder, path.name)))
        except OSError:
            return None
    return None


def _send(written: IO[bytes], path: Path, there: os.stat_result) -> None:
    try:
        opened = _open_stream(path, there)
        with os.fdopen(opened, "wb", buffering=0) as stream:
            while block := memoryview(written.read(1 << 20)):
                while block:
                    block = block[stream.write(block) or 0 :]
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


def _open_stream(path: Path, there: os.stat_result) -> int:
    if stat.S_ISFIFO(there.st_mode):
        return _open_pipe(path)
    process, descriptor = _open_file(path) or (-1, -1)
    if stat.S_ISREG(there.st_mode) and process == os.getpid():
        # Shares the file position with the redirected output, which continues after it.
        return os.dup(descriptor)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY)


def _open_pipe(path: Path) -> int:
    """Open a named pipe for writing, without waiting forever for its reader."""
    until_s = time.monotonic() + _READER_S
    while True:
        try:
            opened = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() >= until_s:
                raise OSError(
                    errno.ENXIO, "a named pipe that nothing reads from: start its reader first", str(path)
                ) from None
            time.sleep(_LOOK_S)
            continue
        os.set_blocking(opened, True)
        return opened


def file_path(path: Any) -> Path:
    """Return a file name argument as a path.

    Raises:
        ArgumentError: It is neither a string nor a path, or it is empty.
    """
    if isinstance(path, str | os.PathLike) and os.fspath(path) not in ("", b""):
        return Path(os.fsdecode(path))
    raise ArgumentError(f"path={path!r} is not valid: need a file name, as a non-empty string or a path")


_GZIP_LEVEL = 5


@contextmanager
def open_packed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file as `open_atomically` does; what is written is compressed if its name ends in `.gz` or `.zst`."""
    name = path.name.lower()
    with open_atomically(path) as file:
        if name.endswith(".gz"):
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        elif name.endswith(".zst"):
            # Imported here because the import is slow and other suffixes do not need it.
            import pyarrow as pa

            with pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as stream:
                yield stream
        else:
            yield file


def write_blocks(writer: _core.ChromeWriter, path: str | os.PathLike[str]) -> None:
    """Write all blocks of a native writer to a file, which appears under its name only when it is complete.

    Args:
        writer: The native writer.
        path: The file; compressed if its name ends in `.gz` or `.zst`.

    Raises:
        OSError: The file cannot be written; no partial file remains.
    """
    path = Path(path)
    with open_packed(path) as file:
        if path.name.lower().endswith((".gz", ".zst")):
            file.writelines(writer)
        else:
            writer.write_to(file.fileno())
