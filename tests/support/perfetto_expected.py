"""What a Perfetto trace must show, worked out plainly from a trace's tables."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kinetoscope.formats.chrome.slices import described_arguments, shown_spans
from kinetoscope.formats.chrome.write import CATEGORIES, DEVICE_CATEGORIES
from kinetoscope.model.schema import FLAG_ASYNC, FLAG_BEGUN_BEFORE, FLAG_UNFINISHED, SpanKind
from kinetoscope.tables.host.rebuilt_calls import rebuilt_calls, shown_stacks
from kinetoscope.trace import Trace
from tests.support.strict_json import paired

# Names that Kineto has given up for those of today.
_OF_OLD = {"Operator", "Kernel", "Memcpy", "Memset", "Runtime"}

ShownSlice = tuple[str, str, int, int, dict[str, Any]]


def expected_slices(trace: Trace) -> list[ShownSlice]:
    """Name, category, start, duration and annotations of every slice, in no order."""
    spans = {name: _plain(trace.column("spans", name)) for name in trace.columns("spans")}
    stacks = shown_stacks(trace)
    names = _names(trace, stacks)
    arguments, texts = described_arguments(trace)
    sparse = _sparse(trace)
    found = []
    for row, name in enumerate(names):
        args = _numbers(trace, spans, row) | _texts(trace, spans, row) | sparse.get(row, {})
        if stacks.of_span[row] >= 0 and spans["kind"][row] not in (SpanKind.PYTHON, SpanKind.MODULE):
            args["Call stack"] = _stack_text(trace, stacks, int(stacks.of_span[row]))
        if arguments is not None and arguments[row] >= 0:
            args = _members(texts[arguments[row]]) | args
        category = _category(trace, spans, row)
        found.append(
            (_mended(name), category, spans["start_ns"][row], spans["duration_ns"][row], _strict(args))
        )
    if rebuilt_calls(trace, stacks) is not None:
        shown = shown_spans(trace, stacks)
        own = shown.rows(np.arange(len(spans["start_ns"]), dtype=np.int32))
        columns = {name: column.tolist() for name, column in shown.columns.items()}
        for row in np.setdiff1d(np.arange(len(columns["start_ns"])), own).tolist():
            args = {}
            if "arguments" in columns and columns["arguments"][row] >= 0:
                args = _strict(_members(shown.arguments[columns["arguments"][row]]))
            if (module := columns["module"][row]) >= 0:
                modules = trace.columns("modules")
                args |= {
                    "Module": modules["path"][module],
                    "Module class": trace.strings[modules["class"][module]],
                }
            name, start, duration = (columns[column][row] for column in ("name", "start_ns", "duration_ns"))
            found.append((_mended(shown.strings[name]), "python_function", start, duration, args))
    return found


def _names(trace: Trace, stacks: Any) -> list[str]:
    """What every span is called; calls as in a Chrome trace."""
    shown = shown_spans(trace, stacks)
    rows = shown.rows(np.arange(len(trace.columns("spans")), dtype=np.int32))
    return [shown.strings[name] for name in shown.columns["name"][rows].tolist()]


def _plain(column: Any) -> list[Any]:
    return column if isinstance(column, list) else column.tolist()


def _category(trace: Trace, spans: dict[str, list[Any]], row: int) -> str:
    kind = SpanKind(spans["kind"][row])
    given = trace.strings[spans["category"][row]]
    if given == "Operator":  # of torch 1.8 to 1.10, for whatever ran on the host
        return "cpu_op"
    if given and given not in _OF_OLD:
        return given
    if spans["stream"][row] >= 0:
        return DEVICE_CATEGORIES.get(kind, CATEGORIES[kind])
    return CATEGORIES[kind]


def _numbers(trace: Trace, spans: dict[str, list[Any]], row: int) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for column, name in (
        ("external_id", "External id"), ("record_function", "Record function id"), ("sequence", "Sequence number"),
        ("correlation", "correlation"),
    ):  # fmt: skip
        args[name] = spans[column][row]
    if (thread := spans["forward_thread"][row]) >= 0:
        args["Fwd thread id"] = int(trace.column("threads", "torch_tid")[thread])
    if (stream := spans["stream"][row]) >= 0:
        streams = trace.columns("streams")
        args |= {"device": int(streams["device_index"][stream]), "stream": int(streams["number"][stream])}
    args = {name: value for name, value in args.items() if value != -1}
    for flag, name in (
        (FLAG_UNFINISHED, "Unfinished"),
        (FLAG_ASYNC, "Asynchronous"),
        (FLAG_BEGUN_BEFORE, "Begun before"),
    ):
        if spans["flags"][row] & flag:
            args[name] = True
    return args


def _texts(trace: Trace, spans: dict[str, list[Any]], row: int) -> dict[str, Any]:
    args: dict[str, Any] = {"Overload": trace.strings[spans["overload"][row]]}
    modules, shapes = trace.columns("modules"), trace.columns("shapes")
    if (shape := spans["shapes"][row]) >= 0:
        for column, name in (
            ("concrete", "Concrete Inputs"), ("types", "Input type"), ("dims", "Input Dims"), ("strides", "Input Strides"),
        ):  # fmt: skip
            args[name] = shapes[column][shape]
    if (module := spans["module"][row]) >= 0:
        args |= {"Module": modules["path"][module], "Module class": trace.strings[modules["class"][module]]}
    if (parameter := spans["parameter"][row]) >= 0:
        parameters = trace.columns("parameters")
        owner, name = int(parameters["module"][parameter]), trace.strings[parameters["name"][parameter]]
        args["Parameter"] = f"{modules['path'][owner]}.{name}" if owner >= 0 else name
    return {name: value for name, value in args.items() if value != ""}


def _members(text: str) -> dict[str, Any]:
    """The members of a JSON object as annotations: what is nested stays the JSON that it is, and nothing is `null`."""
    told = json.loads(text)
    separators = (", ", ": ") if json.dumps(told) == text else (",", ":")
    return {
        key: "null"
        if value is None
        else json.dumps(value, separators=separators)
        if isinstance(value, list | dict)
        else value
        for key, value in told.items()
    }


def _sparse(trace: Trace) -> dict[int, dict[str, Any]]:
    """What further tables say of spans, by their rows."""
    said: dict[int, dict[str, Any]] = {}
    named = {
        "kernels": {
            "registers": "registers per thread", "shared_bytes": "shared memory", "blocks_per_sm": "blocks per SM",
            "warps_per_sm": "warps per SM", "occupancy_percent": "est. achieved occupancy %",
            "context": "context", "graph": "graph id", "graph_node": "graph node id",
        },
        "copies": {"bytes": "bytes", "context": "context", "graph": "graph id", "graph_node": "graph node id"},
    }  # fmt: skip
    for table, names in named.items():
        rows = trace.columns(table)
        for place, span in enumerate(rows["span"].tolist()):
            args = said.setdefault(span, {})
            args |= {
                name: rows[column][place].item()
                for column, name in names.items()
                if rows[column][place] != -1
            }
            if table == "kernels":
                for of in ("grid", "block"):
                    sizes = [int(rows[f"{of}_{axis}"][place]) for axis in "xyz"]
                    if max(sizes) >= 0:
                        args[of] = json.dumps(sizes, separators=(",", ":"))
    return said


def _stack_text(trace: Trace, stacks: Any, row: int) -> str:
    """Innermost first, as slices show it."""
    frames, texts = trace.columns("frames"), []
    while row >= 0:
        frame = trace.column("stacks", "frame")[row]
        file, function = stacks.strings[stacks.file[frame]], stacks.strings[frames["function"][frame]]
        texts.append(f"{file}({frames['line'][frame]}): {function}")
        row = int(stacks.parent[row])
    return ";".join(texts)


def _mended(text: str) -> str:
    return "".join("\ufffd" if 0xD800 <= ord(letter) < 0xE000 else letter for letter in paired(text))


def _strict(args: dict[str, Any]) -> dict[str, Any]:
    return {
        _mended(name): _mended(value) if isinstance(value, str) else value for name, value in args.items()
    }
