"""Requests: they wait for each other, or the slowest of them for something that the others do not wait for.

A request waits for a thread of a pool after it has handed work to it, and for its event loop while that runs another request: see the table `requests`.
"""

from __future__ import annotations

import json

import numpy as np

from kinetoscope.analyses.loop import MOST_ROWS, Loop, SourceLine, busiest
from kinetoscope.analyses.ran import Ran
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.analyses.rules.python_bound import waiting
from kinetoscope.analyses.step_difference import more_on_average
from kinetoscope.ledger.ledger import ProcessLedger, wait_of
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Mask, Rows, mask_of
from kinetoscope.model.time_spent import CAUSES, ENTRIES, Cause, Entry, words_of
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.host.python_time import charged, gaps
from kinetoscope.tables.host.requests import names_by_time, requests_of, slowest_tenth

LEAST_REQUESTS = 20
TIMES_TYPICAL = 1.5
EXPLAINS = 0.5
ARGUMENT_TIMES = 1.5
"""An argument is named whose median among the slowest is so many times that of the others."""

_POOL = (
    "Where the threads wait, give the pool more of them: ThreadPoolExecutor(max_workers=...), loop.set_default_executor, or in FastAPI and Starlette "
    "anyio.to_thread.current_default_thread_limiter().total_tokens. Where they compute, batch requests into one call of the model, or start more "
    "processes: more threads than processors do not compute faster."
)
_EVENT_LOOP = (
    "Keep the event loop free: run what computes in a thread (asyncio.to_thread, in FastAPI a handler with def instead of async def), or collect requests "
    "into a batch and run the model once for all of them."
)
_OPERATORS = (
    "They compute more than the others. Bound their size, or split it: a limit of tokens, chunked prefill, batches of requests of similar length, and "
    "batches that others can join between two iterations."
)
_ADVICE = {
    Entry.PYTHON: "Move this work out of the request, do it less often, or run it in another process.",
    Entry.COMPILING: "Compile before the server accepts requests: call the model once with each shape, or compile it with dynamic=True.",
    Entry.GARBAGE_COLLECTION: "Call gc.freeze() when the model is loaded, raise the thresholds with gc.set_threshold, or collect between two batches yourself.",
}
_WAIT_ADVICE = {
    Cause.EXECUTOR: _POOL,
    Cause.OTHERS: _EVENT_LOOP,
    Cause.AWAITED: "See in their stretches on the timeline what they await: a lock or a queue that others hold, another service, or a batch that is full.",
    Cause.PROCESSOR: "Use fewer threads (torch.set_num_threads), or move what else runs on this machine.",
}
_COMPUTES = (Entry.NEEDED, Entry.SLOW, Entry.NOT_NEEDED, Entry.UNKNOWN)


@Rule(
    "executor-wait",
    "Requests wait for a thread of a pool, of which {threads} worked for them: {share} of {time}, {waited:each_ns}{a_step}{busy}",
    _POOL,
    finds="[requests](servers.md#what-makes-a-request-slow) wait for a thread of a pool, and the line that its threads run most",
    source="as for Python; share of the time of all requests",
    least=10.0,
    of_requests=True,
).selects
def executor_wait(loop: Loop) -> Answer:
    """Requests that wait for a thread of a pool."""
    pool = loop.threads & ~_homes(loop)
    return _waits(loop, Cause.EXECUTOR, pool, threads=units.count(int(pool.sum()), "thread"))


@Rule(
    "event-loop-busy",
    "Requests wait while their event loop runs others: {share} of {time}, {waited:each_ns}{a_step}{busy}",
    _EVENT_LOOP,
    finds="requests wait while their event loop runs others, and the line that it runs most",
    source="as for Python; share of the time of all requests",
    least=10.0,
    of_requests=True,
).selects
def event_loop_busy(loop: Loop) -> Answer:
    """Requests that wait while their event loop runs others."""
    return _waits(loop, Cause.OTHERS, _homes(loop))


def _homes(loop: Loop) -> Mask:
    """For each row of `threads`, and for -1, whether requests began on it: it runs their event loop."""
    return mask_of(requests_of(loop.trace).thread[loop.work.row], len(loop.threads))


def _waits(loop: Loop, cause: Cause, on: Mask, **words: str) -> Match | None:
    """What suspended requests wait for, with the line that the threads run meanwhile."""
    if loop.ledger is None:
        return None
    cells = loop.ledger.cells
    rows = np.flatnonzero(cells.cause == cause)
    time_ns = loop.usual_sum(cells.step[rows], cells.time_ns[rows])
    line, spans = busiest_line(loop, on)
    busy = f"; what runs there most is {line.named}" if line else ""
    return Match(time_ns=time_ns, values={"waited": time_ns, "busy": busy, **words}, place=line, spans=spans)


def busiest_line(loop: Loop, on: Mask) -> tuple[SourceLine, Rows]:
    """The line that takes most of the time for requests on some threads, with the longest operators that it runs."""
    spans, all_gaps, threads = loop.trace.columns("spans"), gaps(loop.trace), loop.threads & on
    rows = loop.outermost_rows
    operators = {
        line: (time_ns, operator_rows)
        for line, time_ns, operator_rows in loop.by_place(rows[on[spans["thread"][rows]]])
    }
    times = {line: time_ns for line, (time_ns, _) in operators.items()}
    chosen = threads[all_gaps.thread]
    chosen &= loop.step_at(all_gaps.start_ns, all_gaps.thread) >= 0
    time_ns = np.where(all_gaps.shares.blocked, 0, charged(loop.trace, chosen))
    stacks, stack_index = np.unique(all_gaps.shares.stack, return_inverse=True)
    stack_ns = Groups(stack_index.ravel(), len(stacks)).sums(time_ns)
    for stack, took in zip(stacks.tolist(), stack_ns.tolist(), strict=True):
        line = loop.place_of_stack(stack)
        times[line] = times.get(line, 0) + int(took)
    line = busiest(times)
    rows_there = operators.get(line, (0, rows[:0]))[1]
    longest = rows_there[np.argsort(-spans["duration_ns"][rows_there], kind="stable")][:MOST_ROWS]
    return line, longest


