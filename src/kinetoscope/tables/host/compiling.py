"""The cost of torch.compile: compilations with phases and reasons, and graph breaks.

Times come from the ranges that torch opens while it compiles, which every trace has. Functions, phases, guards and reasons come from
torch's metrics, which the session reads; traces of torch.profiler lack them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kinetoscope.model.arrow import ArrowTable, labels, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import is_outermost, nearest_of
from kinetoscope.model.kinds import is_call
from kinetoscope.model.names import COMPILED_GRAPH, region_id
from kinetoscope.model.processes import of_processes
from kinetoscope.model.rows import Mask, Rows, mask_of
from kinetoscope.model.steps import of_process_at
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.intervals import Intervals, when_ran

Meaning = TypeVar("Meaning")


STAGES = ("frame", "backward", "runtime")
_PHASES = ("dynamo_ns", "aot_ns", "inductor_ns", "codegen_ns", "kernel_compile_ns", "autotune_ns")


def _timed(meaning: Mapping[str, Meaning]) -> dict[str, Meaning]:
    """The same meanings by the full names of the ranges."""
    return {f"{name} (dynamo_timed)": value for name, value in meaning.items()}


_AUTOTUNING = (
    "CachingAutotuner.benchmark_all_configs",
    "CachingAutotuner.coordinate_descent_tuning",
    "CachingAutotuner.combo_sequential_autotune",
)
# The ranges around each stage of compiling.
_STAGE_OF_RANGE = _timed(
    {"_compile.compile_inner": 0, "backward._backward_impl": 1, **dict.fromkeys(_AUTOTUNING, 2)}
)
# The phase that begins with a range. It continues in inner ranges until one of them begins another phase.
_PHASE_OF_RANGE = _timed({
    "build_guards": "Guards",
    "create_aot_dispatcher_function": "AOTAutograd",
    "compile_fx_inner": "Inductor",
    "_recursive_joint_graph_passes": "Inductor",
    "min_cut_rematerialization_partition": "Inductor",
    "GraphLowering.compile_to_module": "Code generation",
    "compile_file": "Kernel compilation",
    "async_compile.wait": "Kernel compilation",
    "async_compile.precompile": "Kernel compilation",
    **dict.fromkeys(_AUTOTUNING, "Autotuning"),
})  # fmt: skip
_CPP_COMPILER = "compile_file (dynamo_timed)"
_LONGEST_GUARD = 160
# A recompilation reason begins with the id of the earlier compilation.
_EARLIER = re.compile(r"^\d+/\d+: ")
_ID_IN_RANGE = re.compile(r"entire_(?:frame|backward)_compile_data: .*compile_id=([^,]+)")
RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")
"""torch's name for the rest of a function after a graph break."""
# Calls of compiled graphs by Inductor and autograd; backends without either run the operators of a graph one by one.
_GRAPH_CALLS = (f"{COMPILED_GRAPH} ", "CompiledFunction")
_OPERATOR = "::"
# The largest difference between torch's clock readings for its metrics and for the range inside.
_APART_NS = 1_000_000


