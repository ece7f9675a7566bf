"""Merges two traces of the same time: the host's by one recorder, the devices' by another.

The host's trace has operators, stacks, modules and memory; the device's has runtime calls, on their threads, and the work on streams. On one
clock, a runtime call lies inside the operator that made it, so the device work belongs to that operator. Dictionary rows of the device's trace follow
those of the host's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from kinetoscope.combine.concatenate import JoinedTrace, Joining, row_map
from kinetoscope.model.hierarchy import outermost_operators
from kinetoscope.model.kinds import is_operator, is_runtime_call
from kinetoscope.model.losses import Loss, loss_columns, losses_of
from kinetoscope.model.processes import Placement
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import FLAG_ASYNC
from kinetoscope.model.trace_data import AnyTrace, TraceData

Times = Rows


# Whether the clocks of the two recorders agree.
#
# No operator begins or ends during a runtime call of its thread. A call with such a moment inside it shows that the clocks disagree, and by how
# much at least; the other calls show by how much they can disagree at most.

# Above this share of calls that do not fit, the clocks disagree.
MOST_CROSSING = 0.01


@dataclass(frozen=True)
class ThreadTimes:
    """The times of one thread by both clocks.

    Attributes:
        moments_ns: When its operators began and ended, in order.
        starts_ns: When its calls of the runtime began.
        ends_ns: When these ended.
    """

    moments_ns: Times
    starts_ns: Times
    ends_ns: Times


@dataclass(frozen=True)
class Fit:
    """How the two clocks fit.

    Attributes:
        calls: How many calls lay on threads that had operators.
        calls_crossing: How many of them cross the start or end of an operator.
        largest_crossing_ns: The smallest shift that would correct the worst of these, in nanoseconds.
        earliest_ns: The largest shift to earlier times (below 0) at which all calls that fit now still fit; None without
            such calls.
        latest_ns: The largest shift to later times.
    """

    calls: int
    calls_crossing: int
    largest_crossing_ns: int
    earliest_ns: int | None
    latest_ns: int | None

    @property
    def fits(self) -> bool:
        """Whether the clocks agree: few calls cross boundaries of operators."""
        return self.calls_crossing <= MOST_CROSSING * self.calls


def fit_clocks(threads: Sequence[ThreadTimes]) -> Fit:
    """Check whether a device's calls fit the operators of their threads."""
    calls = crossing_calls = 0
    earliest, latest, needed = (np.zeros(0, np.int64) for _ in range(3))
    for thread in threads:
        if len(thread.moments_ns) == 0:
            continue
        # For each call the first moment after its start, and the first that is not before its end.
        low = np.searchsorted(thread.moments_ns, thread.starts_ns, side="right")
        high = np.searchsorted(thread.moments_ns, thread.ends_ns, side="left")
        crossing = high > low
        calls += len(low)
        crossing_calls += int(np.count_nonzero(crossing))
        # Calls before the first moment, or after the last, set no limit.
        before, behind = ~crossing & (low > 0), ~crossing & (low < len(thread.moments_ns))
        earliest = np.append(earliest, thread.moments_ns[low[before] - 1] - thread.starts_ns[before])
        latest = np.append(latest, thread.moments_ns[low[behind]] - thread.ends_ns[behind])
        later = thread.moments_ns[high[crossing] - 1] - thread.starts_ns[crossing]
        sooner = thread.ends_ns[crossing] - thread.moments_ns[low[crossing]]
        needed = np.append(needed, np.minimum(later, sooner))
    return Fit(
        calls=calls,
        calls_crossing=crossing_calls,
        largest_crossing_ns=int(needed.max(initial=0)),
        earliest_ns=int(earliest.max()) if len(earliest) else None,
        latest_ns=int(latest.min()) if len(latest) else None,
    )


# A thread with an unknown number is the host thread whose operators contain this share of its calls.
_FEWEST_CALLS, _SHARE_INSIDE = 3, 0.8
_LOW_BITS = (1 << 32) - 1
_OF_THE_DEVICE = ("deviceProperties", "distributedInfo")


