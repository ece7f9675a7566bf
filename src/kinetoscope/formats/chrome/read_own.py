"""Restore the facts that files of our own have beside Kineto's: modules, flags, exact times and cycles.

Files that Kinetoscope wrote have the module and the flags of a span among its arguments, so that viewers show them. Here
they become columns again. The header of such a file has the modules, see `kinetoscope.formats.chrome.write`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.formats.chrome.read_links import (
    FlowArrows,
)
from kinetoscope.formats.chrome.read_tracks import (
    made,
)
from kinetoscope.model.nesting import nest, spread_down
from kinetoscope.model.schema import (
    FLAG_ASYNC,
    FLAG_BEGUN_BEFORE,
    FLAG_UNFINISHED,
    STORED,
)
from kinetoscope.model.strings import StringTable

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from numpy.typing import NDArray

    Tables = dict[str, dict[str, Any]]
    Native = dict[str, Any]


OWN = "kinetoscope"
"""The header key that marks a file as written by Kinetoscope."""
LIST_HEAD = "trace"
"""The name of the first event of a bare list of events that Kinetoscope wrote."""
FLAGS = {"Unfinished": FLAG_UNFINISHED, "Begun before": FLAG_BEGUN_BEFORE, "Asynchronous": FLAG_ASYNC}
MODULE, MODULE_CLASS, MODULE_ROW = "Module", "Module class", "Module row"
_TIMES = (("spans", "start_ns"), ("allocations", "time_ns"), ("counters", "time_ns"), ("flows", "time_ns"))
_KEYS = (*FLAGS, MODULE, MODULE_CLASS, MODULE_ROW)


def header_of_list(metadata: Sequence[tuple[str, int, int, str, str, str]]) -> dict[str, Any]:
    """Return the header of a bare list of events that Kinetoscope wrote, stored in its first event; else empty.

    Args:
        metadata: The native reader's metadata events.
    """
    for event_name, _, _, text, _, _ in metadata[:1]:
        if event_name == LIST_HEAD and f'"{OWN}"' in text:
            try:
                header = json.loads(text, parse_constant=str)
            except (ValueError, RecursionError):
                return {}
            return header if isinstance(header, dict) and isinstance(header.get(OWN), dict) else {}
    return {}


def restore_own_times(header: Mapping[str, Any], native: MutableMapping[str, Any]) -> None:
    """In a file that Kinetoscope wrote, make times relative to the start of the trace instead of the first event.

    Args:
        header: The header of the file.
        native: The native reader's result, with times relative to its `base_ns`; changed in place.
    """
    base_ns = native["base_ns"]
    if not isinstance(header.get(OWN), dict) or base_ns == 0:
        return
    native["base_ns"] = 0
    native["last_ns"] += base_ns
    for table, column in _TIMES:
        if table in native and column in native[table]:
            native[table][column] = _later_by(native[table][column], base_ns)
    native["windows"] = [(name, start_ns + base_ns, *more) for name, start_ns, *more in native["windows"]]


def _later_by(times_ns: Any, base_ns: int) -> Any:
    """Add `base_ns` to times, or to the times that a function returns."""
    return (lambda: times_ns() + base_ns) if callable(times_ns) else times_ns + base_ns


def stop_ns(header: Mapping[str, Any], last_ns: int) -> int:
    """Return the end of the recording: from the header of a file that Kinetoscope wrote, else the file's last time."""
    stop_ns = header.get("stop_ns") if isinstance(header.get(OWN), dict) else None
    return stop_ns if isinstance(stop_ns, int) and last_ns < stop_ns < 2**62 else last_ns


def drop_inner_arrows(header: Mapping[str, Any], spans: Mapping[str, Any], arrows: FlowArrows) -> FlowArrows:
    """Drop arrows of a file that Kinetoscope wrote that were matched to a span inside the backward function.

    Such a span can start in the same nanosecond as the function, but only the function has a sequence number.
    """
    if not isinstance(header.get(OWN), dict) or "sequence" not in spans:
        return arrows
    sure = spans["sequence"][arrows.end] >= 0
    return FlowArrows(arrows.category[sure], arrows.begin[sure], arrows.end[sure])


