"""Which spans of a Chrome trace belong together: launches and what they started, forward operators and backward ones.

Everything is found over whole columns. A number that several host spans share (processes count on their own, and
counters wrap) means the one that began last before the device span did.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.formats.chrome.read_tracks import CALLS_OF_RUNTIMES, DEVICE_WORK
from kinetoscope.model.schema import SCOPE_BACKWARD, SpanKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

FORWARD_BACKWARD = "fwdbwd"
"""The category of Kineto's arrows from forward operators to backward functions."""
_START, _STEP, _END = 0, 1, 2
# How many spans that end too early are passed over to find the one around the begin or end of an arrow.
_CLIMB = 64


@dataclass(frozen=True)
class Arrows:
    """Flows whose two ends were found.

    Attributes:
        category: The row of strings of each one's category.
        begin: The span it comes from.
        end: The span it leads to.
    """

    category: NDArray[np.int32]
    begin: Rows
    end: Rows


def pair_arrows(flows: Mapping[str, Any] | None, spans: Mapping[str, Any]) -> Arrows:
    """Find the spans at both ends of each flow; a flow without one of them is left out."""
    if flows is None or len(flows["id"]) == 0:
        nothing = np.zeros(0, np.int64)
        return Arrows(np.zeros(0, np.int32), nothing, nothing)
    phase, number, time_ns = flows["phase"], flows["id"], flows["time_ns"]
    category, name = flows["category"], flows["name"]
    order = np.lexsort((phase, time_ns, number, name, category))
    place = np.arange(len(order))
    key = [values[order] for values in (category, name, number)]
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.logical_or.reduce([values[1:] != values[:-1] for values in key])
    first_of_key = np.maximum.accumulate(np.where(new, place, 0))
    starts = phase[order] == _START
    # The start that comes last before each place; it counts while the number is the same.
    start = np.maximum.accumulate(np.where(starts, place, -1))
    ends = np.flatnonzero((phase[order] == _END) & (start >= first_of_key) & (start >= 0))
    rows = spans_at(spans, flows["thread"], time_ns)[order]
    begin, end = rows[start[ends]], rows[ends]
    known = (begin >= 0) & (end >= 0)
    return Arrows(category[order][ends][known], begin[known], end[known])


def spans_at(spans: Mapping[str, Any], thread: NDArray[np.int32], time_ns: NDArray[np.int64]) -> Rows:
    """For each time on a thread the span that begins there, the innermost of several, or else one around it; -1."""
    found = np.full(len(time_ns), -1, np.int64)
    starts, durations = spans["start_ns"], spans["duration_ns"]
    for one in np.unique(thread).tolist():
        asked = np.flatnonzero(thread == one)
        low, high = np.searchsorted(spans["thread"], (one, one + 1))
        if low == high:
            continue
        times = time_ns[asked]
        at = np.searchsorted(starts[low:high], times, side="right") - 1 + low
        waiting = np.arange(len(asked))
        for _ in range(_CLIMB):
            waiting = waiting[at[waiting] >= low]
            if len(waiting) == 0:
                break
            row = at[waiting]
            hit = (starts[row] == times[waiting]) | (starts[row] + durations[row] > times[waiting])
            found[asked[waiting[hit]]] = row[hit]
            waiting = waiting[~hit]
            at[waiting] -= 1
    return found


def find_launches(spans: Mapping[str, Any], on_device: NDArray[np.bool_], arrows: Arrows) -> dict[str, Any]:
    """The columns of the table `launches`: for each device span at most one host span, in order of the device spans.

    By the number of a runtime's or driver's call, else by Kineto's number of the operator, else by an arrow. What ran on
    a device without any of these has no launch here: it was launched before the recording began.

    Args:
        spans: The columns of the spans.
        on_device: Which of them ran on a device.
        arrows: The flows of the file.
    """
    kind = spans["kind"]
    device = np.flatnonzero(on_device & np.isin(kind, DEVICE_WORK))
    host = np.full(len(device), -1, np.int64)
    calls = ~on_device & np.isin(kind, CALLS_OF_RUNTIMES)
    if "correlation" in spans:
        host = _last_before(spans, "correlation", np.flatnonzero(calls), device)
    if "external_id" in spans and (host < 0).any():
        bare = np.flatnonzero(host < 0)
        operators = np.flatnonzero(~on_device & ~calls)
        host[bare] = _last_before(spans, "external_id", operators, device[bare])
    if len(arrows.end) and (host < 0).any():
        place = np.searchsorted(device, arrows.end)
        place[place == len(device)] = 0
        useful = (device[place] == arrows.end) & (host[place] < 0) & ~on_device[arrows.begin]
        # Of several arrows to one span the first counts.
        host[place[useful][::-1]] = arrows.begin[useful][::-1]
    known = host >= 0
    return {"host": host[known].astype(np.int32), "device": device[known].astype(np.int32)}


def _last_before(spans: Mapping[str, Any], key: str, hosts: Rows, devices: Rows) -> Rows:
    """For each device row the host row with the same key that began last before it, else the first with it, else -1."""
    keys, starts = spans[key], spans["start_ns"]
    hosts = hosts[keys[hosts] >= 0]
    found = np.full(len(devices), -1, np.int64)
    if len(hosts) == 0:
        return found
    # Of equal times the inner span is the later row.
    hosts = hosts[np.lexsort((hosts, starts[hosts], keys[hosts]))]
    sorted_keys = keys[hosts]
    low = np.searchsorted(sorted_keys, keys[devices], side="left")
    high = np.searchsorted(sorted_keys, keys[devices], side="right")
    known = (high > low) & (keys[devices] >= 0)
    found[known] = hosts[low[known]]
    several = np.flatnonzero(known & (high - low > 1))
    if len(several):
        rows = devices[several]
        both = np.concatenate((hosts, rows))
        is_host = np.arange(len(both)) < len(hosts)
        order = np.lexsort((~is_host, starts[both], keys[both]))
        last = np.maximum.accumulate(np.where(is_host[order], np.arange(len(order)), -1))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        place = last[back[len(hosts) :]]
        candidate = both[order[place]]
        right = (place >= 0) & (keys[candidate] == keys[rows])
        found[several[right]] = candidate[right]
    return found


