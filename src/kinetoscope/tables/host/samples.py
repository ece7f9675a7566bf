"""The table `samples`: which line of Python each thread was in, many times a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.names import stack_texts
from kinetoscope.model.schema import SAMPLE_STATES, SAMPLE_WAITS
from kinetoscope.tables.stored import processes, ranks

if TYPE_CHECKING:
    import pyarrow

    from kinetoscope.model.trace_data import TraceData


def samples(trace: TraceData) -> pyarrow.Table:
    """Return the `samples` table."""
    stored, frames = trace.columns("samples"), trace.columns("frames")
    stack, thread = stored["stack"], stored["thread"]
    # The last entry of each is for the row -1.
    frame = np.append(trace.column("stacks", "frame"), -1)[stack]
    function, file, line = (np.append(frames[name], -1)[frame] for name in ("function", "file", "line"))
    columns: dict[str, Any] = {
        "id": np.arange(len(stored), dtype=np.int32),
        "time_ns": stored["time_ns"],
        "period_ns": stored["period_ns"],
        "waited_ns": stored["waited_ns"],
        "state": Labels(stored["state"], SAMPLE_STATES),
        "waits_for": Labels(np.where(stored["wait"] > 0, stored["wait"].astype(np.int64), -1), SAMPLE_WAITS),
        "function": Labels(function, trace.strings),
        "file": Labels(file, trace.strings),
        "line": np.maximum(line, 0),
        "module": Labels(stored["module"], trace.columns("modules")["path"]),
        "step": np.append(trace.column("steps", "number"), -1)[stored["step"]],
        "thread": thread,
        "os_tid": trace.column("threads", "os_tid")[thread],
        "thread_name": Labels(thread, trace.columns("threads")["name"]),
        "stack_row": stack,
        "stack": Labels(stack, stack_texts(trace)),
        "process": processes(trace)[thread],
        "rank": ranks(trace)[thread],
    }
    return to_arrow("samples", columns)
