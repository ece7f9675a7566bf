"""Repair the execution traces that torch writes, which are not always valid JSON, node by node.

torch writes each node on separate lines: `{`, then `"id": .., "name": "..", "ctrl_deps": ..,`, then `"inputs"`,
`"outputs"` and `"attrs"`, then `}`. These defects are repaired:

- names are not escaped: they may contain quotes, backslashes and line breaks;
- non-ASCII text has an escape of eight digits for each byte of its UTF-8;
- some bytes are not UTF-8, and some numbers are not JSON (`inf`);
- when the process was killed, the last node and the end of the file are missing;
- a forked child writes nodes to its parent's file, with ids that the parent uses again.

Every repair and every loss is counted by kind.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from typing import IO, TYPE_CHECKING, Any

from kinetoscope._errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PROCESS_NODE = 1
"""The id of the process's node, the root of all others."""

_HEAD = re.compile(
    r'\s*\{?\s*"id": (?P<id>\d+), "name": "(?P<name>.*?)", "ctrl_deps": (?P<parent>\d+),\s*\n', re.DOTALL
)
_WIDE_ESCAPES = re.compile(r"((?:\\uffffff[0-9a-f]{2})+)|\\.", re.DOTALL)
_BARE_NUMBER = re.compile(r"(-?)(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_GOES_ON = re.compile(r'\s*(?:[\]}:]|$|,\s*(?:["\[{\d-]|true|false|null|nan|inf))', re.IGNORECASE)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')


class Mending:
    """The nodes of one execution trace in torch's layout, repaired while they are read.

    Attributes:
        facts: The keys of the file other than `nodes`; those after the nodes are added when all nodes are read.
        mended: The number of repaired nodes, by defect.
        lost: The number of losses, by kind.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        """Read from the lines of a file, with their line ends."""
        self.facts: dict[str, Any] = {}
        self.mended: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._lines = iter(lines)
        self._written: set[int] = set()
        self._named: set[int] = set()

    def nodes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each node as valid JSON and as the parsed object.

        Raises:
            FormatError: The file does not begin like an execution trace of torch.
        """
        self._read_beginning()
        for text in self._texts():
            node = self._node(text)
            if node is not None:
                yield node
        unwritten = self._named - self._written
        if "end" in self.lost:
            unwritten.discard(PROCESS_NODE)
        if unwritten:
            self.lost["parents_not_written"] = len(unwritten)

    def _read_beginning(self) -> None:
        """Read the keys before the nodes."""
        text = ""
        for line in self._lines:
            line_text = line.decode("utf-8", "replace")
            if line_text.strip() == '"nodes": [':
                facts = _strict(text.rstrip().rstrip(",") + "}")
                if isinstance(facts, dict) and "schema" in facts:
                    self.facts.update(facts)
                    return
                break
            text += line_text
            if len(text) > 65536:
                break
        raise FormatError("the file does not begin like an execution trace of PyTorch")

    def _texts(self) -> Iterator[bytes]:
        """Yield the text of each node, without the comma after it."""
        inside: list[bytes] | None = None
        for line in self._lines:
            bare = line.strip()
            if inside is None:
                if bare == b"{":
                    inside = [line]
                elif bare.startswith(b"]"):
                    self._read_end()
                    return
                elif bare:
                    self.lost["stray_lines"] += 1
            elif bare == b"{" and _may_begin(inside):
                self.lost["unfinished_nodes"] += 1
                inside = [line]
            else:
                inside.append(line)
                if bare.rstrip(b",") == b"}" and inside[-2].lstrip().startswith(b'"attrs"'):
                    yield b"".join(inside).rstrip(b", \r\n")
                    inside = None
        if inside is not None:
            self.lost["unfinished_nodes"] += 1
        self.lost["end"] = 1

    def _read_end(self) -> None:
        """Read the keys after the nodes."""
        text = b"".join(self._lines).decode("utf-8", "replace").strip()
        facts = _strict("{" + text.removeprefix(","))
        if isinstance(facts, dict):
            self.facts.update(facts)
        else:
            self.lost["end"] = 1

    def _node(self, raw: bytes) -> tuple[str, dict[str, Any]] | None:
        """Repair one node; return None if that is impossible or its id was used before."""
        defects = set()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "replace")
            defects.add("bytes")
        head = _HEAD.match(text)
        if head is not None and (name := json.dumps(head["name"], ensure_ascii=False)[1:-1]) != head["name"]:
            text = text[: head.start("name")] + name + text[head.end("name") :]
            defects.add("names")
        if "\\uffffff" in text:
            text = _WIDE_ESCAPES.sub(_narrowed, text)
            defects.add("escapes")
        node = _strict(text)
        if not isinstance(node, dict):
            text = mended_values(text)
            node = _strict(text)
            defects.add("values")
        if not isinstance(node, dict) or not isinstance(node.get("id"), int):
            self.lost["unreadable_nodes"] += 1
            return None
        if node["id"] in self._written:
            self.lost["nodes_with_a_used_id"] += 1
            return None
        self._written.add(node["id"])
        if isinstance(node.get("ctrl_deps"), int):
            self._named.add(node["ctrl_deps"])
        self.mended.update(defects)
        return text.strip(), node


