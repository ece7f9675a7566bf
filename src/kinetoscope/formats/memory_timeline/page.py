"""Memory over time as a static page: a picture, the numbers of the peak, and who held it.

It stands in for the page of torch's `export_memory_timeline`, which is a picture too, and is written where memory runs out.
The interactive memory page is the viewer's: `kinetoscope.report(trace, path, pages=["memory"])`. It cannot be made here, because
the viewer is a room above this one and above sessions, which write this page.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import log2
from string import Template
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.model.units import duration, percent, size
from kinetoscope.tables.memory.blocks import blocks_of
from kinetoscope.tables.memory.categories import CATEGORY_NAMES, MemoryCategory, judged_blocks
from kinetoscope.tables.memory.peak import live_at, memory_peak, peak
from kinetoscope.tables.memory.timeline import (
    CREATE,
    allocator_peak,
    changes_of,
    device_names,
    live_by_category,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData
    from kinetoscope.tables.memory.peak import Peak
    from kinetoscope.tables.memory.timeline import Changes


# How the page looks.

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c1f24; --soft: #646b76; --line: #e3e6ea; --card: #f6f7f9;
  --mark: #1c1f24; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --text: #e6e8eb; --soft: #9aa2ad; --line: #2b3037;
  --card: #1c2026; --mark: #fff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 14px/1.45 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 28px 60px; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 16px; margin: 30px 0 8px; }
.about { color: var(--soft); margin: 2px 0 14px; overflow-wrap: anywhere; }
.failure { background: var(--card); border-left: 4px solid #d33b3b; padding: 10px 14px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.facts { display: flex; flex-wrap: wrap; gap: 10px; margin-bottom: 14px; }
.facts div { background: var(--card); border-radius: 8px; padding: 10px 16px; }
.facts b { display: block; font-size: 19px; font-variant-numeric: tabular-nums; } .facts span { color: var(--soft); }
figure { margin: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; color: var(--soft); margin-bottom: 4px; }
.legend i, .category i { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin-right: 6px; }
svg { width: 100%; height: auto; display: block; }
svg .grid { stroke: var(--line); } svg .axis { fill: var(--soft); font-size: 12px; }
svg line.peak { stroke: var(--mark); stroke-dasharray: 3 3; } svg circle.peak { fill: var(--mark); }
svg text.peak { fill: var(--text); font-size: 13px; font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: 13px; } table.narrow { width: auto; min-width: 520px; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
th.number, .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.category, .share { white-space: nowrap; } .share { width: 110px; }
.share span { font-variant-numeric: tabular-nums; }
.share i { display: block; height: 4px; border-radius: 2px; min-width: 1px; }
"""

# The picture of memory over time: areas by category, one on the other, as SVG.

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
# The colors of the viewer: web/src/memory/facts.ts, web/src/theme.css.
COLORS = {
    MemoryCategory.PARAMETER: "#0072b2",
    MemoryCategory.OPTIMIZER_STATE: "#cc79a7",
    MemoryCategory.GRADIENT: "#e69f00",
    MemoryCategory.INPUT: "#009e73",
    MemoryCategory.ACTIVATION: "#56b4e9",
    MemoryCategory.AUTOGRAD_DETAIL: "#d55e00",
    MemoryCategory.TEMPORARY: "#8f9bab",
    MemoryCategory.UNKNOWN: "#c5ccd6",
}
WIDTH, HEIGHT = 1120, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 26, 34
_COLUMNS = WIDTH - _LEFT - _RIGHT


