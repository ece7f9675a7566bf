"""torch.compile compiles again while the program trains, gives a function up, or cuts its graph into pieces.

Compiling shows as ranges of TorchDynamo; where it breaks a graph, it makes a function for the rest, whose name says where. No public
threshold: any break, any function given up, and compiling in any step but the first for 1 % of step time.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from kinetoscope.analyses.finding import CannotTell, Finding, Signal
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.display.sentence import sentence
from kinetoscope.model import units
from kinetoscope.model.compile_facts import RECOMPILE_LIMIT
from kinetoscope.model.hierarchy import lies_in
from kinetoscope.model.names import COMPILED_REGION
from kinetoscope.tables.host import compiling
from kinetoscope.tables.stacks import is_library_file, stacks_with

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_PERCENT = 1.0
LEAST_SKIPPED_PERCENT = 5.0
_COMPILER = "torch/_dynamo/"
_LOOKUPS = ("TorchDynamo Cache Lookup", "Pregraph bytecode")
_REGION = re.compile(rf"{COMPILED_REGION}: (\d+)/\d+")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")
# How torch says which guard failed: the id of the earlier compilation, the guard, and the lines of the program that need it.
_EARLIER = re.compile(r"^\[?!?\d*/?\d*\]?\d+/\d+: ")
_SIZE = re.compile(r"tensor '(?P<tensor>[^']+)' (?:size|stride) mismatch at index (?P<dim>\d+)")
_GUARDED_LINE = re.compile(r"\s+# .*# (?P<file>\S+):(?P<line>\d+) in (?P<function>\S+)")
# Newer releases add the user's stack, with whole paths.
_STACK_LINE = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in ', re.MULTILINE)
_NUMBERS = re.compile(r"\d[\d.]*")
_LONGEST_REASON = 160


def recompiles(loop: Loop) -> Finding | None:
    """Find steps after the first in which something is compiled."""
    late = _late_compilations(loop)
    time_ns = loop.total_ns(late)
    share = loop.share(time_ns)
    if len(late) == 0 or share < LEAST_PERCENT:
        return None
    again = [
        one
        for one in compiling.compiles(loop.trace).to_pylist()
        if one["reason"] and one["span"] is not None and one["span"] in set(late.tolist())
    ]
    # A graph of backward is compiled for a function that counts already, or by a compilation in the first step.
    count = units.count(loop.late_compilations or len(late), "time")
    if not again:
        place = _caller(loop, int(late[0]))
        text = f"torch.compile compiles {count} after the first step{f', first at {place}' if place else ''}"
        advice = _SAME
    else:
        guards = [(_Guard(one), int(one["span"])) for one in again]
        spent: Counter[str] = Counter()
        for guard, _ in guards:
            spent[guard.key] += guard.duration_ns
        worst = spent.most_common(1)[0][0]
        guard, span = next((one, span) for one, span in guards if one.key == worst)
        place, advice, what = guard.place, guard.advice, f"{guard.function} ({guard.place})"
        if is_library_file(place.file):
            # A module that PyTorch itself defines is compiled in a function of the compiler's.
            place = _caller(loop, span) or place
            what = f"at {place}"
        text = f"torch.compile compiles {count} after the first step, mostly {what}, whose guard fails: {guard.text}"
    return Finding(
        "recompiles",
        sentence(_braceless(text) + f"; {{}} of {loop.unit.time}", (share, "%")),
        advice,
        share,
        time_ns,
        place,
        spans=tuple(late[:MOST_ROWS].tolist()),
    )


_UNBREAK = (
    "Move what cannot be compiled (print, .item(), branches on values of tensors, unsupported calls) out of the function, and compile "
    "with fullgraph=True, so that a break is an error."
)
_SAME = (
    "Keep shapes and Python values equal, mark sizes that change with torch._dynamo.mark_dynamic, and see TORCH_LOGS=recompiles for the "
    "reasons."
)


class _Guard:
    """The guard that failed before a compilation: a row of `compiles` with a reason."""

    def __init__(self, row: dict[str, Any]) -> None:
        lines = _EARLIER.sub("", row["reason"]).splitlines()
        said = lines[0] if lines else ""
        short = _GUARDED_LINE.search(said)
        where = [*_STACK_LINE.finditer(row["reason"]), None][-2:][0] or short
        self.text = (said[: short.start()] if short else said).strip()[:_LONGEST_REASON]
        # Guards on the same thing are one, whatever its values.
        self.key = _NUMBERS.sub("#", self.text) + str(row["file"])
        self.duration_ns = int(row["duration_ns"] or 0)
        resumed = _RESUMED.match(row["function"] or "")
        self.function = resumed[1] if resumed else row["function"] or "a function"
        line = int(where["line"]) if where else row["line"] or 0
        self.place = Place(where["file"] if where else row["file"] or "", line, self.function, line)
        self.advice = self._advice()

    def _advice(self) -> str:
        """What keeps this guard from failing."""
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


def recompile_limit(loop: Loop) -> Finding | None:
    """Find functions that torch.compile has compiled so often that it has given them up."""
    compiled, given_up = _given_up(loop)
    if not given_up:
        return None
    last = _Guard(_with_function(given_up[-1], compiled))
    time_ns, rows = _eager_ns(loop, last.place, last.function)
    compiling_ns = loop.total_ns(_compilations_again(loop))
    share = loop.share(time_ns)
    frame, _, times = (given_up[-1]["compile_id"] or "").partition("/")
    often = f" after {units.count(int(times), 'compilation')}" if times.isdigit() else ""
    others = len({one["compile_id"].partition("/")[0] for one in given_up if one["compile_id"]} - {frame})
    text = (
        f"torch.compile has given up {last.function}{f' ({last.place})' if last.place else ''}{f' and {others} more' if others else ''}{often}: "
        f"the recompile limit is reached, and new inputs run it uncompiled{f' (the last guard that failed: {last.text})' if last.text else ''}"
    )
    return Finding(
        "recompile-limit",
        sentence(
            _braceless(text)
            + f"; what runs uncompiled takes {{}} of {loop.unit.time}, compiling it again took {{}}",
            (share, "%"),
            (loop.share(compiling_ns), "%"),
        ),
        f"{last.advice} A higher torch._dynamo.config.recompile_limit helps only where the variants are few.",
        loop.share(time_ns + compiling_ns),
        # What compiled code would gain is not known.
        compiling_ns,
        last.place,
        spans=tuple(rows[:MOST_ROWS].tolist()),
    )


def _given_up(loop: Loop) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What was compiled in the session, also before the recording began, and what of it failed because its code was compiled too often."""
    own = loop.trace.columns("compiles")
    names = ("compile_id", "function", "file", "line", "reason", "failure", "duration_ns")
    columns = [list(own[name]) for name in names]
    compiled = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return compiled, [one for one in compiled if RECOMPILE_LIMIT.search(one["failure"] or "")]


