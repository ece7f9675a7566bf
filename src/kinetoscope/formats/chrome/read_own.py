"""What only files that we wrote ourselves say: which module a span ran in, and how it was cut.

Viewers show these among the arguments of a slice; here they become columns again. The modules themselves stand in the
head of the file, see `formats/chrome.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.formats.chrome.read_links import Arrows
from kinetoscope.model.assemble import spread_down
from kinetoscope.model.schema import FLAG_ASYNC, FLAG_BEGUN_BEFORE, FLAG_UNFINISHED, STORED

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from numpy.typing import NDArray

    from kinetoscope.formats.chrome.read_calls import Strings

OWN = "kinetoscope"
"""The key in the head of a file that tells that it is ours."""
LIST_HEAD = "trace"
"""The name of the first event of a bare list of events that is ours."""
FLAGS = {"Unfinished": FLAG_UNFINISHED, "Begun before": FLAG_BEGUN_BEFORE, "Asynchronous": FLAG_ASYNC}
MODULE, MODULE_CLASS, MODULE_ROW = "Module", "Module class", "Module row"
_TIMES = (("spans", "start_ns"), ("allocations", "time_ns"), ("counters", "time_ns"), ("flows", "time_ns"))
_KEYS = (*FLAGS, MODULE, MODULE_CLASS, MODULE_ROW)


def described_in_list(metadata: Sequence[tuple[str, int, int, str, str, str]]) -> dict[str, Any]:
    """What a file of ours that is a bare list of events says of itself in its first event; nothing elsewhere.

    Args:
        metadata: The metadata events as the native reader has them.
    """
    for what, _, _, text, _, _ in metadata[:1]:
        if what == LIST_HEAD and f'"{OWN}"' in text:
            try:
                found = json.loads(text, parse_constant=str)
            except (ValueError, RecursionError):
                return {}
            return found if isinstance(found, dict) and isinstance(found.get(OWN), dict) else {}
    return {}


def keep_own_times(header: Mapping[str, Any], native: MutableMapping[str, Any]) -> None:
    """In a file of ours times count from where the trace did; elsewhere from the first event.

    Args:
        header: The keys in the head of the file.
        native: What the native reader found, with times from its `base_ns` on; both are changed.
    """
    base_ns = native["base_ns"]
    if not isinstance(header.get(OWN), dict) or base_ns == 0:
        return
    native["base_ns"] = 0
    native["last_ns"] += base_ns
    for table, column in _TIMES:
        if table in native and column in native[table]:
            native[table][column] = _later_by(native[table][column], base_ns)
    native["windows"] = [(name, start_ns + base_ns, length) for name, start_ns, length in native["windows"]]


def _later_by(times_ns: Any, base_ns: int) -> Any:
    """Times, or a function that makes them, moved by so many nanoseconds."""
    return (lambda: times_ns() + base_ns) if callable(times_ns) else times_ns + base_ns


def stop_ns(header: Mapping[str, Any], last_ns: int) -> int:
    """When the recording ended: what a file of ours says, elsewhere the last time in it."""
    told = header.get("stop_ns") if isinstance(header.get(OWN), dict) else None
    return told if isinstance(told, int) and last_ns < told < 2**62 else last_ns


def sure_arrows(header: Mapping[str, Any], spans: Mapping[str, Any], arrows: Arrows) -> Arrows:
    """Without those arrows of a file of ours that seem to end in a span inside the backward function they lead to.

    It may begin in the same nanosecond; only the function has a sequence number.
    """
    if not isinstance(header.get(OWN), dict) or "sequence" not in spans:
        return arrows
    sure = spans["sequence"][arrows.end] >= 0
    return Arrows(arrows.category[sure], arrows.begin[sure], arrows.end[sure])


def take_own_facts(header: MutableMapping[str, Any], tables: dict[str, Any], strings: Strings) -> None:
    """Make columns of what a file of ours says beyond Kineto's words; leave other files as they are.

    Args:
        header: The keys in the head of the file; ours is taken out.
        tables: The columns of all tables, some of which are replaced.
        strings: The string table; names of modules are added.
    """
    if not isinstance(own := header.pop(OWN, None), dict):
        return
    spans = tables["spans"]
    if "own_stack" in spans and "call_texts" in own:
        # A slice shows its stack only where the slice around it has another.
        nested = _core.nest(spans["thread"], spans["start_ns"], spans["duration_ns"])
        spans["own_stack"] = spread_down(nested["parent"], nested["depth"], spans["own_stack"], -1)
    if (cycles := _cycles(own.get("cycles"))) is not None:
        tables["cycles"] = cycles
    paths = _modules(own.get("modules"), tables, strings)
    if "arguments" not in spans:
        return
    told = _Told(paths, len(tables["modules"]["class"]) if paths else 0)
    row_of = np.array([told.row(text) for text in tables["arguments"]["json"]] + [-1], np.int32)
    column = spans["arguments"]
    flags, modules = np.array([*told.flags, 0], np.uint8), np.array([*told.modules, -1], np.int32)
    if flags.any():
        spans["flags"] = spans["flags"] | flags[column]
    if paths:
        spans["own_module"] = modules[column]
    spans["arguments"] = row_of[column]
    tables["arguments"] = {"json": list(told.texts)}


class _Told:
    """The arguments of spans without what becomes columns."""

    def __init__(self, paths: dict[str, int], modules: int) -> None:
        self._paths, self._modules = paths, modules
        self.texts: dict[str, int] = {}
        self.flags: list[int] = []
        self.modules: list[int] = []

    def row(self, text: str) -> int:
        """The row of what is left of a text, -1 for nothing; what was taken out is the next of `flags` and `modules`."""
        flags, module = 0, -1
        if any(f'"{key}":' in text for key in _KEYS):
            told = json.loads(text)
            for key, flag in FLAGS.items():
                flags |= flag if told.pop(key, None) is True else 0
            path, row = told.pop(MODULE, None), told.pop(MODULE_ROW, None)
            told.pop(MODULE_CLASS, None)
            module = self._paths.get(path, -1) if isinstance(path, str) else -1
            if type(row) is int and 0 <= row < self._modules:
                module = row
            text = json.dumps(told, separators=(",", ":"), ensure_ascii=False) if told else ""
        self.flags.append(flags)
        self.modules.append(module)
        return self.texts.setdefault(text, len(self.texts)) if text else -1


def _modules(told: object, tables: dict[str, Any], strings: Strings) -> dict[str, int]:
    """Make the table `modules` of the head's; returns the row of each path, the first where several have it."""
    if not isinstance(told, dict):
        return {}
    names, classes, paths = (_texts(told.get(key)) for key in ("name", "class", "path"))
    rows = len(paths)
    parents, callers = (_rows(told.get(key), rows) for key in ("parent", "caller"))
    if parents is None or callers is None or not len(names) == len(classes) == rows:
        return {}
    tables["modules"] = {
        "parent": parents,
        "name": np.array([strings.of(name) for name in names], np.int32),
        "class": np.array([strings.of(name) for name in classes], np.int32),
        "caller": callers,
    }
    return {path: row for row, path in reversed(list(enumerate(paths)))}


def _cycles(told: object) -> dict[str, NDArray[np.int64]] | None:
    """The table `cycles` of the head's; None where it says none."""
    names = STORED["cycles"].column_names
    lists = [told.get(name) for name in names] if isinstance(told, dict) else []
    if not lists or not all(
        isinstance(values, list) and all(type(value) is int and abs(value) < 2**62 for value in values)
        for values in lists
    ):
        return None
    columns = {name: np.array(values, np.int64) for name, values in zip(names, lists, strict=True)}
    return columns if len({len(column) for column in columns.values()}) == 1 else None


def _texts(value: object) -> Sequence[str]:
    """A list of texts, empty where it is none."""
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else []


def _rows(value: object, rows: int) -> NDArray[np.int32] | None:
    """A list of so many rows of the same table, -1 for none; None where it is no such list."""
    if not isinstance(value, list) or len(value) != rows:
        return None
    if not all(type(row) is int and -1 <= row < rows for row in value):
        return None
    return np.array(value, np.int32)
