"""What a report knows of each span beyond its time: the facts, the stack, the arguments and the links of `span/<id>`.

Facts are kept as parts, in the order in which the page shows them. A part is either a column of numbers with one label,
or a column of places in a list of groups of facts, which many spans share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.formats._chrome_facts import described_arguments
from kinetoscope.tables._copy_facts import direction_of
from kinetoscope.tables._starters import starters
from kinetoscope.trace import SpanKind
from kinetoscope.trace._naming import frame_texts
from kinetoscope.trace._text import to_utf8
from kinetoscope.viewer import _span
from kinetoscope.viewer._arrows import all_arrows
from kinetoscope.viewer._links import beyond, carried_out, launched

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kinetoscope.trace import Trace
    from kinetoscope.viewer._packed import Pack
    from kinetoscope.viewer._report_spans import Kept

    Fact = tuple[str, Any, str]

# Texts of arguments beyond so many letters are left out: a report is sent by mail.
_MOST_LETTERS = 8_000_000
_NUMBERS = (
    ("FLOPs", "flops", "FLOP", 1),
    ("Bytes moved", "bytes_moved", "bytes", 1),
)
_MEMORY = (
    ("Host memory", "bytes"),
    ("Host memory of itself", "self_bytes"),
    ("Device memory", "device_bytes"),
    ("Device memory of itself", "device_self_bytes"),
)
_IDENTITIES = (
    ("Sequence number", "sequence"),
    ("Correlation", "correlation"),
    ("External id", "external_id"),
    ("Record function id", "record_function"),
)


def pack_facts(trace: Trace, kept: Kept, pack: Pack) -> dict[str, Any]:
    """Put what is known of the spans into a pack; returns what the page must know to read it."""
    parts = _Parts(trace, kept, pack)
    _place_parts(trace, kept, parts)
    _work_parts(trace, kept, parts)
    _device_parts(trace, kept, parts)
    for label, name in _IDENTITIES:
        parts.number(label, "", trace.column("spans", name), absent=-1)
    parts.grouped(
        trace.column("spans", "flags"),
        lambda flags: [("Note", text, "") for flag, text in _span.FLAGS if flags & flag],
    )
    _pack_stacks(trace, kept, pack)
    _pack_arguments(trace, kept, pack)
    return {"parts": parts.made, "links": _pack_links(trace, kept, pack)}


class _Parts:
    """Collects parts."""

    def __init__(self, trace: Trace, kept: Kept, pack: Pack) -> None:
        """Begin with none."""
        self.made: list[dict[str, Any]] = []
        self._kept = kept
        self._pack = pack
        self._empty = len(trace.columns("spans")) == 0

    def number(self, label: str, unit: str, values: NDArray[Any], *, absent: int) -> None:
        """Add a number of each span; where it is at most `absent`, or for -1 and 0 that very number, there is none."""
        column = values[self._kept.spans]
        if self._empty or (column == absent).all():
            return
        name = f"fact {len(self.made)}"
        if self._pack.add_integers(name, column):
            self.made.append({"column": name, "label": label, "unit": unit, "absent": absent})

    def grouped(self, ids: NDArray[Any], facts_of: Callable[[int], list[Fact]]) -> None:
        """Add facts that spans of one id share; those below 0 have none."""
        used, place = np.unique(ids[self._kept.spans], return_inverse=True)
        groups = [
            [
                {"label": label, "value": _clean(_span.plain(value)), "unit": unit}
                for label, value, unit in (facts_of(one) if one >= 0 else [])
                if value is not None and value != ""
            ]
            for one in used.tolist()
        ]
        if not any(groups):
            return
        name = f"fact {len(self.made)}"
        self._pack.add_integers(name, place)
        self._pack.add_json(f"{name} groups", groups)
        self.made.append({"column": name, "groups": f"{name} groups"})

    def rate(self, label: str, unit: str) -> None:
        """Add the number before this one divided by the duration."""
        if self.made and "label" in self.made[-1]:
            self.made.append({"column": self.made[-1]["column"], "label": label, "unit": unit, "rate": True})


def _place_parts(trace: Trace, kept: Kept, parts: _Parts) -> None:
    """Where a span ran, and when in the run."""
    spans, strings = trace.columns("spans"), trace.strings
    for label, name in (("Overload", "overload"), ("Category", "category")):
        ids = np.where(spans[name] > 0, spans[name], -1)
        parts.grouped(ids, lambda text, label=label: [(label, strings[text], "")])  # type: ignore[misc]
    many = len(trace.columns("streams")) + 1
    thread, stream = spans["thread"].astype(np.int64), spans["stream"].astype(np.int64)
    parts.grouped(
        thread * many + stream + 1,
        lambda code: _span.place_facts(trace, code // many, code % many - 1),
    )
    numbers = trace.column("steps", "number").astype(np.int64)
    step = spans["step"]
    parts.grouped(
        np.where(step >= 0, step, -1), lambda row: [("Step", int(numbers[row]), "")] if row >= 0 else []
    )
    on_host = np.where(stream < 0, spans["phase"].astype(np.int64) * 2 + spans["recompute"], -1)
    parts.grouped(on_host, lambda code: _span.phase_facts(code // 2, recompute=bool(code % 2)))


def _work_parts(trace: Trace, kept: Kept, parts: _Parts) -> None:
    """What an operator worked on, and what it started."""
    spans = trace.columns("spans")
    on_host = np.isin(spans["kind"], _span.ON_HOST)
    pairs = launched(trace)
    if len(pairs.source):
        edges = np.searchsorted(pairs.source, np.stack((np.arange(len(spans)), beyond(trace))))
        started = np.where(on_host, edges[1] - edges[0], 0)
        # No number is as large as none: the time is told where anything was started, be it 0.
        for label, name in (
            ("Device time", "device_ns"),
            ("Device time of its own launches", "device_self_ns"),
        ):
            parts.number(label, "ns", np.where(started > 0, spans[name], -1), absent=-1)
        parts.number("Launches", "", started, absent=0)
    parts.grouped(spans["module"], lambda row: _span.module_facts(trace, row))
    parts.grouped(spans["shapes"], lambda row: _span.shape_facts(trace, row))
    for label, name, unit, least in _NUMBERS:
        value = spans[name]
        parts.number(label, unit, np.where(on_host & (value >= least), value, 0), absent=0)
    if len(trace.columns("allocations")):
        for label, name in _MEMORY:
            parts.number(label, "bytes", np.where(on_host, spans[name], 0), absent=0)


def _device_parts(trace: Trace, kept: Kept, parts: _Parts) -> None:
    """How kernels were launched, and what copies moved."""
    spans, kernels, copies = (trace.columns(name) for name in ("spans", "kernels", "copies"))
    if len(kernels):
        columns = [kernels[name].astype(np.float64) for name in _span.LAUNCH_COLUMNS]
        _, first, alike = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
        which = np.full(len(spans), -1, np.int64)
        which[kernels["span"]] = alike.ravel()
        parts.grouped(which, lambda code: _span.launch_facts(trace, int(first[code])))
    if len(copies):
        size = np.full(len(spans), -1, np.int64)
        size[copies["span"]] = copies["bytes"]
        parts.number("Size", "bytes", size, absent=-1)
        parts.rate("Bandwidth", "GB/s")
        rows, texts = copies["span"], trace.columns("arguments")["json"]
        keys = np.stack((spans["name"][rows], spans["arguments"][rows], spans["kind"][rows]))
        distinct, alike = np.unique(keys, axis=1, return_inverse=True)
        which = np.full(len(spans), -1, np.int64)
        which[rows] = alike.ravel()

        def direction(code: int) -> list[Fact]:
            name, arguments, kind = (int(value) for value in distinct[:, code])
            text = texts[arguments] if arguments >= 0 else ""
            found = direction_of(trace.strings[name], text, fills=kind == SpanKind.MEMSET)
            return [("Direction", _span.direction_text(found), "")]

        parts.grouped(which, direction)


def _pack_stacks(trace: Trace, kept: Kept, pack: Pack) -> None:
    """The Python stacks as a tree."""
    stacks, rows = trace.columns("stacks"), np.arange(len(trace.columns("stacks")))
    pack.add_integers("stack", trace.column("spans", "stack")[kept.spans])
    above = stacks["parent"]
    pack.add_integers("stack parent", np.where((above >= 0) & (above < rows), rows - above, 0))
    pack.add_integers("stack frame", stacks["frame"])
    pack.add_json("frames", [to_utf8(text) for text in frame_texts(trace)])


def _pack_arguments(trace: Trace, kept: Kept, pack: Pack) -> None:
    """What else the source said, each text once."""
    column, texts = trace.cached("viewer: described_arguments", lambda: described_arguments(trace))
    ids = np.full(len(kept.spans), -1, np.int64) if column is None else column[kept.spans].astype(np.int64)
    used, place = np.unique(ids, return_inverse=True)
    left, wanted = _MOST_LETTERS, []
    for row in used.tolist():
        text = texts[row] if row >= 0 else ""
        left -= len(text)
        wanted.append(_clean(_span.told_arguments(text)) if text and left >= 0 else {})
    pack.add_integers("argument", place)
    pack.add_json("arguments", wanted)


def _pack_links(trace: Trace, kept: Kept, pack: Pack) -> list[list[Any]]:
    """Which spans are tied to which; returns the few that no column holds."""
    if len(trace.columns("launches")):
        by = starters(trace)
        pack.add_integers("launched by", kept.back(by.call[:-1]))
        operator = by.operator[:-1]
        pack.add_integers("launched for", kept.back(np.where(operator != by.call[:-1], operator, -1)))
    found = all_arrows(trace)
    source, target = kept.moved(found.source), kept.moved(found.target)
    both = (source >= 0) & (target >= 0)
    source, target = source[both], target[both]
    pack.add_integers("arrow from", source, rising=True)
    pack.add_integers("arrow to", target - source)
    pack.add_integers("arrow sort", found.sort[both])
    return [
        [int(kept.place[row]), label, int(kept.place[other])]
        for row, links in carried_out(trace).items()
        for label, other in links
        if kept.place[row] >= 0 and kept.place[other] >= 0
    ]


def _clean(value: Any) -> Any:
    """A value whose texts have only what a page can hold."""
    if isinstance(value, str):
        return to_utf8(value)
    if isinstance(value, dict):
        return {to_utf8(key): _clean(part) for key, part in value.items()}
    return [_clean(part) for part in value] if isinstance(value, list) else value
