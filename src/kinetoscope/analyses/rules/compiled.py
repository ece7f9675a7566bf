"""torch.compile: what it compiles again while the program trains, gives up, or cuts into pieces.

Compiling shows as ranges of TorchDynamo; where it breaks a graph, it makes a function for the rest, whose name says where.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from kinetoscope.analyses.finding import Signal
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.model import units
from kinetoscope.model.compile_facts import RECOMPILE_LIMIT
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import lies_in
from kinetoscope.model.names import COMPILED_REGION
from kinetoscope.model.rows import Rows
from kinetoscope.tables.host import compiling
from kinetoscope.tables.stacks import is_library_file, stacks_with

LEAST_SKIPPED_PERCENT = 5.0
_COMPILER = "torch/_dynamo/"
_LOOKUPS = ("TorchDynamo Cache Lookup", "Pregraph bytecode")
_REGION = re.compile(rf"{COMPILED_REGION}: (\d+)/\d+")
# How torch says which guard failed: the id of the earlier compilation, the guard, and the lines of the program that need it.
_EARLIER = re.compile(r"^\[?!?\d*/?\d*\]?\d+/\d+: ")
_SIZE = re.compile(r"tensor '(?P<tensor>[^']+)' (?:size|stride) mismatch at index (?P<dim>\d+)")
_GUARDED_LINE = re.compile(r"\s+# .*# (?P<file>\S+):(?P<line>\d+) in (?P<function>\S+)")
# Newer releases add the user's stack, with whole paths.
_STACK_LINE = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in ', re.MULTILINE)
_NUMBERS = re.compile(r"\d[\d.]*")
_LONGEST_REASON = 160
_SAME = (
    "Keep shapes and Python values equal, mark sizes that change with torch._dynamo.mark_dynamic, and see TORCH_LOGS=recompiles for the "
    "reasons."
)


@Rule(
    "recompiles",
    "torch.compile compiles {count} after the first step, mostly {function}, whose guard fails: {guard}; {share} of {time}",
    _SAME,
    finds="`torch.compile` compiles after the first step, and which guard fails",
    source="no public threshold",
    least=1.0,
    explains=("step-outlier",),
    of_kinds=False,
).selects
def recompiles(loop: Loop) -> Answer:
    """Compilations in steps after the first."""
    rows = _compilations(loop)
    late = rows[loop.step_of(rows) >= loop.first_warm_step]
    if len(late) == 0:
        return None
    # A graph of backward is compiled for a function that counts already, or by a compilation in the first step.
    words = {"count": units.count(loop.late_compilations or len(late), "time")}
    worst = _costliest_guard(loop, late)
    if worst is None:
        text = "torch.compile compiles {count} after the first step{first}; {share} of {time}"
        line = _caller(loop, int(late[0]))
        words["first"] = f", first at {line}" if line else ""
        return Match(late, loop.total_ns(late), words, place=line, module="", text=text)
    guard, span = worst
    line = guard.place
    words |= {"function": f"{guard.function} ({line})", "guard": guard.text}
    if is_library_file(line.file):
        # A module that PyTorch itself defines is compiled in a function of the compiler's.
        line = _caller(loop, span) or line
        words["function"] = f"at {line}"
    return Match(late, loop.total_ns(late), words, place=line, module="", advice=guard.advice)


def _costliest_guard(loop: Loop, late: Rows) -> tuple[_Guard, int] | None:
    """The guard whose failures cost most compiling in some ranges, and the first of these; None where no guard is known."""
    spans = set(late.tolist())
    rows = [
        row for row in compiling.compiles(loop.trace).to_pylist() if row["reason"] and row["span"] in spans
    ]
    failures, spent = [(_Guard(row), int(row["span"])) for row in rows], Counter[str]()
    for guard, _ in failures:
        spent[guard.key] += guard.duration_ns
    return next((pair for pair in failures if pair[0].key == spent.most_common(1)[0][0]), None)


class _Guard:
    """The guard that failed before a compilation: a row of `compiles` with a reason."""

    def __init__(self, row: dict[str, Any]) -> None:
        lines = _EARLIER.sub("", row["reason"]).splitlines()
        first_line = lines[0] if lines else ""
        short = _GUARDED_LINE.search(first_line)
        where = [*_STACK_LINE.finditer(row["reason"]), None][-2:][0] or short
        self.text = (first_line[: short.start()] if short else first_line).strip()[:_LONGEST_REASON]
        # Guards on the same thing are one, whatever its values.
        self.key = _NUMBERS.sub("#", self.text) + str(row["file"])
        self.duration_ns = int(row["duration_ns"] or 0)
        resumed = compiling.RESUMED.match(row["function"] or "")
        self.function = resumed[1] if resumed else row["function"] or "a function"
        line = int(where["line"]) if where else row["line"] or 0
        self.place = SourceLine(where["file"] if where else row["file"] or "", line, self.function, line)
        self.advice = self._advice()

    def _advice(self) -> str:
        if size := _SIZE.search(self.text):
            return (
                f"Compile once for all sizes: torch._dynamo.mark_dynamic({size['tensor']}, {size['dim']}) before the call, or "
                "torch.compile(dynamic=True). Or pad to a few sizes."
            )
        if "grad_mode" in self.text or "GLOBAL_STATE" in self.text:
            return "Call the function with the same global state: gradient mode, autocast, number of threads, default dtype."
        if "type mismatch" in self.text or "dtype" in self.text:
            return "Call the function with inputs of the same types."
        if "==" in self.text or " is " in self.text:
            return (
                "This Python value is a constant of the compiled code. Keep it equal, pass it as a tensor, or, for attributes of modules "
                "that are integers, set torch._dynamo.config.allow_unspec_int_on_nn_module."
            )
        return _SAME


@Rule(
    "recompile-limit",
    (
        "torch.compile has given up {function}{often}: the recompile limit is reached, and new inputs run it uncompiled{guard}; what runs uncompiled takes "
        "{eager:%} of {time}, compiling it again took {compiling:%}"
    ),
    "A higher torch._dynamo.config.recompile_limit helps only where the variants are few.",
    finds="`torch.compile` has compiled a function so often that it gives it up; which guard failed last",
    source="torch's own limit",
    also="any function",
    explains=("first-step", "recompiles"),
    of_kinds=False,
).selects
def recompile_limit(loop: Loop) -> Answer:
    """Functions that torch.compile has compiled so often that it has given them up."""
    compiled, given_up = _given_up(loop)
    if not given_up:
        return None
    last = _Guard(_with_function(given_up[-1], compiled))
    time_ns, rows = _eager_ns(loop, last.place, last.function)
    compiling_ns = loop.total_ns(_compilations_again(loop))
    words = {**_of_limit(last, given_up), "eager": loop.share(time_ns), "compiling": loop.share(compiling_ns)}
    advice = f"{last.advice} {recompile_limit.advice}"
    # What compiled code would gain is not known.
    return Match(
        rows, time_ns + compiling_ns, words, gain_ns=compiling_ns, place=last.place, advice=advice
    ).as_given()


def _of_limit(last: _Guard, given_up: list[dict[str, Any]]) -> dict[str, str]:
    """Which functions were given up, after how many compilations, and which guard failed last."""
    frame, _, times = (given_up[-1]["compile_id"] or "").partition("/")
    more = len({row["compile_id"].partition("/")[0] for row in given_up if row["compile_id"]} - {frame})
    where = f" ({last.place})" if last.place else ""
    return {
        "function": f"{last.function}{where}{f' and {more} more' if more else ''}",
        "often": f" after {units.count(int(times), 'compilation')}" if times.isdigit() else "",
        "guard": f" (the last guard that failed: {last.text})" if last.text else "",
    }


def _given_up(loop: Loop) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What was compiled in the session, also before the recording began, and what of it failed because its code was compiled too often."""
    compiles = loop.trace.columns("compiles")
    names = ("compile_id", "function", "file", "line", "reason", "failure", "duration_ns")
    columns = [list(compiles[name]) for name in names]
    compiled = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return compiled, [row for row in compiled if RECOMPILE_LIMIT.search(row["failure"] or "")]


