"""What a trace knows of calls between ranks, under the keys with which Kineto describes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._collective_facts import (
    CALLS,
    DESCRIBED,
    Facts,
    facts_of_call,
    facts_of_description,
    spelt_by_torch,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

# What we call them -> what the backends that Kineto asks call them.
_NAMES = {"all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"}


def described_arguments(trace: Trace) -> tuple[NDArray[np.int32] | None, list[str]]:
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
