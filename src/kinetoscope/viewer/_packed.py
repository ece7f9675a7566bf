"""Integers and texts packed for a report: small, and unpacked by the browser and a few lines of TypeScript.

An integer becomes an even number where it is not negative and an odd one where it is, so that small ones stay small.
All lowest bytes come first, then all second ones, and so on: neighbours are alike, and less becomes of them than of
whole numbers. Columns whose values rise are kept as differences.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Entry = list[int]

_INT32 = np.iinfo(np.int32)
LARGEST = 2**52
"""Beyond it a page's numbers, and what is made of them here, are not exact. In ns that is 52 days."""


class Pack:
    """Parts that are compressed together.

    Attributes:
        directory: Where each part is: `[at, length]` of a text, `[at, rows, bytes, rising, wide]` of integers.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.directory: dict[str, Entry] = {}
        self._parts: list[bytes] = []
        self._size = 0

    def add_integers(self, name: str, values: NDArray[Any], *, rising: bool = False) -> bool:
        """Add a column; returns False, and adds nothing, where a value is too large for a page's numbers."""
        numbers = values.astype(np.int64)
        least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
        if least < -LARGEST or most > LARGEST:
            return False
        wide = least < _INT32.min or most > _INT32.max
        if rising:
            numbers = np.diff(numbers, prepend=0)
        folded = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
        size = max(1, (int(folded.max(initial=0)).bit_length() + 7) // 8)
        planes = folded.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :size].T
        self._add(name, np.ascontiguousarray(planes).tobytes(), [len(numbers), size, int(rising), int(wide)])
        return True

    def add_json(self, name: str, value: Any) -> None:
        """Add what can be written as JSON."""
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        # Half of a pair of surrogates has no bytes; JSON has a spelling for it.
        self.add_bytes(name, text.encode("utf-8", "backslashreplace"))

    def add_bytes(self, name: str, body: bytes) -> None:
        """Add bytes as they are."""
        self._add(name, body, [len(body)])

    @property
    def size(self) -> int:
        """How many bytes it has before they are compressed."""
        return self._size

    def compressed(self) -> str:
        """All parts, compressed, as letters that may stand in a page."""
        return base64.b64encode(zlib.compress(b"".join(self._parts))).decode("ascii")

    def _add(self, name: str, body: bytes, entry: Entry) -> None:
        """Keep a part and where it is."""
        self.directory[name] = [self._size, *entry]
        self._parts.append(body)
        self._size += len(body)