@dataclass(frozen=True)
class Backward:
    """The spans that name the thread of their forward operator.

    Attributes:
        rows: Which spans these are.
        threads: The row of `threads` of each one's forward operator, -1 where that thread was not found.
        numbered: The row of `threads` by process and torch's number of the thread.
    """

    rows: Rows
    threads: NDArray[np.int32]
    numbered: dict[tuple[int, int], int]


def name_threads(
    spans: Mapping[str, Any],
    forward_number: NDArray[np.int64] | None,
    process: NDArray[np.int64],
    arrows: Arrows,
) -> Backward:
    """Find out which thread has which of torch's own numbers, by which backward functions name the thread of their forward.

    The thread that arrows say or, where none does, that of the process with the most sequence numbers in common.

    Args:
        spans: The columns of the spans.
        forward_number: For each span that number; 0 or less for none. None where no span has one.
        process: The process of each thread.
        arrows: The flows from forward operators to backward functions.
    """
    if forward_number is None:
        return Backward(np.zeros(0, np.int64), np.zeros(0, np.int32), {})
    thread = spans["thread"]
    votes: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    named = forward_number[arrows.end] > 0
    end, begin = arrows.end[named], arrows.begin[named]
    within = process[thread[end]] == process[thread[begin]]
    end, begin = end[within], begin[within]
    for (row_of_end, number, row), count in _counted(thread[end], forward_number[end], thread[begin]):
        votes[int(process[row_of_end]), number][row] += count
    rows = np.flatnonzero(forward_number > 0)
    numbers, processes = forward_number[rows], process[thread[rows]]
    wanted = {key for key, _ in _counted(processes, numbers)} - votes.keys()
    if wanted and "sequence" in spans:
        sequence = spans["sequence"]
        forward = np.flatnonzero((forward_number <= 0) & (sequence >= 0))
        by_thread = {
            int(row): np.unique(sequence[forward[thread[forward] == row]])
            for row in np.unique(thread[forward]).tolist()
        }
        for one, number in sorted(wanted):
            asked = np.unique(sequence[rows[(numbers == number) & (processes == one)]])
            for row, known in by_thread.items():
                if process[row] == one and (common := len(np.intersect1d(asked, known, assume_unique=True))):
                    votes[one, number][row] += common
    numbered = _elected(votes)
    threads = np.full(len(rows), -1, np.int32)
    for (one, number), row in numbered.items():
        threads[(numbers == number) & (processes == one)] = row
    return Backward(rows, threads, numbered)


def _counted(*columns: NDArray[Any]) -> list[tuple[tuple[int, ...], int]]:
    """How often each combination of values stands in the rows of columns."""
    if len(columns[0]) == 0:
        return []
    changed = np.zeros(len(columns[0]) - 1, dtype=bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    # Neighbours are mostly alike: runs of equal rows are counted as one first.
    first = np.concatenate(([0], np.flatnonzero(changed) + 1))
    lengths = np.diff(np.append(first, len(columns[0])))
    order = np.lexsort([column[first] for column in columns])
    sorted_columns = [column[first][order] for column in columns]
    new = np.zeros(len(order), dtype=bool)
    new[0] = True
    for column in sorted_columns:
        new[1:] |= column[1:] != column[:-1]
    at = np.flatnonzero(new)
    sums = np.add.reduceat(lengths[order], at)
    return [
        (tuple(int(column[row]) for column in sorted_columns), count)
        for row, count in zip(at.tolist(), sums.tolist(), strict=True)
    ]


def _elected(votes: Mapping[tuple[int, int], Mapping[int, int]]) -> dict[tuple[int, int], int]:
    """Give each number the thread with the most votes, the clearest first; no thread has two numbers."""
    ballots = sorted(
        ((count, -row, key) for key, counted in votes.items() for row, count in counted.items()), reverse=True
    )
    elected: dict[tuple[int, int], int] = {}
    taken: set[int] = set()
    for _, negative_row, key in ballots:
        if key not in elected and -negative_row not in taken:
            elected[key] = -negative_row
            taken.add(-negative_row)
    return elected


def link_forward(spans: Mapping[str, Any], arrows: Arrows) -> NDArray[np.int32]:
    """The column `forward`: by sequence numbers and, where these say nothing, by arrows to backward functions.

    Sequence numbers are preferred since they name the innermost operator; an arrow names one of those that begin together.
    """
    count = len(spans["thread"])
    none = np.full(count, -1, np.int64)
    forward: NDArray[np.int32] = np.array(
        _core.link_backward(
            spans["thread"],
            spans["start_ns"],
            spans["scope"],
            spans.get("sequence", none),
            spans.get("forward_thread", none.astype(np.int32)),
        )
    )
    begin, end = arrows.begin, arrows.end
    more = (forward[end] < 0) & (spans["scope"][end] == SCOPE_BACKWARD)
    more &= np.isin(spans["kind"][begin], (SpanKind.OPERATOR, SpanKind.BACKWARD))
    forward[end[more]] = begin[more]
    return forward
