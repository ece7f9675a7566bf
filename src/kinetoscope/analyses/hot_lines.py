"""Other lines: they take time above the floor of the step for a cause that the program can change, and no rule for findings covers them.

Time without such a cause is a row of the account, not a finding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kinetoscope._core as _core
from kinetoscope.analyses.account import accounts
from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import Loop, SourceLine
from kinetoscope.analyses.rule import Match, Rule
from kinetoscope.analyses.rules.backward import where_backward_is_called
from kinetoscope.analyses.rules.python_bound import OTHER_WAITS, waiting
from kinetoscope.analyses.rules.sequences import model_call
from kinetoscope.ledger.avoidable_work.padding import paddings_of
from kinetoscope.ledger.avoidable_work.repeats import repeats_of
from kinetoscope.ledger.avoidable_work.waste import good_length, table_rows, transform_length
from kinetoscope.ledger.ledger import BLOCKED, Cells, ProcessLedger, ledger_of_process, wait_of
from kinetoscope.model.groups import Groups
from kinetoscope.model.hierarchy import nearest_of
from kinetoscope.model.nesting import depths_of
from kinetoscope.model.rows import Mask, Rows
from kinetoscope.model.schema import Phase
from kinetoscope.model.time_spent import Cause, Entry
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.intervals import Intervals
from kinetoscope.tables.stacks import span_stacks

HOT_LINE = Rule(
    "hot-line",
    "{what}: {share} of {time} above what it needs{calls}",
    "See in the table account what it needs.",
    finds=(
        "a line takes time above what it [needs on this machine](account.md), for a cause that the program can change: memory that is new each time, a Fourier "
        "transform of an awkward length, a gradient that is almost all zeros, a result that is mostly discarded, a constant that is made again, work on indices "
        "that is done again in a step, [work that has a cheaper way](account.md#work-that-has-a-cheaper-way), a wait; with deep steps or `--tensor-versions` "
        "[a result that existed already](account.md#work-whose-result-existed-already), or a fill that is overwritten; needs `record_shapes=True` or `kinetoscope run`, and "
        "`--memory` for new memory. Its gain is a prediction, not a ceiling"
    ),
    source="[the account](account.md)",
    also="above what is needed, where no other finding covers it",
    least=5.0,
    is_predicted=True,
)
# A call repeats another one if it has so much of what is below it, and could run without gradients if it has all.
_NEARLY_ALL, _ALL = 0.85, 0.999
_COMPUTES = (Entry.NEEDED, Entry.SLOW, Entry.NOT_NEEDED)
# Where so much of what operators do repeats the step before, the program runs one batch again and again.
_EVERYTHING = 0.8
MOSTLY = 2.0
"""What is left out of an operator is most of it from so many times on what is slow of it."""
SORT_BY_LENGTH = "Put rows of similar lengths into one batch: sort them by length within a few batches (group_by_length=True, a sampler of batches), or limit the elements of a batch."
_REPEATS = (Cause.RECOMPUTED, Cause.UNCHANGED, Cause.OVERWRITTEN)
OF_CALLS = (*_REPEATS, Cause.UNUSED_GRADIENT, Cause.COPIED_ROWS)
"""What a whole call does: that is its place."""
# What the program can change; of a blocked thread, by what it waits for.
_CHANGEABLE = (*(cause for cause in Cause if cause.advice), Cause.BLOCKED, Cause.LENGTH)


def hot_lines(loop: Loop) -> list[Finding]:
    """Find what takes much time above the floor of the step, one finding for each cause."""
    account = ledger_of_process(accounts(loop.trace), loop.process)
    findings = [] if account is None else [_finding(loop, account, cause) for cause in _CHANGEABLE]
    return [finding for finding in findings if finding is not None]


def _finding(loop: Loop, account: ProcessLedger, cause: Cause) -> Finding | None:
    cells = account.cells
    rows = np.flatnonzero(
        np.isin(cells.cause, BLOCKED if cause == Cause.BLOCKED else cause)
        & account.counted[cells.step]
        & (cells.entry != Entry.NEEDED)
    )
    if cause == Cause.UNCHANGED and _is_everything(account, rows):
        return None
    # The steps that count are those of the loop, in its order.
    usual_ns = loop.usual_sum(account.counted_step[cells.step[rows]], cells.time_ns[rows])
    if loop.share(usual_ns) < HOT_LINE.least or (cause == Cause.BLOCKED and loop.machine_is_busy):
        return None
    at_place = _call if cause in OF_CALLS else _padded if cause == Cause.PADDING else _worst_line
    line, cells_there = at_place(loop, account, rows)
    if cause == Cause.BLOCKED and not line:
        return None
    rows = _with_the_rest(account, rows)
    usual_ns = loop.usual_sum(account.counted_step[cells.step[rows]], cells.time_ns[rows])
    spans = np.unique(cells.span[cells_there])
    spans = spans[spans >= 0]
    does, words, advice = _words(loop, account, cause, str(line), rows, cells_there)
    name, count = operator_of_cells(loop.trace, cells, cells_there if cause != Cause.PADDING else rows[:0])
    called = f" ({loop.trace.strings[name]}, {loop.counted(count, 'time')})" if name >= 0 else ""
    text = HOT_LINE.text.replace("{what}", does)
    module = loop.module_of(int(spans[0]) if len(spans) else -1)
    match = Match(
        spans, usual_ns, words | {"calls": called}, place=line, module=module, spans=spans, text=text, advice=advice,
        gain_ns=usual_ns, time=_when(loop, cells, rows),
    )  # fmt: skip
    return HOT_LINE.finding(loop, match)


def _with_the_rest(account: ProcessLedger, rows: Rows) -> Rows:
    """Some cells with the time of the same operators that is slow, where most of what they do is left out: then it goes, too."""
    cells = account.cells
    operators = Groups.by([cells.step, cells.name, cells.stack, cells.module])
    is_left_out = np.zeros(len(cells.step), dtype=np.bool_)
    is_left_out[rows] = (cells.entry[rows] == Entry.NOT_NEEDED) & (cells.name[rows] >= 0)
    left_out_ns = operators.sums(cells.time_ns, is_left_out)[operators.of_row]
    goes = (cells.entry == Entry.SLOW) & (MOSTLY * cells.time_ns <= left_out_ns)
    return np.union1d(rows, np.flatnonzero(goes))


def operator_of_cells(trace: TraceData, cells: Cells, rows: Rows) -> tuple[int, int]:
    """The operator with most of the time of some cells, by its row in the strings, and how many calls of it they are; -1 without one."""
    of_name = Groups(cells.name[rows], len(trace.strings))
    if not of_name.sizes().any():
        return -1, 0
    name = of_name.largest(cells.time_ns[rows])
    named = rows[cells.name[rows] == name]
    # A call may be in a cell for each entry and cause.
    spent_on = Groups.by([cells.entry[named].astype(np.int64), cells.cause[named].astype(np.int64)])
    return name, int(spent_on.sums(cells.count[named]).max())


def _when(loop: Loop, cells: Cells, rows: Rows) -> Intervals | None:
    """When some cells were spent: while their operators ran, or Python between operators; None of requests, which overlap."""
    if loop.unit.overlaps:
        return None
    spans, operators = loop.trace.columns("spans"), rows[cells.span[rows] >= 0]
    ran = np.flatnonzero(np.isin(spans["name"], cells.name[operators]))
    ran = ran[loop.in_steps(ran)]
    keys = zip(
        (spans["name"][ran], span_stacks(loop.trace)[ran], spans["module"][ran]),
        (cells.name[operators], cells.stack[operators], cells.module[operators]),
        strict=True,
    )
    group = Groups.by([np.concatenate(pair) for pair in keys]).of_row
    ran = ran[np.isin(group[: len(ran)], group[len(ran) :])]
    return loop.when(ran) | loop.python if len(operators) < len(rows) else loop.when(ran)


def _is_everything(account: ProcessLedger, rows: Rows) -> bool:
    """Whether the cells are most of what operators do: a benchmark that runs one batch again and again is meant to repeat it."""
    cells = account.cells
    computes = np.isin(cells.entry, _COMPUTES) & account.counted[cells.step]
    return bool(cells.time_ns[rows].sum() >= _EVERYTHING * cells.time_ns[computes].sum())


def _worst_line(loop: Loop, account: ProcessLedger, rows: Rows) -> tuple[SourceLine, Rows]:
    """The line at which some cells take most, and those of them that are there; in an optimizer only if nowhere else."""
    cells = account.cells
    stacks_of: dict[SourceLine, list[int]] = {}
    for stack in np.unique(cells.stack[rows]).tolist():
        stacks_of.setdefault(loop.place_of_stack(stack), []).append(stack)
    of_line = {line: rows[np.isin(cells.stack[rows], stacks)] for line, stacks in stacks_of.items()}
    worst = max(of_line, key=lambda line: (bool(line), int(cells.time_ns[of_line[line]].sum())))
    return worst, of_line[worst]


def _padded(loop: Loop, account: ProcessLedger, rows: Rows) -> tuple[SourceLine, Rows]:
    """The line that makes the batch with most padding, or else that of the call of the model that works on it."""
    _, cells_there = _worst_line(loop, account, rows)
    made_at = loop.place_of(paddings_of(loop.trace)[0].maker)
    return made_at or _model_call(loop, account, cells_there), cells_there


def _padding_words(loop: Loop, here: str, model: str) -> tuple[str, dict[str, Any], str]:
    padding = paddings_of(loop.trace)[0]
    words: dict[str, Any] = {
        "part": 100.0 * padding.part, "columns": padding.columns, "longest": round(padding.longest), "rows": padding.rows, "model": model or "the model",
    }  # fmt: skip
    if here == model:
        makes = "is given"
    else:
        makes = "makes" if padding.is_fixed else "puts rows of different lengths into one batch: it makes"
    work = "" if here == model else ", on which {model} works"
    text = f"{{place}} {makes} batches of {{rows}} x {{columns}}{work}; {{part:%}} of them is padding"
    if padding.is_fixed:
        return f"{text}, the longest row needs {{longest}} columns on average", words, Cause.PADDING.advice
    return text, words, SORT_BY_LENGTH


def _model_call(loop: Loop, account: ProcessLedger, cells_there: Rows) -> SourceLine:
    cells = account.cells
    return model_call(loop, int(cells.stack[cells_there[np.argmax(cells.time_ns[cells_there])]]))


def _words(
    loop: Loop, account: ProcessLedger, cause: Cause, here: str, rows: Rows, cells_there: Rows
) -> tuple[str, dict[str, Any], str]:
    cells = account.cells
    largest = int(cells.span[cells_there[np.argmax(cells.time_ns[cells_there])]]) if len(cells_there) else -1
    if cause == Cause.LENGTH:
        length = transform_length(loop.trace, largest)
        advice = f"Pad or cut them to a length with small prime factors, such as {good_length(length):,} (the argument n= of torch.fft)."
        text = "{place} transforms signals of length {length}, which has large prime factors"
        return text, {"length": length}, advice
    if cause == Cause.ZERO_GRADIENT:
        table = table_rows(loop.trace, cells.span[rows])
        text = "{place} looks up few rows of a table, whose gradient is almost all zeros"
        if loop.trace.column("spans", "phase")[largest] == Phase.OPTIMIZER:
            text = "{place} updates all rows of a table, though the gradient of almost all of them is zero"
        return f"{text} ({{rows}} rows)" if table else text, {"rows": table}, cause.advice
    if cause == Cause.PADDING:
        return _padding_words(loop, here, str(_model_call(loop, account, cells_there)))
    if cause == Cause.CONSTANT:
        times = _runs(loop, cells.span[cells_there])
        return "{place} makes the same constant again, {times:time}", {"times": times}, cause.advice
    if cause.does:
        backward = (
            where_backward_is_called(loop, cells.span[cells_there]) if cause == Cause.UNUSED_GRADIENT else ""
        )
        return f"{{place}} {cause.does}", {"backward": f" by {backward}" if backward else ""}, cause.advice
    if cause == Cause.FRESH_MEMORY:
        size = int(loop.trace.column("spans", "bytes_moved")[largest])
        text = "{place} writes into memory that is new each time, {size:bytes} at once"
        return text, {"size": size}, cause.advice
    if cause in _REPEATS:
        return *_repeat(loop, account, cause, here, cells_there), cause.advice
    longest = Groups(cells.cause[cells_there], len(Cause)).largest(cells.time_ns[cells_there])
    waits, advice = waiting(wait_of([*Cause][longest]))
    more = OTHER_WAITS if waits == "waits" else ""
    return f"{{subject}} {waits} in {{named}}{more}", {}, advice


def _repeat(
    loop: Loop, account: ProcessLedger, cause: Cause, here: str, cells_there: Rows
) -> tuple[str, dict[str, Any]]:
    cells, repeats, spans = account.cells, repeats_of(loop.trace), loop.trace.columns("spans")
    repeated_by = repeats.same_step if cause == Cause.RECOMPUTED else repeats.overwritten_by
    largest = cells_there[np.argsort(-cells.time_ns[cells_there], kind="stable")]
    other = repeated_by[nearest_of(loop.trace, repeated_by[:-1] >= 0)[cells.span[largest]]]
    stack = np.append(spans["stack"], -1)[other[:1]]
    # As far from the outermost call as the line that is named.
    parent = loop.trace.column("stacks", "parent")
    depth = depths_of(parent)
    there, named = int(stack[0]) if len(stack) else -1, _whole_call(loop, account, cells_there)[0]
    while named >= 0 and there >= 0 and depth[there] > depth[named]:
        there = int(parent[there])
    first = str(loop.place_of_stack(there))
    is_elsewhere = bool(first) and first != here
    words = {"first": first, "unit": loop.unit.noun}
    if cause == Cause.OVERWRITTEN:
        by = "{first} overwrites" if is_elsewhere else "is overwritten"
        return f"{{place}} fills memory that {by} before anything reads it", words
    words_for_result = "that {first} computed before" if is_elsewhere else "again that it computed before"
    return f"{{place}} computes a result {words_for_result} in the {{unit}}", words


def _call(loop: Loop, account: ProcessLedger, rows: Rows) -> tuple[SourceLine, Rows]:
    """The call nearly all of whose time is in the cells, such as that of a whole network, or else the line with most of it."""
    line, cells_there = _worst_line(loop, account, rows)
    node, inside = _whole_call(loop, account, cells_there)
    call = loop.place_of_stack(node)
    return (call, rows[inside[account.cells.stack[rows]]]) if call else (line, cells_there)


def _whole_call(loop: Loop, account: ProcessLedger, cells_there: Rows) -> tuple[int, Mask]:
    """The outermost stack below which forward spends nearly all of its time in the cells, or backward where they are its; and which stacks are below it."""
    cells, spans = account.cells, loop.trace.columns("spans")
    parent = loop.trace.column("stacks", "parent")
    there = np.isin(cells.cause, cells.cause[cells_there[:1]])
    phase, forward_stack = (np.append(spans[name], -1)[cells.span] for name in ("phase", "forward_stack"))
    is_gradient = bool((phase[cells_there] == Phase.BACKWARD).all())
    counts = (phase == (Phase.BACKWARD if is_gradient else Phase.FORWARD)) & (cells.stack >= 0)
    counts &= np.isin(cells.entry, _COMPUTES) & account.counted[cells.step]
    # A call that runs backward or an optimizer is that of the loop.
    of_loop = (phase == Phase.OPTIMIZER) | ((phase == Phase.BACKWARD) & (forward_stack < 0))
    depth = depths_of(parent)
    by_stack = Groups(cells.stack, len(parent))
    all_ns, there_ns, of_loop_ns = (
        _core.sums_below(parent, depth, by_stack.sums(cells.time_ns, chosen))
        for chosen in (counts, counts & there, of_loop)
    )
    stacks = cells.stack[cells_there]
    if (stacks < 0).all():
        return -1, np.zeros(len(parent) + 1, bool)
    node = Groups(stacks, len(parent)).largest(cells.time_ns[cells_there])
    outermost = node
    part = _ALL if is_gradient else _NEARLY_ALL
    while node >= 0 and of_loop_ns[node] == 0 and there_ns[node] >= part * all_ns[node]:
        outermost, node = node, int(parent[node])
    inside = np.zeros(len(parent) + 1, bool)
    for row in range(outermost, len(parent)):
        inside[row] = row == outermost or (parent[row] >= 0 and inside[parent[row]])
    return outermost, inside


def _runs(loop: Loop, spans: Rows) -> int:
    return int(Groups.by([loop.trace.column("spans", "name")[spans]]).sizes().max(initial=1))
