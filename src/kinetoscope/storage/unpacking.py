"""Files that hold text, packed by gzip or zstd or not at all: told by their first bytes, unpacked block by block.

A packed file that breaks off or is damaged gives what can be had of it, and a count of what went wrong by a name of
`UnpackedText.losses`. How much is unpacked is limited, so that a small file cannot keep a program busy for hours.
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

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from kinetoscope.storage.byte_source import ByteSource


# How much memory reading a foreign file may take when nobody says it.

SHARE = 2
"""Reading may take one part in so many of the memory that is available."""
LEAST_BYTES = 64 << 20
"""And this much in any case."""

_MEMORY_INFO = Path("/proc/meminfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def default_memory_bytes() -> int:
    """Half of the memory that this process could still get; 0, for no limit, where the system does not tell."""
    available = available_bytes()
    return 0 if available is None else max(LEAST_BYTES, available // SHARE)


def available_bytes(memory_info: Path = _MEMORY_INFO, control_group: Path = _CONTROL_GROUP) -> int | None:
    """How much memory this process could still get without swapping; None where the system does not tell."""
    of_machine = _told_by_kernel(memory_info)
    if of_machine is None:
        of_machine = _physical()
    of_group = _left_to_group(control_group)
    return min((known for known in (of_machine, of_group) if known is not None), default=None)


def _told_by_kernel(memory_info: Path) -> int | None:
    """What Linux could give out."""
    try:
        lines = memory_info.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    amount = _numbers(lines).get("MemAvailable:")
    return None if amount is None else amount * 1024


def _physical() -> int | None:
    """All the memory of the machine."""
    try:
        pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    return pages * page_bytes if pages > 0 and page_bytes > 0 else None


def _left_to_group(folder: Path) -> int | None:
    """What a container may still take, by either version of control groups: its limit without what it cannot let go."""
    for limit_name, held_name, details_name in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            limit, held, details = (
                (folder / name).read_text(encoding="ascii") for name in (limit_name, held_name, details_name)
            )
            limit_bytes, held_bytes = int(limit), int(held)
        except (OSError, ValueError):
            continue
        known = _numbers(details.splitlines())
        cached_bytes = known.get("inactive_file", 0) + known.get("active_file", 0)
        return max(0, limit_bytes - max(0, held_bytes - cached_bytes))
    return None


def _numbers(lines: list[str]) -> dict[str, int]:
    """Lines of a name and a number, and perhaps a unit."""
    words = (line.split() for line in lines)
    return {parts[0]: int(parts[1]) for parts in words if len(parts) >= 2 and parts[1].isdigit()}


# A second thread that makes blocks while the first one uses them.

# Blocks that wait at most: enough that neither side waits for the other's odd slow block.
_DEPTH = 4


def ahead(blocks: Generator[bytes]) -> Generator[bytes]:
    """Yield `blocks`, made in a second thread a few blocks ahead of their use.

    What `blocks` raises is raised here, after all that came before. The thread has ended, and `blocks` is closed,
    when the returned iterator is exhausted, closed, or has raised.
    """
    made: deque[bytes] = deque()
    changed = threading.Condition()
    failure: list[BaseException] = []
    ended = stopped = False

    def make() -> None:
        nonlocal ended
        try:
            for block in blocks:
                with changed:
                    changed.wait_for(lambda: len(made) < _DEPTH or stopped)
                    if stopped:
                        break
                    made.append(block)
                    changed.notify_all()
            blocks.close()
        except BaseException as error:  # noqa: BLE001  (it crosses to the other thread)
            failure.append(error)
        with changed:
            ended = True
            changed.notify_all()

    thread = threading.Thread(target=make, name="kinetoscope-reading-ahead", daemon=True)
    thread.start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: bool(made) or ended)
                block = made.popleft() if made else None
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
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

BLOCK_BYTES = 1 << 20
_PACKED_BYTES = 1 << 18
_BEGINNING_BYTES = 1 << 16
# What pyarrow has unpacked of a read that fails is lost, so reads are small.
_ZSTD_BYTES = 1 << 14

# What text unpacks to without being asked about: traces by the most thorough packers stay below 100 times.
FREE_BYTES = 1 << 30
FREE_RATIO = 200

LIMIT_IN_WORDS = (
    f"The limit is {FREE_RATIO} times its size or {FREE_BYTES >> 30} GiB, or else max_uncompressed_bytes."
)


class UnpackedText:
    """The unpacked bytes of a source, block by block.

    Attributes:
        source: Where the bytes come from.
        losses: How often what went wrong, by the codes of losses; complete when all blocks have been taken.
        packing: `gzip`, `zstd` or empty.
        beginning: The first 64 KiB of what was unpacked so far.
    """

    def __init__(self, source: ByteSource, max_uncompressed_bytes: int | None = None) -> None:
        """Look at the first bytes; `max_uncompressed_bytes` limits what packed bytes become, see `LIMIT_IN_WORDS` for without."""
        self.source = source
        self.losses: dict[str, int] = {}
        self._limit = max_uncompressed_bytes
        magic = source.peek(len(ZSTD_MAGIC))
        self.packing = "gzip" if magic.startswith(GZIP_MAGIC) else "zstd" if magic == ZSTD_MAGIC else ""
        self._first: list[bytes | memoryview] = []
        self.beginning = b""
        self._blocks = self._unpacked()

    def head(self) -> bytes:
        """The first unpacked bytes that are no white space and no byte order mark; none where there are none."""
        for block in self._blocks:
            kept = bytes(block)
            self._first.append(kept)
            if len(self._first) == 1:
                kept = kept.removeprefix(BYTE_ORDER_MARK)
            if begin := kept.lstrip()[:16]:
                return begin
            if len(self._first) == 2:
                break
        return b""

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """The blocks from the start; a block is valid until the next one is asked for."""
        try:
            while self._first:
                yield self._kept(self._first.pop(0))
            for block in self._blocks:
                yield self._kept(block)
        finally:
            self.close()

    def _kept(self, block: bytes | memoryview) -> bytes | memoryview:
        """The block, of which the beginning may have to be looked at again."""
        if len(self.beginning) < _BEGINNING_BYTES:
            self.beginning += bytes(block[: _BEGINNING_BYTES - len(self.beginning)])
        return block

    def close(self) -> None:
        """End the thread that unpacks; the source stays open."""
        self._blocks.close()

    def _unpacked(self) -> Generator[bytes | memoryview]:
        """All blocks."""
        if not self.packing:
            yield from _plain(self.source)
            return
        unpack = self._gzip if self.packing == "gzip" else self._zstd
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
        """How much may have been unpacked by now."""
        if self._limit is not None:
            return self._limit
        return max(FREE_BYTES, FREE_RATIO * self.source.read_bytes)

    def _gzip(self) -> Generator[bytes]:
        """The content of the members of a gzip file, one after the other."""
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
                yield from _up_to_the_damage(before, packed)
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
        """What begins the next member, from what came after the last; nothing where there is no other."""
        # Zeros pad a file to whole blocks.
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

    def _zstd(self) -> Generator[bytes]:
        """The content of the frames of a zstd file, one after the other."""
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
    """A source as a file, as pyarrow wants it."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.failure: OSError | None = None

    def readable(self) -> bool:
        """It can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        try:
            return self._source.read(_PACKED_BYTES if size < 0 else size)
        except OSError as error:
            # pyarrow's own errors are of the same class; those of the file are no damage.
            self.failure = error
            raise


def _plain(source: ByteSource) -> Generator[memoryview]:
    """The bytes of a file as they are, through one buffer."""
    buffer = memoryview(bytearray(BLOCK_BYTES))
    while count := source.read_into(buffer):
        yield buffer[:count]


def _up_to_the_damage(inflater: zlib._Decompress, packed: bytes) -> Generator[bytes]:
    """What still unpacks, byte by byte, before the first byte that makes no sense."""
    parts: list[bytes] = []
    size = 0
    for place in range(len(packed)):
        try:
            parts.append(inflater.decompress(packed[place : place + 1]))
        except zlib.error:
            break
        size += len(parts[-1])
        if size >= BLOCK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join(parts)
