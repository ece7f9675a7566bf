"""Decompress text files block by block: gzip, zstd or uncompressed, detected from their first bytes.

A truncated or damaged file yields everything before the damage, and an entry in `UnpackedText.losses`. The uncompressed
size is limited, so that a small file cannot keep a program busy for hours.
"""

from __future__ import annotations

import io
import os
import threading
import zlib
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._errors import MissingDependencyError
from kinetoscope.model import units

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from kinetoscope.storage.byte_source import ByteSource


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
    system_bytes = _linux_available_bytes(memory_info)
    if system_bytes is None:
        system_bytes = _physical_bytes()
    group_bytes = _control_group_bytes(control_group)
    return min((limit for limit in (system_bytes, group_bytes) if limit is not None), default=None)


def _linux_available_bytes(memory_info: Path) -> int | None:
    """Return the available memory from /proc/meminfo, None without it."""
    try:
        lines = memory_info.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    amount = _numbers(lines).get("MemAvailable:")
    return None if amount is None else amount * 1024


def _physical_bytes() -> int | None:
    """Return the machine's physical memory, None if unknown."""
    try:
        pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    return pages * page_bytes if pages > 0 and page_bytes > 0 else None


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
    """Parse lines of a name, a number and an optional unit."""
    words = (line.split() for line in lines)
    return {parts[0]: int(parts[1]) for parts in words if len(parts) >= 2 and parts[1].isdigit()}


# The most blocks queued between the two threads: enough that one slow block does not stall the other side.
_DEPTH = 4


def ahead(blocks: Generator[bytes]) -> Generator[bytes]:
    """Yield `blocks`, produced in a second thread a few blocks ahead.

    An exception of `blocks` is raised here, after all blocks before it. The thread has ended, and `blocks` is closed,
    when the returned iterator is exhausted, closed, or has raised.
    """
    ready: deque[bytes] = deque()
    changed = threading.Condition()
    failure: list[BaseException] = []
    ended = stopped = False

    def make() -> None:
        nonlocal ended
        try:
            for block in blocks:
                with changed:
                    changed.wait_for(lambda: len(ready) < _DEPTH or stopped)
                    if stopped:
                        break
                    ready.append(block)
                    changed.notify_all()
            blocks.close()
        except BaseException as error:  # noqa: BLE001  (raised again in the other thread)
            failure.append(error)
        with changed:
            ended = True
            changed.notify_all()

    thread = threading.Thread(target=make, name="kinetoscope-reading-ahead", daemon=True)
    thread.start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: bool(ready) or ended)
                block = ready.popleft() if ready else None
                changed.notify_all()
            if block is None:
                break
            yield block
    finally:
        with changed:
            stopped = True
            changed.notify_all()
        thread.join()
    if failure:
        raise failure[0]


GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
PACKINGS = {GZIP_MAGIC: "gzip", ZSTD_MAGIC: "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}
"""How compressed data begins, and by what it was compressed."""
# What unpacking xz may take; its strongest level takes 65 MiB.
_XZ_BYTES = 1 << 28
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# Small enough that a block is still in the cache of the processor when it is read, and several that wait take little memory.
BLOCK_BYTES = 1 << 18
# Not more: what is decompressed from as much at once waits between the two threads, several times.
_PACKED_BYTES = 1 << 16
_BEGINNING_BYTES = 1 << 16
_HEAD_BYTES = 2 << 20
# A tar archive is known by the five bytes before this place.
_TAR_BYTES = 262
# When a read fails, pyarrow drops what that read had decompressed, so reads are small.
_ZSTD_BYTES = 1 << 14

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
        self._first: list[bytes | memoryview] = []
        self.beginning = b""
        self._blocks = self._unpacked()

    def head(self) -> bytes:
        """Return up to 16 first decompressed bytes after white space and a byte order mark, empty if there are none.

        Only the first 2 MiB are looked at.
        """
        text = begin = b""
        for block in self._blocks:
            self._first.append(bytes(block))
            text += self._first[-1]
            begin = text.removeprefix(BYTE_ORDER_MARK).lstrip()[:16]
            if (len(begin) == 16 and len(text) >= _TAR_BYTES) or len(text) >= _HEAD_BYTES:
                break
        return begin

    def holds_tar(self) -> bool:
        """Whether the content, of which `head` was read, is a tar archive."""
        return b"".join(self._first)[257:_TAR_BYTES] == b"ustar"

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Yield the blocks from the start; a block is valid until the next one is requested."""
        try:
            while self._first:
                yield self._remember(self._first.pop(0))
            for block in self._blocks:
                yield self._remember(block)
        finally:
            self.close()

    def _remember(self, block: bytes | memoryview) -> bytes | memoryview:
        if len(self.beginning) < _BEGINNING_BYTES:
            self.beginning += bytes(block[: _BEGINNING_BYTES - len(self.beginning)])
        return block

    def close(self) -> None:
        """End the decompressing thread; the source stays open."""
        self._blocks.close()

    def _unpacked(self) -> Generator[bytes | memoryview]:
        if not self.packing:
            yield from _plain(self.source)
            return
        unpack = {"gzip": self._gzip, "zstd": self._zstd}.get(self.packing, self._xz_or_bzip2)
        blocks = ahead(unpack())
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
        """Return the limit of the decompressed size, given what was read so far."""
        if self._limit is not None:
            return self._limit
        return max(FREE_BYTES, FREE_RATIO * self.source.read_bytes)

    def _gzip(self) -> Generator[bytes]:
        """Decompress the members of a gzip file."""
        inflater, packed = zlib.decompressobj(wbits=31), b""
        while True:
            packed = packed or self.source.read(_PACKED_BYTES)
            if not packed:
                self.losses["packed_cut"] = 1
                if rest := inflater.flush():
                    yield rest
                return
            before = inflater.copy()
            try:
                block = inflater.decompress(packed, BLOCK_BYTES)
            except zlib.error:
                self.losses["packed_damaged"] = 1
                yield from _before_damage(before, packed)
                return
            if block:
                yield block
            packed = inflater.unconsumed_tail
            if inflater.eof:
                packed = self._next_member(inflater.unused_data)
                if not packed:
                    return
                inflater = zlib.decompressobj(wbits=31)

    def _next_member(self, packed: bytes) -> bytes:
        """Return the first bytes of the next gzip member, empty if there is none; `packed` is what follows the last one."""
        # Some tools pad files with zeros.
        while not (packed := packed.lstrip(b"\0")):
            packed = self.source.read(_PACKED_BYTES)
            if not packed:
                return b""
        if len(packed) < len(GZIP_MAGIC):
            packed += self.source.read(_PACKED_BYTES)
        if packed.startswith(GZIP_MAGIC):
            return packed
        count = len(packed)
        while more := self.source.read(_PACKED_BYTES):
            count += len(more)
        self.losses["bytes_after_end"] = count
        return b""

    def _xz_or_bzip2(self) -> Generator[bytes]:
        """Decompress the streams of an xz or bzip2 file."""
        try:
            import bz2
            import lzma
        except ImportError as error:
            raise MissingDependencyError(
                f"{self.source.name}: this Python has no {error.name}: unpack the file with `{self.packing} -d`"
            ) from error

        def new() -> lzma.LZMADecompressor | bz2.BZ2Decompressor:
            return (
                lzma.LZMADecompressor(memlimit=_XZ_BYTES) if self.packing == "xz" else bz2.BZ2Decompressor()
            )

        unpacker, packed = new(), b""
        while True:
            if unpacker.needs_input and not packed:
                packed = self.source.read(_PACKED_BYTES)
                if not packed:
                    self.losses["packed_cut"] = 1
                    return
            try:
                block = unpacker.decompress(packed, BLOCK_BYTES)
            except (lzma.LZMAError, OSError):
                self.losses["packed_damaged"] = 1
                return
            if block:
                yield block
            packed = b""
            if unpacker.eof:
                packed = (unpacker.unused_data or self.source.read(_PACKED_BYTES)).lstrip(b"\0")
                if not packed:
                    return
                if PACKINGS.get(packed[:6], PACKINGS.get(packed[:3])) != self.packing:
                    self.losses["bytes_after_end"] = len(packed)
                    return
                unpacker = new()

    def _zstd(self) -> Generator[bytes]:
        """Decompress the frames of a zstd file."""
        try:
            import pyarrow as pa
        except ImportError as error:
            raise MissingDependencyError(
                f"{self.source.name}: reading zstd needs pyarrow: install it with `pip install pyarrow`"
            ) from error
        packed = _Readable(self.source)
        stream = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")
        parts: list[bytes] = []
        size = 0
        try:
            while part := stream.read(_ZSTD_BYTES):
                parts.append(part)
                size += len(part)
                if size >= BLOCK_BYTES:
                    yield b"".join(parts)
                    parts, size = [], 0
        except OSError as error:
            if packed.failure is not None:
                raise packed.failure from None
            self.losses["packed_cut" if "runcated" in str(error) else "packed_damaged"] = 1
        yield b"".join(parts)


class _Readable(io.RawIOBase):
    """A source as the file object that pyarrow needs."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.failure: OSError | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return self._source.read(_PACKED_BYTES if size < 0 else size)
        except OSError as error:
            # pyarrow's errors for damaged data are also OSError; this attribute tells them from errors of the source.
            self.failure = error
            raise


def _plain(source: ByteSource) -> Generator[memoryview]:
    """Yield the bytes of an uncompressed file, in one reused buffer."""
    buffer = memoryview(bytearray(BLOCK_BYTES))
    while count := source.read_into(buffer):
        yield buffer[:count]


def _before_damage(inflater: zlib._Decompress, packed: bytes) -> Generator[bytes]:
    """Decompress byte by byte up to the first damaged byte."""
    parts: list[bytes] = []
    size = 0
    for offset in range(len(packed)):
        try:
            parts.append(inflater.decompress(packed[offset : offset + 1]))
        except zlib.error:
            break
        size += len(parts[-1])
        if size >= BLOCK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)
