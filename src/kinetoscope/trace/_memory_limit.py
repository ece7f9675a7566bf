"""How much memory reading a foreign file may take when nobody says it."""

from __future__ import annotations

import os
from pathlib import Path

SHARE = 2
"""Reading may take one part in so many of the memory that is available."""
LEAST_BYTES = 64 << 20
"""And this much in any case."""

_MEMORY_INFO = Path("/proc/meminfo")
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def default_memory_bytes() -> int:
    """Half of the memory that this process could still get; 0, for no limit, where the system does not tell."""
    available = available_bytes()
    return 0 if available is None else max(LEAST_BYTES, available // SHARE)


def available_bytes(memory_info: Path = _MEMORY_INFO, control_group: Path = _CONTROL_GROUP) -> int | None:
    """How much memory this process could still get without swapping; None where the system does not tell."""
    of_machine = _told_by_kernel(memory_info)
    if of_machine is None:
        of_machine = _physical()
    of_group = _left_to_group(control_group)
    return min((known for known in (of_machine, of_group) if known is not None), default=None)


def _told_by_kernel(memory_info: Path) -> int | None:
    """What Linux could give out."""
    try:
        lines = memory_info.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    amount = _numbers(lines).get("MemAvailable:")
    return None if amount is None else amount * 1024


def _physical() -> int | None:
    """All the memory of the machine."""
    try:
        pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    return pages * page_bytes if pages > 0 and page_bytes > 0 else None


def _left_to_group(folder: Path) -> int | None:
    """What a container may still take, by either version of control groups: its limit without what it cannot let go."""
    for limit_name, held_name, details_name in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            limit, held, details = (
                (folder / name).read_text(encoding="ascii") for name in (limit_name, held_name, details_name)
            )
            limit_bytes, held_bytes = int(limit), int(held)
        except (OSError, ValueError):
            continue
        known = _numbers(details.splitlines())
        cached_bytes = known.get("inactive_file", 0) + known.get("active_file", 0)
        return max(0, limit_bytes - max(0, held_bytes - cached_bytes))
    return None


def _numbers(lines: list[str]) -> dict[str, int]:
    """Lines of a name and a number, and perhaps a unit."""
    words = (line.split() for line in lines)
    return {parts[0]: int(parts[1]) for parts in words if len(parts) >= 2 and parts[1].isdigit()}
