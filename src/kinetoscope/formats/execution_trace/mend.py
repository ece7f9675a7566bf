"""Make the execution traces that torch writes valid JSON.

torch does not escape the names of ranges, and writes an escape of eight digits for each byte of non-ASCII text. Everything
else in a finished file is valid JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

_NAME = re.compile(r'(?<="name": ").*?(?=", "ctrl_deps": \d+,\s*\n)', re.DOTALL)
_BYTE_ESCAPES = re.compile(r"(?:\\uffffff[0-9a-f]{2})+")


def mended(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield an execution trace in torch's layout as valid JSON, a node at a time, with its strings as the program passed them.

    Args:
        lines: The lines of a file, with their line ends.
    """
    node_lines: list[bytes] = []
    for line in lines:
        if line.lstrip().startswith(b'"id": ') and node_lines and node_lines[-1].strip() == b"{":
            yield _mended_node(node_lines[:-1])
            node_lines = node_lines[-1:]
        node_lines.append(line)
    yield _mended_node(node_lines)


def _mended_node(lines: list[bytes]) -> str:
    text = _BYTE_ESCAPES.sub(_characters, b"".join(lines).decode("utf-8", "replace"))
    return _NAME.sub(lambda name: json.dumps(name[0])[1:-1], text, count=1)


def _characters(escapes: re.Match[str]) -> str:
    """The characters of which torch has escaped each byte of their UTF-8."""
    return bytes.fromhex(escapes[0].replace("\\uffffff", "")).decode("utf-8", "replace")
