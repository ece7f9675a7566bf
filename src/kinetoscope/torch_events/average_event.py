"""The sum of events with one key, with the attributes that programs written for `torch.profiler` read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetoscope._errors import ArgumentError
from kinetoscope.torch_events.event_facts import device_type
from kinetoscope.torch_events.event_numbers import SIZES, TIMES
from kinetoscope.torch_events.event_sums import Computed, EventAttributes, Kept
from kinetoscope.torch_events.function_event import FunctionEvent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from kinetoscope.model.trace_data import TraceData


# What the sum takes over from the first event that is added.
_OF_THE_FIRST = (
    "key",
    "node_id",
    "is_remote",
    "is_legacy",
    "overload_name",
    "input_shapes",
    "stack",
    "use_device",
)


def _of_first(name: str, *, without: Any) -> Computed[Any]:
    """The attribute that is that of the earliest event; another value without one."""
    return Computed(lambda total: without if total.first is None else getattr(total.first, name))


class FunctionEventAvg(EventAttributes):
    """Events with the same key, added up. Times are in microseconds, sizes in bytes.

    `key_averages()` makes them. To add events up yourself, begin with an empty one: `total = FunctionEventAvg()`, then
    `total += event` for each event with the same key.

    Attributes:
        key: The name of the events, None before the first is added. All steps share one name.
        count: How many there are.
        cpu_time_total: Host time; a call inside one of the same name counts in both, as in torch.
        self_cpu_time_total: Host time without that of the events inside, never negative.
        device_time_total: Device time of what they and the events inside started.
        self_device_time_total: Device time of what they started themselves.
        cpu_memory_usage: Host bytes allocated minus freed.
        self_cpu_memory_usage: The same without the events inside.
        device_memory_usage: Device bytes allocated minus freed.
        self_device_memory_usage: The same without the events inside.
        flops: Floating-point operations, each counted once; 0 without `with_flops=True`.
        input_shapes: The input shapes if events are grouped by them, otherwise empty.
        stack: The innermost Python frames if events are grouped by them, innermost first, otherwise empty.
        overload_name: The overload if events are grouped by it, otherwise empty.
        use_device: The device that was profiled besides the host, such as `cuda`; None without.
        is_async: Whether the earliest one ended on another thread than it began.
        is_user_annotation: Whether `record_function` or a step made them.
        scope: torch's record scope of the earliest one.
        cpu_parent: The event around the earliest one.
        first: The earliest of them; None for a total of different events and for memory outside all events.
        node_id: -1: Kinetoscope records one process.
        is_remote: False, for the same reason.
        is_legacy: False: torch's old profiler made no part of this.
    """

    __slots__ = ("first",)

    first: FunctionEvent | None

    is_async: Computed[bool] = _of_first("is_async", without=False)
    is_user_annotation: Computed[bool] = _of_first("is_user_annotation", without=False)
    scope: Computed[int] = _of_first("scope", without=0)
    cpu_parent: Computed[FunctionEvent | None] = _of_first("cpu_parent", without=None)

    _TORCHS_CLASS = "FunctionEventAvg"
    # In torch's order.
    _OF_TORCHS = (
        "key", "count", "node_id", "is_async", "is_remote", "use_device", "cpu_time_total", "device_time_total",
        "self_cpu_time_total", "self_device_time_total", "input_shapes", "overload_name", "stack", "scope",
        "cpu_memory_usage", "device_memory_usage", "self_cpu_memory_usage", "self_device_memory_usage", "cpu_children",
        "cpu_parent", "device_type", "is_legacy", "flops", "is_user_annotation",
    )  # fmt: skip

    def __init__(self) -> None:
        """Begin with the sum of nothing."""
        self.key: str | None = None
        self.count: int = 0
        self.cpu_time_total: float = 0.0
        self.self_cpu_time_total: float = 0.0
        self.device_time_total: float = 0.0
        self.self_device_time_total: float = 0.0
        self.cpu_memory_usage = 0
        self.self_cpu_memory_usage = 0
        self.device_memory_usage = 0
        self.self_device_memory_usage = 0
        self.flops = 0
        self.input_shapes: Any = None
        self.stack: list[str] | None = None
        self.overload_name: str | None = None
        self.use_device: str | None = None
        self.first = None

    @classmethod
    def of(cls, key: str, numbers: Mapping[str, int]) -> Self:
        """Make a sum from its numbers.

        Args:
            key: The name of the events.
            numbers: By attribute: nanoseconds, bytes, operations, and `count`.

        Returns:
            The sum, with empty shapes, stack and overload.
        """
        made = cls()
        made.key = key
        for name, value in numbers.items():
            setattr(made, name, value / 1000 if name in TIMES else value)
        made.input_shapes, made.stack, made.overload_name = "", [], ""
        return made

    def add(self, other: FunctionEvent | FunctionEventAvg) -> Self:
        """Add an event, or another sum, with the same key; an empty sum takes the key of the first.

        Args:
            other: What to add.

        Returns:
            This sum, changed.

        Raises:
            ArgumentError: It is no event, or has another key; nothing is changed.
        """
        if not isinstance(other, FunctionEvent | FunctionEventAvg):
            raise ArgumentError(
                f"other={other!r} cannot be added: need a FunctionEvent or a FunctionEventAvg"
            )
        if other.key is None:
            return self
        if self.key is None:
            for name in _OF_THE_FIRST:
                setattr(self, name, getattr(other, name))
            self.first = other if isinstance(other, FunctionEvent) else other.first
        elif other.key != self.key:
            raise ArgumentError(
                f"cannot add {other.key!r} to the sum of {self.key!r}: the keys must be equal"
            )
        for name in (*TIMES, *SIZES, "count", "flops"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def __iadd__(self, other: FunctionEvent | FunctionEventAvg) -> Self:
        """Add an event or another sum; see `add`."""
        return self.add(other)

    def _changes(self) -> dict[str, Any]:
        """All that it was given, and the event that the rest is read from."""
        return super()._changes() | {"first": self.first}

    @property
    def trace(self) -> TraceData | None:
        """The trace the events come from, where it is known."""
        return self.first.trace if self.first is not None else None

    @Computed
    def device_type(self) -> Any:
        """Where they ran."""
        return self.first.device_type if self.first is not None else device_type(0)

    @Kept
    def cpu_children(self) -> list[FunctionEvent]:
        """The events inside the earliest one."""
        return self.first.cpu_children if self.first is not None else []

    def __repr__(self) -> str:
        """One line with the most important numbers."""
        return (
            f"<FunctionEventAvg key={self.key} count={self.count} self_cpu_time={self.self_cpu_time_total_str} "
            f"cpu_time={self.cpu_time_str} self_device_time={self.self_device_time_total_str} "
            f"device_time={self.device_time_str} cpu_memory_usage={self.cpu_memory_usage} "
            f"device_memory_usage={self.device_memory_usage} input_shapes={self.input_shapes}>"
        )
