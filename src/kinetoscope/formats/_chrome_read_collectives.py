"""What files of torch say of calls between ranks, in the words of the table `collectives`.

torch writes it among the arguments of `record_param_comms` and, in newer releases, of the kernels that carried the call
out: name, group, sizes and type of elements, and the other rank.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._collective_facts import type_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kinetoscope.formats._chrome_read_calls import Strings

_MARK = '"Collective name"'
_TEXTS = {
    "call": "Collective name",
    "group": "Process Group Name",
    "description": "Process Group Description",
    "type": "dtype",
    "ranks": "Process Group Ranks",
}
_NUMBERS = {
    "rank": "Rank",
    "size": "Group size",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "sequence": "Seq",
}
_LISTS = {"in_splits": "In split size", "out_splits": "Out split size"}
_PEERS = ("Dst Rank", "Src Rank")


def facts_of_arguments(texts: Sequence[str], strings: Strings) -> NDArray[np.int32] | None:
    """The row of strings with the facts in each text of arguments, -1 without and for none, the last entry.

    Args:
        texts: What the file said of its spans, as JSON.
        strings: The string table; the facts are added to it.

    Returns:
        The rows; None where no text holds any.
    """
    facts = np.full(len(texts) + 1, -1, np.int32)
    for row, text in enumerate(texts):
        if _MARK in text and (told := _facts(text)):
            facts[row] = strings.of(json.dumps(told))
    return facts if (facts >= 0).any() else None


def read_collectives(arguments: NDArray[np.int32], facts: NDArray[np.int32]) -> dict[str, NDArray[np.int32]]:
    """The table `collectives`, from what `facts_of_arguments` found and the row of arguments of each span."""
    spans = np.flatnonzero(facts[arguments] >= 0)
    return {"span": spans.astype(np.int32), "facts": facts[arguments[spans]]}


def _facts(text: str) -> dict[str, Any]:
    """The facts among the arguments of a span, in the words that a recording has for them."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, dict) or not isinstance(told.get("Collective name"), str):
        return {}
    facts: dict[str, Any] = {
        name: told[key] for name, key in _TEXTS.items() if isinstance(told.get(key), str)
    }
    facts |= {name: told[key] for name, key in _NUMBERS.items() if type(told.get(key)) is int}
    if (item_bytes := type_named(facts.get("type", ""))[1]) > 0:
        facts["item_bytes"] = item_bytes
    for name, key in _LISTS.items():
        if values := _list(told.get(key)):
            facts[name] = values
    for key in _PEERS:
        if type(told.get(key)) is int:
            facts["peer"] = told[key]
    return facts


def _list(value: object) -> list[Any]:
    """A list, which torch writes as a text, cut in the middle where it is long."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    return value if isinstance(value, list) else []