def _with_function(row: dict[str, Any], compiled: list[dict[str, Any]]) -> dict[str, Any]:
    """A failed compilation with the function, file and line that earlier compilations of the same code have."""
    code = (row["compile_id"] or "").partition("/")[0]
    same_code = next(
        (
            other
            for other in compiled
            if other["function"] and other["compile_id"] and other["compile_id"].partition("/")[0] == code
        ),
        row,
    )
    return {**row, **{name: row[name] or same_code[name] for name in ("function", "file", "line")}}


def _eager_ns(loop: Loop, place: SourceLine, function: str) -> tuple[int, Rows]:
    """What the operators of a function take outside of compiled regions, and their rows; of those that backward runs for them, too."""
    frames = loop.trace.columns("frames")
    strings = loop.trace.strings
    names = {
        strings[name]
        for name in np.unique(frames["function"]).tolist()
        if strings[name].rpartition(".")[2] == function
    }
    if not names or not place.file:
        return 0, np.zeros(0, dtype=np.int64)
    inside = np.append(stacks_with(loop.trace, place.file, functions=names), False)
    rows = loop.outermost_rows
    compiled = lies_in(loop.trace, loop.ranges_and_operators_named(f"{COMPILED_REGION}: "))
    rows = rows[inside[loop.trace.column("spans", "stack")[rows]] & ~compiled[rows]]
    return loop.cost_ns(rows), rows