def compiles(trace: TraceData) -> ArrowTable:
    """Return the `compiles` table, in order of time.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    stored, spans, ranges = trace.columns("compiles"), trace.columns("spans"), compile_ranges(trace)
    rows = np.flatnonzero((stored["recorded"] > 0) & (stored["start_ns"] + stored["duration_ns"] >= 0))
    span = _spans_of(trace, rows, ranges)
    alone = ranges.rows[~np.isin(ranges.rows, span) & (ranges.stage < 2)]
    of_thread = np.append(trace.column("threads", "process_row"), -1)
    texts = {
        name: [stored[name][row] for row in rows.tolist()] + [""] * len(alone)
        for name in ("compile_id", "stage", "function", "file", "reason", "failure")
    }
    texts["compile_id"][len(rows) :] = _ids_of(trace, alone)
    texts["stage"][len(rows) :] = [
        STAGES[stage] for stage in ranges.stage[np.isin(ranges.rows, alone)].tolist()
    ]

    def both(of_stored: NDArray[Any], of_alone: NDArray[Any] | int) -> NDArray[Any]:
        return np.append(of_stored, np.broadcast_to(of_alone, len(alone)).astype(of_stored.dtype))

    columns: dict[str, Any] = {
        name: both(stored[name][rows], -1)
        for name in ("line", *_PHASES, "cache_hits", "cache_misses", "guards", "operators")
    }
    thread = stored["thread"][rows]
    thread = np.where(thread >= 0, thread, np.append(spans["thread"], -1)[span])
    columns |= {name: both(stored[name][rows], spans[name][alone]) for name in ("start_ns", "duration_ns")}
    columns |= {"thread": both(thread, spans["thread"][alone]), "span": both(span, alone)}
    process = both(stored["process_row"][rows], of_thread[spans["thread"][alone]])
    stated = (texts[name] for name in ("reason", "stage", "compile_id"))
    columns["recompile"] = [
        bool(reason) or (stage == "frame" and not compile_id.endswith("/0") and "/" in compile_id)
        for reason, stage, compile_id in zip(*stated, strict=True)
    ]
    step = of_process_at(process, columns["start_ns"], trace.columns("steps"))
    columns["step"] = np.append(trace.column("steps", "number"), -1)[step]
    place_of = {row: index for index, row in enumerate(span.tolist()) if row >= 0}
    for (row, phase), time_ns in _cpp_compiler_ns(trace, set(place_of)).items():
        position = place_of[row]
        columns[phase][position] = max(columns[phase][position] - time_ns, 0)
        columns["kernel_compile_ns"][position] = max(columns["kernel_compile_ns"][position], 0) + time_ns
    columns |= {name: labels(text or None for text in values) for name, values in texts.items()}
    columns |= of_processes(trace, process)
    return to_arrow("compiles", columns, np.argsort(columns["start_ns"], kind="stable"))


def graph_breaks(trace: TraceData) -> ArrowTable:
    """Return the `graph_breaks` table, the one that took longest first.

    Args:
        trace: The trace.

    Returns:
        The table; `docs/tables.md` describes its columns.
    """
    stored, passed = trace.columns("graph_breaks"), break_passages(trace)
    by_break = Groups(passed.row, len(stored))
    count, total = by_break.sizes(), by_break.sums(passed.time_ns)
    in_steps = by_break.sums(passed.time_ns, trace.column("spans", "step")[passed.span] >= 0)
    steps = len(trace.columns("steps"))
    skipped = stored["skipped"] > 0
    order = np.lexsort((stored["line"], -count, -total))
    columns: dict[str, Any] = {
        "line": stored["line"],
        "skipped": skipped,
        "compiles": stored["compiles"],
        "count": np.where(skipped, -1, count),
        "time_ns": np.where(count == 0, -1, total),
        "time_per_step_ns": np.where((count == 0) | (steps == 0), -1, in_steps // max(steps, 1)),
    }
    for name in ("file", "function", "reason", "stack"):
        columns[name] = labels(text or None for text in stored[name])
    return to_arrow("graph_breaks", columns | of_processes(trace, stored["process_row"]), order)


@dataclass(frozen=True)
class CompileRanges:
    """The ranges of compilations, those inside another one left out.

    Attributes:
        rows: Their rows in `spans`, ascending.
        stage: The place of each one's stage in `STAGES`.
    """

    rows: Rows
    stage: Rows


@derived
def compile_ranges(trace: TraceData) -> CompileRanges:
    """Find the ranges of compilations, once for a trace."""
    stage_of, rows = _ranges_named(trace, _STAGE_OF_RANGE)
    rows = rows[is_outermost(trace, rows)]
    names = trace.column("spans", "name")[rows].tolist()
    return CompileRanges(rows, np.array([stage_of[name] for name in names], dtype=np.int64))


def _ranges_named(trace: TraceData, meaning: Mapping[str, Meaning]) -> tuple[dict[int, Meaning], Rows]:
    """What the strings of a trace mean that are names of ranges, and the ranges of these names."""
    spans = trace.columns("spans")
    meaning_of = {row: meaning[text] for row, text in enumerate(trace.strings) if text in meaning}
    return meaning_of, np.flatnonzero(np.isin(spans["name"], list(meaning_of)) & ~is_call(spans["kind"]))


# The column of the phase that a range belongs to.
_COLUMN_OF_PHASE = {
    "Guards": "dynamo_ns",
    "AOTAutograd": "aot_ns",
    "Inductor": "inductor_ns",
    "Code generation": "codegen_ns",
}


def _cpp_compiler_ns(trace: TraceData, compilations: set[int]) -> dict[tuple[int, str], int]:
    """How long the C++ compiler ran on the thread of a compilation, where torch's metrics count it as another phase.

    Args:
        trace: The trace.
        compilations: The ranges of the compilations, rows of `spans`.

    Returns:
        Nanoseconds by the range and the column of the phase that contains them in torch's metrics.
    """
    spans, (phase_of, ranges) = trace.columns("spans"), _ranges_named(trace, _PHASE_OF_RANGE)
    by_phase: dict[tuple[int, str], int] = {}
    for row in ranges.tolist():
        if trace.strings[spans["name"][row]] != _CPP_COMPILER:
            continue
        outer, phase = int(spans["parent"][row]), None
        while outer >= 0 and outer not in compilations:
            phase = phase or phase_of.get(int(spans["name"][outer]))
            outer = int(spans["parent"][outer])
        column = "dynamo_ns" if phase is None else _COLUMN_OF_PHASE.get(phase)
        if outer >= 0 and column is not None:
            by_phase[outer, column] = by_phase.get((outer, column), 0) + int(spans["duration_ns"][row])
    return by_phase


def compile_time(trace: TraceData, threads: Mask) -> Intervals:
    """When something was compiled or autotuned on any of some threads; the entry -1 of `threads` is not looked at."""
    spans, rows = trace.columns("spans"), compile_ranges(trace).rows
    rows = rows[threads[spans["thread"][rows]]]
    return when_ran(trace, rows)


@dataclass(frozen=True)
class CompilePhases:
    """Compilations and their phases, in order of time.

    Attributes:
        span: The range of each in `spans`, by thread and time.
        level: 0 for a compilation; a phase is one below what it is in.
        text: What it is: what was compiled, and why again; or the name of the phase.
    """

    span: Rows
    level: Rows
    text: list[str]


def compile_phases(trace: TraceData) -> CompilePhases:
    """Find the compilations and their phases by torch's ranges, in any trace that has these."""
    spans, ranges = trace.columns("spans"), compile_ranges(trace)
    of_range = {
        int(row["span"]): _title(row) for row in compiles(trace).to_pylist() if row["span"] is not None
    }
    text = {row: of_range.get(row, "autotuning") for row in ranges.rows.tolist()}
    level = dict.fromkeys(text, 0)
    phase_of, parts = _ranges_named(trace, _PHASE_OF_RANGE)
    around = {row: row for row in text}
    outer_of = nearest_of(trace, np.append(ranges.rows, parts))[spans["parent"]]
    for row in parts[np.lexsort((spans["start_ns"][parts], spans["thread"][parts]))].tolist():
        outer = int(outer_of[row])
        if outer not in around or row in text:
            continue
        phase, inside = phase_of[int(spans["name"][row])], around[outer]
        if text[inside] == phase:
            around[row] = inside
        else:
            around[row], text[row], level[row] = row, phase, level[inside] + 1
    span = np.array(list(text), dtype=np.int64)
    span = span[np.lexsort((spans["start_ns"][span], spans["thread"][span]))]
    spans_shown = span.tolist()
    levels = np.array([level[row] for row in spans_shown], dtype=np.int64)
    return CompilePhases(span, levels, [text[row] for row in spans_shown])


