"""Memory over time as objects, as `torch.profiler` returns it to programs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler._memory_profiler import Action, Category, TensorKey, _Storage

from kinetoscope._import_aside import import_aside

if TYPE_CHECKING:
    from kinetoscope.trace import Trace


# Above these bits a block's key says which device it is on.
_ADDRESS = (1 << 48) - 1


class MemoryProfile:
    """What `prof._memory_profile()` returns: torch's own kinds of keys, actions and categories, from our trace.

    A block keeps one category for its whole life; torch's may change it with each version of the content.
    """

    def __init__(self, trace: Trace) -> None:
        """Read a trace with memory."""
        import_aside()
        from kinetoscope.tables.memory.timeline import need_memory

        need_memory(trace)
        self._trace = trace

    @cached_property
    def timeline(self) -> tuple[tuple[int, Action, tuple[TensorKey, int], int], ...]:
        """Everything that happened to the blocks: (time, action, (block, version), bytes), in order.

        Times are nanoseconds since 1970, -1 for what was there before the recording. The version is how often the
        content had been written over before.
        """
        import_aside()
        trace, keys = self._trace, self._keys
        from kinetoscope.tables.memory.timeline import changes_of

        epoch_ns = trace.run_info.start_realtime_ns or 0
        events: list[tuple[int, int, int, int]] = []
        for device in range(len(self._judged.blocks.devices)):
            changes = changes_of(trace, device)
            events.extend(
                zip(
                    changes.time_ns.tolist(),
                    changes.action.tolist(),
                    changes.block.tolist(),
                    abs(changes.change_bytes).tolist(),
                    strict=True,
                )
            )
        from kinetoscope.tables.memory.timeline import content_changes

        written_ns, written = content_changes(trace)
        size = self._judged.blocks.bytes
        events.extend(
            (time_ns, Action.INCREMENT_VERSION.value, block, int(size[block]))
            for time_ns, block in zip(written_ns.tolist(), written.tolist(), strict=True)
        )
        events.sort(key=lambda event: event[:2])
        actions = {action.value: action for action in Action}
        versions: dict[int, int] = {}
        found = []
        for time_ns, action, block, size_bytes in events:
            version = versions.get(block, 0)
            before = actions[action] is Action.PREEXISTING
            at = (keys[block], version)
            found.append((-1 if before else time_ns + epoch_ns, actions[action], at, size_bytes))
            if actions[action] is Action.INCREMENT_VERSION:
                versions[block] = version + 1
        return tuple(found)

    @cached_property
    def categories(self) -> dict[TensorKey, Category | None]:
        """The category of each block; None if unknown."""
        import_aside()
        from kinetoscope.tables.memory.categories import MemoryCategory

        known = {
            number: getattr(Category, MemoryCategory(number).name, None)
            for number in set(self._judged.category.tolist())
        }
        return {
            key: known[number] for key, number in zip(self._keys, self._judged.category.tolist(), strict=True)
        }

    @property
    def _categories(self) -> _ByVersion:
        """The categories as torch's own timeline writer reads them."""
        return _ByVersion(self.categories)

    @cached_property
    def _judged(self) -> Any:
        """The blocks with their categories."""
        import_aside()
        from kinetoscope.tables.memory.categories import judged_blocks

        return judged_blocks(self._trace)

    @cached_property
    def _keys(self) -> list[TensorKey]:
        """A key of torch's for each block."""
        import_aside()
        blocks = self._judged.blocks
        from kinetoscope.tables.memory.timeline import device_names

        names = device_names(self._trace)
        devices = [torch.device(name) for name in names]
        return [
            TensorKey(devices[device], number, _Storage(address & _ADDRESS, number))
            for number, (device, address) in enumerate(
                zip(blocks.device.tolist(), blocks.key.tolist(), strict=True)
            )
        ]


class _ByVersion:
    """Looks up the category of a block for any version of its content."""

    def __init__(self, categories: dict[TensorKey, Category | None]) -> None:
        self._of = categories

    def get(self, key: TensorKey, version: int) -> Category | None:
        """The category of a block; None if unknown."""
        return self._of.get(key)
