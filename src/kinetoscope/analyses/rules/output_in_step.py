"""Output: saving, printing, logging, plotting and copying of objects in the steps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.loop import SourceLine
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import is_outermost
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.analyses.loop import Loop

FILES: dict[str, str] = {
    "torch/serialization.py": "Saving",
    "torch/distributed/checkpoint/": "Saving",
    "safetensors/": "Saving",
    "torch/_tensor_str.py": "Printing tensors",
    "logging/__init__.py": "Logging",
    "torch/utils/tensorboard/": "Logging",
    "tensorboardX/": "Logging",
    "wandb/": "Logging",
    "mlflow/": "Logging",
    "matplotlib/": "Plotting",
    "tqdm/": "The progress bar",
}
"""Parts of the names of files, and what their code does."""
STANDARD_LIBRARY = {"copy.py": "Copying objects"}
"""The same for files of Python's standard library with a common name."""
CALLS = {"builtins.print": "Printing"}
"""The same for functions that have no file."""


_SYMPTOMS = (
    "device-idle",
    "launch-bound",
    "python-bound",
    "scalar-read",
    "step-outlier",
    "synchronizing-call",
)
_KINDS = sorted({*FILES.values(), *STANDARD_LIBRARY.values(), *CALLS.values()})
_IN_STANDARD_LIBRARY = re.compile(r"/python3(?:\.\d+)?t?/([\w/]+\.py)$")


@Rule(
    "output-in-step",
    "{what}{at} takes {share} of {time}",
    (
        "Do it less often, or on another thread: save asynchronously, print less often, collect values and log them together, copy into tensors that are "
        "there."
    ),
    finds=(
        "saving, printing, logging, plotting or copying objects (`copy.deepcopy`) in the steps, by the files on the stack of operators, samples and recorded "
        "calls. `print()` of plain text is seen with `--python-calls` only; without it, its time belongs to its line"
    ),
    source="XProf, for checkpoints and summaries; share of all steps, since most programs do it every N steps",
    least=5.0,
    explains=_SYMPTOMS,
    cause=Cause.OUTPUT,
).selects
def output_in_step(loop: Loop) -> Answer:
    """Operators, recorded calls and samples below functions that write or copy."""
    of_stack = np.append(kinds_of_stacks(loop), -1)
    rows, kinds = _output_spans(loop, of_stack)
    stretches = _stretches(loop, rows)
    sampled_ns, sampled = loop.sampled(of_stack[:-1] >= 0)
    # Samples see all of it; operators and recorded calls see what lies between the first and the last of them.
    if sampled_ns <= stretches.total_ns or not loop.are_evidence(sampled):
        sampled_ns, sampled = 0, sampled[:0]
    time_ns = max(stretches.total_ns, sampled_ns)
    if time_ns == 0:
        return None
    most, line = _most_output(loop, of_stack, rows, kinds, sampled)
    when = stretches | loop.python
    return Match(rows, time_ns, {"what": _KINDS[most]}, place=line, module="", time=when)


def _most_output(
    loop: Loop,
    of_stack: NDArray[np.int64],
    rows: NDArray[np.int64],
    kinds: NDArray[np.int64],
    sampled: NDArray[np.int64],
) -> tuple[int, SourceLine]:
    """The kind of output that takes most, by samples or, without any, by its spans, and the line that led to the first of it."""
    if len(sampled):
        stacks, weight = (loop.trace.column("samples", name)[sampled] for name in ("stack", "period_ns"))
        most = Groups(of_stack[stacks], len(_KINDS)).largest(weight)
        return most, loop.place_of_stack(_around(loop, of_stack, int(stacks[of_stack[stacks] == most][0])))
    duration_ns = loop.trace.column("spans", "duration_ns")[rows]
    most = Groups(kinds, len(_KINDS)).largest(duration_ns)
    return most, _place_of_span(loop, of_stack, int(rows[kinds == most][0]))


def _output_spans(loop: Loop, of_stack: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The outermost operators and recorded calls of output, and what kind of output each is."""
    spans = loop.trace.columns("spans")
    python = spans["kind"] == SpanKind.PYTHON
    called = np.array([_KINDS.index(CALLS[text]) if text in CALLS else -1 for text in loop.trace.strings])
    kind = np.maximum(of_stack[spans["own_stack"]], np.where(python, called[spans["name"]], -1))
    rows = np.flatnonzero(loop.threads[spans["thread"]] & (loop.inside | python) & (kind >= 0))
    rows = rows[loop.in_steps(rows)]
    rows = rows[is_outermost(loop.trace, rows)]
    return rows, np.asarray(kind[rows])


def _stretches(loop: Loop, rows: NDArray[np.int64]) -> Intervals:
    """When some outermost spans ran, with the time between two of them where no other operator ran and no step ended."""
    spans = loop.trace.columns("spans")
    start = spans["start_ns"][rows]
    end = start + spans["duration_ns"][rows]
    other = loop.outermost & loop.threads[spans["thread"]]
    other[rows] = False
    other_rows = np.flatnonzero(other)
    before = np.searchsorted(spans["start_ns"][other_rows], start)
    joined = (before[1:] == before[:-1]) & (np.diff(loop.step_of(rows)) == 0)
    end[:-1] = np.where(joined, start[1:], end[:-1])
    return Intervals.of(start, end)


def _place_of_span(loop: Loop, of_stack: NDArray[np.int64], row: int) -> SourceLine:
    """The line of the program that led to a span of output; the stack of a recorded call is its own frame only."""
    spans = loop.trace.columns("spans")
    while row >= 0 and spans["kind"][row] == SpanKind.PYTHON and of_stack[spans["own_stack"][row]] >= 0:
        row = int(spans["caller"][row])
    return loop.place_of_stack(_around(loop, of_stack, int(spans["own_stack"][row])) if row >= 0 else -1)


def kinds_of_stacks(loop: Loop) -> NDArray[np.int64]:
    """For each stack what its output is, by the innermost file of output on it, as a place in `_KINDS`; -1 without."""
    frames, stacks, strings = loop.trace.columns("frames"), loop.trace.columns("stacks"), loop.trace.strings
    of_file = {}
    for file in np.unique(frames["file"]).tolist():
        path = strings[file].replace("\\", "/")
        standard = _IN_STANDARD_LIBRARY.search(path)
        kinds = [kind for part, kind in FILES.items() if part in path]
        kinds += [STANDARD_LIBRARY[standard[1]]] if standard and standard[1] in STANDARD_LIBRARY else []
        of_file[file] = _KINDS.index(kinds[0]) if kinds else -1
    of_frame = np.array([*(of_file[file] for file in frames["file"].tolist()), -1], dtype=np.int64)
    kind_of_stack, parent = of_frame[stacks["frame"]], np.append(stacks["parent"], -1)
    above = parent[:-1].astype(np.int64)
    while (open_ := (kind_of_stack < 0) & (above >= 0)).any():
        kind_of_stack = np.where(open_, of_frame[np.append(stacks["frame"], -1)[above]], kind_of_stack)
        above = parent[above].astype(np.int64)
    return np.asarray(kind_of_stack)


def _around(loop: Loop, of_stack: NDArray[np.int64], stack: int) -> int:
    parent = loop.trace.column("stacks", "parent")
    while stack >= 0 and of_stack[stack] >= 0:
        stack = int(parent[stack])
    return stack