def _title(row: dict[str, Any]) -> str:
    """One line about a row of `compiles`: the function, and the guard that failed."""
    verb = {"backward": "compile backward of", "runtime": "autotune"}.get(row["stage"], "compile")
    name = f"{'re' if row['recompile'] else ''}{verb} {row['function'] or 'a function'}"
    guard = _EARLIER.sub("", (row["reason"] or "").strip()).partition("\n")[0][:_LONGEST_GUARD]
    return f"{name} [{row['compile_id']}]{': ' if guard else ''}{guard}" if row["compile_id"] else name


@dataclass(frozen=True)
class Passages:
    """Transitions from one compiled part of a function to the next.

    Attributes:
        row: The row of `graph_breaks`.
        span: The region of the next part.
        time_ns: The time between the graphs of both parts.
    """

    row: Rows
    span: Rows
    time_ns: Rows


@derived
def break_passages(trace: TraceData) -> Passages:
    """Find the transitions at graph breaks, once for a trace."""
    spans, strings = trace.columns("spans"), trace.strings
    breaks = _Breaks(trace)
    names, work = spans["name"], ~is_call(spans["kind"]) & (spans["stream"] < 0)
    region_of = {row: identifier for row, text in enumerate(strings) if (identifier := region_id(text))}
    calls = [row for row, text in enumerate(strings) if text.startswith(_GRAPH_CALLS)]
    calls = calls or [row for row, text in enumerate(strings) if _OPERATOR in text]
    regions = np.flatnonzero(np.isin(names, list(region_of)) & work)
    graphs = np.flatnonzero(np.isin(names, calls) & work)
    if len(trace.columns("graph_breaks")) == 0:
        regions = regions[:0]
    around = nearest_of(trace, regions)[spans["parent"][regions]]
    thread = spans["thread"][regions]
    process = np.append(trace.column("threads", "process_row"), -1)[thread]
    passages = (column.tolist() for column in (process, around, names[around], names[regions]))
    cuts = [
        breaks.between(process_row, region_of[before], region_of[after]) if outer >= 0 else -1
        for process_row, outer, before, after in zip(*passages, strict=True)
    ]
    cut = np.array(cuts, dtype=np.int64)
    time_ns = np.zeros(len(regions), dtype=np.int64)
    for number in np.unique(thread[cut >= 0]).tolist():
        chosen = np.flatnonzero((cut >= 0) & (thread == number))
        time_ns[chosen] = _times_to_graphs(
            trace,
            regions[chosen],
            around[chosen],
            regions[thread == number],
            graphs[spans["thread"][graphs] == number],
        )
    return Passages(cut[cut >= 0], regions[cut >= 0], time_ns[cut >= 0])