@Rule(
    "slow-requests",
    "The slowest tenth of the requests named {name} take {slow:ns}, and typical ones {typical:ns}: {more:ns} more is {words}{arguments}",
    _OPERATORS,
    finds="the slowest tenth of the requests of a name takes longer than typical ones because of one thing: more operators, a wait, Python, a compilation, garbage",
    source="no public threshold: the slowest tenth is what percentiles of latency are about",
    also=f"{LEAST_REQUESTS} requests, {TIMES_TYPICAL} times the mean of the middle half, half of the difference",
    least=1.0,
    of_requests=True,
    of_kinds=False,
).selects
def slow_requests(loop: Loop) -> Answer:
    """What the slowest tenth of the requests of a name spend more time on than typical ones, if it is one thing."""
    account, names = loop.ledger, names_by_time(loop.trace)
    if account is None:
        return None
    of_names = {
        names[kind]: np.flatnonzero(account.work.kind == kind)
        for kind in np.unique(account.work.kind).tolist()
    }
    matches = [_slowest(loop, account, rows, name) for name, rows in of_names.items()]
    return [match for match in matches if match is not None]


def _slowest(loop: Loop, account: ProcessLedger, requests: Rows, name: str) -> Match | None:
    if len(requests) < LEAST_REQUESTS:
        return None
    duration = account.duration_ns
    slow = slowest_tenth(requests, duration)
    ordered = requests[np.argsort(duration[requests], kind="stable")]
    typical = ordered[len(ordered) // 4 : max(3 * len(ordered) // 4, len(ordered) // 4 + 1)]
    slow_ns, typical_ns = (float(duration[some].mean()) for some in (slow, typical))
    if slow_ns < TIMES_TYPICAL * typical_ns:
        return None
    cells = account.cells
    entries, causes = cells.whole_parts(np.arange(len(cells.entry)))
    # What operators need and take besides is one thing, and so is each kind of wait.
    activity = np.where(np.isin(entries, _COMPUTES), 0, 1 + entries * len(Cause) + causes)
    ran = Ran(activity, cells.step, cells.time_ns, cells.span)
    more = more_on_average(ran, slow, typical)
    key = max(more, key=more.__getitem__)
    if more[key] < EXPLAINS * (slow_ns - typical_ns):
        return None
    rows = np.flatnonzero((activity == key) & np.isin(cells.step, slow))
    entry, cause = [*Entry][int(entries[rows[0]])], [*Cause][int(causes[rows[0]])]
    of_place: dict[SourceLine, float] = {}
    for stack, more_ns in more_on_average(
        ran.of(np.where(activity == key, cells.stack, -1)), slow, typical
    ).items():
        where = loop.place_of_stack(stack)
        of_place[where] = of_place.get(where, 0.0) + more_ns
    where = busiest(of_place)
    is_there = np.array([loop.place_of_stack(stack) == where for stack in cells.stack[rows].tolist()], bool)
    rows = rows[is_there]
    spans = cells.span[rows[np.argsort(-cells.time_ns[rows], kind="stable")]]
    spans = np.array([*dict.fromkeys(spans[spans >= 0].tolist())], np.int64)
    words = {
        "name": name,
        "slow": slow_ns,
        "typical": typical_ns,
        "more": more[key],
        "words": "in operators" if key == 0 else words_of(ENTRIES[entry], CAUSES[cause]),
        "arguments": (f", most of it at {where}" if where else "")
        + _arguments(loop.trace, account, slow, typical),
    }
    module = loop.module_of(int(spans[0]) if len(spans) else -1)
    advice = _OPERATORS if key == 0 else _advice(entry, cause)
    time_ns = int(more[key] * len(slow))
    return Match(time_ns=time_ns, values=words, place=where, module=module, spans=spans, advice=advice)


def _advice(entry: Entry, cause: Cause) -> str:
    if entry in _ADVICE:
        return _ADVICE[entry]
    return _WAIT_ADVICE.get(cause) or waiting(wait_of(cause))[1]


def _arguments(trace: TraceData, account: ProcessLedger, slow: Rows, typical: Rows) -> str:
    """The argument of requests whose number is most unusual among the slowest, in words; empty without one."""
    texts = requests_of(trace).arguments
    values = [
        [json.loads(texts[row] or "{}") for row in account.work.row[some].tolist()]
        for some in (slow, typical)
    ]
    most_unusual, note = ARGUMENT_TIMES, ""
    for name in dict.fromkeys(name for row in values[0] for name in row):
        numbers = [
            [row[name] for row in side if isinstance(row.get(name), int | float) and name != "status_code"]
            for side in values
        ]
        if any(2 * len(some) < len(side) for some, side in zip(numbers, values, strict=True)):
            continue
        unusual, usual = (float(np.median(some)) for some in numbers)
        if usual > 0 and unusual / usual >= most_unusual:
            most_unusual = unusual / usual
            note = f"; median {name}: {unusual:,.4g} instead of {usual:,.4g}"
    return note
