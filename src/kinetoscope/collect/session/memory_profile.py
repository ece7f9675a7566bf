"""API-compatible with torch's `MemoryProfile`: memory over time as Python objects."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler._memory_profiler import Action, Category, TensorKey, _Storage

from kinetoscope.tables.memory.categories import MemoryCategory, judged_blocks
from kinetoscope.tables.memory.timeline import changes_of, content_changes, device_names, need_memory

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


# The address of a block; the higher bits of its key are the device.
_ADDRESS = (1 << 48) - 1


class MemoryProfile:
    """The result of `prof._memory_profile()`: torch's types for keys, actions and categories, computed from our trace.

    A block has one category; in torch, each version of its contents has its own.
    """

    def __init__(self, trace: Trace) -> None:
        """Wrap a trace that contains allocations.

        Raises:
            ArgumentError: It has none.
        """
        need_memory(trace)
        self._trace = trace

    @cached_property
    def timeline(self) -> tuple[tuple[int, Action, tuple[TensorKey, int], int], ...]:
        """The memory events in time order: (time, action, (block, version), bytes).

        Times are nanoseconds since 1970, or -1 for blocks that were allocated before the recording. The version counts how
        often the block's contents had been overwritten before the event.
        """
        trace, keys = self._trace, self._keys
        epoch_ns = trace.run_info.start_realtime_ns or 0
        events: list[tuple[int, int, int, int]] = []
        for device in range(len(self._judged.blocks.devices)):
            changes = changes_of(trace, device)
            columns = changes.time_ns, changes.action, changes.block, abs(changes.change_bytes)
            events.extend(zip(*(column.tolist() for column in columns), strict=True))
        written_ns, written = content_changes(trace)
        size = self._judged.blocks.bytes
        events.extend(
            (time_ns, Action.INCREMENT_VERSION.value, block, int(size[block]))
            for time_ns, block in zip(written_ns.tolist(), written.tolist(), strict=True)
        )
        events.sort(key=lambda event: event[:2])
        actions = {action.value: action for action in Action}
        versions: dict[int, int] = {}
        timeline = []
        for time_ns, action, block, size_bytes in events:
            version = versions.get(block, 0)
            before = actions[action] is Action.PREEXISTING
            versioned = (keys[block], version)
            timeline.append((-1 if before else time_ns + epoch_ns, actions[action], versioned, size_bytes))
            if actions[action] is Action.INCREMENT_VERSION:
                versions[block] = version + 1
        return tuple(timeline)

    @cached_property
    def categories(self) -> dict[TensorKey, Category | None]:
        """The category of each block, such as PARAMETER; None if unknown."""
        names = {
            number: getattr(Category, MemoryCategory(number).name, None)
            for number in set(self._judged.category.tolist())
        }
        return {
            key: names[number] for key, number in zip(self._keys, self._judged.category.tolist(), strict=True)
        }

    @property
    def _categories(self) -> dict[TensorKey, Category | None]:
        """The categories, for torch's `MemoryProfileTimeline`, which asks `get(block, version)`; all versions have the same one."""
        return self.categories

    @cached_property
    def _judged(self) -> Any:
        return judged_blocks(self._trace)

    @cached_property
    def _keys(self) -> list[TensorKey]:
        blocks = self._judged.blocks
        devices = [torch.device(name) for name in device_names(self._trace)]
        return [
            TensorKey(devices[device], number, _Storage(address & _ADDRESS, number))
            for number, (device, address) in enumerate(
                zip(blocks.device.tolist(), blocks.key.tolist(), strict=True)
            )
        ]
