"""The table `samples`: which line of Python each thread was in, many times a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.model.arrow import Labels, to_arrow
from kinetoscope.model.names import stack_texts
from kinetoscope.model.processes import PROCESS_COLUMNS
from kinetoscope.model.schema import SAMPLE_STATES, SAMPLE_WAITS, STORED, Column, Table
from kinetoscope.tables.stored import processes, ranks

if TYPE_CHECKING:
    import pyarrow

    from kinetoscope.model.trace_data import TraceData

_STORED = STORED["samples"]
SAMPLES_SCHEMA = Table(
    "samples",
    _STORED.row,
    (
        Column("id", "int32", "row of samples", "The row."),
        _STORED.column("time_ns"),
        _STORED.column("period_ns"),
        _STORED.column("waited_ns"),
        Column("state", "category", "", f"What the thread did: {', '.join(SAMPLE_STATES)}."),
        Column("waits_for", "category", "", "What it waited for where it was blocked, by the system call that it was in: " + ", ".join(SAMPLE_WAITS[1:]) + ". `events`: several files, or one of another kind. `a page of memory`: it had to be read. Null where it is not known."),
        Column("function", "category", "", "The qualified name of the innermost function."),
        Column("file", "category", "", "The file of that function, as the interpreter names it."),
        Column("line", "int32", "", "The line that the thread was in, from 1.", 0),
        Column("module", "category", "", "The path of the innermost module on the stack."),
        Column("step", "int64", "", "The number of the step it falls in."),
        _STORED.column("thread"),
        Column("os_tid", "int64", "", "The operating system's id of that thread."),
        Column("thread_name", "category", "", "The name of that thread."),
        Column("stack_row", "int32", "row of stacks", "The stack, as a row that `own_stack` of spans refers to, too."),
        Column("stack", "category", "", "The Python stack, root first, joined by `;`."),
        *PROCESS_COLUMNS,
    ),
)  # fmt: skip


def samples(trace: TraceData) -> pyarrow.Table:
    """Return the `samples` table."""
    own, frames = trace.columns("samples"), trace.columns("frames")
    stack, thread = own["stack"], own["thread"]
    # The last entry of each is for the row -1.
    frame = np.append(trace.column("stacks", "frame"), -1)[stack]
    function, file, line = (np.append(frames[name], -1)[frame] for name in ("function", "file", "line"))
    columns: dict[str, Any] = {
        "id": np.arange(len(own), dtype=np.int32),
        "time_ns": own["time_ns"],
        "period_ns": own["period_ns"],
        "waited_ns": own["waited_ns"],
        "state": Labels(own["state"], SAMPLE_STATES),
        "waits_for": Labels(np.where(own["wait"] > 0, own["wait"].astype(np.int64), -1), SAMPLE_WAITS),
        "function": Labels(function, trace.strings),
        "file": Labels(file, trace.strings),
        "line": np.maximum(line, 0),
        "module": Labels(own["module"], trace.columns("modules")["path"]),
        "step": np.append(trace.column("steps", "number"), -1)[own["step"]],
        "thread": thread,
        "os_tid": trace.column("threads", "os_tid")[thread],
        "thread_name": Labels(thread, trace.columns("threads")["name"]),
        "stack_row": stack,
        "stack": Labels(stack, stack_texts(trace)),
        "process": processes(trace)[thread],
        "rank": ranks(trace)[thread],
    }
    return to_arrow(SAMPLES_SCHEMA, columns)