def join_device(host: AnyTrace, device: AnyTrace, tid_of: Mapping[int, int] | None = None) -> AnyTrace:
    """Merge a trace of devices into the trace of the host.

    Threads are matched by number, or else by the host thread whose operators contain the calls; other threads are added.

    Args:
        host: The host's trace; its metadata, cycles and threads stay.
        device: The devices' side: spans on streams, and calls of runtimes on threads; both traces of one process.
        tid_of: The system's thread ids by the 32-bit numbers that the device's trace may use.

    Returns:
        A new trace. `info["clock_checks"]` has the values of `Fit`; if the clocks disagree, or a start time is unknown, `losses`
        has a row.
    """
    return cast("AnyTrace", _Join(host, device, tid_of or {}).run())


class _Join(Joining):
    """One merge: the host's rows keep their numbers, except in tables sorted by time."""

    SHARED: ClassVar = ()

    def __init__(self, host: TraceData, device: TraceData, tid_of: Mapping[int, int]) -> None:
        self._host, self._device, self._tid_of = host, device, tid_of
        begins = [trace.run_info.start_realtime_ns for trace in (host, device)]
        known_begins = [begin for begin in begins if begin is not None]
        self._clocks_known = len(known_begins) == len(begins)
        offset_ns = known_begins[1] - known_begins[0] if self._clocks_known else 0
        # The trace begins with the first record of either.
        first_ns = min(0, int(device.column("spans", "start_ns").min(initial=0)) + offset_ns)
        self._offset_ns = offset_ns
        self._host_part = JoinedTrace(host, Placement(-first_ns))
        self._device_part = JoinedTrace(device, Placement(offset_ns - first_ns))
        super().__init__([self._host_part, self._device_part])

    def _begin(self) -> None:
        threads, host_threads = self._match_threads(), len(self._host.columns("threads"))
        self._fit = fit_clocks(self._thread_times(threads))
        self._host_part.rows["threads"] = row_map(range(host_threads))
        self._device_part.rows["threads"] = row_map(threads)
        # The host's threads, followed by those that only the device's trace has.
        added = host_threads + np.flatnonzero(threads >= host_threads)
        self._thread_order = np.append(np.arange(host_threads), added)
        self._tables["cycles"] = {
            column: self._moved(self._host_part, "cycles", column)
            for column in ("number", "start_ns", "duration_ns")
        }

    def _number_rows(self, name: str) -> Rows | None:
        return self._thread_order if name == "threads" else super()._number_rows(name)

    def _put_in_order(self, name: str, order: Rows | None) -> None:
        super()._put_in_order(name, order)
        if name == "threads":
            self._tables[name]["index"] = np.arange(len(self._thread_order))

    def _match_threads(self) -> Rows:
        """The new row of each thread of the device's trace: the host's, or one after them."""
        host_tids = self._host.column("threads", "os_tid").tolist()
        row_of = {tid: row for row, tid in reversed(list(enumerate(host_tids)))}
        device_tids = self._device.column("threads", "os_tid").tolist()
        spans = self._device.columns("spans")
        tracks = set(np.unique(spans["thread"][spans["stream"] >= 0]).tolist())
        host_row_of: dict[int, int] = {}
        for row, tid in enumerate(device_tids):
            # Runtimes have 32 bits of a thread id, which Kineto writes with a sign.
            host_row = row_of.get(tid, row_of.get(self._tid_of.get(tid & _LOW_BITS, -1)))
            if row not in tracks and host_row is not None:
                host_row_of[row] = host_row
        unknown = [row for row in range(len(device_tids)) if row not in host_row_of and row not in tracks]
        if unknown:
            host_row_of |= self._match_by_place(unknown, set(host_row_of.values()))
        rows = np.array([host_row_of.get(row, -1) for row in range(len(device_tids))], np.int64)
        added = rows < 0
        rows[added] = len(host_tids) + np.arange(np.count_nonzero(added))
        return rows

    def _match_by_place(self, unknown: list[int], taken: set[int]) -> dict[int, int]:
        """Match threads to the host's threads whose operators contain their calls, best match first."""
        votes: list[tuple[int, int, int, int]] = []
        outermost = outermost_operators(self._host, self._host.column("spans", "flags") & FLAG_ASYNC == 0)
        for row in unknown:
            starts_ns, ends_ns = self._calls_of(row)
            if len(starts_ns) < _FEWEST_CALLS:
                continue
            for host_thread in range(len(self._host.columns("threads"))):
                begins_ns, outer_ends_ns = _times(self._host, outermost, host_thread)
                if host_thread in taken or len(begins_ns) == 0:
                    continue
                operator = np.searchsorted(begins_ns, starts_ns, side="right") - 1
                inside = (operator >= 0) & (ends_ns <= outer_ends_ns[operator])
                count = int(np.count_nonzero(inside))
                if count >= _SHARE_INSIDE * len(starts_ns):
                    # All calls of a thread can lie inside one operator of another that was preempted meanwhile.
                    votes.append((len(np.unique(operator[inside])), count, row, host_thread))
        matched: dict[int, int] = {}
        for _, _, row, host_thread in sorted(votes, key=lambda vote: (-vote[0], -vote[1], vote[2], vote[3])):
            if row not in matched and host_thread not in matched.values():
                matched[row] = host_thread
        return matched

    def _calls_of(self, thread: int) -> tuple[Rows, Rows]:
        """Starts and ends of a device-trace thread's calls, on the host's axis."""
        spans = self._device.columns("spans")
        calls = np.flatnonzero(is_runtime_call(spans["kind"]) & (spans["stream"] < 0))
        starts_ns, ends_ns = _times(self._device, calls, thread)
        return starts_ns + self._offset_ns, ends_ns + self._offset_ns

    def _thread_times(self, thread_rows: Rows) -> list[ThreadTimes]:
        times, spans = [], self._host.columns("spans")
        operators = np.flatnonzero(is_operator(spans["kind"]) & (spans["flags"] & FLAG_ASYNC == 0))
        for row in np.flatnonzero(thread_rows < len(self._host.columns("threads"))).tolist():
            operators_ns = _times(self._host, operators, int(thread_rows[row]))
            times.append(ThreadTimes(np.sort(np.concatenate(operators_ns)), *self._calls_of(row)))
        return times

    def _order(self, name: str) -> Rows | None:
        """The order of the rows of both; of spans that begin together, the longer ones and the host's come first."""
        if name != "spans":
            return super()._order(name)
        thread, start_ns, duration_ns = (
            self._column(name, column) for column in ("thread", "start_ns", "duration_ns")
        )
        return np.lexsort((-duration_ns, start_ns, thread))

    def _not_derived(self, name: str) -> list[str]:
        return []

    def _losses(self) -> dict[str, list[Any]]:
        losses = [loss for trace in (self._host, self._device) for loss in losses_of(trace.columns("losses"))]
        if not self._clocks_known:
            losses.append(Loss.of("device_clock_unknown"))
        elif not self._fit.fits:
            why = (
                f"{self._fit.calls_crossing} of {self._fit.calls} calls of the device's runtime have the begin or end of an operator inside them, "
                f"by up to {self._fit.largest_crossing_ns} ns: times of devices are off by as much, and their work may be counted for "
                "a neighbour of the operator that launched it."
            )
            losses.append(Loss.of("device_clock_misfit", self._fit.calls_crossing, why=why))
        return loss_columns(losses)

    def _info(self) -> dict[str, Any]:
        info = dict(self._host.info)
        for key in _OF_THE_DEVICE:
            if key in self._device.info:
                info.setdefault(key, self._device.info[key])
        checks = info.get("clock_checks")
        info["clock_checks"] = {
            **(checks if isinstance(checks, dict) else {}),
            **{f"device_{name}": value for name, value in vars(self._fit).items()},
        }
        for key in ("start_realtime_ns", "start_monotonic_ns"):
            if isinstance(info.get(key), int):
                info[key] -= self._host_part.place.offset_ns
        if isinstance(info.get("stop_ns"), int):
            info["stop_ns"] += self._host_part.place.offset_ns
        return info


def _times(trace: TraceData, rows: Rows, thread: int) -> tuple[Rows, Rows]:
    """Starts and ends of those of the given spans that are on a thread."""
    spans = trace.columns("spans")
    # Spans are in order of their threads.
    low, high = np.searchsorted(rows, np.searchsorted(spans["thread"], (thread, thread + 1)))
    starts_ns = spans["start_ns"][rows[low:high]]
    return starts_ns, starts_ns + spans["duration_ns"][rows[low:high]]