@dataclass(frozen=True)
class Curve:
    """What the picture shows: at most one point for each of its columns.

    Attributes:
        time_ns: When, rising.
        held: The bytes of each category from then on: a row a time, a column a category.
        before_bytes: What was allocated before the recording.
        end_bytes: What was live at the end.
        duration_ns: How long the recording was.
    """

    time_ns: NDArray[np.int64]
    held: NDArray[np.int64]
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
    return Curve(
        time_ns=times[chosen],
        held=held[chosen],
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
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Memory over time">']
    for tick in ticks:
        y = _y(tick, top)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="axis" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{size(tick)}</text>'
        )
    x = _LEFT + curve.time_ns / curve.duration_ns * _COLUMNS
    below = np.zeros(len(total))
    for category in STACKED:
        above = below + curve.held[:, category]
        if len(x) and curve.held[:, category].any():
            parts.append(
                f'<path fill="{COLORS[category]}" data-name="{CATEGORY_NAMES[category]}" d="{_area(x, below, above, top)}">'
                f"<title>{CATEGORY_NAMES[category]}</title></path>"
            )
        below = above
    parts.extend(
        f'<text class="axis" x="{_LEFT + at / curve.duration_ns * _COLUMNS:.1f}" y="{HEIGHT - _BOTTOM + 20}" '
        f'text-anchor="middle">{_axis_time(at, curve.duration_ns)}</text>'
        for at in _time_ticks(curve.duration_ns)
    )
    if peak_ns is not None:
        parts.append(_mark(peak_ns, highest, top, curve.duration_ns))
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
        f'<line class="peak" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 10}" y2="{HEIGHT - _BOTTOM}"/>'
        f'<circle class="peak" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        f'<text class="peak" x="{x - 8 if right else x + 8:.1f}" y="{_TOP - 12}" '
        f'text-anchor="{"end" if right else "start"}">peak {size(highest)}</text>'
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
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if duration_ns >= 5 * scale:
            return f"{time_ns / scale:g} {unit}" if time_ns else "0"
    return f"{time_ns} ns" if time_ns else "0"


