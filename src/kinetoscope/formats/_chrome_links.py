"""What ties spans together in a Chrome trace: numbers that a launch and its work share, and arrows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.trace._calls import call_mask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.formats._chrome_spans import ShownSpans
    from kinetoscope.trace import Trace

FLOWS = ("fwdbwd", "ac2g")
"""The arrows' categories: from an operator to its backward function, from a launch to the work on the device."""

# Numbers above are left alone, so that new ones can be counted on from the others.
_LARGEST = 1 << 62
# New numbers lie above: HolisticTraceAnalysis 0.5 keeps rows of events in a column as narrow as these numbers need.
_SMALLEST = 1 << 16


def link(trace: Trace, shown: ShownSpans) -> dict[str, NDArray[Any]]:
    """The arrows of a trace, as the columns `_core.ChromeWriter` takes.

    A span that launched work on a device, and has no number to tell it by, gets one in the columns of `shown`; work
    without a number takes that of its launch. As in Kineto's traces, the number is also that of the arrow: of the first
    one, where a launch has several, because a viewer draws only one arrow of each number.
    """
    columns = shown.columns
    forward = trace.column("spans", "forward")
    targets = np.flatnonzero(forward >= 0).astype(np.int32)
    arrows = [(shown.rows(forward[targets]), shown.rows(targets), np.arange(1, len(targets) + 1), 0)]
    launches = trace.columns("launches")
    if len(launches):
        count = len(columns["start_ns"])
        host, device = shown.rows(launches["host"]), shown.rows(launches["device"])
        real = (host >= 0) & (device >= 0)
        host, device = host[real], device[real]
        none = np.full(count, -1, np.int64)
        correlation = columns.get("correlation", none).copy()
        _share_numbers(host, device, correlation)
        columns["correlation"] = correlation
        columns["external_id"] = _external_ids(columns, host, device)
        arrows.append((host, device, _arrow_numbers(correlation[host], correlation[device], correlation), 1))
    return {
        "source": np.concatenate([source for source, _, _, _ in arrows]).astype(np.int32),
        "target": np.concatenate([target for _, target, _, _ in arrows]).astype(np.int32),
        "id": np.concatenate([number for _, _, number, _ in arrows]).astype(np.int64),
        "kind": np.concatenate([np.full(len(source), kind, np.uint8) for source, _, _, kind in arrows]),
    }


def _share_numbers(
    host: NDArray[np.int32], device: NDArray[np.int32], correlation: NDArray[np.int64]
) -> None:
    """Give launches and their work the same number where the work has none."""
    bare = correlation[device] < 0
    hosts = np.unique(host[bare])
    hosts = hosts[correlation[hosts] < 0]
    correlation[hosts] = _unused(correlation) + np.arange(len(hosts))
    correlation[device[bare]] = correlation[host[bare]]


def _external_ids(
    columns: dict[str, NDArray[Any]], host: NDArray[np.int32], device: NDArray[np.int32]
) -> NDArray[np.int64]:
    """The numbers of operators, those of the source or of the rows; work on a device takes that of its launch."""
    if "external_id" in columns:
        numbers: NDArray[np.int64] = columns["external_id"].copy()
    else:
        counted = ~call_mask(columns["kind"])
        if "stream" in columns:
            counted &= columns["stream"] < 0
        numbers = np.where(counted, np.arange(1, len(counted) + 1), -1)
    bare = numbers[device] < 0
    numbers[device[bare]] = numbers[host[bare]]
    return numbers


def _arrow_numbers(
    host: NDArray[np.int64], device: NDArray[np.int64], correlation: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A number for each arrow: that which both ends have, the first time, and else a new one."""
    shared = np.flatnonzero((host == device) & (host >= 0))
    _, first = np.unique(host[shared], return_index=True)
    numbers = _unused(correlation) + np.arange(len(host), dtype=np.int64)
    numbers[shared[first]] = host[shared[first]]
    return numbers


def _unused(numbers: NDArray[np.int64]) -> int:
    """A number from which on none of them is."""
    return int(numbers[numbers < _LARGEST].max(initial=_SMALLEST)) + 1
