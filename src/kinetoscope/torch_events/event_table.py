"""The text table of events: torch's columns, headings and units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kinetoscope._errors import ArgumentError
from kinetoscope.display.html import Cell, note, page, table
from kinetoscope.display.printable import printable
from kinetoscope.model import units
from kinetoscope.model.kinds import is_device_work
from kinetoscope.model.schema import SpanKind
from kinetoscope.torch_events import arguments
from kinetoscope.torch_events.event_sources import (
    Event,
)
from kinetoscope.torch_events.event_sums import flops_scale, share_text, size_text, time_text
from kinetoscope.torch_events.function_event import FunctionEvent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.model.trace_data import TraceData


class _Events(Protocol):
    """What a table reads of a list of events; `EventList` says what each of them is."""

    @property
    def trace(self) -> TraceData: ...
    @property
    def has_single(self) -> bool: ...
    @property
    def use_device(self) -> str | None: ...
    @property
    def profile_memory(self) -> bool: ...
    @property
    def with_flops(self) -> bool: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Event]: ...
    def __getitem__(self, index: int, /) -> Event: ...
    def values(self, attribute: str) -> NDArray[Any]: ...
    def widest(self, part: str) -> int: ...
    def span_rows(self) -> NDArray[np.int64] | None: ...


NUMBER_WIDTH = 12
GAP = "  "
_ROWS_OF_A_PAGE = 50


@dataclass(frozen=True)
class _Column:
    """One column of text: what its cell says of an event."""

    heading: str
    cell: Callable[[Event], str]
    width: int = NUMBER_WIDTH
    left: bool = False

    def padded(self, text: str) -> str:
        """Pad a cell to the width of the column."""
        return text.ljust(self.width) if self.left else text.rjust(self.width)


@dataclass(frozen=True)
class TableOptions:
    """How an event table is cut and headed; see `_Events.table`."""

    row_limit: int | None
    max_src_column_width: int | None
    max_name_column_width: int | None
    max_shapes_column_width: int | None
    header: str | None
    top_level_events_only: bool
    time_unit: str | None

    @classmethod
    def checked(cls, **given: Any) -> TableOptions:
        """Check the arguments.

        Raises:
            ArgumentError: Something is not of its type, or an unknown unit.
        """
        header = given["header"]
        if header is not None and not isinstance(header, str):
            raise ArgumentError(f"header={header!r} is not valid: need a string, or None for no heading")
        widths = {
            name: arguments.width(name, value) for name, value in given.items() if name.startswith("max_")
        }
        return cls(
            row_limit=arguments.row_limit(given["row_limit"]),
            header=header,
            top_level_events_only=arguments.flag("top_level_events_only", given["top_level_events_only"]),
            time_unit=arguments.time_unit(given["time_unit"]),
            **widths,
        )


def event_table(events: _Events, options: TableOptions) -> str:
    """Return events as a text table, empty without events."""
    if len(events) == 0:
        return ""
    host_us = float(events.values("self_cpu_time_total").sum())
    device_us = _device_total(events)
    columns = _columns(events, options, host_us, device_us)
    rows = [line for event in _chosen(events, options) for line in _lines(columns, event)]
    rule = "".join("-" * column.width + GAP for column in columns)
    wide_rule = "=" * (len(rule) - len(GAP))
    out: list[str] = []
    if options.header is not None:
        out += [wide_rule, options.header]
    if options.top_level_events_only:
        out += [wide_rule, "This report only display top-level ops statistics"]
    out += [rule, _joined(columns, [column.heading for column in columns]), rule, *rows, rule]
    out.append(f"Self CPU time total: {time_text(host_us, options.time_unit)}")
    if device_us is not None:
        device = (events.use_device or "device").upper()
        out.append(f"Self {device} time total: {time_text(device_us, options.time_unit)}")
    return "\n".join(out) + "\n"


def event_page(events: _Events) -> str:
    """Return the first events as HTML, with the columns of the text table."""
    if len(events) == 0:
        return page(note("no events"))
    options = TableOptions(
        _ROWS_OF_A_PAGE, None, None, None, None, top_level_events_only=False, time_unit=None
    )
    host_us, device_us = float(events.values("self_cpu_time_total").sum()), _device_total(events)
    columns = _columns(events, options, host_us, device_us)
    share = next(place for place, column in enumerate(columns) if column.heading == "Self CPU %")
    rows = []
    for event in _chosen(events, options):
        texts: list[Cell | str] = [column.cell(event).strip() for column in columns]
        texts[share] = Cell(str(texts[share]), "", event.self_cpu_time_total / host_us if host_us else 0.0)
        if columns[-1].heading == SOURCE:
            texts[-1] = Cell(str(texts[-1]), "\n".join(event.stack or []))
        rows.append(texts)
    headings = [column.heading for column in columns]
    left = [place for place, heading in enumerate(headings) if heading in ("Name", "Overload Name", SOURCE)]
    totals = [
        units.count(len(events), "event"),
        f"self CPU time {time_text(host_us)}",
    ]
    if device_us is not None:
        totals.append(f"self {(events.use_device or 'device').upper()} time {time_text(device_us)}")
    more = (
        note(f"the first {len(rows)} of them are shown; table() prints more")
        if len(events) > len(rows)
        else ""
    )
    return page(note(", ".join(totals)), table(headings, rows, left=left), more)


def _columns(
    events: _Events, options: TableOptions, host_us: float, device_us: float | None
) -> list[_Column]:
    """The columns that these events fill."""
    unit = options.time_unit
    name_width = _width(events.widest("key"), options.max_name_column_width)
    columns = [
        _Column("Name", lambda event: _cut_name(event.key or "", options.max_name_column_width), name_width)
    ]
    if _shows(events, "capture_overload_names") and events.widest("overload_name"):
        columns.append(
            _Column(
                "Overload Name",
                lambda event: _cut_name(event.overload_name or "", options.max_name_column_width),
                name_width,
            )
        )
    columns += [
        _Column(
            "Self CPU %",
            lambda event: _noted(event, "self_cpu_percent", share_text(event.self_cpu_time_total, host_us)),
        ),
        _Column("Self CPU", lambda event: time_text(event.self_cpu_time_total, unit)),
        _Column(
            "CPU total %",
            lambda event: _noted(
                event, "total_cpu_percent", 0 if event.is_async else share_text(event.cpu_time_total, host_us)
            ),
        ),
        _Column("CPU total", lambda event: time_text(event.cpu_time_total, unit)),
        _Column("CPU time avg", lambda event: time_text(event.cpu_time, unit)),
    ]
    device = (events.use_device or "").upper()
    if device_us is not None:
        columns += [
            _Column(f"Self {device}", lambda event: time_text(event.self_device_time_total, unit)),
            _Column(
                f"Self {device} %",
                lambda event: _noted(
                    event, "total_device_percent", share_text(event.self_device_time_total, device_us)
                ),
            ),
            _Column(f"{device} total", lambda event: time_text(event.device_time_total, unit)),
            _Column(f"{device} time avg", lambda event: time_text(event.device_time, unit)),
        ]
    if events.profile_memory:
        columns += [
            _Column("CPU Mem", lambda event: size_text(event.cpu_memory_usage)),
            _Column("Self CPU Mem", lambda event: size_text(event.self_cpu_memory_usage)),
        ]
        if device and (events.values("self_device_memory_usage") > 0).any():
            columns += [
                _Column(f"{device} Mem", lambda event: size_text(event.device_memory_usage)),
                _Column(f"Self {device} Mem", lambda event: size_text(event.self_device_memory_usage)),
            ]
    columns.append(_Column("# of Calls", lambda event: str(event.count)))
    # An empty list prints as two characters.
    widest_shapes = events.widest("input_shapes")
    if widest_shapes > 2:
        width = _width(widest_shapes, options.max_shapes_column_width)
        columns.append(_Column("Input Shapes", lambda event: str(event.input_shapes)[:width], width))
    columns += _flops_column(events)
    widest_source = events.widest("stack") if _shows(events, "with_stack") else 0
    if widest_source:
        width = _width(widest_source, options.max_src_column_width)
        columns.append(
            _Column(
                SOURCE,
                lambda event: _cut_left(event.stack[0], width) if event.stack else "",
                width,
                left=True,
            )
        )
    return columns


def _noted(event: Event, share: str, value: str | int) -> str:
    """The text of a share, which the event has from now on, as in torch."""
    setattr(event, share, value)
    return str(value)


SOURCE = "Source Location"


def _shows(events: _Events, flag: str) -> bool:
    """Sums show what they were grouped by; single events what the session recorded by its flags."""
    return not events.has_single or bool(getattr(events.trace.run_info, flag))


def _flops_column(events: _Events) -> list[_Column]:
    """One column of FLOPs in the unit that fits the smallest, where there are any."""
    if not events.with_flops:
        return []
    counted = events.values("flops")
    counted = counted[counted > 0]
    if len(counted) == 0:
        return []
    unit, size = flops_scale(int(counted.min()))

    def cell(event: Event) -> str:
        return f"{event.flops / size:8.3f}" if event.flops > 0 else "--"

    width = max(NUMBER_WIDTH, len(f"{int(counted.max()) / size:8.3f}"))
    return [_Column(f"Total {unit}", cell, width)]


def _lines(columns: list[_Column], event: Event) -> Iterator[str]:
    """The lines of one event: its numbers, then the rest of its stack below each other."""
    yield _joined(columns, [column.cell(event) for column in columns])
    if columns[-1].heading == SOURCE:
        before = [""] * (len(columns) - 1)
        for entry in [*(event.stack or [])[1:], ""]:
            yield _joined(columns, [*before, _cut_left(entry, columns[-1].width)])


def _chosen(events: _Events, options: TableOptions) -> Iterator[Event]:
    """The events to print; a negative limit prints all."""
    found = (
        event for event in events if not (options.top_level_events_only and event.cpu_parent is not None)
    )
    return islice(found, options.row_limit)


def _device_total(events: _Events) -> float | None:
    """Self time of device events, in microseconds; None where no event has time on a device."""
    times = events.values("self_device_time_total")
    places = np.flatnonzero(times > 0)
    if len(places) == 0:
        return None
    # Ranges and waits are drawn on the device too, around the kernels that are counted already.
    rows = events.span_rows()
    if rows is not None:
        spans = events.trace.columns("spans")
        stream, kind = spans["stream"][rows[places]], spans["kind"][rows[places]]
        return float(times[places[(stream >= 0) & is_device_work(kind)]].sum())
    made = ((float(times[place]), events[place]) for place in places.tolist())
    return sum((time for time, event in made if _works(event)), 0.0)


def _works(event: Event) -> bool:
    """Whether a device did something in it: ranges and waits are none of its work."""
    first = event if isinstance(event, FunctionEvent) else event.first
    waits = first is not None and first.row >= 0 and first.kind == SpanKind.SYNC
    return bool(int(event.device_type)) and not event.is_user_annotation and not waits


def _joined(columns: list[_Column], cells: list[str]) -> str:
    """One line of the table."""
    return "".join(column.padded(cell) + GAP for column, cell in zip(columns, cells, strict=True))


def _width(widest: int, limit: int | None) -> int:
    """Room for the widest cell and a margin, within the limit."""
    return widest + 4 if limit is None else min(widest + 4, limit)


def _cut_name(name: str, limit: int | None) -> str:
    """Cut a name at its end and make it fit for a terminal."""
    if limit is not None and len(name) >= limit - 3:
        name = name[: max(0, limit - 3)] + "..."
    return printable(name)


def _cut_left(path: str, limit: int) -> str:
    """Truncate a source location at its start: its end is more useful."""
    path = printable(path)
    return path if len(path) <= limit else "..." + path[len(path) - max(0, limit - 3) :]