def write_mended(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy an execution trace in torch's layout as valid JSON, in one pass and with little memory.

    The copy has an additional key `kinetoscope`: the number of nodes, the number of repaired nodes by defect, and the
    number of losses by kind.

    Args:
        source: The file that torch wrote, complete or not.
        target: The copy.

    Raises:
        FormatError: The source does not begin like an execution trace of torch.
    """
    mending = Mending(source)
    nodes = mending.nodes()
    first = next(nodes, None)
    before = set(mending.facts)
    target.write(f'{{\n  {json.dumps(mending.facts)[1:-1]},\n  "nodes": ['.encode())
    count = 0
    for text, _ in itertools.chain([] if first is None else [first], nodes):
        target.write((",\n      " if count else "\n      ").encode() + text.encode())
        count += 1
    facts = {key: value for key, value in mending.facts.items() if key not in before}
    facts["kinetoscope"] = {"nodes": count, "mended": dict(mending.mended), "lost": dict(mending.lost)}
    target.write(f"\n  ],\n  {json.dumps(facts)[1:-1]}\n}}\n".encode())


def mended_values(text: str) -> str:
    """Escape characters in the strings of a JSON text, and quote numbers that JSON does not have.

    A quote is taken as the end of a string only if what follows it can continue a JSON text.

    Args:
        text: A JSON text with these defects.

    Returns:
        The text without these defects; other defects remain.
    """
    parts: list[str] = []
    offset, length = 0, len(text)
    inside = False
    while offset < length:
        char = text[offset]
        if not inside:
            number = _BARE_NUMBER.match(text, offset)
            if number is not None:
                parts.append(f'"{number[0].lower()}"')
                offset = number.end()
                continue
            inside = char == '"'
            parts.append(char)
        elif char == '"':
            inside = _GOES_ON.match(text, offset + 1) is None
            parts.append('\\"' if inside else '"')
        elif char == "\\":
            escape = _ESCAPE.match(text, offset)
            parts.append(escape[0] if escape is not None else "\\\\")
            offset = offset + 1 if escape is None else escape.end()
            continue
        else:
            parts.append(char if char >= " " else f"\\u{ord(char):04x}")
        offset += 1
    return "".join(parts)


def _may_begin(lines: list[bytes]) -> bool:
    """Return whether a lone brace after these lines begins another node, and is not part of a multi-line name."""
    return len(lines) == 1 or lines[-1].lstrip().startswith((b'"inputs"', b'"outputs"', b'"attrs"'))


def _narrowed(match: re.Match[str]) -> str:
    """Replace torch's escapes of UTF-8 bytes by one escape per character; keep other escapes."""
    if not match[1]:
        return match[0]
    data = bytes(int(part, 16) for part in re.findall(r"\\uffffff([0-9a-f]{2})", match[1]))
    return json.dumps(data.decode("utf-8", "replace"))[1:-1]


def _strict(text: str) -> Any:
    """Parse strictly valid JSON; return None if the text is not."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> None:
    """Reject the constants that Python's parser accepts but JSON does not have."""
    raise ValueError(f"{word} is not JSON")
