"""The spans, names and arguments that Chrome traces show as slices."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.formats.chrome.read_tracks import CATEGORIES
from kinetoscope.model.kinds import KINETO_CATEGORIES, is_call
from kinetoscope.model.nesting import nest
from kinetoscope.model.strings import parsed_json
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.device.collective_facts import (
    CALLS,
    DESCRIBED,
    Facts,
    facts_of_call,
    facts_of_description,
    spelt_by_torch,
)
from kinetoscope.tables.host.rebuilt_calls import (
    RebuiltCalls,
    ShownFrames,
    as_module_calls,
    call_names,
    order_with_calls,
    rebuilt_calls,
    stacks_of_spans,
)

Arrays = dict[str, NDArray[Any]]


# Kineto's names of collectives, where ours differ.
_NAMES = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"}


def described_arguments(trace: TraceData) -> tuple[NDArray[np.int32] | None, list[str]]:
    """Return the column `arguments` of spans and its texts, with the facts about collectives added under Kineto's keys.

    Args:
        trace: The trace.

    Returns:
        The column, None if no span has arguments, and the texts, JSON objects.
    """
    spans, texts = trace.columns("spans"), list(trace.columns("arguments")["json"])
    stored = spans["arguments"] if "arguments" in spans.given and texts else None
    collectives = trace.columns("collectives")
    if len(collectives) == 0:
        return (None if stored is None else np.ascontiguousarray(stored)), texts
    column: NDArray[np.int32] = np.full(len(spans), -1, np.int32) if stored is None else stored.copy()
    rows: dict[str, int] = {}
    shapes, strings = trace.columns("shapes"), trace.strings
    for span, facts in zip(collectives["span"].tolist(), collectives["facts"].tolist(), strict=True):
        if not 0 <= span < len(column):
            continue
        shape = int(spans["shapes"][span])
        dims, concrete = (shapes[part][shape] if shape >= 0 else "" for part in ("dims", "concrete"))
        collective = _facts(strings[int(spans["name"][span])], strings[facts], dims, concrete)
        if collective is None:
            continue
        text = _merged(texts[column[span]] if column[span] >= 0 else "", collective)
        column[span] = rows.setdefault(text, len(texts))
        if column[span] == len(texts):
            texts.append(text)
    return column, texts


def kineto_facts(facts: Facts) -> dict[str, Any]:
    """Return the known facts about a collective under Kineto's keys."""
    values: dict[str, Any] = {
        "Collective name": _NAMES.get(facts.name, facts.name),
        "dtype": spelt_by_torch(facts.dtype),
        "In msg nelems": facts.input_elements,
        "Out msg nelems": facts.output_elements,
        "In split size": facts.input_splits,
        "Out split size": facts.output_splits,
        "Group size": facts.group_size,
        "Rank": facts.group_rank,
        "Process Group Name": facts.group,
        "Process Group Description": facts.group_description,
    }
    return {key: value for key, value in values.items() if value not in (-1, "")}


def _facts(operator: str, facts: str, dims: str, concrete: str) -> dict[str, Any] | None:
    if operator in CALLS:
        return kineto_facts(facts_of_call(operator, facts, dims, concrete))
    described = facts_of_description(facts)
    if described is None:
        return None
    collective = kineto_facts(described)
    if operator == DESCRIBED:
        collective["Collective name"] = json.loads(facts)["call"]
    return collective


def _merged(source: str, facts: dict[str, Any]) -> str:
    """Merge facts into the arguments of a span; the arguments of the source file win."""
    arguments = parsed_json(source)
    return json.dumps(facts | arguments if isinstance(arguments, dict) else facts, separators=(",", ":"))


_COPIED = (
    "start_ns", "duration_ns", "name", "kind", "thread", "lane", "sequence", "forward_thread", "module", "shapes",
    "flags",
)  # fmt: skip
_OPTIONAL = ("record_function", "event_index", "external_id", "correlation", "stream")
_UNSURE = '{"Calls":"1 or more: several operators of one call look the same as several calls"}'
# Kineto's category names before torch 1.11, mapped to the current ones, the only ones that current tools know.
_FORMER_CATEGORIES = {
    name: KINETO_CATEGORIES[kind] for name, (kind, _) in CATEGORIES.items() if name[0].isupper()
}


