"""A report: the viewer and what it shows of one trace as a single file, which opens without a server.

The page is the one that is served. Beside it the file carries the answers to the questions that pages ask, as the server
would give them, and the rows of the timeline, from which the page answers what depends on where the reader looks.
"""

from __future__ import annotations

import html
import importlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kinetoscope._errors import KinetoscopeError
from kinetoscope.trace._replace import replaced
from kinetoscope.viewer._answers import ANSWERS, Limited, answer
from kinetoscope.viewer._counters import counters_of
from kinetoscope.viewer._packed import Pack
from kinetoscope.viewer._report_facts import pack_facts
from kinetoscope.viewer._report_spans import MOST_ITEMS, Kept, kept_spans, pack_rows
from kinetoscope.viewer._respond import ARROW, content_policy, encoded, page_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kinetoscope.trace import Trace

    Question = tuple[str, Mapping[str, str]]

# An answer that is larger is unpacked by itself, when it is asked for.
_LARGE_BYTES = 65_536
# Of a counter so many values are kept one by one; of a longer one the lowest and highest of each stretch.
_COUNTER_PIXELS = 16_384
_KEPT = "!~*'()"


def report(trace: Trace | str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Write the viewer with one trace as a single file: it opens by double click, without a server or the internet.

    Tables are those of the whole trace. Of a trace of more than a million spans the timeline holds those that begin
    first, and the page says so; to report on another part, convert that part first (`kinetoscope convert --window`).

    Args:
        trace: The trace, or the path or address of one.
        path: The file to write, such as `report.html`. A file of that name is replaced.

    Returns:
        The path of the file.

    Raises:
        FormatError: The trace cannot be read.
        OSError: The file cannot be written.
    """
    target = Path(path)
    if isinstance(trace, str | os.PathLike):
        from kinetoscope.trace import open as open_any

        with open_any(trace) as opened:
            return write_report(opened, Path(trace).name, target)
    return write_report(trace, _name_of(trace), target)


def report_page(trace: Trace, name: str, most: int = MOST_ITEMS) -> str:
    """Make the page of a report.

    Args:
        trace: The trace.
        name: What the page calls it.
        most: Of so many spans and runs the timeline can hold.
    """
    from kinetoscope import __version__

    blocks: list[str] = []
    kept = kept_spans(trace, most)
    directory: dict[str, Any] = {
        "version": __version__,
        "name": name,
        "answers": _answers(trace, kept, blocks),
        "timeline": _timeline(trace, kept, blocks),
        "cut": None if kept.before_ns is None else _cut(kept),
    }
    page = page_text()
    policy = html.escape(content_policy(page, ""), quote=True)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
    # Nothing in a script of data may look like the end of it.
    told = json.dumps(directory, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    data = [f'<script type="application/json" id="kinetoscope-report">{told}</script>']
    data += [
        f'<script type="application/octet-stream" id="kinetoscope-{number}">{block}</script>'
        for number, block in enumerate(blocks)
    ]
    title = f"<title>{html.escape(name)} · Kinetoscope</title>"
    page = page.replace("<title>Kinetoscope</title>", title, 1)
    page = page.replace('<meta charset="utf-8" />', f'<meta charset="utf-8" />\n    {head}', 1)
    before, found, after = page.partition('<script type="module">')
    return "".join((before, *(f"{line}\n    " for line in data), found, after))


def questions(trace: Trace) -> Iterator[Question]:
    """What the pages ask whatever the reader does: as their modules list it in `REPORTED` and `reported`."""
    for module in dict.fromkeys(place.partition(":")[0] for place in ANSWERS.values()):
        room = importlib.import_module(module)
        yield from getattr(room, "REPORTED", ())
        if hasattr(room, "reported"):
            yield from room.reported(trace)


def spelled(path: str, query: Mapping[str, str]) -> str:
    """The one spelling of a question, as the page has it too: keys in order, those without a value left out."""
    pairs = sorted((key, value) for key, value in query.items() if value != "")
    text = "&".join(f"{quote(key, safe=_KEPT)}={quote(value, safe=_KEPT)}" for key, value in pairs)
    return f"{path}?{text}" if text else path


def write_report(trace: Trace, name: str, path: Path) -> Path:
    """Write a report to a file, which appears when it is whole."""
    text = report_page(trace, name)
    with replaced(path) as file:
        file.write(text.encode("utf-8", "replace"))
    return path


def _name_of(trace: Trace) -> str:
    """What a trace is called: its file, else its program."""
    if trace.path is not None:
        return Path(trace.path).name
    program = trace.info.get("program")
    command = program.get("command") if isinstance(program, dict) else None
    return Path(str(command[0])).name if isinstance(command, list) and command else "trace"


def _answers(trace: Trace, kept: Kept, blocks: list[str]) -> dict[str, Any]:
    """Answer all questions; returns where each answer is."""
    told: dict[str, Any] = {}
    small = Pack()
    where: list[tuple[str, dict[str, Any]]] = []
    for path, query in questions(trace):
        key = spelled(path, query)
        if key in told:
            continue
        try:
            found = answer(trace, path, query)
        except KinetoscopeError as error:
            told[key] = {"error": str(error)}
            continue
        if key == "tracks" and isinstance(found, dict) and kept.before_ns is not None:
            found = {**found, "duration_ns": kept.before_ns}
        made = encoded(found)
        entry: dict[str, Any] = {"arrow": made.type == ARROW}
        if isinstance(found, Limited) and found.total != found.table.num_rows:
            entry["total"] = found.total
        told[key] = entry
        if len(made.body) > _LARGE_BYTES:
            alone = Pack()
            alone.add_bytes("", made.body)
            entry |= {"block": len(blocks), "at": alone.directory[""]}
            blocks.append(alone.compressed())
        else:
            small.add_bytes(key, made.body)
            where.append((key, entry))
    for key, entry in where:
        entry |= {"block": len(blocks), "at": small.directory[key]}
    blocks.append(small.compressed())
    return told


def _timeline(trace: Trace, kept: Kept, blocks: list[str]) -> dict[str, Any]:
    """The rows of the timeline, and what is known of its spans, which is unpacked when somebody asks."""
    rows, facts, counters = Pack(), Pack(), Pack()
    told = pack_rows(trace, kept, rows)
    known = pack_facts(trace, kept, facts)
    start, end = _stretch(trace, kept)
    for counter in counters_of(trace):
        query = {
            "track": str(counter.id), "start": repr(start), "end": repr(end), "width": str(_COUNTER_PIXELS),
        }  # fmt: skip
        counters.add_bytes(str(counter.id), encoded(answer(trace, "counter", query)).body)
    first = len(blocks)
    blocks += [pack.compressed() for pack in (rows, facts, counters)]
    return {
        **told,
        **known,
        "rows": {"block": first, "at": rows.directory},
        "facts": {"block": first + 1, "at": facts.directory},
        "counters": {"block": first + 2, "at": counters.directory},
    }


def _stretch(trace: Trace, kept: Kept) -> tuple[float, float]:
    """From when to when a report has counters."""
    start = min([0, *(int(one.time_ns[0]) for one in counters_of(trace))])
    last = kept.before_ns
    if last is None:
        last = max([trace.duration_ns, *(int(one.time_ns[-1]) for one in counters_of(trace))]) + 1
    return float(start), float(max(last, start + 1))


def _cut(kept: Kept) -> dict[str, Any]:
    """What the page says of what it does not hold."""
    return {"before_ns": kept.before_ns, "spans": len(kept.spans), "items": kept.items}