def _with_function(row: dict[str, Any], compiled: list[dict[str, Any]]) -> dict[str, Any]:
    """A failed compilation with the function, file and line that earlier compilations of the same code have."""
    code = (row["compile_id"] or "").partition("/")[0]
    known = next(
        (
            one
            for one in compiled
            if one["function"] and one["compile_id"] and one["compile_id"].partition("/")[0] == code
        ),
        row,
    )
    return {**row, **{name: row[name] or known[name] for name in ("function", "file", "line")}}


def _eager_ns(loop: Loop, place: Place, function: str) -> tuple[int, NDArray[np.int64]]:
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


def graph_breaks(loop: Loop) -> Finding | CannotTell | None:
    """Find functions that torch.compile compiles in pieces."""
    regions = loop.ranges_and_operators_named(f"{COMPILED_REGION}: ")
    passed = compiling.break_passages(loop.trace)
    rows = np.flatnonzero(np.isin(passed.span, regions))
    if len(rows):
        return _known_breaks(loop, regions, passed.row[rows], passed.span[rows], passed.time_ns[rows])
    if skipped := _skipped(loop):
        return skipped
    return _breaks_by_names(loop, regions) if len(regions) else None


def _skipped(loop: Loop) -> Finding | None:
    """The finding that a function could not be compiled at all, as with a break inside a loop; that of the one that takes longest."""
    own = loop.trace.columns("graph_breaks")
    mine = np.flatnonzero((own["skipped"] > 0) & (own["process_row"] == loop.process)).tolist()
    best: Finding | None = None
    for row in mine:
        file, line, function = own["file"][row], int(own["line"][row]), own["function"][row]
        reason = (own["reason"][row].splitlines() or [""])[0][:_LONGEST_REASON]
        if is_library_file(file) or RECOMPILE_LIMIT.search(own["reason"][row]):
            continue
        place = Place(file, line, function, line)
        time_ns, rows = _eager_ns(loop, place, function)
        share = loop.share(time_ns)
        if share < LEAST_SKIPPED_PERCENT or (best is not None and best.share_percent >= share):
            continue
        best = Finding(
            "graph-breaks",
            sentence(
                _braceless(
                    f"torch.compile does not compile {function} ({place}): {reason}; uncompiled, it takes "
                )
                + f"{{}} of {loop.unit.time}",
                (share, "%"),
            ),
            _UNBREAK,
            share,
            # What compiled code would gain is not known.
            None,
            place,
            spans=tuple(rows[:MOST_ROWS].tolist()),
        )
    return best