def restore_own_columns(
    header: MutableMapping[str, Any], tables: dict[str, Any], strings: StringTable
) -> None:
    """Convert the additional facts in a file that Kinetoscope wrote to columns; do nothing for other files.

    Args:
        header: The header of the file; Kinetoscope's own key is removed.
        tables: The columns of all tables; changed in place.
        strings: The string table; names of modules are added.
    """
    if not isinstance(file_facts := header.pop(OWN, None), dict):
        return
    spans = tables["spans"]
    if "own_stack" in spans and "call_texts" in file_facts:
        # A slice has a stack only if it differs from its parent's.
        nested = nest(spans["thread"], spans["start_ns"], spans["duration_ns"])
        spans["own_stack"] = spread_down(nested.parent, nested.depth, spans["own_stack"], -1)
    if (cycles := _cycles(file_facts.get("cycles"))) is not None:
        tables["cycles"] = cycles
    paths = _modules(file_facts.get("modules"), tables, strings)
    if "arguments" not in spans:
        return
    own_arguments = _OwnArguments(paths, len(tables["modules"]["class"]) if paths else 0)
    row_of = np.array(
        [own_arguments.row(text) for text in made(tables["arguments"]["json"])] + [-1], np.int32
    )
    column = spans["arguments"]
    flags = np.array([*own_arguments.flags, 0], np.uint8)
    modules = np.array([*own_arguments.modules, -1], np.int32)
    if flags.any():
        spans["flags"] = spans["flags"] | flags[column]
    if paths:
        spans["own_module"] = modules[column]
    spans["arguments"] = row_of[column]
    tables["arguments"] = {"json": list(own_arguments.texts)}


class _OwnArguments:
    """Splits the arguments of spans into those that become columns and the rest."""

    def __init__(self, paths: dict[str, int], module_count: int) -> None:
        self._paths, self._module_count = paths, module_count
        self.texts: dict[str, int] = {}
        self.flags: list[int] = []
        self.modules: list[int] = []

    def row(self, text: str) -> int:
        """Return the row of the remaining arguments, -1 if none remain; append to `flags` and `modules`."""
        flags, module = 0, -1
        if any(f'"{key}":' in text for key in _KEYS):
            arguments = json.loads(text)
            for key, flag in FLAGS.items():
                flags |= flag if arguments.pop(key, None) is True else 0
            path, row = arguments.pop(MODULE, None), arguments.pop(MODULE_ROW, None)
            arguments.pop(MODULE_CLASS, None)
            module = self._paths.get(path, -1) if isinstance(path, str) else -1
            if type(row) is int and 0 <= row < self._module_count:
                module = row
            text = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False) if arguments else ""
        self.flags.append(flags)
        self.modules.append(module)
        return self.texts.setdefault(text, len(self.texts)) if text else -1


def _modules(listed: object, tables: dict[str, Any], strings: StringTable) -> dict[str, int]:
    """Build the table `modules` from the header; return the row of each path, the first if it occurs repeatedly."""
    if not isinstance(listed, dict):
        return {}
    names, classes, paths = (_texts(listed.get(key)) for key in ("name", "class", "path"))
    rows = len(paths)
    parents, callers = (_own_rows(listed.get(key), rows) for key in ("parent", "caller"))
    if parents is None or callers is None or not len(names) == len(classes) == rows:
        return {}
    tables["modules"] = {
        "parent": parents,
        "name": np.array([strings.row(name) for name in names], np.int32),
        "class": np.array([strings.row(name) for name in classes], np.int32),
        "caller": callers,
    }
    return {path: row for row, path in reversed(list(enumerate(paths)))}


def _cycles(listed: object) -> dict[str, NDArray[np.int64]] | None:
    """Build the table `cycles` from the header; return None if that has none."""
    names = STORED["cycles"].column_names
    lists = [listed.get(name) for name in names] if isinstance(listed, dict) else []
    if not lists or not all(
        isinstance(values, list) and all(type(value) is int and abs(value) < 2**62 for value in values)
        for values in lists
    ):
        return None
    columns = {name: np.array(values, np.int64) for name, values in zip(names, lists, strict=True)}
    return columns if len({len(column) for column in columns.values()}) == 1 else None


def cycles_of_processes(
    header: Mapping[str, Any], pids: Sequence[int]
) -> dict[str, NDArray[np.int64]] | None:
    """Return the table `cycles` of a file of several processes that Kinetoscope wrote; None for other files.

    Args:
        header: The header of the file.
        pids: The number of each process in the file.
    """
    file_facts = header.get(OWN)
    listed = file_facts.get("cycles") if isinstance(file_facts, dict) else None
    cycles = _cycles(listed)
    whose = listed.get("pid") if isinstance(listed, dict) else None
    if cycles is None or not isinstance(whose, list) or len(whose) != len(cycles["number"]):
        return None
    row_of = {pid: row for row, pid in enumerate(pids)}
    rows = [row_of.get(pid, -1) if type(pid) is int else -1 for pid in whose]
    return cycles | {"process_row": np.array(rows, np.int64)}


def _texts(value: object) -> Sequence[str]:
    """Return a list of strings, empty for anything else."""
    return value if isinstance(value, list) and all(isinstance(text, str) for text in value) else []


def _own_rows(value: object, rows: int) -> NDArray[np.int32] | None:
    """Return a list of `rows` row numbers of the same table (-1 for none), None for anything else."""
    if not isinstance(value, list) or len(value) != rows:
        return None
    if not all(type(row) is int and -1 <= row < rows for row in value):
        return None
    return np.array(value, np.int32)
