import base64
import json
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.viewer.report import Pack


def unpacked(pack):
    """The parts of a pack, read as the page reads them."""
    body = zlib.decompress(base64.b64decode(pack.compressed()))
    found = {}
    for name, (at, length, *more) in pack.directory.items():
        if not more:
            found[name] = body[at : at + length]
            continue
        size, rising, _ = more
        folded = [
            sum(body[at + byte * length + row] << (8 * byte) for byte in range(size)) for row in range(length)
        ]
        values = [-(one + 1) // 2 if one % 2 else one // 2 for one in folded]
        found[name] = np.cumsum(values).tolist() if rising else values
    return found


@given(st.lists(st.integers(-(2**52), 2**52), max_size=20), st.booleans())
def test_integers_come_back(values, rising):
    pack = Pack()
    assert pack.add_integers("x", np.array(values, np.int64), rising=rising)
    assert unpacked(pack)["x"] == values
    assert pack.directory["x"][4] == any(not -(2**31) <= value < 2**31 for value in values)


def test_what_a_pages_numbers_cannot_hold_is_not_packed():
    pack = Pack()
    assert not pack.add_integers("x", np.array([2**60]))
    assert pack.directory == {}


def test_parts_lie_side_by_side():
    pack = Pack()
    pack.add_bytes("bytes", b"abc")
    pack.add_json("json", ["ü", "\udc80", {"a": None}])
    pack.add_integers("numbers", np.array([1, -300], np.int16))
    found = unpacked(pack)
    assert found["bytes"] == b"abc"
    assert json.loads(found["json"]) == ["ü", "\udc80", {"a": None}]
    assert found["numbers"] == [1, -300]
