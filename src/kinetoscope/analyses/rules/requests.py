"""Requests of a server wait for each other, or the slowest of them for something that the others do not wait for.

A request waits for a thread of a pool after it has handed work to it, and for its event loop while that runs another request: see the table
`requests`. Threshold: 10 % of request time, as for Python. The slowest tenth is what percentiles of latency are about: it counts where it takes 1.5
times as long as the middle half of the requests of its name, and one thing explains half of that; no public threshold.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.loop import MOST_ROWS, Loop, Place
from kinetoscope.analyses.rules.python_bound import waiting
from kinetoscope.analyses.step_difference import Ran, more_on_average
from kinetoscope.display.sentence import sentence
from kinetoscope.ledger.ledger import raw_ledger, wait_of
from kinetoscope.model import units
from kinetoscope.model.time_spent import CAUSES, ENTRIES, Cause, Entry, words_of
from kinetoscope.tables.host.python_time import charged, gaps
from kinetoscope.tables.host.requests import names_by_time, requests_of, slowest_tenth

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinetoscope.ledger.ledger import ProcessLedger
    from kinetoscope.model.trace_data import TraceData

    Rows = NDArray[np.int64]
    Mask = NDArray[np.bool_]

LEAST_PERCENT = 10.0
LEAST_REQUESTS = 20
TIMES_TYPICAL = 1.5
EXPLAINS = 0.5
LEAST_SLOW_PERCENT = 1.0
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


def executor_wait(loop: Loop) -> Finding | None:
    """Find requests that wait for a thread of a pool."""
    homes = _homes(loop)
    pool = loop.threads & ~homes
    count = units.count(int(pool.sum()), "thread")
    return _waits(
        loop,
        Cause.EXECUTOR,
        "executor-wait",
        f"Requests wait for a thread of a pool, of which {count} worked for them: {{}} of {loop.unit.time}, {{}}{loop.unit.each}",
        pool,
        _POOL,
    )


def event_loop_busy(loop: Loop) -> Finding | None:
    """Find requests that wait while their event loop runs others."""
    said = f"Requests wait while their event loop runs others: {{}} of {loop.unit.time}, {{}}{loop.unit.each}"
    return _waits(loop, Cause.OTHERS, "event-loop-busy", said, _homes(loop), _EVENT_LOOP)


def _homes(loop: Loop) -> Mask:
    """For each row of `threads`, and for -1, whether requests began on it: it runs their event loop."""
    found = np.zeros(len(loop.threads), bool)
    found[requests_of(loop.trace).thread[loop.work.row]] = True
    return found


def _waits(loop: Loop, cause: Cause, code: str, said: str, on: Mask, advice: str) -> Finding | None:
    """A finding about what suspended requests wait for, with the line that the threads run meanwhile."""
    account = _account(loop)
    rows = np.flatnonzero(account.cells.cause == cause)
    time_ns = loop.usual_sum(account.cells.step[rows], account.cells.time_ns[rows])
    share = loop.share(time_ns)
    if share < LEAST_PERCENT:
        return None
    place, spans = busiest_line(loop, on)
    said += f"; what runs there most is {place.named}" if place else ""
    return Finding(
        code, sentence(said, (share, "%"), (loop.per_step(time_ns), "ns")), advice, share, time_ns, place, spans=spans
    )  # fmt: skip


def _account(loop: Loop) -> ProcessLedger:
    """The account of the requests of the process that the findings are about."""
    return next(one for one in raw_ledger(loop.trace) if one.window.activity.owner.process == loop.process)


def busiest_line(loop: Loop, on: Mask) -> tuple[Place, tuple[int, ...]]:
    """The line that takes most of the time for requests on some threads, with the longest operators that it runs."""
    spans, found, threads = loop.trace.columns("spans"), gaps(loop.trace), loop.threads & on
    rows = loop.outermost_rows
    operators = {
        place: (time_ns, mine) for place, time_ns, mine in loop.by_place(rows[on[spans["thread"][rows]]])
    }
    times = {place: time_ns for place, (time_ns, _) in operators.items()}
    chosen = threads[found.thread]
    chosen &= loop.step_at(found.start_ns, found.thread) >= 0
    time_ns = np.where(found.shares.blocked, 0, charged(loop.trace, chosen))
    stacks, of = np.unique(found.shares.stack, return_inverse=True)
    each = np.bincount(of.ravel(), weights=time_ns, minlength=len(stacks))
    for stack, took in zip(stacks.tolist(), each.tolist(), strict=True):
        place = loop.place_of_stack(stack)
        times[place] = times.get(place, 0) + int(took)
    most = max((one for one in times if one), key=lambda one: times[one], default=Place())
    mine = operators.get(most, (0, rows[:0]))[1]
    longest = mine[np.argsort(-spans["duration_ns"][mine], kind="stable")][:MOST_ROWS]
    return most, tuple(longest.tolist())


def slow_requests(loop: Loop) -> Finding | None:
    """Find what the slowest tenth of the requests of a name spend more time on than typical ones, if it is one thing."""
    account = _account(loop)
    names = names_by_time(loop.trace)
    found = [
        one
        for kind in np.unique(account.work.kind).tolist()
        if (one := _slowest(loop, account, np.flatnonzero(account.work.kind == kind), names[kind]))
        is not None
    ]
    return max(found, key=lambda one: one.gain_ns or 0, default=None)


def _slowest(loop: Loop, account: ProcessLedger, mine: Rows, name: str) -> Finding | None:
    """What the slowest tenth of the requests of one name have more of than the middle half."""
    if len(mine) < LEAST_REQUESTS:
        return None
    duration = account.duration_ns
    slow = slowest_tenth(mine, duration)
    ordered = mine[np.argsort(duration[mine], kind="stable")]
    typical = ordered[len(ordered) // 4 : max(3 * len(ordered) // 4, len(ordered) // 4 + 1)]
    slow_ns, typical_ns = (float(duration[some].mean()) for some in (slow, typical))
    if slow_ns < TIMES_TYPICAL * typical_ns:
        return None
    cells = account.cells
    entries, causes = cells.whole_parts(np.arange(len(cells.entry)))
    # What operators need and take besides is one thing, and so is each kind of wait.
    what = np.where(np.isin(entries, _COMPUTES), 0, 1 + entries * len(Cause) + causes)
    ran = Ran(what, cells.step, cells.time_ns, cells.span)
    more = more_on_average(ran, slow, typical)
    key = max(more, key=lambda one: more[one])
    gain_ns = int(more[key] * len(slow))
    share = loop.share(gain_ns)
    if more[key] < EXPLAINS * (slow_ns - typical_ns) or share < LEAST_SLOW_PERCENT:
        return None
    rows = np.flatnonzero((what == key) & np.isin(cells.step, slow))
    first = rows[0]
    entry, cause = [*Entry][int(entries[first])], [*Cause][int(causes[first])]
    of_stack = more_on_average(ran.of(np.where(what == key, cells.stack, -1)), slow, typical)
    of_place: dict[Place, float] = {}
    for stack, more_ns in of_stack.items():
        place = loop.place_of_stack(stack)
        of_place[place] = of_place.get(place, 0.0) + more_ns
    place = max((one for one in of_place if one), key=lambda one: of_place[one], default=Place())
    here = np.array([loop.place_of_stack(stack) == place for stack in cells.stack[rows].tolist()], bool)
    spans = cells.span[rows[here]][np.argsort(-cells.time_ns[rows[here]], kind="stable")]
    spans = spans[spans >= 0]
    words = "in operators" if key == 0 else words_of(ENTRIES[entry], CAUSES[cause])
    at = f", most of it at {place}" if place else ""
    return Finding(
        "slow-requests",
        sentence(
            f"The slowest tenth of the requests named {name} take {{}}, and typical ones {{}}: {{}} more is {words}{at}{_arguments(loop.trace, account, slow, typical)}",
            (slow_ns, "ns"), (typical_ns, "ns"), (more[key], "ns"),
        ),
        _OPERATORS if key == 0 else _advice(entry, cause),
        share,
        gain_ns,
        place,
        loop.module_of(int(spans[0]) if len(spans) else -1),
        tuple(dict.fromkeys(spans.tolist()))[:MOST_ROWS],
    )  # fmt: skip


def _advice(entry: Entry, cause: Cause) -> str:
    """What to change about what the slowest requests have more of."""
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
    best, said = ARGUMENT_TIMES, ""
    for name in dict.fromkeys(name for one in values[0] for name in one):
        numbers = [
            [one[name] for one in side if isinstance(one.get(name), int | float) and name != "status_code"]
            for side in values
        ]
        if any(2 * len(some) < len(side) for some, side in zip(numbers, values, strict=True)):
            continue
        unusual, usual = (float(np.median(some)) for some in numbers)
        if usual > 0 and unusual / usual >= best:
            best = unusual / usual
            said = f"; median {name}: {unusual:,.4g} instead of {usual:,.4g}"
    return said
