"""Link spans of a Chrome trace: launches with device work, forward operators with backward functions.

If several host spans share a correlation number (each process counts separately, and counters wrap), the last one that
started before the device span is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kinetoscope._core as _core
from kinetoscope.formats.chrome.read_tracks import DEVICE_WORK
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_operator, is_runtime_call
from kinetoscope.model.rows import Mask, Rows, begins_run, places_of
from kinetoscope.model.schema import SCOPE_BACKWARD

FORWARD_BACKWARD = "fwdbwd"
"""The category of Kineto's arrows from forward operators to backward functions."""
_START, _STEP, _END = 0, 1, 2
# How many earlier spans to try when searching the span around an end of an arrow.
_CLIMB = 64


@dataclass(frozen=True)
class FlowArrows:
    """Flows with a span at both ends.

    Attributes:
        category: The categories, as rows of strings.
        begin: The spans where they start.
        end: The spans where they end.
    """

    category: NDArray[np.int32]
    begin: Rows
    end: Rows


def pair_arrows(flows: Mapping[str, Any] | None, spans: Mapping[str, Any]) -> FlowArrows:
    """Find the spans at both ends of each flow; flows without both are dropped."""
    if flows is None or len(flows["id"]) == 0:
        nothing = np.zeros(0, np.int64)
        return FlowArrows(np.zeros(0, np.int32), nothing, nothing)
    phase, number, time_ns = flows["phase"], flows["id"], flows["time_ns"]
    category, name = flows["category"], flows["name"]
    order = np.lexsort((phase, time_ns, number, name, category))
    positions = np.arange(len(order))
    key = [values[order] for values in (category, name, number)]
    first_of_key = np.maximum.accumulate(np.where(begins_run(*key), positions, 0))
    starts = phase[order] == _START
    # The last start before each event, valid if it has the same key.
    start = np.maximum.accumulate(np.where(starts, positions, -1))
    ends = np.flatnonzero((phase[order] == _END) & (start >= first_of_key) & (start >= 0))
    rows = spans_at(spans, flows["thread"], time_ns)[order]
    begin, end = rows[start[ends]], rows[ends]
    paired = (begin >= 0) & (end >= 0)
    return FlowArrows(category[order][ends][paired], begin[paired], end[paired])


def spans_at(spans: Mapping[str, Any], thread: NDArray[np.int32], time_ns: Rows) -> Rows:
    """Return the innermost span that starts at each time on a thread, else one around that time, else -1."""
    span_rows = np.full(len(time_ns), -1, np.int64)
    starts, durations = spans["start_ns"], spans["duration_ns"]
    for thread_row in np.unique(thread).tolist():
        wanted = np.flatnonzero(thread == thread_row)
        low, high = np.searchsorted(spans["thread"], (thread_row, thread_row + 1))
        if low == high:
            continue
        times = time_ns[wanted]
        candidate = np.searchsorted(starts[low:high], times, side="right") - 1 + low
        waiting = np.arange(len(wanted))
        for _ in range(_CLIMB):
            waiting = waiting[candidate[waiting] >= low]
            if len(waiting) == 0:
                break
            row = candidate[waiting]
            hit = (starts[row] == times[waiting]) | (starts[row] + durations[row] > times[waiting])
            span_rows[wanted[waiting[hit]]] = row[hit]
            waiting = waiting[~hit]
            candidate[waiting] -= 1
    return span_rows


def find_launches(spans: Mapping[str, Any], on_device: Mask, arrows: FlowArrows) -> dict[str, Any]:
    """Return the columns of the table `launches`: at most one host span per device span, in the order of device spans.

    Device spans are linked by the correlation number of a runtime or driver call, else by Kineto's number of the operator,
    else by an arrow. Device spans without any of these were launched before the recording started.

    Args:
        spans: The columns of the spans.
        on_device: Which spans ran on a device.
        arrows: The flows of the file.
    """
    kind = spans["kind"]
    device = np.flatnonzero(on_device & np.isin(kind, DEVICE_WORK))
    host = np.full(len(device), -1, np.int64)
    calls = ~on_device & is_runtime_call(kind)
    if "correlation" in spans:
        host = last_before(spans, "correlation", np.flatnonzero(calls), device)
    if "external_id" in spans and (host < 0).any():
        bare = np.flatnonzero(host < 0)
        operators = np.flatnonzero(~on_device & ~calls)
        host[bare] = last_before(spans, "external_id", operators, device[bare])
    if len(arrows.end) and (host < 0).any():
        position = places_of(device, len(kind))[arrows.end]
        useful = (position >= 0) & (host[position] < 0) & ~on_device[arrows.begin]
        # Of several arrows to one span, the first is used.
        host[position[useful][::-1]] = arrows.begin[useful][::-1]
    launched = host >= 0
    return {"host": host[launched].astype(np.int32), "device": device[launched].astype(np.int32)}


