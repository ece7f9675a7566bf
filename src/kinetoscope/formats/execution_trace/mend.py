"""Execution traces as torch writes them, node by node, and made valid where torch's text is not.

torch writes each node on lines of its own: `{`, then `"id": .., "name": "..", "ctrl_deps": ..,`, then `"inputs"`,
`"outputs"` and `"attrs"`, then `}`. What can go wrong there, and is put right here:

- a name stands in the file as it is, with quotes, backslashes and line ends that JSON wants escaped;
- a text with other characters than ASCII has escapes of eight digits, one for each byte of its UTF-8;
- bytes that are no UTF-8, and numbers that JSON does not have (`inf`);
- a process that was killed leaves the last node and the end unwritten;
- a forked child writes its nodes into the parent's file, among them ids that the parent uses again.

Nothing disappears unsaid: all that was changed or given up is counted by kind.
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
"""The id of the node that stands for the process, the root of all others."""

_HEAD = re.compile(
    r'\s*\{?\s*"id": (?P<id>\d+), "name": "(?P<name>.*?)", "ctrl_deps": (?P<parent>\d+),\s*\n', re.DOTALL
)
_WIDE_ESCAPES = re.compile(r"((?:\\uffffff[0-9a-f]{2})+)|\\.", re.DOTALL)
_BARE_NUMBER = re.compile(r"(-?)(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_GOES_ON = re.compile(r'\s*(?:[\]}:]|$|,\s*(?:["\[{\d-]|true|false|null|nan|inf))', re.IGNORECASE)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')


class Mending:
    """The nodes of one execution trace in torch's own layout, mended while they are read.

    Attributes:
        facts: The keys of the file beside `nodes`; those that follow the nodes are there once all are read.
        mended: How many nodes had which defect and are whole now.
        lost: What the file should hold and does not, by kind.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        """Read from the lines of a file, each with its end."""
        self.facts: dict[str, Any] = {}
        self.mended: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._lines = iter(lines)
        self._written: set[int] = set()
        self._named: set[int] = set()

    def nodes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each node as its strict JSON text and as what it means.

        Raises:
            FormatError: The file does not begin as an execution trace of torch does.
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
        """Read the keys that come before the nodes."""
        text = ""
        for line in self._lines:
            shown = line.decode("utf-8", "replace")
            if shown.strip() == '"nodes": [':
                facts = _strict(text.rstrip().rstrip(",") + "}")
                if isinstance(facts, dict) and "schema" in facts:
                    self.facts.update(facts)
                    return
                break
            text += shown
            if len(text) > 65536:
                break
        raise FormatError("the file does not begin as an execution trace of PyTorch does")

    def _texts(self) -> Iterator[bytes]:
        """The text of each node, without the comma after it."""
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
        """Read the keys that follow the nodes."""
        text = b"".join(self._lines).decode("utf-8", "replace").strip()
        facts = _strict("{" + text.removeprefix(","))
        if isinstance(facts, dict):
            self.facts.update(facts)
        else:
            self.lost["end"] = 1

    def _node(self, raw: bytes) -> tuple[str, dict[str, Any]] | None:
        """Mend one node; None when it cannot be, or is there already."""
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
    """Copy an execution trace in torch's own layout as strict JSON, in one pass and with little memory.

    The copy has one key more, `kinetoscope`: how many nodes it holds, how many of them were mended for which defect,
    and what was lost.

    Args:
        source: What torch wrote, finished or not.
        target: Where the copy goes.

    Raises:
        FormatError: The source does not begin as an execution trace of torch does.
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
    """Escape what must be escaped in the strings of a JSON text, and quote the numbers JSON does not have.

    A quote ends a string only where JSON can go on after it.

    Args:
        text: A JSON text with defects.

    Returns:
        The text without those defects; others stay.
    """
    parts: list[str] = []
    at, length = 0, len(text)
    inside = False
    while at < length:
        char = text[at]
        if not inside:
            number = _BARE_NUMBER.match(text, at)
            if number is not None:
                parts.append(f'"{number[0].lower()}"')
                at = number.end()
                continue
            inside = char == '"'
            parts.append(char)
        elif char == '"':
            inside = _GOES_ON.match(text, at + 1) is None
            parts.append('\\"' if inside else '"')
        elif char == "\\":
            escape = _ESCAPE.match(text, at)
            parts.append(escape[0] if escape is not None else "\\\\")
            at = at + 1 if escape is None else escape.end()
            continue
        else:
            parts.append(char if char >= " " else f"\\u{ord(char):04x}")
        at += 1
    return "".join(parts)


def _may_begin(lines: list[bytes]) -> bool:
    """Whether a lone brace after these lines begins another node: a name may span lines, but then has begun."""
    return len(lines) == 1 or lines[-1].lstrip().startswith((b'"inputs"', b'"outputs"', b'"attrs"'))


def _narrowed(found: re.Match[str]) -> str:
    """Turn escapes that stand for bytes of UTF-8 into one escape a character; keep every other escape."""
    if not found[1]:
        return found[0]
    data = bytes(int(part, 16) for part in re.findall(r"\\uffffff([0-9a-f]{2})", found[1]))
    return json.dumps(data.decode("utf-8", "replace"))[1:-1]


def _strict(text: str) -> Any:
    """What a strict JSON text means, or None when it is none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> None:
    """Refuse the numbers that Python's reader lets through."""
    raise ValueError(f"{word} is not JSON")
