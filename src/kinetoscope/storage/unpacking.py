"""Decompress text files block by block: gzip, zstd or uncompressed, detected from their first bytes.

A truncated or damaged file yields everything before the damage, and an entry in `UnpackedText.losses`. The uncompressed
size is limited, so that a small file cannot keep a program busy for hours.
"""

from __future__ import annotations

import gzip
import queue
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from kinetoscope._errors import MissingDependencyError
from kinetoscope.model import units
from kinetoscope.storage.byte_source import ByteSource
from kinetoscope.storage.system_files import text_of

SHARE = 2
"""By default, reading a file may use the available memory divided by this."""
LEAST_BYTES = 64 << 20
"""By default, reading a file may always use this much memory."""

_MEMORY_INFO = Path("/proc/meminfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def default_memory_bytes() -> int:
    """Return the default memory limit for reading: half of the available memory, or 0 (no limit) if it is unknown."""
    available = available_bytes()
    return 0 if available is None else max(LEAST_BYTES, available // SHARE)


def available_bytes(memory_info: Path = _MEMORY_INFO, control_group: Path = _CONTROL_GROUP) -> int | None:
    """Return how much memory this process can still allocate without swapping, None if unknown."""
    limits = (_system_bytes(memory_info), _control_group_bytes(control_group))
    return min((limit for limit in limits if limit is not None), default=None)


def _system_bytes(memory_info: Path) -> int | None:
    amount = _numbers(text_of(memory_info).splitlines()).get("MemAvailable:")
    return None if amount is None else amount * 1024


def _control_group_bytes(folder: Path) -> int | None:
    """Return what the control group (version 1 or 2) can still allocate: its limit minus what it cannot reclaim."""
    for limit_name, used_name, details_name in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            limit, used, details = (
                (folder / name).read_text(encoding="ascii") for name in (limit_name, used_name, details_name)
            )
            limit_bytes, used_bytes = int(limit), int(used)
        except (OSError, ValueError):
            continue
        statistics = _numbers(details.splitlines())
        cached_bytes = statistics.get("inactive_file", 0) + statistics.get("active_file", 0)
        return max(0, limit_bytes - max(0, used_bytes - cached_bytes))
    return None


def _numbers(lines: list[str]) -> dict[str, int]:
    words = (line.split() for line in lines)
    return {parts[0]: int(parts[1]) for parts in words if len(parts) >= 2 and parts[1].isdigit()}


# How many blocks are decompressed ahead of their use: enough that one slow block does not stall the other side.
_DEPTH = 4


def ahead(blocks: Generator[bytes]) -> Generator[bytes]:
    """Yield `blocks`, produced in a second thread a few blocks ahead.

    An exception of `blocks` is raised here, after all blocks before it. The thread has ended, and `blocks` is closed,
    when the returned iterator is exhausted, closed, or has raised.
    """
    ready: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
    room = threading.Semaphore(_DEPTH)
    stopped = False

    def make() -> None:
        end: BaseException | None = None
        try:
            for block in blocks:
                room.acquire()
                if stopped:
                    break
                ready.put(block)
            blocks.close()
        except BaseException as error:  # noqa: BLE001  (raised again in the other thread)
            end = error
        ready.put(end)

    # Not an executor, which is closed before handlers of `atexit` run.
    thread = threading.Thread(target=make, name="kinetoscope-reading-ahead", daemon=True)
    thread.start()
    try:
        while isinstance(block := ready.get(), bytes):
            room.release()
            yield block
        if block is not None:
            raise block
    finally:
        stopped = True
        room.release()
        thread.join()


PACKINGS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}
"""How compressed data begins, and by what it was compressed."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Small enough that a block is still in the cache of the processor when it is read, and several that wait take little memory.
BLOCK_BYTES = 1 << 18
_BEGINNING_BYTES = 1 << 16
_HEAD_BYTES = 2 << 20
# A tar archive is known by the five bytes before this place.
_TAR_BYTES = 262
# When a read fails, what it had decompressed is lost, so reads are small.
_READ_BYTES = 1 << 14

# The default limit of the uncompressed size; even well-compressed traces stay below 100 times the file's size.
FREE_BYTES = 1 << 30
FREE_RATIO = 200

LIMIT_IN_WORDS = f"The limit is max_uncompressed_bytes; by default {FREE_RATIO} times the file's size, at least {units.size(FREE_BYTES)}."


class UnpackedText:
    """The decompressed bytes of a source, block by block.

    Attributes:
        source: The compressed bytes.
        losses: Counts of losses by code; complete when all blocks have been consumed.
        packing: One of `PACKINGS`, or empty.
        beginning: The first 64 KiB of the blocks consumed so far.
    """

    def __init__(self, source: ByteSource, max_uncompressed_bytes: int | None = None) -> None:
        """Detect the compression; see `LIMIT_IN_WORDS` for the default of `max_uncompressed_bytes`."""
        self.source = source
        self.losses: dict[str, int] = {}
        self._limit = max_uncompressed_bytes
        begin = source.peek(max(map(len, PACKINGS)))
        self.packing = next((packing for magic, packing in PACKINGS.items() if begin.startswith(magic)), "")
        self._first: list[bytes] = []
        self.beginning = b""
        self._blocks = self._unpacked()

    def head(self) -> bytes:
        """Return up to 16 first decompressed bytes after white space and a byte order mark, empty if there are none.

        Only the first 2 MiB are looked at.
        """
        text = begin = b""
        for block in self._blocks:
            self._first.append(block)
            text += block
            begin = text.removeprefix(BYTE_ORDER_MARK).lstrip()[:16]
            if (len(begin) == 16 and len(text) >= _TAR_BYTES) or len(text) >= _HEAD_BYTES:
                break
        return begin

    def holds_tar(self) -> bool:
        """Whether the content, of which `head` was read, is a tar archive."""
        return b"".join(self._first)[257:_TAR_BYTES] == b"ustar"

    def __iter__(self) -> Iterator[bytes]:
        """Yield the blocks from the start."""
        try:
            while self._first:
                yield self._remember(self._first.pop(0))
            for block in self._blocks:
                yield self._remember(block)
        finally:
            self.close()

    def _remember(self, block: bytes) -> bytes:
        if len(self.beginning) < _BEGINNING_BYTES:
            self.beginning += block[: _BEGINNING_BYTES - len(self.beginning)]
        return block

    def close(self) -> None:
        """End the decompressing thread; the source stays open."""
        self._blocks.close()

    def _unpacked(self) -> Generator[bytes]:
        if not self.packing:
            while block := self.source.read(BLOCK_BYTES):
                yield block
            return
        blocks = ahead(self._decompressed())
        try:
            unpacked_bytes = 0
            for block in blocks:
                allowed = self._allowed_bytes() - unpacked_bytes
                if len(block) > allowed:
                    self.losses["beyond_unpacking_limit"] = 1
                    yield block[:allowed]
                    return
                unpacked_bytes += len(block)
                yield block
        finally:
            blocks.close()

    def _allowed_bytes(self) -> int:
        if self._limit is not None:
            return self._limit
        return max(FREE_BYTES, FREE_RATIO * self.source.read_bytes)

    def _decompressed(self) -> Generator[bytes]:
        read, lzma_error = _decompressor(self.packing, self.source)
        parts: list[bytes] = []
        size = 0
        try:
            while part := read(_READ_BYTES):
                parts.append(part)
                size += len(part)
                if size >= BLOCK_BYTES:
                    yield b"".join(parts)
                    parts, size = [], 0
        except (OSError, EOFError, zlib.error, lzma_error) as error:
            # Errors for damaged data may be OSError, too.
            if self.source.failure is not None:
                raise self.source.failure from None
            is_cut = isinstance(error, EOFError) or "runcated" in str(error)
            self.losses["packed_cut" if is_cut else "packed_damaged"] = 1
        yield b"".join(parts)


def _decompressor(packing: str, packed: Any) -> tuple[Callable[[int], bytes], type[Exception]]:
    """Return a function that returns at most so many next bytes, decompressed, none at the end; and an exception that it may raise."""
    try:
        match packing:
            case "gzip":
                return gzip.GzipFile(fileobj=packed).read1, zlib.error
            case "xz":
                import lzma

                return lzma.LZMAFile(packed).read1, lzma.LZMAError
            case "bzip2":
                import bz2

                return bz2.BZ2File(packed).read1, OSError
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError(
            f"{packed.name}: reading {packing} needs {error.name}, which this Python lacks: unpack the file with `{packing} -d`"
        ) from error
    return pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd").read, OSError
