"""The times and sizes of an event and of a sum of events: numbers, their texts as torch.profiler writes them, and torch's old names for them."""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING, Any

from kinetoscope.torch_events.stored_attributes import Computed, StoredAttributes, own_of

TIME_UNITS = {"s": 1_000_000.0, "ms": 1000.0, "us": 1.0}
FLOPS_UNITS = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")


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


class TimesAsText:
    """Averages and the texts of times, shared by single and averaged events."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def count(self) -> int:
            """How many calls."""

        @property
        def cpu_time_total(self) -> float:
            """Host time, in microseconds."""

        @property
        def self_cpu_time_total(self) -> float:
            """Host time without that of the events inside, in microseconds."""

        @property
        def device_time_total(self) -> float:
            """Device time, in microseconds."""

        @property
        def self_device_time_total(self) -> float:
            """Device time without that of the events inside, in microseconds."""

    @property
    def cpu_time(self) -> float:
        """Host time of one call, in microseconds."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Device time of one call, in microseconds."""
        return self.device_time_total / self.count if self.count else 0.0

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


class EventSums(StoredAttributes, TimesAsText):
    """The numbers of a single event, in torch's units. Those that torch derives follow what a program has set."""

    __slots__ = ()

    if TYPE_CHECKING:
        cpu_children: Any
        kernels: Any
        is_async: Any
        device_type: Any
        time_range: Any

        def _time(self, name: str) -> int:
            """One of `kinetoscope.torch_events.event_tree.SUMS`."""

    def _nests(self) -> bool:
        """Whether the events inside it count: torch has none in asynchronous events and those of devices."""
        return not self.is_async and not int(self.device_type)

    @Computed
    def flops(self) -> int:
        """Floating-point operations of the call; 0 without `with_flops=True` or if unknown.

        Those of an operator inside another are counted once, at the operator that the formula is for.
        """
        return self._time("flops")

    @property
    def cpu_time_total(self) -> float:
        """Host time, in microseconds."""
        if own_of(self) and self._is_set("time_range"):
            return 0.0 if int(self.device_type) else float(self.time_range.elapsed_us())
        return self._time("duration_ns") / 1000

    @property
    def self_cpu_time_total(self) -> float:
        """Host time without that of the events inside it, in microseconds; never negative."""
        if own_of(self) and self._is_set("time_range", "cpu_children"):
            inside = sum(child.cpu_time_total for child in self.cpu_children)
            return self.cpu_time_total - float(inside) if self._nests() else 0.0
        return self._time("self_ns") / 1000

    @property
    def device_time_total(self) -> float:
        """Device time, in microseconds."""
        if own_of(self) and self._nests() and self._is_set("kernels", "cpu_children"):
            inside = sum(child.device_time_total for child in self.cpu_children)
            return float(sum(kernel.duration for kernel in self.kernels)) + float(inside)
        return self._time("device_ns") / 1000

    @property
    def self_device_time_total(self) -> float:
        """Device time without that of the events inside it, in microseconds."""
        if own_of(self) and self._nests() and self._is_set("kernels", "cpu_children"):
            return float(sum(kernel.duration for kernel in self.kernels))
        return self._time("device_self_ns") / 1000

    @Computed
    def cpu_memory_usage(self) -> int:
        """Host bytes allocated minus freed."""
        return self._time("bytes")

    @property
    def self_cpu_memory_usage(self) -> int:
        """The same without the events inside it."""
        if own_of(self) and self._is_set("cpu_memory_usage", "cpu_children"):
            inside = sum(child.cpu_memory_usage for child in self.cpu_children)
            return self.cpu_memory_usage - int(inside) if self._nests() else 0
        return self._time("self_bytes")

    @Computed
    def device_memory_usage(self) -> int:
        """Device bytes allocated minus freed."""
        return self._time("device_bytes")

    @property
    def self_device_memory_usage(self) -> int:
        """The same without the events inside it."""
        if own_of(self) and self._is_set("device_memory_usage", "cpu_children"):
            inside = sum(child.device_memory_usage for child in self.cpu_children)
            return self.device_memory_usage - int(inside) if self._nests() else 0
        return self._time("device_self_bytes")


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
