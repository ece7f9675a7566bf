"""Attributes of single events and of sums of events, and the texts of their numbers as torch.profiler writes them."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Generic, SupportsIndex, TypeVar, overload

TIME_UNITS = {"s": 1_000_000.0, "ms": 1000.0, "us": 1.0}
FLOPS_UNITS = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")
T = TypeVar("T")


def passes_as(thing: object, name: str) -> Any:
    """The class that `isinstance` finds besides the real one: torch's of this name, if the program has loaded it."""
    torchs = sys.modules.get("torch.autograd.profiler_util")
    return type(thing) if torchs is None else getattr(torchs, name)


class Computed(Generic[T]):
    """An attribute that is computed once for an event, on demand, and can be set, as torch's can."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Take the function that computes the value, and its docstring."""
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember where to keep it."""
        self.name = name

    @overload
    def __get__(self, event: None, owner: type) -> Computed[T]: ...
    @overload
    def __get__(self, event: object, owner: type | None = None) -> T: ...
    def __get__(self, event: Any, owner: type | None = None) -> T | Computed[T]:
        """The value, which is the event's own from now on."""
        if event is None:
            return self
        value = event.own[self.name] = self.compute(event)
        return value


class _Stores:
    """What is set on an object, in Python's own dictionary of it."""

    __slots__ = ("__dict__", "__weakref__")


# Not `event.__dict__`, which has torch's attributes too.
own_of: Callable[[Any], dict[str, Any]] = vars(_Stores)["__dict__"].__get__


def _text_of(time: str) -> property:
    """The attribute that is one of the times with its unit."""
    return property(lambda event: time_text(getattr(event, time)), doc=f"`{time}` with its unit.")


def _old_name_of(name: str) -> property:
    """The attribute that is another one under torch's old name, with torch's warning."""
    old = name.replace("device", "cuda")

    def value(event: object) -> Any:
        warnings.warn(f"`{old}` is deprecated; use `{name}`.", FutureWarning, stacklevel=2)
        return getattr(event, name)

    return property(value, doc=f"Old name of `{name}`.")


def _average_of(time: str) -> property:
    """The attribute that is one of the times divided by the number of calls."""
    return property(
        lambda event: getattr(event, time) / event.count if event.count else 0.0,
        doc=f"`{time}` of one call, in microseconds.",
    )


class EventAttributes(_Stores):
    """What single events and sums of events share: attributes that are computed on demand until they are set, averages and texts."""

    __slots__ = ()

    # torch's name of the class, and the attributes that it stores.
    _TORCHS_CLASS: ClassVar[str]
    _OF_TORCHS: ClassVar[tuple[str, ...]]

    node_id = -1
    is_remote = False
    is_legacy = False
    self_cpu_percent: Any = -1
    total_cpu_percent: Any = -1
    total_device_percent: Any = -1

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """`isinstance` finds torch's class as well."""
        return passes_as(self, self._TORCHS_CLASS)

    @property
    def own(self) -> dict[str, Any]:
        """What was set on this object, and the lists that were handed out."""
        return own_of(self)

    def _is_set(self, name: str) -> bool:
        recorded = getattr(type(self), name)
        computed = recorded.compute(self) if isinstance(recorded, Computed) else recorded
        return bool(self.own[name] != computed)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The values of all attributes that torch's event stores, for `vars()`, and what was set on this one."""
        attributes = self.own
        for name in self._OF_TORCHS:
            if name not in attributes:
                attributes[name] = getattr(self, name)
        return attributes

    def _changes(self) -> dict[str, Any]:
        """What was set on it, without what is as it would be computed."""
        return {
            name: value
            for name, value in self.own.items()
            if not hasattr(type(self), name) or self._is_set(name)
        }

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle as what it is made from, with what was set on it."""
        return type(self), self._made_from(), self._changes()

    def __setstate__(self, changes: dict[str, Any]) -> None:
        """Take over what was set on the event that was pickled."""
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def _made_from(self) -> tuple[Any, ...]:
        return ()

    cpu_time = _average_of("cpu_time_total")
    device_time = _average_of("device_time_total")
    cpu_time_str = _text_of("cpu_time")
    cpu_time_total_str = _text_of("cpu_time_total")
    self_cpu_time_total_str = _text_of("self_cpu_time_total")
    device_time_str = _text_of("device_time")
    device_time_total_str = _text_of("device_time_total")
    self_device_time_total_str = _text_of("self_device_time_total")
    cuda_time = _old_name_of("device_time")
    cuda_time_total = _old_name_of("device_time_total")
    self_cuda_time_total = _old_name_of("self_device_time_total")
    cuda_memory_usage = _old_name_of("device_memory_usage")
    self_cuda_memory_usage = _old_name_of("self_device_memory_usage")


def time_text(time_us: float, unit: str | None = None) -> str:
    """Return a time with three decimals in `unit`, or in the largest unit that leaves at least 1."""
    if unit is None:
        unit = next((name for name, size in TIME_UNITS.items() if time_us >= size), "us")
    return f"{time_us / TIME_UNITS[unit]:.3f}{unit}"


def size_text(size_bytes: int) -> str:
    """Return a size in the largest binary unit that leaves at least 1; below 1 KB in bytes.

    Releases of torch differ in the letters of the units; a program that uses torch gets those of its torch.
    """
    # Looked up and not imported: reading a trace must neither need nor load torch.
    theirs = getattr(sys.modules.get("torch.autograd.profiler_util"), "_format_memory", None)
    if theirs is not None:
        return str(theirs(size_bytes))
    for power, unit in ((3, "GB"), (2, "MB"), (1, "KB")):
        if abs(size_bytes) >= 1024**power:
            return f"{size_bytes / 1024**power:.2f} {unit}"
    return f"{size_bytes} B"


def share_text(part: float, whole: float) -> str:
    """Return `part` in percent of `whole`; `NaN` if `whole` is 0."""
    return f"{part * 100 / whole:.2f}%" if whole else "NaN"


def flops_scale(smallest: int) -> tuple[str, float]:
    """Return the largest decimal unit of FLOPs that leaves at least 1 for `smallest`, and its size in FLOPs."""
    power = max(0, min(math.floor(math.log10(smallest) / 3), len(FLOPS_UNITS) - 1))
    return FLOPS_UNITS[power], 1000.0**power
