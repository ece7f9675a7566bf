"""Read the execution traces that torch writes node by node, because they are not always valid JSON.

torch does not escape the names of ranges, writes an escape of eight digits for each byte of non-ASCII text, and leaves the
last node and the end of the file unwritten when the process is killed. Everything else in a node is valid JSON.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import IO, Any

from kinetoscope._errors import FormatError

_NAME = re.compile(r'(?<="name": ").*?(?=", "ctrl_deps": \d+,\s*\n)', re.DOTALL)
_BYTE_ESCAPES = re.compile(r"(?:\\uffffff[0-9a-f]{2})+")
_DECODER = json.JSONDecoder(strict=False)


class TorchNodes:
    """The nodes of an execution trace in torch's layout.

    Attributes:
        facts: The keys of the file other than `nodes`; complete when all nodes are read.
        lost: The number of losses, by kind: `unreadable_nodes`, and `end` if the end of the file is missing.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        """Read from the lines of a file, with their line ends.

        Raises:
            FormatError: The file does not begin like an execution trace of torch.
        """
        self._texts = _node_texts(lines)
        head, begins_nodes, self._rest = next(self._texts).partition('"nodes": [')
        self.facts: dict[str, Any] = {}
        self.lost: Counter[str] = Counter()
        with suppress(ValueError):
            self.facts |= json.loads(head.rstrip().rstrip(",") + "}") if begins_nodes else {}
        if "schema" not in self.facts:
            raise FormatError("the file does not begin like an execution trace of PyTorch")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each node, with its strings as the program passed them."""
        for text in self._texts:
            text = _BYTE_ESCAPES.sub(_characters, text)
            text = _NAME.sub(lambda name: json.dumps(name[0])[1:-1], text, count=1)
            try:
                node, end = _DECODER.raw_decode(text.lstrip())
            except (ValueError, RecursionError):
                self.lost["unreadable_nodes"] += 1
                self._rest = ""
            else:
                self._rest = text.lstrip()[end:]
                yield node
        try:
            self.facts |= json.loads("{" + self._rest.partition("]")[2].lstrip(" ,\r\n"))
        except ValueError:
            self.lost["end"] = 1


def write_mended(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy an execution trace in torch's layout as valid JSON, in one pass and with little memory.

    The copy has an additional key `kinetoscope`: the number of nodes, and the number of losses by kind.

    Args:
        source: The file that torch wrote, complete or not.
        target: The copy.

    Raises:
        FormatError: The source does not begin like an execution trace of torch.
    """
    nodes = TorchNodes(source)
    count = 0
    target.write(b'{"nodes": [')
    for node in nodes:
        target.write((",\n" if count else "\n").encode() + json.dumps(node).encode())
        count += 1
    facts = nodes.facts | {"kinetoscope": {"nodes": count, "lost": dict(nodes.lost)}}
    target.write(f"\n], {json.dumps(facts)[1:]}\n".encode())


def _node_texts(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield what is before the nodes, and each node with what follows it."""
    node_lines: list[bytes] = []
    for line in lines:
        if line.lstrip().startswith(b'"id": ') and node_lines and node_lines[-1].strip() == b"{":
            yield b"".join(node_lines[:-1]).decode("utf-8", "replace")
            node_lines = node_lines[-1:]
        node_lines.append(line)
    yield b"".join(node_lines).decode("utf-8", "replace")


def _characters(escapes: re.Match[str]) -> str:
    """The characters of which torch has escaped each byte of their UTF-8."""
    return bytes.fromhex(escapes[0].replace("\\uffffff", "")).decode("utf-8", "replace")
