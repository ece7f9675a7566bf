"""What is known about several recordings, and what they lost, told as of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetoscope.trace._columns import Columns
    from kinetoscope.trace._trace import Trace

_OF_THE_WHOLE = frozenset(
    {
        "start_realtime_ns",
        "start_monotonic_ns",
        "stop_ns",
        "complete",
        "clock_checks",
        "pauses",
        "cycle",
        "cycles",
    }
)


def joined_info(parts: Sequence[tuple[Trace, int, list[int]]]) -> dict[str, Any]:
    """The metadata of several traces.

    What they agree on is told once. Where they differ, the last one's value stands, as in torch's own exports, and
    `cycles` has every one's.

    Args:
        parts: Each trace with its place in time in nanoseconds and the numbers of its cycles.

    Returns:
        The metadata.
    """
    infos = [trace.info for trace, _, _ in parts]
    joined: dict[str, Any] = {}
    differing: list[str] = []
    for key in dict.fromkeys(key for info in infos for key in info if key not in _OF_THE_WHOLE):
        holders = [info for info in infos if key in info]
        joined[key] = holders[-1][key]
        if len(holders) < len(infos) or any(info[key] != joined[key] for info in holders):
            differing.append(key)
    joined["start_realtime_ns"] = infos[0].get("start_realtime_ns", 0)
    if "start_monotonic_ns" in infos[0]:
        joined["start_monotonic_ns"] = infos[0]["start_monotonic_ns"]
    joined["stop_ns"] = max(offset_ns + trace.duration_ns for trace, offset_ns, _ in parts)
    joined["complete"] = all(info.get("complete", True) for info in infos)
    checks = [info["clock_checks"] for info in infos if isinstance(info.get("clock_checks"), dict)]
    if checks:
        joined["clock_checks"] = {
            "readings": sum(check.get("readings", 0) for check in checks),
            "largest_error_ns": max(check.get("largest_error_ns", 0) for check in checks),
        }
        for key in ("device_calls", "device_calls_astride"):
            if any(key in check for check in checks):
                joined["clock_checks"][key] = sum(check.get(key, 0) for check in checks)
    pauses = [pause for info in infos if isinstance(info.get("pauses"), list) for pause in info["pauses"]]
    if pauses:
        joined["pauses"] = pauses
    joined["cycles"] = [
        cycle
        for trace, offset_ns, numbers in parts
        for cycle in _cycles(
            trace, offset_ns, numbers, {key: trace.info[key] for key in differing if key in trace.info}
        )
    ]
    return joined


def _cycles(trace: Trace, offset_ns: int, numbers: list[int], own: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of one trace: one for each of its cycles."""
    table = trace.columns("cycles")
    windows = list(zip(table["start_ns"].tolist(), table["duration_ns"].tolist(), strict=True))
    if not windows:
        windows = [(0, trace.duration_ns)]
    known = trace.info.get("cycles")
    earlier = known if isinstance(known, list) and len(known) == len(windows) else [{}] * len(windows)
    return [
        {**own, **told, "number": number, "start_ns": offset_ns + start_ns, "duration_ns": duration_ns}
        for told, number, (start_ns, duration_ns) in zip(earlier, numbers, windows, strict=True)
    ]


def joined_losses(parts: Sequence[tuple[Columns, list[int]]]) -> dict[str, list[Any]]:
    """The losses of several traces: each kind once, added up, with the cycles it happened in.

    Args:
        parts: The `losses` of each trace with the numbers of its cycles.

    Returns:
        The columns of the table.
    """
    counts: dict[tuple[str, str, str], int] = {}
    cycles: dict[tuple[str, str, str], list[int]] = {}
    for losses, numbers in parts:
        rows = zip(losses["what"], losses["where"], losses["why"], losses["count"].tolist(), strict=True)
        for what, where, why, count in rows:
            key = (what, where, why)
            counts[key] = counts.get(key, 0) + count
            if " (cycle" not in where:
                cycles.setdefault(key, []).extend(numbers)
    return {
        "what": [what for what, _, _ in counts],
        "count": list(counts.values()),
        "where": [f"{key[1]}{_named(cycles.get(key, []))}" for key in counts],
        "why": [why for _, _, why in counts],
    }


def _named(numbers: list[int]) -> str:
    """Some cycles in words."""
    if not numbers:
        return ""
    return f" (cycle{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))})"
