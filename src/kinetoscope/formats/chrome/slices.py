"""The columns of everything that a Chrome trace shows as slices."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.kinds import is_call
from kinetoscope.model.nesting import nest
from kinetoscope.tables.device.collectives import (
    CALLS,
    DESCRIBED,
    Facts,
    facts_of_call,
    facts_of_description,
    spelt_by_torch,
)
from kinetoscope.tables.host.rebuilt_calls import RebuiltCalls, call_names, order_with_calls, rebuilt_calls

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.host.rebuilt_calls import ShownStacks

    Arrays = dict[str, NDArray[Any]]


# What a trace knows of calls between ranks, under the keys with which Kineto describes them.

# What we call them -> what the backends that Kineto asks call them.
_NAMES = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"}


def described_arguments(trace: TraceData) -> tuple[NDArray[np.int32] | None, list[str]]:
    """The column `arguments` of spans and the texts it points into, with what is known of calls between ranks.

    Args:
        trace: The trace.

    Returns:
        The column, or None where no span has arguments, and the texts as JSON objects.
    """
    spans, texts = trace.columns("spans"), list(trace.columns("arguments")["json"])
    known = spans["arguments"] if "arguments" in spans.given and texts else None
    noted = trace.columns("collectives")
    if len(noted) == 0:
        return (None if known is None else np.ascontiguousarray(known)), texts
    column: NDArray[np.int32] = np.full(len(spans), -1, np.int32) if known is None else known.copy()
    rows: dict[str, int] = {}
    shapes, strings = trace.columns("shapes"), trace.strings
    for span, facts in zip(noted["span"].tolist(), noted["facts"].tolist(), strict=True):
        if not 0 <= span < len(column):
            continue
        shape = int(spans["shapes"][span])
        dims, concrete = (shapes[part][shape] if shape >= 0 else "" for part in ("dims", "concrete"))
        found = _facts(strings[int(spans["name"][span])], strings[facts], dims, concrete)
        if found is None:
            continue
        text = _merged(texts[column[span]] if column[span] >= 0 else "", found)
        column[span] = rows.setdefault(text, len(texts))
        if column[span] == len(texts):
            texts.append(text)
    return column, texts


def kineto_facts(facts: Facts) -> dict[str, Any]:
    """The keys and values with which Kineto describes a call between ranks; only those that are known."""
    told: dict[str, Any] = {
        "Collective name": _NAMES.get(facts.name, facts.name),
        "dtype": spelt_by_torch(facts.type),
        "In msg nelems": facts.in_elements,
        "Out msg nelems": facts.out_elements,
        "In split size": facts.in_splits,
        "Out split size": facts.out_splits,
        "Group size": facts.size,
        "Rank": facts.rank,
        "Process Group Name": facts.group,
        "Process Group Description": facts.description,
    }
    return {key: value for key, value in told.items() if value not in (-1, "")}


def _facts(operator: str, noted: str, dims: str, concrete: str) -> dict[str, Any] | None:
    """What is known of the call that an operator made; None if it made none."""
    if operator in CALLS:
        return kineto_facts(facts_of_call(operator, noted, dims, concrete))
    described = facts_of_description(noted)
    if described is None:
        return None
    found = kineto_facts(described)
    if operator == DESCRIBED:
        found["Collective name"] = json.loads(noted)["call"]
    return found


def _merged(source: str, facts: dict[str, Any]) -> str:
    """What the source said of a span, and the facts that it did not say."""
    try:
        told = json.loads(source) if source else {}
    except ValueError:
        told = {}
    return json.dumps(facts | told if isinstance(told, dict) else facts, separators=(",", ":"))


_AS_THEY_ARE = (
    "start_ns",
    "duration_ns",
    "name",
    "kind",
    "thread",
    "lane",
    "sequence",
    "forward_thread",
    "module",
    "shapes",
    "flags",
)
OVERLOADS = "capture_overload_names"
"""The key of a trace's metadata that says that names shall show the overload."""
_WHERE_KNOWN = ("record_function", "external_id", "correlation", "stream")
_UNSURE = '{"Calls":"1 or more: the operators do not tell a loop in this call from one around it"}'
# What Kineto called these before torch 1.11; tools of today know the names of today only.
_FORMER_CATEGORIES = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
    "Driver": "cuda_driver",
}


@dataclass(frozen=True)
class ShownSpans:
    """Spans as a file shows them.

    Attributes:
        columns: The columns by the native writer's names, contiguous, sorted as spans are.
        strings: What the name columns point into.
        arguments: What the column `arguments` points into.
        moved: The row of each span of the trace in the columns, and at the end -1 for the row -1; None where they are
            the same.
    """

    columns: Arrays
    strings: list[str]
    arguments: list[str]
    moved: NDArray[np.int32] | None

    def rows(self, spans: NDArray[np.int32]) -> NDArray[np.int32]:
        """The rows in `columns` of spans of the trace; -1 stays -1."""
        found = spans if self.moved is None else self.moved[spans]
        return np.ascontiguousarray(found, np.int32)


def shown_spans(trace: TraceData, shown: ShownStacks) -> ShownSpans:
    """The spans of a trace, with calls rebuilt where they were asked for and not recorded.

    Args:
        trace: The trace.
        shown: Its stacks as slices show them.
    """
    spans = trace.columns("spans")
    columns = {name: np.ascontiguousarray(spans[name]) for name in _AS_THEY_ARE}
    columns["stack"] = shown.of_span
    for name in _WHERE_KNOWN:
        if name in spans.given and (spans[name] >= 0).any():
            columns[name] = np.ascontiguousarray(spans[name])
    strings = list(shown.strings)
    if trace.run_info.capture_overload_names and spans["overload"].any():
        columns["name"] = _with_overloads(columns["name"], spans["overload"], strings)
    if "category" in spans.given and spans["category"].any():
        of_today = np.arange(len(strings), dtype=np.int32)
        for row, text in enumerate(shown.strings):
            if (today := _FORMER_CATEGORIES.get(text)) is not None:
                of_today[row] = len(strings)
                strings.append(today)
        columns["category"] = of_today[spans["category"]]
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
    """Names with the overload behind a point, as torch writes operators where overloads were asked for; extends `strings`."""
    pairs, row = np.unique(np.stack([name, overload]), axis=1, return_inverse=True)
    first = len(strings)
    strings.extend(
        f"{strings[one]}.{strings[other]}" if other > 0 else strings[one] for one, other in pairs.T.tolist()
    )
    return np.where(overload > 0, row.reshape(-1) + first, name).astype(np.int32)


def _with_calls(columns: Arrays, calls: RebuiltCalls, unsure: int) -> tuple[Arrays, NDArray[np.int32]]:
    """The same columns with calls in their places, and where each row went; lanes are those of all together."""
    count, more = len(columns["start_ns"]), len(calls.start_ns)
    nothing = np.full(more, -1, np.int32)
    zeros = np.zeros(more, np.uint8)
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
    order = order_with_calls(columns, calls)
    merged = {
        name: np.append(values, added.get(name, nothing).astype(values.dtype))[order]
        for name, values in columns.items()
    }
    moved = np.full(count + more + 1, -1, np.int32)
    moved[order] = np.arange(count + more, dtype=np.int32)
    merged["lane"] = nest(merged["thread"], merged["start_ns"], merged["duration_ns"]).lane
    return merged, np.append(moved[:count], np.int32(-1))
