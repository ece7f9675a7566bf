"""Decompressing gzip and zstd block by block: complete, truncated, damaged and too large files."""

import gzip
import io
import random
import threading
import zlib

import pyarrow as pa
import pytest

from kinetoscope.storage import unpacking
from kinetoscope.storage.byte_source import ByteSource
from kinetoscope.storage.unpacking import UnpackedText

RANDOM = random.Random(4)
TEXT = b'{"traceEvents": [' + b",".join(b'{"n":%d}' % RANDOM.getrandbits(60) for _ in range(120_000)) + b"]}"


def gz(data):
    return gzip.compress(data, 1)


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


def unpacked(packed, limit=None):
    """Return the content, the losses and the compression."""
    with ByteSource.of(io.BytesIO(packed)) as source:
        text = UnpackedText(source, limit)
        return b"".join(bytes(block) for block in text), text.losses, text.packing


@pytest.mark.parametrize(("pack", "name"), [(bytes, ""), (gz, "gzip"), (zstd, "zstd")])
def test_the_first_bytes_say_how_it_is_packed(pack, name):
    assert unpacked(pack(TEXT)) == (TEXT, {}, name)
    assert unpacked(pack(b"{}")) == (b"{}", {}, name)


@pytest.mark.parametrize("pack", [bytes, gz, zstd])
def test_the_head_is_looked_at_without_being_used_up(pack):
    with ByteSource.of(io.BytesIO(pack(b"\xef\xbb\xbf \n" + TEXT))) as source:
        text = UnpackedText(source)
        assert text.head().startswith(b'{"traceEvents"')
        assert b"".join(bytes(block) for block in text) == b"\xef\xbb\xbf \n" + TEXT


def test_a_head_of_nothing_but_white_space_is_looked_for_in_vain():
    with ByteSource.of(io.BytesIO(b" " * (5 << 20) + b"{")) as source:
        text = UnpackedText(source)
        assert text.head() == b""
        text.close()


@pytest.mark.parametrize("pack", [bytes, gz, zstd])
def test_a_head_may_stand_behind_much_white_space(pack):
    with ByteSource.of(io.BytesIO(pack(b" " * 1_500_000 + TEXT))) as source:
        text = UnpackedText(source)
        assert text.head().startswith(b'{"traceEvents"')
        text.close()


def test_several_members_and_the_zeros_after_them_are_one_text():
    assert unpacked(gz(TEXT[:1000]) + gz(TEXT[1000:]) + bytes(1 << 19)) == (TEXT, {}, "gzip")
    assert unpacked(gz(b"a") + bytes(700) + gz(b"b")) == (b"ab", {}, "gzip")
    assert unpacked(zstd(TEXT[:1000]) + zstd(TEXT[1000:])) == (TEXT, {}, "zstd")


def test_what_follows_the_last_member_is_damage():
    assert unpacked(gz(TEXT) + b"rubbish") == (TEXT, {"packed_damaged": 1}, "gzip")
    content, losses, _ = unpacked(zstd(TEXT) + b"rubbish rubbish")
    assert losses == {"packed_damaged": 1}
    assert TEXT.startswith(content)
    assert len(content) > len(TEXT) - 2 * unpacking._READ_BYTES


@pytest.mark.parametrize("pack", [gz, zstd])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_of_a_file_cut_short_everything_before_the_cut_is_kept(pack, share):
    packed = pack(TEXT)
    cut = int(len(packed) * share)
    content, losses, _ = unpacked(packed[:cut])
    assert losses == {"packed_cut": 1}
    assert TEXT.startswith(content)
    # Both formats compress in blocks of at most about 128 KiB; complete blocks are returned.
    assert len(content) > len(TEXT) * share - (1 << 18)


def test_a_cut_in_the_header_leaves_nothing():
    assert unpacked(gz(TEXT)[:5]) == (b"", {"packed_cut": 1}, "gzip")
    assert unpacked(zstd(TEXT)[:5]) == (b"", {"packed_cut": 1}, "zstd")


@pytest.mark.parametrize("pack", [gz, zstd])
def test_of_a_damaged_file_everything_before_the_damage_is_kept(pack):
    packed = bytearray(pack(TEXT))
    middle = len(packed) // 2
    packed[middle:] = RANDOM.randbytes(len(packed) - middle)
    content, losses, _ = unpacked(bytes(packed))
    assert losses == {"packed_damaged": 1}
    same = next(
        (place for place, (one, two) in enumerate(zip(content, TEXT, strict=False)) if one != two),
        len(content),
    )
    assert same > len(TEXT) * 0.4


def test_a_wrong_checksum_is_damage_behind_the_whole_text():
    packed = bytearray(gz(TEXT))
    packed[-5] ^= 1
    assert unpacked(bytes(packed)) == (TEXT, {"packed_damaged": 1}, "gzip")


def bomb(size, pack):
    """Return a few bytes that decompress to `size` zeros, without holding the zeros in memory for gzip."""
    if pack is zstd:
        return zstd(bytes(size))
    packer, parts = zlib.compressobj(9, zlib.DEFLATED, 31), []
    parts += [packer.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return b"".join([*parts, packer.flush()])


@pytest.mark.parametrize("pack", [gz, zstd])
def test_a_small_file_that_unpacks_to_far_too_much_is_stopped(pack, monkeypatch):
    monkeypatch.setattr(unpacking, "FREE_BYTES", 8 << 20)
    packed = bomb(64 << 20, pack)
    content, losses, _ = unpacked(packed)
    assert losses == {"beyond_unpacking_limit": 1}
    assert 8 << 20 <= len(content) <= max(8 << 20, 200 * len(packed))
    assert len(unpacked(packed, 1000)[0]) == 1000
    assert unpacked(packed, 64 << 20) == (bytes(64 << 20), {}, "gzip" if pack is gz else "zstd")


def test_text_that_is_not_packed_has_no_limit():
    assert unpacked(TEXT, 10) == (TEXT, {}, "")


class Failing(io.RawIOBase):
    """A file that returns some bytes and then fails."""

    def __init__(self, packed):
        self.rest = io.BytesIO(packed)

    def readable(self):
        return True

    def read(self, size=-1):
        found = self.rest.read(min(size, 1000))
        if size and not found:
            raise ConnectionError("the line went dead")
        return found


@pytest.mark.parametrize("pack", [gz, zstd])
def test_what_reading_raises_reaches_the_caller_and_leaves_no_thread(pack):
    before = threading.active_count()
    source = ByteSource.of(Failing(pack(TEXT)[:-100]))
    with pytest.raises(ConnectionError, match="the line went dead"):
        b"".join(bytes(block) for block in UnpackedText(source))
    assert threading.active_count() == before


@pytest.mark.parametrize("pack", [gz, zstd])
def test_who_stops_half_way_leaves_no_thread(pack):
    before = threading.active_count()
    with ByteSource.of(io.BytesIO(pack(TEXT * 3))) as source:
        text = UnpackedText(source)
        with pytest.raises(KeyboardInterrupt):
            for _ in text:
                raise KeyboardInterrupt
        text.close()
        assert threading.active_count() == before