def last_before(spans: Mapping[str, Any], key: str, hosts: Rows, devices: Rows) -> Rows:
    """Return for each device row the last earlier host row with its key, else the first host row with it, else -1; both are ascending."""
    keys, starts = spans[key], spans["start_ns"]
    hosts = hosts[keys[hosts] >= 0]
    rows = np.concatenate((hosts, devices))
    # Of equal start times a host row comes first, and of these the outer one.
    order = np.lexsort((starts[rows], keys[rows]))
    sorted_keys, is_host = keys[rows[order]], order < len(hosts)
    positions = np.arange(len(order))
    nearest = np.maximum.accumulate(np.where(is_host, positions, 0))
    is_before = is_host[nearest] & (sorted_keys[nearest] == sorted_keys)
    following = np.minimum.accumulate(np.where(is_host, positions, len(order) - 1)[::-1])[::-1]
    nearest = np.where(is_before, nearest, following)
    matched = is_host[nearest] & (sorted_keys[nearest] == sorted_keys)
    host_rows = np.empty(len(order), np.int64)
    host_rows[order] = np.where(matched, rows[order[nearest]], -1)
    return host_rows[len(hosts) :]


@dataclass(frozen=True)
class Backward:
    """Backward functions with the threads of their forward operators.

    Attributes:
        rows: The rows of the backward functions.
        threads: The row in `threads` of each one's forward operator, -1 if that thread was not found.
        numbered: Rows in `threads` by torch's thread number.
    """

    rows: Rows
    threads: NDArray[np.int32]
    numbered: dict[int, int]


def name_threads(
    spans: Mapping[str, Any],
    forward_number: Rows | None,
    arrows: FlowArrows,
) -> Backward:
    """Resolve torch's thread numbers, by which backward functions identify the threads of their forward operators.

    A number belongs to the thread that arrows lead from; without arrows, to the thread with the most sequence numbers in
    common.

    Args:
        spans: The columns of the spans.
        forward_number: The number in each span, 0 or less for none; None if no span has one.
        arrows: The flows from forward operators to backward functions.
    """
    if forward_number is None:
        return Backward(np.zeros(0, np.int64), np.zeros(0, np.int32), {})
    thread = spans["thread"]
    votes: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    named = forward_number[arrows.end] > 0
    numbers, threads = forward_number[arrows.end[named]], thread[arrows.begin[named]]
    pairs = Groups.by([numbers, threads])
    for first, count in zip(pairs.first.tolist(), pairs.sizes().tolist(), strict=True):
        votes[int(numbers[first])][int(threads[first])] += count
    rows = np.flatnonzero(forward_number > 0)
    numbers = forward_number[rows]
    wanted = set(np.unique(numbers).tolist()) - votes.keys()
    if wanted and "sequence" in spans:
        sequence = spans["sequence"]
        forward = np.flatnonzero((forward_number <= 0) & (sequence >= 0))
        by_thread = {
            int(row): np.unique(sequence[forward[thread[forward] == row]])
            for row in np.unique(thread[forward]).tolist()
        }
        for number in sorted(wanted):
            backward = np.unique(sequence[rows[numbers == number]])
            for row, ours in by_thread.items():
                if common := len(np.intersect1d(backward, ours, assume_unique=True)):
                    votes[number][row] += common
    numbered = _elected(votes)
    threads = np.full(len(rows), -1, np.int32)
    for number, row in numbered.items():
        threads[numbers == number] = row
    return Backward(rows, threads, numbered)


def _elected(votes: Mapping[int, Mapping[int, int]]) -> dict[int, int]:
    """Give each number the thread with the most votes, largest counts first; no thread gets two numbers."""
    ballots = sorted(
        ((count, -row, key) for key, counted in votes.items() for row, count in counted.items()), reverse=True
    )
    elected: dict[int, int] = {}
    taken: set[int] = set()
    for _, negative_row, key in ballots:
        if key not in elected and -negative_row not in taken:
            elected[key] = -negative_row
            taken.add(-negative_row)
    return elected


def link_forward(spans: Mapping[str, Any], arrows: FlowArrows) -> NDArray[np.int32]:
    """Return the column `forward`, from sequence numbers, else from arrows to backward functions.

    Sequence numbers are preferred because they identify the innermost operator, while an arrow may start at any of several
    operators that start together.
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
    more &= is_operator(spans["kind"][begin])
    forward[end[more]] = begin[more]
    return forward
