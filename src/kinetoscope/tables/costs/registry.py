"""Formulas that programs register for their own operators and kernels."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.costs.call import UNKNOWN, Cost, OperatorCall

UserFormula = Callable[["OperatorCall"], "int | tuple[int, int | None] | None"]
Decorated = TypeVar("Decorated", bound=UserFormula)

_LARGEST = 2**63 - 1
_lock = threading.Lock()
_exact: dict[str, _Registered] = {}
_prefixes: dict[str, _Registered] = {}
# Traces whose columns were computed with the formulas known so far.
_computed: WeakSet[TraceData] = WeakSet()


class _Registered:
    """A user's formula, and whether its failure was already reported."""

    def __init__(self, name: str, formula: UserFormula) -> None:
        self.name = name
        self.formula = formula
        self.reported = False

    def __call__(self, call: OperatorCall) -> Cost:
        """The cost of a call; a formula that fails costs one warning and leaves the cost unknown."""
        try:
            return _checked(self.formula(call))
        except Exception as error:  # noqa: BLE001  (anything a user's function may raise)
            if not self.reported:
                self.reported = True
                warnings.warn(
                    f"the formula registered for {self.name!r} failed for {call!r}: {type(error).__name__}: {error}; "
                    "the cost of such calls is unknown. It must return a number of operations of 0 or more, a pair of "
                    "operations and bytes, or None",
                    stacklevel=2,
                )
            return UNKNOWN


def register_flops(name: str, *, prefix: bool = False) -> Callable[[Decorated], Decorated]:
    """Register a formula for the cost of a custom operator or of a generated kernel, as a decorator.

    The formula is called once for each distinct combination of inputs with an `OperatorCall`: its `shapes`, `dtypes`
    and `values` are lists with one entry an argument. It returns the floating-point operations of the call, or a pair of
    operations and bytes moved, or None if unknown. It replaces a built-in formula of the same operator, and operators
    inside are then not counted. Device kernels have no arguments in a trace.

    Traces opened later and those already open use it. A formula that raises, or returns an invalid cost, causes one
    warning, and the cost of those calls is unknown.

    Args:
        name: The name of the operator or kernel as tables show it, such as `mylib::attention` or `triton_poi_fused_0`.
        prefix: Use the formula for every name that begins with `name`. An exact name takes precedence, then the longest prefix.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        ArgumentError: `name` is not a string or is empty, or the decorated object is not callable.
    """
    known: object = name
    if not isinstance(known, str) or not known:
        raise ArgumentError(
            f"register_flops(name={name!r}): pass the name of an operator or kernel, such as 'mylib::attention'"
        )

    def decorate(formula: Decorated) -> Decorated:
        if not callable(formula):
            raise ArgumentError(
                f"register_flops({name!r}) got {formula!r}, which is not callable: "
                "decorate a function that takes an OperatorCall"
            )
        with _lock:
            (_prefixes if prefix else _exact)[name] = _Registered(name, formula)
        _forget_computed()
        return formula

    return decorate


def unregister_flops(name: str) -> bool:
    """Remove the formulas registered for a name or prefix.

    Args:
        name: The name that was passed to `register_flops`.

    Returns:
        Whether there was a formula.
    """
    with _lock:
        removed = [formulas.pop(name, None) for formulas in (_exact, _prefixes)]
    _forget_computed()
    return any(formula is not None for formula in removed)


def registered(name: str) -> _Registered | None:
    """The formula that a program registered for this name, the exact one first, then the longest prefix."""
    if name in _exact or not _prefixes:
        return _exact.get(name)
    fitting = [prefix for prefix in tuple(_prefixes) if name.startswith(prefix)]
    return _prefixes.get(max(fitting, key=len, default=""))


def any_registered() -> bool:
    """Whether any formula was registered."""
    return bool(_exact or _prefixes)


def note_computed(trace: TraceData) -> None:
    """Remember that columns of this trace depend on the formulas registered so far."""
    with _lock:
        _computed.add(trace)


def _forget_computed() -> None:
    """Let every open trace compute its costs again."""
    with _lock:
        traces = list(_computed)
        _computed.clear()
    for trace in traces:
        trace.forget("spans", ("flops", "bytes_moved"))


def _checked(result: object) -> Cost:
    """A user's result as a cost, or an error that says what is wrong with it."""
    flops, size = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    return Cost(_count(flops), _count(size))


def _count(value: object) -> int | None:
    """A number of operations or bytes, or None."""
    if value is None:
        return None
    integer = (
        int(value) if isinstance(value, (int, float, np.integer)) and not isinstance(value, bool) else None
    )
    if integer is None or integer != value:
        raise ValueError(f"it returned {value!r}, which is not an integer")
    if not 0 <= integer <= _LARGEST:
        raise ValueError(f"it returned {value!r}, which is below 0 or above 2**63 - 1")
    return integer
