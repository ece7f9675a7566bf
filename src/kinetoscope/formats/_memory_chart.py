"""The picture of memory over time: areas by category, one on the other, as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.tables.memory_categories import CATEGORY_NAMES, MemoryCategory
from kinetoscope.tables.memory_timeline import live_by_category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.tables.memory_timeline import Changes

# From below: what stays comes first, what comes and goes lies on it.
STACKED = (
    MemoryCategory.PARAMETER,
    MemoryCategory.OPTIMIZER_STATE,
    MemoryCategory.GRADIENT,
    MemoryCategory.INPUT,
    MemoryCategory.ACTIVATION,
    MemoryCategory.AUTOGRAD_DETAIL,
    MemoryCategory.TEMPORARY,
    MemoryCategory.UNKNOWN,
)
COLOURS = {
    MemoryCategory.PARAMETER: "#3f76d6",
    MemoryCategory.OPTIMIZER_STATE: "#8a63d2",
    MemoryCategory.GRADIENT: "#e08a2c",
    MemoryCategory.INPUT: "#3fb3c8",
    MemoryCategory.ACTIVATION: "#2fa36b",
    MemoryCategory.AUTOGRAD_DETAIL: "#d4537e",
    MemoryCategory.TEMPORARY: "#c3a52c",
    MemoryCategory.UNKNOWN: "#8b9099",
}
WIDTH, HEIGHT = 1120, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 26, 34
_COLUMNS = WIDTH - _LEFT - _RIGHT
_FINE = 6000


@dataclass(frozen=True)
class Curve:
    """What the picture shows: at most one point for each of its columns.

    Attributes:
        time_ns: When, rising.
        held: The bytes of each category from then on: a row a time, a column a category.
        fine_ns: More moments, as many where much happens, for a closer look.
        fine_held: What was held from then on.
        before_bytes: What was there before the recording.
        end_bytes: What was live at the end.
        duration_ns: How long the recording was.
    """

    time_ns: NDArray[np.int64]
    held: NDArray[np.int64]
    fine_ns: NDArray[np.int64]
    fine_held: NDArray[np.int64]
    before_bytes: int
    end_bytes: int
    duration_ns: int


def _highest(
    rows: NDArray[np.int64], group: NDArray[np.int64], total: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of each group of rows the one with the highest total, and the last row of all."""
    order = np.lexsort((-total[rows], group))
    _, first = np.unique(group[order], return_index=True)
    return np.union1d(rows[order[first]], rows[-1:])


