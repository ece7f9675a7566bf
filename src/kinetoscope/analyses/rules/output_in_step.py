"""Output: saving, printing, logging, plotting and copying of objects in the steps."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from kinetoscope.analyses.loop import Loop, SourceLine, busiest
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import is_outermost
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.stacks import stacks_inside

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
LOADING = "Loading"
_KINDS = sorted({*FILES.values(), *STANDARD_LIBRARY.values(), *CALLS.values(), LOADING})
_SAVING = tuple(part for part, kind in FILES.items() if kind == "Saving")
_LOADS = ("load", "load_file", "load_state_dict")
"""Functions of the files that save which load."""
_ADVICE_FOR_LOADING = "Load it once and keep it in memory, such as in a dictionary or with functools.lru_cache; or load the next one ahead, on another thread."
_IN_STANDARD_LIBRARY = re.compile(r"/python3(?:\.\d+)?t?/([\w/]+\.py)$")


@Rule(
    "output-in-step",
    "{what}{at} takes {share} of {time}",
    (
        "Do it less often, or on another thread: save asynchronously, print less often, collect values and log them together, copy into tensors that are "
        "there."
    ),
    finds=(
        "saving, loading, printing, logging, plotting or copying objects (`copy.deepcopy`) in the steps, by the files on the stack of operators, samples and recorded "
        "calls. `print()` of plain text is seen with `--python-calls` only; without it, its time belongs to its line"
    ),
    source="XProf, for checkpoints and summaries; share of all steps, since most programs do it every N steps",
    least=5.0,
    explains=_SYMPTOMS,
    cause=Cause.OUTPUT,
    every=True,
).selects
def output_in_step(loop: Loop) -> Answer:
    """Operators, recorded calls and samples below functions that write, read or copy, a match for each kind."""
    of_stack = np.append(kinds_of_stacks(loop), -1)
    rows, kinds = _output_spans(loop, of_stack)
    present = np.union1d(of_stack[of_stack >= 0], kinds).tolist()
    matches = (_match(loop, of_stack == kind, rows[kinds == kind], kind) for kind in present)
    return [match for match in matches if match is not None]


def _match(loop: Loop, is_output: Mask, rows: Rows, kind: int) -> Match | None:
    """What one kind of output takes, by its outermost spans and the stacks that are below its functions; None of none."""
    stretches = _stretches(loop, rows)
    sampled_ns, sampled = loop.sampled(is_output[:-1])
    # Samples see all of it; operators and recorded calls see what lies between the first and the last of them.
    if sampled_ns <= stretches.total_ns or not loop.are_evidence(sampled):
        sampled_ns, sampled = 0, sampled[:0]
    time_ns = max(stretches.total_ns, sampled_ns)
    if time_ns == 0:
        return None
    line = _line_that_led(loop, is_output, rows, sampled)
    advice = _ADVICE_FOR_LOADING if _KINDS[kind] == LOADING else ""
    when = stretches | loop.python
    return Match(rows, time_ns, {"what": _KINDS[kind]}, place=line, module="", time=when, advice=advice)


def _line_that_led(loop: Loop, is_output: Mask, rows: Rows, sampled: Rows) -> SourceLine:
    """The line of the program that leads to most of some output, by samples or, without any, by its spans."""
    if len(sampled):
        stack, weight = (loop.trace.column("samples", name)[sampled] for name in ("stack", "period_ns"))
    else:
        stack, weight = _called_from(loop, is_output, rows), loop.trace.column("spans", "duration_ns")[rows]
    groups = Groups.by([stack])
    times_ns: dict[SourceLine, int] = defaultdict(int)
    for row, time_ns in zip(stack[groups.first].tolist(), groups.sums(weight).tolist(), strict=True):
        times_ns[loop.place_of_stack(_around(loop, is_output, row))] += time_ns
    return busiest(times_ns)


def _output_spans(loop: Loop, of_stack: Rows) -> tuple[Rows, Rows]:
    """The outermost operators and recorded calls of output, and what kind of output each is."""
    spans = loop.trace.columns("spans")
    python = spans["kind"] == SpanKind.PYTHON
    called = np.array([_KINDS.index(CALLS[text]) if text in CALLS else -1 for text in loop.trace.strings])
    kind = np.maximum(of_stack.take(spans["own_stack"]), np.where(python, called.take(spans["name"]), -1))
    rows = np.flatnonzero(loop.on_threads & (loop.inside | python) & (kind >= 0))
    rows = rows[loop.in_steps(rows)]
    rows = rows[is_outermost(loop.trace, rows)]
    return rows, np.asarray(kind[rows])


def _stretches(loop: Loop, rows: Rows) -> Intervals:
    """When some outermost spans ran, with the time between two of them where no other operator ran and no step ended."""
    spans = loop.trace.columns("spans")
    start = spans["start_ns"][rows]
    end = start + spans["duration_ns"][rows]
    other = loop.outermost & loop.on_threads
    other[rows] = False
    other_rows = np.flatnonzero(other)
    before = np.searchsorted(spans["start_ns"][other_rows], start)
    joined = (before[1:] == before[:-1]) & (np.diff(loop.step_of(rows)) == 0)
    end[:-1] = np.where(joined, start[1:], end[:-1])
    return Intervals.of(start, end)


def _called_from(loop: Loop, is_output: Mask, rows: Rows) -> Rows:
    """The stacks of some spans of output; the stack of a recorded call is its own frame only, so that it is its caller's."""
    spans = loop.trace.columns("spans")
    own_stack = np.append(spans["own_stack"], -1)
    is_call = np.append(spans["kind"] == SpanKind.PYTHON, False) & is_output[own_stack]
    called_from = rows
    while is_call[called_from].any():
        called_from = np.where(is_call[called_from], spans["caller"][called_from], called_from)
    return np.asarray(own_stack[called_from].astype(np.int64))


def kinds_of_stacks(loop: Loop) -> Rows:
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
    is_loading = stacks_inside(loop.trace, *_SAVING, functions=_LOADS) & (kind_of_stack >= 0)
    return np.where(is_loading, _KINDS.index(LOADING), kind_of_stack)


def _around(loop: Loop, is_output: Mask, stack: int) -> int:
    parent = loop.trace.column("stacks", "parent")
    while stack >= 0 and is_output[stack]:
        stack = int(parent[stack])
    return stack