@Rule(
    "graph-breaks",
    "torch.compile breaks its graphs in {places}, such as {named}: {reason}; {pass:each_ns}{a_step} pass between the parts",
    (
        "Move what cannot be compiled (print, .item(), branches on values of tensors, unsupported calls) out of the function, and compile with "
        "fullgraph=True, so that a break is an error."
    ),
    finds=(
        "`torch.compile` cuts a function into several graphs, at which line and why, and the time between the graphs; or it does not compile the function at "
        "all"
    ),
    source="no public threshold",
    also=f"any break; {LEAST_SKIPPED_PERCENT:g}% of step time",
    needs=Signal.STACKS,
    of_kinds=False,
).selects
def graph_breaks(loop: Loop) -> Answer:
    """Functions that torch.compile compiles in pieces, by its own reasons where the trace has them."""
    regions = loop.ranges_and_operators_named(f"{COMPILED_REGION}: ")
    passed = compiling.break_passages(loop.trace)
    passages = np.flatnonzero(np.isin(passed.span, regions))
    if len(passages) == 0:
        return _skipped(loop) or _breaks_by_names(loop, regions)
    row, span, time_ns = passed.row[passages], passed.span[passages], passed.time_ns[passages]
    table = loop.trace.columns("graph_breaks")
    worst = Groups(row, len(table)).largest(time_ns)
    lines = {(table["file"][broken], int(table["line"][broken])) for broken in np.unique(row).tolist()}
    usual_ns = loop.typical_sum(span, time_ns)
    words = {
        "places": units.count(len(lines), "place"),
        "reason": _first_line(table["reason"][worst]),
        "pass": usual_ns,
    }
    return Match(span[row == worst], usual_ns, words, place=_place_of_break(loop, worst), module="")


def _first_line(reason: str) -> str:
    return (reason.splitlines() or [""])[0][:_LONGEST_REASON]


def _place_of_break(loop: Loop, row: int) -> SourceLine:
    table = loop.trace.columns("graph_breaks")
    line = int(table["line"][row])
    return SourceLine(table["file"][row], line, table["function"][row], line)


