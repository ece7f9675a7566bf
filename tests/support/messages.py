"""What a room says where it refuses or warns: calls as in a Python session in its `messages.txt`, and what came of each.

`values(call, "name")` stands for calls with many values of a keyword. One test of the room makes all calls and compares. `python -m tests.support.messages tests/ROOM ...` writes the files anew, and prints what changed.
"""

import difflib
import doctest
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WRITES = "KINETOSCOPE_WRITE_MESSAGES"
VALUES = ("no", "", b"1", -1, 0, 1, 2, 1.5, float("nan"), True, None, [], {}, print)
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")


class Text(str):
    """A text that is stored as it is."""

    __slots__ = ()


def values(
    call: Callable[..., Any],
    *names: str,
    more: Iterable[Any] = (),
    instead: Iterable[Any] = VALUES,
    **keywords: Any,
) -> Text:
    """Call with each of some values of keywords; return which are refused in which words, and which are not, once for all that agree.

    Args:
        call: What is called.
        *names: The keywords, one of them at a time; in the words, `NAME=VALUE` stands for it and its value.
        more: Further values.
        instead: Values in place of the usual ones.
        **keywords: The other keywords.
    """
    names_of: dict[str, list[str]] = {}
    for name in names:
        outcomes: dict[str, list[str]] = {}
        for value in (*instead, *more):
            said = "accepted"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    call(**keywords, **{name: value})
                except Exception as error:  # noqa: BLE001  (it is what is compared)
                    text = re.sub(rf"(?<=[= ]){re.escape(repr(value))}(?=[;:., ]|$)", "VALUE", str(error))
                    said = f"{type(error).__name__}: {text.replace(f'{name}=VALUE', 'NAME=VALUE')}"
            outcomes.setdefault(said, []).append(getattr(value, "__name__", repr(value)))
        table = "\n".join(f"    {', '.join(given)} -> {said}" for said, given in outcomes.items())
        names_of.setdefault(table, []).append(name)
    return Text("\n".join(f"{', '.join(alike)}:\n{table}" for table, alike in names_of.items()))


class Call:
    """A call of a file: its lines as they are written, and what came of it."""

    def __init__(self, lines: list[str]) -> None:
        self.source = "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))
        self.text = "\n".join(line for line in lines if line.startswith((">>> ", "... ")))
        self.outcome = [line for line in lines if not line.startswith((">>> ", "... "))]


def parts_of(text: str) -> Iterator[Call | str]:
    """The calls of a file, and the lines between them: headings and empty ones."""
    lines: list[str] = []
    for line in [*text.splitlines(), "#"]:
        if lines and (line.startswith((">>> ", "#")) or not line):
            yield Call(lines)
            lines = []
        if line.startswith(">>> ") or lines:
            lines.append(line)
        else:
            yield line


def come_of(source: str, names: dict[str, Any], folder: str) -> list[str]:
    """Make a call, and return the lines that say its warnings, and its value or its exception."""
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            try:
                code = compile(source, "<messages>", "eval")
            except SyntaxError:
                code = compile(source, "<messages>", "exec")
            value = eval(code, names)
            if isinstance(value, Text):
                return value.splitlines()
            said = [] if value is None else [repr(value)]
        except Exception as error:  # noqa: BLE001  (it is what is compared)
            said = [f"{type(error).__name__}: {error}"]
    said = [f"{warning.category.__name__}: {warning.message}" for warning in caught] + said
    texts = [ADDRESS.sub("0x...", text.replace(folder, "FOLDER")) for text in said]
    # What follows the first line of a text is indented, and an empty line is a dot, as it would end the call.
    return [
        line
        for text in texts
        for line in re.sub(r"\n(?=\n|$)", "\n.", text).replace("\n", "\n    ").splitlines()
    ]


def agrees(stored: list[str], now: list[str]) -> bool:
    """Whether stored lines are those that came now; `...` in them stands for anything."""
    return doctest.OutputChecker().check_output(
        "\n".join(stored) + "\n", "\n".join(now) + "\n", doctest.ELLIPSIS
    )


def check_messages(test: str, **names: Any) -> None:
    """Make the calls of `messages.txt` beside a test, in an empty folder, and compare what comes of them; `...` stands for anything.

    Args:
        test: The file of the test.
        **names: What the calls may use without an import.
    """
    path = Path(test).with_name("messages.txt")
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    parts = list(parts_of(before))[:-1]
    lines = []
    names["values"] = values
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for part in parts:
            if isinstance(part, str):
                lines.append(part)
                continue
            outcome = come_of(part.source, names, folder)
            if not agrees(part.outcome, outcome):
                # A line that stands for this one, too, stays as it is.
                part.outcome = [
                    next((old for old in part.outcome if agrees([old], [line])), line) for line in outcome
                ]
            lines += [part.text, *part.outcome]
    after = "\n".join(lines) + "\n"
    if os.environ.get(WRITES):
        path.write_text(after, encoding="utf-8")
        return
    changed = list(
        difflib.unified_diff(before.splitlines(), after.splitlines(), "stored", "now", lineterm="", n=1)
    )
    room = path.parent.relative_to(ROOT)
    assert changed == [], "\n".join([*changed, f"If this is right: python -m tests.support.messages {room}"])


def main(rooms: list[str]) -> int:
    """Write the messages of rooms anew, and print what changed."""
    tests = [
        str(path) for room in rooms or ["tests"] for path in sorted((ROOT / room).rglob("test_*_messages.py"))
    ]
    if not tests:
        sys.exit(f"there are no messages in {', '.join(rooms)}: name folders of tests")
    written = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests], cwd=ROOT, env={**os.environ, WRITES: "1"}, check=False
    )
    for command in (["add", "--intent-to-add"], ["--no-pager", "diff"]):
        subprocess.run(["git", *command, "--", "tests/**/messages.txt"], cwd=ROOT, check=False)
    return written.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