_HOLDERS = 40
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<h1>$title</h1>
<p class="about">$about</p>
$failure
<div class="facts">$facts</div>
<figure>$legend$svg</figure>
<p class="about">To zoom in and see what was live at any time, open the trace with <code>kinetoscope view</code>.</p>
<h2>At the peak, by category</h2>
<table class="narrow">$categories</table>
<h2>At the peak, largest holders</h2>
<p class="about">$holders_about</p>
<table>$holders</table>
</main>
</body>
</html>
""")


def page(trace: TraceData, device: int, *, failure: str = "") -> str:
    """Return the page for a device.

    Args:
        trace: A trace recorded with `profile_memory`.
        device: The place of the device in `Blocks.devices`.
        failure: What went wrong, where the page is about an allocation that failed; empty without.

    Returns:
        HTML that loads nothing.
    """
    name = device_names(trace)[device]
    at = peak(trace, device=name)
    curve = curve_of(changes_of(trace, device), judged_blocks(trace).category, trace.duration_ns)
    shown = " ".join(trace.run_info.command_line)
    return _PAGE.substitute(
        title=f"Memory of {escape(name)}",
        style=STYLE,
        about=escape(shown),
        failure=f'<pre class="failure">{escape(failure)}</pre>' if failure else "",
        facts=_facts(trace, device, at, curve),
        legend=_legend(),
        svg=chart(curve, at.time_ns if at is not None else None),
        categories=_categories(trace, at),
        holders_about=_holders_about(trace, at),
        holders=_holders(trace, name, at),
    )


def _facts(trace: TraceData, device: int, at: Peak | None, curve: Curve) -> str:
    """The few numbers that come first."""
    if at is None:
        return _fact("none", "No memory of this device was allocated during the recording.")
    steps = trace.column("steps", "number")
    where = f"after {duration(at.time_ns)}" + (f", in step {int(steps[at.step])}" if at.step >= 0 else "")
    before, end = int(curve.before_bytes), int(curve.end_bytes)
    allocations = int((changes_of(trace, device).action == CREATE).sum())
    told = allocator_peak(trace, *blocks_of(trace).devices[device])
    counted = [
        _fact(size(counted_bytes), f"peak {what} by the allocator")
        for counted_bytes, what in ((told.allocated_bytes, "allocated"), (told.reserved_bytes, "reserved"))
        if counted_bytes >= max(at.bytes, 1)
    ]
    return "".join([
        *counted,
        _fact(size(at.bytes), f"{'attributed at the peak' if counted else 'peak'}, {where}"),
        _fact(size(before), "allocated before the recording"),
        _fact(size(end), "live at the end"),
        _fact(f"{allocations:,}", "allocations"),
    ])  # fmt: skip


def _fact(value: str, meaning: str) -> str:
    """One number with its meaning."""
    return f"<div><b>{escape(value)}</b><span>{escape(meaning)}</span></div>"


def _legend() -> str:
    """The categories with their colors, in the order in which they are stacked, uppermost first."""
    items = "".join(
        f'<span><i style="background:{COLORS[category]}"></i>{CATEGORY_NAMES[category]}</span>'
        for category in reversed(STACKED)
    )
    return f'<figcaption class="legend">{items}</figcaption>'


def _categories(trace: TraceData, at: Peak | None) -> str:
    """What each category held at the peak."""
    judged, live = judged_blocks(trace), live_at(trace, at)
    sums = np.zeros(len(MemoryCategory), dtype=np.int64)
    np.add.at(sums, judged.category[live], judged.blocks.bytes[live])
    counts = np.bincount(judged.category[live], minlength=len(MemoryCategory))
    total = int(sums.sum())
    rows = [_head(["category", "bytes", "share", "blocks"])]
    for category in sorted(MemoryCategory, key=lambda category: -int(sums[category])):
        if counts[category]:
            cells = [
                _category_cell(CATEGORY_NAMES[category], category),
                _number(size(int(sums[category]))),
                _bar(int(sums[category]), total, category),
                _number(f"{int(counts[category]):,}"),
            ]
            rows.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(rows)


def _holders_about(trace: TraceData, at: Peak | None) -> str:
    """How much of the peak has a category and a module."""
    if at is None:
        return ""
    judged, live = judged_blocks(trace), live_at(trace, at)
    held = judged.blocks.bytes[live]
    known = int(held[judged.category[live] != MemoryCategory.UNKNOWN].sum())
    placed = int(held[judged.module[live] >= 0].sum())
    return (
        f"Blocks that were live at the peak, by category, module, operator and source line. {percent(known, at.bytes)} "
        f"of the bytes have a category, {percent(placed, at.bytes)} a module."
    )


def _holders(trace: TraceData, device: str, at: Peak | None) -> str:
    """The largest holders at the peak."""
    table = memory_peak(trace, device=device, rows=_HOLDERS)
    total = at.bytes if at is not None else 0
    numbers = {name: MemoryCategory(place) for place, name in enumerate(CATEGORY_NAMES)}
    rows = [_head(["bytes", "share", "category", "module", "operator", "line", "blocks"])]
    for row in table.to_pylist():
        category = numbers[row["category"]]
        stack = "\n".join(reversed((row["stack"] or "").split(";")))
        cells = [
            _number(size(row["bytes"])),
            _bar(row["bytes"], total, category),
            _category_cell(row["category"], category),
            f"<td>{escape(row['module'] or '')}</td>",
            f"<td>{escape(row['operator'] or '')}</td>",
            f'<td title="{escape(stack, quote=True)}">{escape(_short(row["line"] or ""))}</td>',
            _number(f"{row['blocks']:,}"),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(rows)


def _head(names: list[str]) -> str:
    """The names of the columns, those of numbers on the right."""
    cells = (f"<th{' class=number' if name in ('bytes', 'blocks') else ''}>{name}</th>" for name in names)
    return f"<tr>{''.join(cells)}</tr>"


def _number(text: str) -> str:
    """A cell with a number."""
    return f'<td class="number">{escape(text)}</td>'


def _category_cell(name: str, category: MemoryCategory) -> str:
    """A cell with a category and its color."""
    return f'<td class="category"><i style="background:{COLORS[category]}"></i>{escape(name)}</td>'


def _bar(part: int, whole: int, category: MemoryCategory) -> str:
    """A cell with a share as a number and as a bar."""
    share = 100 * part / whole if whole else 0.0
    return (
        f'<td class="share"><span>{percent(part, whole)}</span>'
        f'<i style="width:{share:.2f}%;background:{COLORS[category]}"></i></td>'
    )


def _short(line: str) -> str:
    """A source line without the folders of its file."""
    place, colon, function = line.partition("): ")
    return place.replace("\\", "/").rsplit("/", 1)[-1] + colon + function