def _known_breaks(
    loop: Loop,
    regions: NDArray[np.int64],
    row: NDArray[np.int64],
    span: NDArray[np.int64],
    time_ns: NDArray[np.int64],
) -> Finding:
    """The finding where torch said why it broke graphs; that of the break that takes longest."""
    own = loop.trace.columns("graph_breaks")
    time_of = np.bincount(row, weights=time_ns, minlength=len(own))
    worst = int(np.argmax(time_of))
    lines = {(own["file"][one], int(own["line"][one])) for one in np.unique(row).tolist()}
    line = int(own["line"][worst])
    place = Place(own["file"][worst], line, own["function"][worst], line)
    reason = (own["reason"][worst].splitlines() or [""])[0][:_LONGEST_REASON]
    usual_ns = loop.typical_sum(span, time_ns)
    text = f"torch.compile breaks its graphs in {units.count(len(lines), 'place')}, such as {place.named}: {reason}"
    return Finding(
        "graph-breaks",
        sentence(
            _braceless(text) + f"; {{}}{loop.unit.each} pass between the parts",
            (loop.per_step(usual_ns), "ns"),
        ),
        _UNBREAK,
        loop.share(usual_ns),
        usual_ns,
        place,
        spans=tuple(span[row == worst][:MOST_ROWS].tolist()),
    )


def _breaks_by_names(loop: Loop, regions: NDArray[np.int64]) -> Finding | CannotTell | None:
    """The finding by the names of functions on stacks, in a trace without torch's reasons."""
    trace, strings = loop.trace, loop.trace.strings
    frames = trace.columns("frames")
    breaks: dict[tuple[str, int], str] = {}
    for function, file in zip(frames["function"].tolist(), frames["file"].tolist(), strict=True):
        if found := _RESUMED.match(strings[function].rpartition(".")[2]):
            breaks[found[1], int(found[2])] = strings[file]
    if len(frames) == 0:
        pieces = {
            found[1]
            for one in np.unique(trace.column("spans", "name")[regions]).tolist()
            if (found := _REGION.match(strings[one]))
        }
        return CannotTell("graph-breaks", Signal.STACKS) if len(pieces) > 1 else None
    if not breaks:
        return None
    lookups = loop.ranges_and_operators_named(*_LOOKUPS)
    (function, line), file = min(breaks.items())
    place = Place(file, line, function, line)
    return Finding(
        "graph-breaks",
        sentence(
            f"torch.compile breaks its graphs in {units.count(len(breaks), 'place')}, such as {function} ({place}), and runs "
            f"{loop.counted(len(regions), 'compiled region')}",
        ),
        "Find the reasons with TORCH_LOGS=graph_breaks or fullgraph=True: print, .item(), data-dependent branches, unsupported calls.",
        loop.share(loop.typical_ns(lookups)),
        None,
        place,
        spans=tuple(regions[:MOST_ROWS].tolist()),
    )


def _late_compilations(loop: Loop) -> NDArray[np.int64]:
    """Rows of the ranges of compilations after the first step."""
    rows = _compilations(loop)
    return rows[loop.step_of(rows) >= loop.first_warm_step]


def _compilations_again(loop: Loop) -> NDArray[np.int64]:
    """Rows of the ranges of compilations for which a guard failed, in any step, and of all after the first step."""
    known = compiling.compiles(loop.trace).select(["reason", "span"]).to_pylist()
    failed = [one["span"] for one in known if one["reason"] and one["span"] is not None]
    rows = _compilations(loop)
    return rows[(loop.step_of(rows) >= loop.first_warm_step) | np.isin(rows, failed)]


def _compilations(loop: Loop) -> NDArray[np.int64]:
    """Rows of the ranges of compilations in the steps of the loop's process, those of backward too."""
    found = compiling.compile_ranges(loop.trace)
    rows = found.rows[found.stage < compiling.STAGES.index("runtime")]
    thread = loop.trace.column("spans", "thread")[rows]
    mine = loop.trace.column("threads", "process_row")[thread] == loop.process
    return np.asarray(rows[mine & loop.in_steps(rows)])


def _braceless(text: str) -> str:
    """A text in which no braces can be taken for the place of a number."""
    return text.replace("{}", "{ }")


def _caller(loop: Loop, row: int) -> Place:
    """The line that called what is being compiled: the caller of the compiler's outermost frame."""
    stack = int(loop.trace.column("spans", "own_stack")[row])
    return loop.caller_of(stack, lambda file: _COMPILER in file)