def amount(size_bytes: int) -> str:
    """Return a number of bytes in the largest binary unit that leaves at least 1."""
    for power, unit in ((6, "EiB"), (5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:.2f} {unit}"
    return f"{size_bytes} B"


def curve_of(changes: Changes, category: NDArray[np.uint8], duration_ns: int) -> Curve:
    """Choose what to show: of all that happens within a column of the picture the moment of its highest total.

    Args:
        changes: What happened on the device.
        category: The category of each block.
        duration_ns: How long the recording was.
    """
    held = live_by_category(changes, category)
    before = changes.time_ns < 0
    times = np.maximum(changes.time_ns, 0)
    duration = max(duration_ns, int(times.max(initial=0)), 1)
    column = np.minimum(times * _COLUMNS // duration, _COLUMNS - 1)
    start = int(before.sum())
    # What was there before has all come before the first moment.
    rows = np.arange(max(start - 1, 0), len(times))
    chosen = _highest(rows, column[rows], changes.total_bytes)
    fine = _highest(rows, np.arange(len(rows)) * _FINE // max(len(rows), _FINE), changes.total_bytes)
    return Curve(
        time_ns=times[chosen],
        held=held[chosen],
        fine_ns=times[fine],
        fine_held=held[fine],
        before_bytes=int(held[start - 1].sum()) if start else 0,
        end_bytes=int(held[-1].sum()) if len(held) else 0,
        duration_ns=duration,
    )


def chart(curve: Curve, peak_ns: int | None) -> str:
    """Draw the areas, the axes and the peak.

    Args:
        curve: What to show.
        peak_ns: When the peak was, None without.

    Returns:
        An `svg` element.
    """
    total = curve.held.sum(axis=1)
    highest = max(int(total.max(initial=0)), 1)
    ticks = _ticks(highest)
    top = ticks[-1]
    frame = f'data-left="{_LEFT}" data-right="{WIDTH - _RIGHT}" data-top="{_TOP}" data-bottom="{HEIGHT - _BOTTOM}"'
    parts = [
        f'<svg data-top-bytes="{top}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Memory over time" {frame}>'
    ]
    for tick in ticks:
        y = _y(tick, top)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{amount(tick)}</text>'
        )
    x = _LEFT + curve.time_ns / curve.duration_ns * _COLUMNS
    below = np.zeros(len(total))
    parts.append('<g id="areas">')
    for category in STACKED:
        above = below + curve.held[:, category]
        if len(x) and curve.held[:, category].any():
            parts.append(
                f'<path fill="{COLOURS[category]}" data-name="{CATEGORY_NAMES[category]}" d="{_area(x, below, above, top)}">'
                f"<title>{CATEGORY_NAMES[category]}</title></path>"
            )
        below = above
    parts.append('</g><g id="ticks">')
    parts.extend(
        f'<text class="axis" x="{_LEFT + at / curve.duration_ns * _COLUMNS:.1f}" y="{HEIGHT - _BOTTOM + 20}" '
        f'text-anchor="middle">{_axis_time(at, curve.duration_ns)}</text>'
        for at in _time_ticks(curve.duration_ns)
    )
    parts.append("</g>")
    if peak_ns is not None:
        parts.append(_mark(peak_ns, highest, top, curve.duration_ns))
    parts.append(
        f'<rect id="choice" y="{_TOP}" height="{HEIGHT - _BOTTOM - _TOP}" x="0" width="0" visibility="hidden"/>'
    )
    parts.append(f'<line id="cursor" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" x1="0" x2="0" visibility="hidden"/>')
    parts.append("</svg>")
    return "\n".join(parts)


def _area(x: NDArray[np.float64], below: NDArray[np.float64], above: NDArray[np.float64], top: int) -> str:
    """The outline of one category: a step at each time, out along its top and back along its bottom."""
    right = float(WIDTH - _RIGHT)
    out = [f"M{x[0]:.1f},{_y(below[0], top):.1f}"]
    for place in range(len(x)):
        following = float(x[place + 1]) if place + 1 < len(x) else right
        out.append(f"V{_y(above[place], top):.1f}H{following:.1f}")
    out.extend(f"V{_y(below[place], top):.1f}H{x[place]:.1f}" for place in range(len(x) - 1, -1, -1))
    return "".join(out) + "Z"


def _mark(peak_ns: int, highest: int, top: int, duration_ns: int) -> str:
    """The peak: a dashed line with its size."""
    x, y = _LEFT + peak_ns / duration_ns * _COLUMNS, _y(highest, top)
    right = x > WIDTH / 2
    return (
        f'<g id="peak" data-ns="{peak_ns}"><line class="peak" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{HEIGHT - _BOTTOM}"/>'
        f'<circle class="peak" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        f'<text class="peak" x="{x - 8 if right else x + 8:.1f}" y="{_TOP - 12}" '
        f'text-anchor="{"end" if right else "start"}">peak {amount(highest)}</text></g>'
    )


def _y(value: float, top: int) -> float:
    """How far down a number of bytes is."""
    return HEIGHT - _BOTTOM - float(value) / top * (HEIGHT - _BOTTOM - _TOP)


def _ticks(highest: int) -> list[int]:
    """Round numbers of bytes from 0 to not less than the highest, at most eight."""
    power = max(int(log2(highest)) - 3, 0)
    for step in (1 << power, 1 << (power + 1), 1 << (power + 2)):
        if -(-highest // step) <= 6:
            return [step * place for place in range(-(-highest // step) + 1)]
    return [0, highest]


def _time_ticks(duration_ns: int) -> list[int]:
    """Round times from 0, at most eleven, none so late that its text would not fit."""
    step = next(
        factor * 10**power
        for power in range(19)
        for factor in (1, 2, 5)
        if duration_ns <= 10 * factor * 10**power
    )
    return list(range(0, int(duration_ns * 0.98) + 1, step))


def _axis_time(time_ns: int, duration_ns: int) -> str:
    """A time in the unit that suits the whole axis."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if duration_ns >= 5 * size:
            return f"{time_ns / size:g} {unit}" if time_ns else "0"
    return f"{time_ns} ns" if time_ns else "0"