def _times_to_graphs(trace: TraceData, rows: Rows, outer: Rows, regions: Rows, graphs: Rows) -> Rows:
    """The time from the graph or region before each of some regions of a thread to the first graph in it, without compiling."""
    spans = trace.columns("spans")
    start, end = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    # What ended before a region: a graph, or a region of a function that was called in between.
    ended = np.sort(np.concatenate((end[graphs], end[regions])))
    before = np.searchsorted(ended, start[rows], side="right") - 1
    left = np.maximum(np.where(before >= 0, ended[before], 0), start[outer])
    first_graph = np.append(start[graphs], np.iinfo(np.int64).max)
    right = np.minimum(end[rows], first_graph[np.searchsorted(start[graphs], start[rows])])
    on_thread = mask_of(spans["thread"][rows], len(trace.columns("threads")) + 1)
    return np.asarray(right - left - compile_time(trace, on_thread).within(left, right), dtype=np.int64)


class _Breaks:
    """The stored graph breaks, looked up by the two compiled parts around them."""

    def __init__(self, trace: TraceData) -> None:
        stored, compiled = trace.columns("graph_breaks"), trace.columns("compiles")
        ids = zip(compiled["process_row"].tolist(), compiled["compile_id"], strict=True)
        functions = zip(compiled["function"], compiled["file"], strict=True)
        self._functions = {key: function for key, function in zip(ids, functions, strict=True) if function[0]}
        self._rows: dict[tuple[int, str, str], list[tuple[int, int]]] = {}
        roots = map(_begun_as, stored["root_function"])
        keys = zip(stored["process_row"].tolist(), roots, stored["root_file"], strict=True)
        breaks = zip(keys, stored["root_line"].tolist(), stored["skipped"].tolist(), strict=True)
        for row, (key, line, skipped) in enumerate(breaks):
            if not skipped:
                self._rows.setdefault(key, []).append((line, row))

    def between(self, process: int, before: str, after: str) -> int:
        """The row of the break between two regions, by the ids of their compilations; -1 if the second continues no function."""
        outer, inner = self._functions.get((process, before)), self._functions.get((process, after))
        if outer is None or inner is None or (resumed := RESUMED.match(inner[0])) is None:
            return -1
        candidates = self._rows.get((process, _begun_as(outer[0]), outer[1]), [])
        line = int(resumed[2])
        # A part after a branch may begin on a later line than that of the condition.
        earlier = [candidate for candidate in candidates if candidate[0] <= line]
        return max(earlier)[1] if earlier else candidates[0][1] if candidates else -1


def _begun_as(function: str) -> str:
    """The function whose rest a compiled part is, or the function itself: torch names either as the root of a break."""
    resumed = RESUMED.match(function)
    return resumed[1] if resumed else function


def _spans_of(trace: TraceData, rows: Rows, ranges: CompileRanges) -> Rows:
    """The range of each stored compilation, -1 for none: the nearest in time of the same stage and thread."""
    stored, spans = trace.columns("compiles"), trace.columns("spans")
    start = spans["start_ns"][ranges.rows]
    end, thread = start + spans["duration_ns"][ranges.rows], spans["thread"][ranges.rows]
    range_of = np.full(len(rows), -1, dtype=np.int64)
    free = np.ones(len(ranges.rows), dtype=bool)
    for index, row in enumerate(rows.tolist()):
        begin, last = int(stored["start_ns"][row]), int(stored["start_ns"][row] + stored["duration_ns"][row])
        fits = free & (start >= begin - _APART_NS) & (end <= last + _APART_NS)
        fits &= ranges.stage == STAGES.index(stored["stage"][row])
        if (on := int(stored["thread"][row])) >= 0:
            fits &= thread == on
        nearest = np.flatnonzero(fits)
        if len(nearest):
            best = nearest[np.argmin(np.abs(start[nearest] - begin))]
            range_of[index], free[best] = ranges.rows[best], False
    return range_of


def _ids_of(trace: TraceData, rows: Rows) -> list[str]:
    """The ids of the compilations of some ranges, which newer releases of torch write in the name of another range beside it."""
    if len(rows) == 0:
        return []
    spans = trace.columns("spans")
    ids = {row: match[1] for row, text in enumerate(trace.strings) if (match := _ID_IN_RANGE.match(text))}
    marks = np.flatnonzero(np.isin(spans["name"], list(ids)))
    by_parent = dict(zip(spans["parent"][marks].tolist(), spans["name"][marks].tolist(), strict=True))
    return [
        ids[by_parent[parent]] if parent >= 0 and parent in by_parent else ""
        for parent in spans["parent"][rows].tolist()
    ]
