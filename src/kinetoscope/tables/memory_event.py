"""What torch lists of memory that no event asked for: an event of its own for each allocation or free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.tables._loose_memory import MEMORY_KEY, change_on
from kinetoscope.tables.function_event import FunctionEvent, Interval, Kernel
from kinetoscope.trace._schema import PHASE_NAMES

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


class MemoryEvent(FunctionEvent):
    """An allocation or a free outside all events: a moment, named `[memory]`.

    Attributes:
        allocation: The row of `allocations`.
    """

    __slots__ = ("allocation",)

    is_user_annotation = False
    is_python_function = False
    python_id = -1
    python_parent_id = -1
    python_module_id = -1
    is_async = False
    name = MEMORY_KEY
    trace_name = None
    overload_name = ""
    sequence_nr = -1
    scope = 0
    flow_id = 0
    flow_start = False
    linked_correlation_id = 0
    cpu_parent = None
    flops = 0
    module = ""
    activity_type = "cpu_instant_event"

    def __init__(self, trace: Trace, allocation: int) -> None:
        """Point at a row of `allocations`."""
        super().__init__(trace, -1)
        self.allocation = allocation

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a place in a trace."""
        return type(self), (self._trace, self.allocation), self.__dict__

    @property
    def id(self) -> int:
        """A number that no other event of the trace has."""
        return len(self._trace.columns("spans")) + self.allocation

    def _number(self, column: str) -> int:
        """The thread it happened on; nothing else of a span is known."""
        if column == "thread":
            return int(self._trace.column("allocations", "thread")[self.allocation])
        return 0 if column == "kind" else -1

    def _time(self, name: str) -> int:
        """The bytes; it takes no time."""
        if "bytes" not in name:
            return 0
        rows = np.array([self.allocation])
        return int(change_on(self._trace, rows, device=name.startswith("device"))[0])

    @property
    def time_range(self) -> Interval:
        """The moment, as an interval of no length."""
        moment = int(self._trace.column("allocations", "time_ns")[self.allocation]) / 1000
        return Interval(moment, moment)

    @property
    def fwd_thread(self) -> int:
        """The thread itself."""
        return self.thread

    @property
    def phase(self) -> str:
        """`forward`: no backward function is around it."""
        return PHASE_NAMES[0]

    @property
    def cpu_children(self) -> list[FunctionEvent]:
        """None."""
        return []

    @property
    def kernels(self) -> list[Kernel]:
        """None."""
        return []
