"""What Kineto would have written of a device that this machine does not have: runtime calls inside operators that were really
recorded, and the kernels that they launch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from kinetoscope.trace import Trace

KERNEL_NS, QUEUED_NS = 700, 3_000


def device_text(
    host: Trace,
    operator: str = "aten::mm",
    *,
    shift_ns: int = 0,
    tid_of: Callable[[int], int] = int,
    launches: Callable[[int], bool] = lambda number: True,
) -> str:
    """Text for every operator of a name: where it runs longest without beginning or ending another there is a call of the
    runtime, and later a kernel on stream 7 of device 0.

    Args:
        host: The recording that the operators are in.
        operator: Their name.
        shift_ns: By how much the device's clock is ahead.
        tid_of: How the runtime calls a thread, by the system's number.
        launches: Whether the call of a number, from 0, launches a kernel.
    """
    begin_ns = host.info["start_realtime_ns"]
    # Near enough for a double to hold the microseconds with all their digits.
    base_ns = begin_ns - 10**9
    spans, tids = host.columns("spans"), host.column("threads", "os_tid")
    events: list[dict[str, Any]] = []

    def add(
        name: str, category: str, pid: int, tid: int, start_ns: int, duration_ns: int, **args: Any
    ) -> None:
        events.append({
            "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "dur": duration_ns / 1000,
            "ts": (begin_ns + start_ns + shift_ns - base_ns) / 1000, "args": args,
        })  # fmt: skip

    number = 0
    for row, name in enumerate(spans["name"].tolist()):
        if host.strings[name] != operator:
            continue
        from_ns, to_ns = _widest_gap(host, row)
        call_ns, third_ns = from_ns + (to_ns - from_ns) // 3, (to_ns - from_ns) // 3
        tid = tid_of(int(tids[spans["thread"][row]]))
        add("cudaLaunchKernel", "cuda_runtime", 4242, tid, call_ns, third_ns, correlation=number + 1)
        if launches(number):
            add(
                f"gemm_{number}", "kernel", 0, 7, call_ns + QUEUED_NS, KERNEL_NS,
                correlation=number + 1, device=0, stream=7, grid=[number, 1, 1], block=[64, 1, 1], context=1,
            )  # fmt: skip
        number += 1
    header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A device of the tests"}]}
    return json.dumps({**header, "baseTimeNanoseconds": base_ns, "traceEvents": events})


def _widest_gap(host: Trace, row: int) -> tuple[int, int]:
    """The longest time in a span in which nothing begins or ends on its thread."""
    spans = host.columns("spans")
    here = spans["thread"] == spans["thread"][row]
    starts_ns = spans["start_ns"][here]
    moments_ns = np.unique(np.concatenate((starts_ns, starts_ns + spans["duration_ns"][here])))
    begin_ns = spans["start_ns"][row]
    inside = moments_ns[(moments_ns >= begin_ns) & (moments_ns <= begin_ns + spans["duration_ns"][row])]
    at = int(np.diff(inside).argmax())
    return int(inside[at]), int(inside[at + 1])


class WrittenResults:
    """Stands for what torch's collector returns: it writes a text, once."""

    def __init__(self, text: Callable[[], str], begin_ns: int = 10**18) -> None:
        self._text: Callable[[], str] | None = text
        self._begin_ns = begin_ns

    def save(self, path: str) -> None:
        """Writes as torch 2.13 does: under another name, which is then changed."""
        if self._text is None:
            raise RuntimeError("Trace is already saved.")
        text, self._text = self._text(), None
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.tmp", path)

    def trace_start_ns(self) -> int:
        """When it began."""
        return self._begin_ns
