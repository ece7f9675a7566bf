"""The cost of each distinct call of a trace: one evaluation for each name and combination of inputs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope import _core
from kinetoscope.tables.costs import _registry
from kinetoscope.tables.costs._call import NO_INPUTS, UNKNOWN, Cost, Inputs, OperatorCall, parse_inputs
from kinetoscope.tables.costs._known import is_generated, is_made_of_others, is_range, rule_of
from kinetoscope.tables.costs._rule import free
from kinetoscope.trace._schema import SpanKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.trace import Trace

_LARGEST = 2**63 - 1
# Where the metadata of a file keeps what formulas of programs gave.
SAVED_KEY = "registered_costs"
_parse = lru_cache(maxsize=1 << 16)(parse_inputs)


class Standing(IntEnum):
    """What is known about the cost of a call.

    `FIRM`: a formula that counts. `DEFERRED`: a formula that counts where nothing inside accounts for it. `OTHERS`: an
    operator that is made of others, which are recorded and count themselves. `RANGE`: no operator at all, such as a
    marked range. `NO_FORMULA`, `NO_INPUTS`: unknown, for want of a formula or of its inputs.
    """

    FIRM = 0
    DEFERRED = 1
    OTHERS = 2
    RANGE = 3
    NO_FORMULA = 4
    NO_INPUTS = 5


@dataclass(frozen=True)
class DistinctCalls:
    """The distinct calls of a trace.

    Attributes:
        of_span: For each span its row here.
        first: For each row its first span.
        standing: What is known of its cost, a `Standing`.
        flops: Operations of one call, 0 where not known.
        bytes: Bytes moved by one call, -1 where not known.
        family: The family of its formula, empty without.
        dtype: The element type it computes in, empty where not known.
        by_user: Whether the formula is one that the program registered.
    """

    of_span: NDArray[np.int32]
    first: NDArray[np.int32]
    standing: NDArray[np.uint8]
    flops: NDArray[np.int64]
    bytes: NDArray[np.int64]
    family: list[str]
    dtype: list[str]
    by_user: NDArray[np.bool_]


def input_texts(trace: Trace, shapes: int) -> tuple[str, str, str]:
    """The three texts of a row of `shapes`, empty for none."""
    dims, types, concrete = (trace.column("shapes", part) for part in ("dims", "types", "concrete"))
    return (dims[shapes], types[shapes], concrete[shapes]) if 0 <= shapes < len(dims) else ("", "", "")


def parsed_inputs(trace: Trace, shapes: int) -> Inputs | None:
    """The inputs that a row of `shapes` holds, or None where they cannot be read."""
    return _parse(*input_texts(trace, shapes))


def saved_costs(kept: object) -> dict[tuple[str, str, str, str], Cost]:
    """What formulas of programs gave when a file was written, by name and inputs; what is not as it must be is left out."""
    found = {}
    for entry in kept if isinstance(kept, list) else []:
        if isinstance(entry, list) and len(entry) == 6 and all(isinstance(text, str) for text in entry[:4]):
            flops, size = entry[4:]
            if type(flops) is int and type(size) is int:
                found[entry[0], entry[1], entry[2], entry[3]] = Cost(flops, None if size < 0 else size)
    return found


def costs_to_save(trace: Trace, calls: DistinctCalls) -> list[list[object]]:
    """What formulas of programs gave for the distinct calls of a trace, in the form that `saved_costs` reads."""
    spans = trace.columns("spans")
    found: list[list[object]] = []
    for row in np.flatnonzero(calls.by_user & (calls.standing == Standing.FIRM)).tolist():
        first = calls.first[row]
        texts = input_texts(trace, int(spans["shapes"][first]))
        found.append(
            [trace.strings[spans["name"][first]], *texts, int(calls.flops[row]), int(calls.bytes[row])]
        )
    return found


def distinct_calls(trace: Trace) -> DistinctCalls:
    """Evaluate the cost of every distinct call of a trace."""
    spans = trace.columns("spans")
    of_span, first = _core.group(
        [spans["name"], spans["shapes"], spans["overload"], spans["kind"].astype(np.int32)]
    )
    count = len(first)
    found = DistinctCalls(
        of_span,
        first,
        np.zeros(count, np.uint8),
        np.zeros(count, np.int64),
        np.full(count, -1, np.int64),
        [""] * count,
        [""] * count,
        np.zeros(count, bool),
    )
    saved = saved_costs(trace.info.get(SAVED_KEY))
    keys = (spans[part][first].tolist() for part in ("name", "shapes", "overload", "kind"))
    for row, (name, shapes, overload, kind) in enumerate(zip(*keys, strict=True)):
        call = OperatorCall(
            trace.strings[name], *(parsed_inputs(trace, shapes) or NO_INPUTS), trace.strings[overload]
        )
        known = saved.get((call.name, *input_texts(trace, shapes))) if saved else None
        _evaluate(found, row, call, kind, known)
    return found


def _evaluate(found: DistinctCalls, row: int, call: OperatorCall, kind: int, saved: Cost | None) -> None:
    """Fill in one row: by a formula of the program, by what one gave when the file was written, or by a built-in one."""
    user = _registry.registered(call.name) if _registry.any_registered() else None
    if user is not None or saved is not None:
        found.by_user[row] = True
        found.family[row] = "registered"
        _settle(found, row, Standing.FIRM, saved if user is None else user(call), call)  # type: ignore[arg-type]
        return
    if kind != SpanKind.OPERATOR:
        if kind == SpanKind.BACKWARD:
            found.standing[row] = Standing.NO_FORMULA if is_generated(call.name) else Standing.OTHERS
        else:
            found.standing[row] = Standing.RANGE
        return
    rule = rule_of(call.name)
    if rule is None:
        if is_made_of_others(call.name):
            found.standing[row] = Standing.OTHERS
        else:
            found.standing[row] = Standing.RANGE if is_range(call.name) else Standing.NO_FORMULA
        return
    found.family[row] = rule.family
    standing = Standing.DEFERRED if rule.deferred else Standing.FIRM
    try:
        cost = rule.formula(call)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # Inputs that are not as the operator takes them: of another release, damaged, or made by hand.
        cost = UNKNOWN
    if not call.has_sizes() and rule.formula is not free:
        # Formulas add up the tensors there are: of none they make a scalar, or nothing.
        cost = Cost(0, None) if cost.flops == 0 else UNKNOWN
    _settle(found, row, standing, cost, call)


def _settle(found: DistinctCalls, row: int, standing: Standing, cost: Cost, call: OperatorCall) -> None:
    """Keep a cost, or that there is none."""
    flops, size = cost
    # Scalars of a damaged trace can be of any type, and so can what is made of them.
    if type(flops) is not int or not 0 <= flops <= _LARGEST:
        found.standing[row] = Standing.NO_INPUTS
        return
    found.standing[row] = standing
    found.flops[row] = flops
    found.bytes[row] = size if type(size) is int and 0 <= size <= _LARGEST else -1
    found.dtype[row] = next((dtype for dtype in call.dtypes if dtype is not None), "")
