"""What can be read from a session once something was recorded."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from kinetoscope._errors import StateError
from kinetoscope.trace import catalog

if TYPE_CHECKING:
    from kinetoscope.collect._cycle import Cycle
    from kinetoscope.collect._memory_profile import MemoryProfile
    from kinetoscope.trace import Trace


class ReadsLastCycle(ABC):
    """The reading half of a session: every call is about the last finished cycle and can be repeated."""

    _cycle: Cycle | None

    @abstractmethod
    def _why_no_trace(self) -> str:
        """Which call is missing before there is something to read."""

    @property
    def trace(self) -> Trace:
        """The trace of the last finished cycle; built on first use, then the same object until a new cycle ends.

        Raises:
            StateError: Nothing was recorded yet; the message says which call is missing.
        """
        cycle = self._cycle
        if cycle is None:
            raise StateError(f"there is no trace yet: {self._why_no_trace()}")
        return cycle.trace()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the last finished trace in Chrome's JSON format, as Perfetto and chrome://tracing read it.

        Args:
            path: The file; a name ending in `.gz` is compressed.

        Raises:
            StateError: Nothing was recorded yet.
        """
        trace = self.trace
        catalog.resolve("kinetoscope.formats.chrome:write_chrome_trace")(trace, path)

    def export_memory_timeline(self, path: str | os.PathLike[str], device: str | None = None) -> None:
        """Write how much memory each category held over the last finished trace.

        Args:
            path: The file. `.html`: a page with a picture. `.json`, `.json.gz`: times in microseconds and the bytes of
                each category at each of them. `raw.json.gz`: every event as (time in ns, action, bytes, category).
            device: The device, such as `cpu` or `cuda:0`; None: the one that held the most bytes at its peak.

        Raises:
            StateError: Nothing was recorded yet, or it was recorded without `profile_memory`.
            ArgumentError: The suffix is unknown, or no memory of the device was recorded.
        """
        trace = self.trace
        catalog.resolve("kinetoscope.formats.memory_timeline:write_memory_timeline")(trace, path, device)

    def _memory_profile(self) -> MemoryProfile:
        """Return the memory of the last finished trace as objects, as `torch.profiler` does: see its `timeline`.

        Raises:
            StateError: Nothing was recorded yet, or it was recorded without `profile_memory`.
        """
        from kinetoscope.collect._memory_profile import MemoryProfile

        return MemoryProfile(self.trace)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the last finished trace in the format that the suffix names.

        Args:
            path: The file, such as `run.ktrace`, `run.parquet` or `run.json.gz`.

        Raises:
            StateError: Nothing was recorded yet.
            ArgumentError: The suffix is unknown.
        """
        self.trace.save(path)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> Any:
        """Sum up the last finished trace by operator.

        Args:
            group_by_input_shape: Keep different input shapes apart.
            group_by_stack_n: Keep different stacks apart, looking at this many innermost frames.
            group_by_overload_name: Keep overloads apart.

        Returns:
            An `EventList` with one row for each group.

        Raises:
            StateError: Nothing was recorded yet.
        """
        trace = self.trace
        return catalog.resolve(catalog.VIEWS["key_averages"])(
            trace,
            group_by_input_shape=group_by_input_shape,
            group_by_stack_n=group_by_stack_n,
            group_by_overload_name=group_by_overload_name,
        )

    def events(self) -> Any:
        """The operators and ranges of the last finished trace, each as an event.

        Returns:
            An `EventList`: a lazy view over the trace's columns.

        Raises:
            StateError: Nothing was recorded yet.
        """
        trace = self.trace
        return catalog.resolve(catalog.VIEWS["events"])(trace)