@dataclass(frozen=True)
class ShownSpans:
    """Spans as shown in a file.

    Attributes:
        columns: The columns by the native writer's names, contiguous, sorted like spans.
        strings: The string table of the name columns.
        arguments: The texts of the column `arguments`.
        moved: The row in `columns` of each span of the trace, followed by -1 for the row -1; None if rows are unchanged.
    """

    columns: Arrays
    strings: list[str]
    arguments: list[str]
    moved: NDArray[np.int32] | None

    def rows(self, spans: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the rows in `columns` of spans of the trace; -1 stays -1."""
        rows = spans if self.moved is None else self.moved[spans]
        return np.ascontiguousarray(rows, np.int32)

    def without(self, hidden: NDArray[np.bool_]) -> ShownSpans:
        """Return the spans without some rows of `columns`; those that remain keep their numbers."""
        if not hidden.any():
            return self
        row_of = np.append(np.where(hidden, -1, np.cumsum(~hidden) - 1), -1).astype(np.int32)
        moved = row_of if self.moved is None else row_of[self.moved]
        columns = {name: np.ascontiguousarray(values[~hidden]) for name, values in self.columns.items()}
        return replace(self, columns=columns, moved=moved)


def shown_spans(trace: TraceData, shown: ShownFrames) -> ShownSpans:
    """Return the spans of a trace, with Python calls rebuilt from stacks if `with_stack` was on and none were recorded.

    Args:
        trace: The trace.
        shown: Its stacks as shown in slices.
    """
    spans = trace.columns("spans")
    columns = {name: np.ascontiguousarray(spans[name]) for name in _COPIED}
    columns["stack"] = stacks_of_spans(trace, shown)
    if trace.run_info.with_stack:
        columns["kind"], columns["name"] = as_module_calls(trace, shown, columns["kind"], columns["name"])
    for name in _OPTIONAL:
        if name in spans.given and (spans[name] >= 0).any():
            columns[name] = np.ascontiguousarray(spans[name])
    strings = list(shown.strings)
    if trace.run_info.capture_overload_names and spans["overload"].any():
        columns["name"] = _with_overloads(columns["name"], spans["overload"], strings)
    if "category" in spans.given and spans["category"].any():
        current_row = np.arange(len(strings), dtype=np.int32)
        for row, text in enumerate(shown.strings):
            if (current := _FORMER_CATEGORIES.get(text)) is not None:
                current_row[row] = len(strings)
                strings.append(current)
        columns["category"] = current_row[spans["category"]]
    if "cat" in trace.run_info.not_recorded:
        category = columns.get("category", np.zeros(len(columns["start_ns"]), np.int32))
        columns["category"] = np.where(category == 0, np.int32(-1), category)
    if "external_id" not in columns and "External id" in trace.run_info.not_recorded:
        columns["external_id"] = np.full(len(columns["start_ns"]), -1, np.int64)
    arguments, texts = described_arguments(trace)
    if arguments is not None:
        columns["arguments"] = arguments
    calls = rebuilt_calls(trace, shown)
    moved = None
    if calls is not None:
        if calls.unsure.any():
            columns.setdefault("arguments", np.full(len(spans), -1, np.int32))
            texts.append(_UNSURE)
        columns, moved = _with_calls(columns, calls, len(texts) - 1)
    if is_call(columns["kind"]).any():
        own_stack = columns["stack"] if calls is not None else trace.column("spans", "own_stack")
        columns["name"] = call_names(trace, shown, columns, own_stack, strings)
    return ShownSpans(columns, strings, texts, moved)


def _with_overloads(
    name: NDArray[np.int32], overload: NDArray[np.int32], strings: list[str]
) -> NDArray[np.int32]:
    """Names with `.overload` appended, as torch writes them with `capture_overload_names`; extends `strings`."""
    pairs, row = np.unique(np.stack([name, overload]), axis=1, return_inverse=True)
    first = len(strings)
    strings.extend(
        f"{strings[name]}.{strings[overload]}" if overload > 0 else strings[name]
        for name, overload in pairs.T.tolist()
    )
    return np.where(overload > 0, row.reshape(-1) + first, name).astype(np.int32)


def _with_calls(columns: Arrays, calls: RebuiltCalls, unsure: int) -> tuple[Arrays, NDArray[np.int32]]:
    """Insert calls into the columns and recompute lanes; return the columns and the new row of each old one."""
    nothing = np.full(len(calls.start_ns), -1, np.int32)
    zeros = np.zeros(len(calls.start_ns), np.uint8)
    added: Arrays = {
        "start_ns": calls.start_ns,
        "duration_ns": calls.duration_ns,
        "name": calls.name,
        "kind": calls.kind,
        "module": calls.module,
        "arguments": np.where(calls.unsure, np.int32(unsure), np.int32(-1)),
        "thread": calls.thread,
        "lane": nothing,
        "flags": zeros,
        "stack": calls.stack,
        "category": zeros,
    }
    order, moved = order_with_calls(columns, calls)
    merged = {
        name: np.append(values, added.get(name, nothing).astype(values.dtype))[order]
        for name, values in columns.items()
    }
    merged["lane"] = nest(merged["thread"], merged["start_ns"], merged["duration_ns"]).lane
    return merged, moved
