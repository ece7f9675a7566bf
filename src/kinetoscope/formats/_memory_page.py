"""The page that shows memory over time: one file with its picture, its numbers and nothing from elsewhere."""

from __future__ import annotations

import json
from html import escape
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.formats._memory_chart import COLOURS, STACKED, Curve, amount, chart, curve_of
from kinetoscope.formats._memory_style import SCRIPT, STYLE
from kinetoscope.tables.memory_blocks import blocks_of
from kinetoscope.tables.memory_categories import CATEGORY_NAMES, MemoryCategory
from kinetoscope.tables.memory_facts import judged_blocks
from kinetoscope.tables.memory_peak import live_at, memory_peak, peak
from kinetoscope.tables.memory_timeline import CREATE, allocator_peak, changes_of, device_names

if TYPE_CHECKING:
    from kinetoscope.tables.memory_peak import Peak
    from kinetoscope.trace import Trace

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
<figure id="chart">$legend$svg<div id="tip" hidden></div></figure>
<p class="about">Drag over a part of the picture to look closer; a double click shows all again.</p>
<h2>At the peak, by category</h2>
<table class="narrow">$categories</table>
<h2>Who held it</h2>
<p class="about">$holders_about</p>
<table>$holders</table>
</main>
<script type="application/json" id="data">$data</script>
<script>$script</script>
</body>
</html>
""")


def page(trace: Trace, device: int, *, failure: str = "") -> str:
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
    command = trace.info.get("command_line")
    shown = " ".join(str(part) for part in command) if isinstance(command, list) else ""
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
        # So that no text in it can end the element.
        data=json.dumps(_data(curve), separators=(",", ":")).replace("</", "<\\/"),
        script=SCRIPT,
    )


def _facts(trace: Trace, device: int, at: Peak | None, curve: Curve) -> str:
    """The few numbers that come first."""
    if at is None:
        return _fact("nothing", "No memory of this device was allocated while recording.")
    steps = trace.column("steps", "number")
    where = f"after {_time_text(at.time_ns)}" + (f", in step {int(steps[at.step])}" if at.step >= 0 else "")
    before, end = int(curve.before_bytes), int(curve.end_bytes)
    allocations = int((changes_of(trace, device).action == CREATE).sum())
    told = allocator_peak(trace, *blocks_of(trace).devices[device])
    counted = [
        _fact(amount(size), f"{what} at most, as the allocator counted")
        for size, what in ((told.allocated_bytes, "allocated"), (told.reserved_bytes, "reserved"))
        if size >= max(at.bytes, 1)
    ]
    return "".join([
        *counted,
        _fact(amount(at.bytes), f"{'attributed at the peak' if counted else 'peak'}, {where}"),
        _fact(amount(before), "there before the recording"),
        _fact(amount(end), "live at the end"),
        _fact(f"{allocations:,}", "allocations"),
    ])  # fmt: skip


def _fact(value: str, meaning: str) -> str:
    """One number with its meaning."""
    return f"<div><b>{escape(value)}</b><span>{escape(meaning)}</span></div>"


def _legend() -> str:
    """The categories with their colours, in the order in which they are stacked, uppermost first."""
    items = "".join(
        f'<span><i style="background:{COLOURS[category]}"></i>{CATEGORY_NAMES[category]}</span>'
        for category in reversed(STACKED)
    )
    return f'<figcaption class="legend">{items}</figcaption>'


def _categories(trace: Trace, at: Peak | None) -> str:
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
                _number(amount(int(sums[category]))),
                _bar(int(sums[category]), total, category),
                _number(f"{int(counts[category]):,}"),
            ]
            rows.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(rows)


def _holders_about(trace: Trace, at: Peak | None) -> str:
    """How much of the peak has a category and a module."""
    if at is None:
        return ""
    judged, live = judged_blocks(trace), live_at(trace, at)
    size = judged.blocks.bytes[live]
    known = int(size[judged.category[live] != MemoryCategory.UNKNOWN].sum())
    placed = int(size[judged.module[live] >= 0].sum())
    return (
        f"Blocks that were live at the peak, by what they are for, module, operator and line. {100 * known / at.bytes:.1f} % "
        f"of the bytes have a category, {100 * placed / at.bytes:.1f} % a module."
    )


def _holders(trace: Trace, device: str, at: Peak | None) -> str:
    """The largest holders at the peak."""
    table = memory_peak(trace, device=device, rows=_HOLDERS)
    total = at.bytes if at is not None else 0
    numbers = {name: MemoryCategory(place) for place, name in enumerate(CATEGORY_NAMES)}
    rows = [_head(["bytes", "share", "category", "module", "operator", "line", "blocks"])]
    for row in table.to_pylist():
        category = numbers[row["category"]]
        stack = "\n".join(reversed((row["stack"] or "").split(";")))
        cells = [
            _number(amount(row["bytes"])),
            _bar(row["bytes"], total, category),
            _category_cell(row["category"], category),
            f"<td>{escape(row['module'] or '')}</td>",
            f"<td>{escape(row['operator'] or '')}</td>",
            f'<td title="{escape(stack, quote=True)}">{escape(_short(row["line"] or ""))}</td>',
            _number(f"{row['blocks']:,}"),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(rows)


def _data(curve: Curve) -> dict[str, Any]:
    """What the picture shows, for the script that says it under the pointer."""
    return {
        "names": [CATEGORY_NAMES[category] for category in STACKED],
        "colours": [COLOURS[category] for category in STACKED],
        "end_ns": curve.duration_ns,
        "time_ns": curve.fine_ns.tolist(),
        "bytes": curve.fine_held[:, list(STACKED)].tolist(),
    }


def _head(names: list[str]) -> str:
    """The names of the columns, those of numbers on the right."""
    cells = (f"<th{' class=number' if name in ('bytes', 'blocks') else ''}>{name}</th>" for name in names)
    return f"<tr>{''.join(cells)}</tr>"


def _number(text: str) -> str:
    """A cell with a number."""
    return f'<td class="number">{escape(text)}</td>'


def _category_cell(name: str, category: MemoryCategory) -> str:
    """A cell with a category and its colour."""
    return f'<td class="category"><i style="background:{COLOURS[category]}"></i>{escape(name)}</td>'


def _bar(part: int, whole: int, category: MemoryCategory) -> str:
    """A cell with a share as a number and as a bar."""
    share = 100 * part / whole if whole else 0.0
    return (
        f'<td class="share"><span>{share:.1f} %</span>'
        f'<i style="width:{share:.2f}%;background:{COLOURS[category]}"></i></td>'
    )


def _short(line: str) -> str:
    """A source line without the folders of its file."""
    place, colon, function = line.partition("): ")
    return place.replace("\\", "/").rsplit("/", 1)[-1] + colon + function


def _time_text(time_ns: int) -> str:
    """A time with its unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if time_ns >= size:
            return f"{time_ns / size:.2f} {unit}"
    return f"{max(time_ns, 0)} ns"
