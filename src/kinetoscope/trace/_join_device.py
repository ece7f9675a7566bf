"""One trace of two: what one recorder saw of the host, and what another saw of the devices at the same time.

The host's trace has the operators, stacks, modules and memory; the device's has the calls of its runtime, on the threads
that made them, and what ran on its streams. A call lies inside the operator that made it, so that with both on one clock
the device's work is the operator's. Dictionaries of the device's trace are put behind those of the host's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace._device_clock import Fit, ThreadTimes, fit_clocks
from kinetoscope.trace._schema import FLAG_ASYNC, STORED, SpanKind
from kinetoscope.trace._trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

_POINTS_IN_TIME = frozenset({"start_ns", "time_ns"})
_REFERENCE = "row of "
_OPERATORS = (SpanKind.OPERATOR, SpanKind.BACKWARD)
_CALLS = (SpanKind.RUNTIME, SpanKind.DRIVER)
# A thread whose number the host does not know is another's if so many of its calls lie inside that one's operators.
_FEWEST_CALLS, _SHARE_INSIDE = 3, 0.8
_LOW_BITS = (1 << 32) - 1
_OF_THE_DEVICE = ("deviceProperties", "distributedInfo")


def join_device(host: Trace, device: Trace, tid_of: Mapping[int, int] | None = None) -> Trace:
    """Put what was recorded of the devices into the trace of the host.

    Threads are the same that have the same number. One of the device's trace with another number is the host's thread in
    whose operators its calls lie; without such it is one more thread.

    Args:
        host: The host's side; its metadata, cycles and threads stay.
        device: The devices' side: spans on streams, and calls of runtimes on threads; both traces of one process.
        tid_of: The system's numbers of threads by other numbers, of 32 bits, under which the device's side may know them.

    Returns:
        A new trace. `info["clock_checks"]` has what `Fit.as_info` says; where the clocks do not fit, or one side does not
        say when it began, `losses` has a row.
    """
    return _Join(host, device, tid_of or {}).run()


class _Join:
    """One joining. Maps of rows have one entry more at the end, which is for the row -1."""

    def __init__(self, host: Trace, device: Trace, tid_of: Mapping[int, int]) -> None:
        self._host = host
        self._device = device
        self._tid_of = tid_of
        begins = [trace.info.get("start_realtime_ns") for trace in (host, device)]
        known = [begin for begin in begins if isinstance(begin, int) and begin > 0]
        self._clocks_known = len(known) == len(begins)
        self._host_ns = 0
        self._device_ns = known[1] - known[0] if self._clocks_known else 0
        self._rows: dict[str, Rows] = {}
        self._tables: dict[str, dict[str, Any]] = {}
        self._strings: list[str] = []

    def run(self) -> Trace:
        """Strings, threads, the clocks, and then every table."""
        self._join_strings()
        thread_rows = self._match_threads()
        fit = fit_clocks(self._thread_times(thread_rows))
        self._device_ns += fit.shift_ns
        self._begin_at_zero()
        self._rows["threads"] = np.append(thread_rows, -1)
        for name in STORED:
            if name not in ("threads", "spans", "steps", "cycles", "losses"):
                count, more = len(self._host.columns(name)), len(self._device.columns(name))
                self._rows[name] = np.append(np.arange(count, count + more), -1)
        order = self._order_spans()
        for name in STORED:
            if name == "threads":
                self._join_threads(thread_rows)
            elif name == "spans":
                self._put_together(name, order)
            elif name not in ("steps", "cycles", "losses"):
                self._put_together(name, self._order_in_time(name))
        self._tables["cycles"] = self._moved_cycles()
        self._tables["losses"] = self._losses(fit)
        return Trace.from_columns(self._tables, strings=self._strings, info=self._info(fit))

    def _join_strings(self) -> None:
        """Have each string once."""
        strings = list(self._host.strings)
        known = {text: row for row, text in enumerate(strings)}
        rows = []
        for text in self._device.strings:
            row = known.setdefault(text, len(strings))
            if row == len(strings):
                strings.append(text)
            rows.append(row)
        self._strings = strings
        self._rows["strings"] = np.array([*rows, -1], np.int64)

    # ------------------------------------------------------------------------------------------------------ threads

    def _match_threads(self) -> Rows:
        """The new row of each thread of the device's trace: the host's own, or one behind them."""
        host_tids = self._host.column("threads", "os_tid").tolist()
        row_of = {tid: row for row, tid in reversed(list(enumerate(host_tids)))}
        device_tids = self._device.column("threads", "os_tid").tolist()
        tracks = set(self._thread_of_streams())
        found: dict[int, int] = {}
        for row, tid in enumerate(device_tids):
            # Runtimes know 32 bits of a number, which Kineto writes with a sign.
            known = row_of.get(tid, row_of.get(self._tid_of.get(tid & _LOW_BITS, -1)))
            if row not in tracks and known is not None:
                found[row] = known
        unknown = [row for row in range(len(device_tids)) if row not in found and row not in tracks]
        if unknown:
            found |= self._match_by_place(unknown, set(found.values()))
        rows = np.empty(len(device_tids), np.int64)
        following = len(host_tids)
        for row in range(len(device_tids)):
            rows[row] = found.get(row, following)
            following += row not in found
        return rows

    def _thread_of_streams(self) -> list[int]:
        """The threads of the device's trace that are streams."""
        columns = self._device.columns("spans")
        on_stream: list[int] = np.unique(columns["thread"][columns["stream"] >= 0]).tolist()
        return on_stream

    def _match_by_place(self, unknown: list[int], taken: set[int]) -> dict[int, int]:
        """The host's threads in whose operators the calls of other threads lie, the clearest first."""
        votes: list[tuple[int, int, int, int]] = []
        for row in unknown:
            starts_ns, ends_ns = self._calls_of(row)
            if len(starts_ns) < _FEWEST_CALLS:
                continue
            for own in range(len(self._host.columns("threads"))):
                begins_ns, outer_ends_ns = self._operators_of(own)
                if own in taken or len(begins_ns) == 0:
                    continue
                place = np.searchsorted(begins_ns, starts_ns, side="right") - 1
                inside = (place >= 0) & (ends_ns <= outer_ends_ns[place])
                count = int(np.count_nonzero(inside))
                if count >= _SHARE_INSIDE * len(starts_ns):
                    # All calls of a thread can lie inside one operator of another that was preempted meanwhile.
                    votes.append((len(np.unique(place[inside])), count, row, own))
        matched: dict[int, int] = {}
        for _, _, row, own in sorted(votes, key=lambda vote: (-vote[0], -vote[1], vote[2], vote[3])):
            if row not in matched and own not in matched.values():
                matched[row] = own
        return matched

    def _calls_of(self, thread: int) -> tuple[Rows, Rows]:
        """When the calls of a thread of the device's trace began and ended, on the host's axis."""
        spans = self._device.columns("spans")
        chosen = (spans["thread"] == thread) & np.isin(spans["kind"], _CALLS) & (spans["stream"] < 0)
        starts_ns = spans["start_ns"][chosen] + self._device_ns
        return starts_ns, starts_ns + spans["duration_ns"][chosen]

    def _operators_of(self, thread: int, *, outer_only: bool = True) -> tuple[Rows, Rows]:
        """When the operators of a thread of the host began and ended; the outermost ones, or all."""
        spans = self._host.columns("spans")
        low, high = np.searchsorted(spans["thread"], (thread, thread + 1))
        starts_ns = spans["start_ns"][low:high]
        ends_ns = starts_ns + spans["duration_ns"][low:high]
        chosen = np.isin(spans["kind"][low:high], _OPERATORS) & (spans["flags"][low:high] & FLAG_ASYNC == 0)
        starts_ns, ends_ns = starts_ns[chosen], ends_ns[chosen]
        if outer_only and len(starts_ns):
            # An operator is outermost that begins when all before it have ended.
            ended_ns = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends_ns)[:-1]))
            outer = starts_ns >= ended_ns
            starts_ns, ends_ns = starts_ns[outer], ends_ns[outer]
        return starts_ns, ends_ns

    def _thread_times(self, thread_rows: Rows) -> list[ThreadTimes]:
        """What is to be compared of each thread that both sides know."""
        times = []
        for row in np.flatnonzero(thread_rows < len(self._host.columns("threads"))).tolist():
            starts_ns, ends_ns = self._operators_of(int(thread_rows[row]), outer_only=False)
            times.append(ThreadTimes.of(starts_ns, ends_ns, *self._calls_of(row)))
        return times

    def _join_threads(self, thread_rows: Rows) -> None:
        """The host's threads and, behind them, those that only the device's trace has."""
        count = len(self._host.columns("threads"))
        new = np.flatnonzero(thread_rows >= count)
        made: dict[str, Any] = {}
        for column in self._given("threads"):
            own, more = self._values("threads", column)
            made[column] = [*own, *(more[row] for row in new.tolist())]
        made["index"] = np.arange(count + len(new))
        self._tables["threads"] = made

    # -------------------------------------------------------------------------------------------------------- tables

    def _begin_at_zero(self) -> None:
        """Let the trace begin where the side that saw more begins: no time may lie before it."""
        first_ns = int(self._device.column("spans", "start_ns").min(initial=0)) + self._device_ns
        if first_ns < 0:
            self._host_ns = -first_ns
            self._device_ns -= first_ns

    def _order_spans(self) -> Rows:
        """The order of the spans of both, and where they went."""
        count = len(self._host.columns("spans"))
        thread, start_ns, duration_ns = (
            np.concatenate(self._values("spans", column)) for column in ("thread", "start_ns", "duration_ns")
        )
        # Of equal ones the host's come first: an operator is around its calls.
        order = np.lexsort((-duration_ns, start_ns, thread))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self._host_rows = np.append(place[:count], -1)
        self._rows["spans"] = np.append(place[count:], -1)
        return order

    def _order_in_time(self, name: str) -> Rows | None:
        """The order of the allocations of both; None for tables that have no order of their own."""
        if name != "allocations" or not (len(self._host.columns(name)) and len(self._device.columns(name))):
            return None
        return np.argsort(np.concatenate(self._values(name, "time_ns")), kind="stable")

    def _put_together(self, name: str, order: Rows | None) -> None:
        """The rows of both in one table."""
        made: dict[str, Any] = {}
        for column in self._given(name):
            own, more = self._values(name, column)
            if isinstance(own, list):
                made[column] = own + more
            else:
                both = np.concatenate((own, more)).astype(STORED[name].column(column).type, copy=False)
                made[column] = both if order is None else both[order]
        self._tables[name] = made

    def _given(self, name: str) -> list[str]:
        """The columns that one of them was given: the other's may follow from its others, or be the default."""
        given = {*self._host.columns(name).given, *self._device.columns(name).given}
        return [column for column in STORED[name].column_names if column in given]

    def _values(self, name: str, column: str) -> tuple[Any, Any]:
        """A column of both, with references and times as they are in the new trace."""
        unit = STORED[name].column(column).unit
        own, more = self._host.column(name, column), self._device.column(name, column)
        if unit == "row of spans":
            return self._host_rows[own], self._rows["spans"][more]
        if unit.startswith(_REFERENCE):
            target = unit.removeprefix(_REFERENCE)
            return own, self._rows[target][more]
        if column in _POINTS_IN_TIME:
            return own + self._host_ns, more + self._device_ns
        return own, more

    def _moved_cycles(self) -> dict[str, Any]:
        """The cycles of the host's trace."""
        cycles = self._host.columns("cycles")
        return {
            "number": cycles["number"],
            "start_ns": cycles["start_ns"] + self._host_ns,
            "duration_ns": cycles["duration_ns"],
        }

    # -------------------------------------------------------------------------------------------- what is known of it

    def _losses(self, fit: Fit) -> dict[str, list[Any]]:
        """What both lost, and whether their clocks disagree."""
        names = ("what", "count", "where", "why")
        rows = [
            row
            for trace in (self._host, self._device)
            for row in zip(*(list(trace.column("losses", name)) for name in names), strict=True)
        ]
        if not self._clocks_known:
            why = (
                "One of the two recorders does not say when it began: both were taken to have begun together."
            )
            rows.append(("one clock for host and devices", 1, "spans", why))
        elif not fit.fits:
            why = (
                f"{fit.astride} of {fit.calls} calls of the device's runtime have the begin or end of an operator inside them, "
                f"by up to {fit.largest_astride_ns} ns: times of devices are off by as much, and their work may be counted for "
                "a neighbour of the operator that launched it."
            )
            rows.append(("device times that do not fit the host's", fit.astride, "spans", why))
        return {name: [row[place] for row in rows] for place, name in enumerate(names)}

    def _info(self, fit: Fit) -> dict[str, Any]:
        """What the host's side says, and what only the device's can."""
        info = dict(self._host.info)
        for key in _OF_THE_DEVICE:
            if key in self._device.info:
                info.setdefault(key, self._device.info[key])
        checks = info.get("clock_checks")
        info["clock_checks"] = {**(checks if isinstance(checks, dict) else {}), **fit.as_info()}
        for key in ("start_realtime_ns", "start_monotonic_ns"):
            if isinstance(info.get(key), int):
                info[key] -= self._host_ns
        if isinstance(info.get("stop_ns"), int):
            info["stop_ns"] += self._host_ns
        return info