def _skipped(loop: Loop) -> list[Match]:
    """Functions that torch.compile did not compile at all, as with a break inside a loop."""
    table = loop.trace.columns("graph_breaks")
    skipped = np.flatnonzero((table["skipped"] > 0) & (table["process_row"] == loop.process)).tolist()
    matches = []
    for row in skipped:
        line, reason = _place_of_break(loop, row), table["reason"][row]
        if is_library_file(line.file) or RECOMPILE_LIMIT.search(reason):
            continue
        time_ns, rows = _eager_ns(loop, line, line.function)
        if loop.share(time_ns) < LEAST_SKIPPED_PERCENT:
            continue
        text = "torch.compile does not compile {named}: {reason}; uncompiled, it takes {share} of {time}"
        words = {"reason": _first_line(reason)}
        # What compiled code would gain is not known.
        matches.append(Match(rows, time_ns, words, gain_ns=None, place=line, text=text).as_given())
    return sorted(matches, key=lambda match: -match.time_ns)[:1]


def _breaks_by_names(loop: Loop, regions: Rows) -> Answer:
    """Breaks by the names of functions on stacks, in a trace without torch's reasons."""
    trace, strings = loop.trace, loop.trace.strings
    frames = trace.columns("frames")
    breaks: dict[tuple[str, int], str] = {}
    for function, file in zip(frames["function"].tolist(), frames["file"].tolist(), strict=True):
        if resumed := compiling.RESUMED.match(strings[function].rpartition(".")[2]):
            breaks[resumed[1], int(resumed[2])] = strings[file]
    if len(frames) == 0:
        names = [strings[name] for name in np.unique(trace.column("spans", "name")[regions]).tolist()]
        pieces = {piece[1] for name in names if (piece := _REGION.match(name))}
        return Signal.STACKS if len(pieces) > 1 else None
    if not breaks or len(regions) == 0:
        return None
    (function, line), file = min(breaks.items())
    lookups_ns = loop.typical_ns(loop.ranges_and_operators_named(*_LOOKUPS))
    words = {"places": units.count(len(breaks), "place"), "regions": len(regions)}
    text = "torch.compile breaks its graphs in {places}, such as {named}, and runs {regions:compiled region}"
    advice = "Find the reasons with TORCH_LOGS=graph_breaks or fullgraph=True: print, .item(), data-dependent branches, unsupported calls."
    first_break = SourceLine(file, line, function, line)
    return Match(
        regions, lookups_ns, words, gain_ns=None, place=first_break, text=text, advice=advice
    ).as_given()


def _compilations_again(loop: Loop) -> Rows:
    """Rows of the ranges of compilations for which a guard failed, in any step, and of all after the first step."""
    compilations = compiling.compiles(loop.trace).select(["reason", "span"]).to_pylist()
    failed = [row["span"] for row in compilations if row["reason"] and row["span"] is not None]
    rows = _compilations(loop)
    return rows[(loop.step_of(rows) >= loop.first_warm_step) | np.isin(rows, failed)]


def _compilations(loop: Loop) -> Rows:
    """Rows of the ranges of compilations in the steps of the loop's process, those of backward too."""
    ranges = compiling.compile_ranges(loop.trace)
    rows = ranges.rows[ranges.stage < compiling.STAGES.index("runtime")]
    thread = loop.trace.column("spans", "thread")[rows]
    is_of_process = loop.trace.column("threads", "process_row")[thread] == loop.process
    return np.asarray(rows[is_of_process & loop.in_steps(rows)])


def _caller(loop: Loop, row: int) -> SourceLine:
    """The line that called what is being compiled: the caller of the compiler's outermost frame."""
    stack = int(loop.trace.column("spans", "own_stack")[row])
    return loop.caller_of(stack, lambda file: _COMPILER in file)
