"""Input: the loop waits for batches, or makes them itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kinetoscope.analyses.loop import MOST_ROWS, Loop, SourceLine, busiest
from kinetoscope.analyses.rule import Answer, Match, Rule, longest
from kinetoscope.analyses.rules.python_bound import calls_at
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model.hierarchy import lies_in
from kinetoscope.model.rows import Rows
from kinetoscope.tables.host.data_loading import loading_spans, waits_that_make
from kinetoscope.tables.host.python_time import charged, gaps
from kinetoscope.tables.intervals import Intervals, when_ran
from kinetoscope.tables.stacks import program_stacks, stacks_with

LEAST_PERCENT = 5.0
LEAST_BUSY_PERCENT = 15.0
"""The same where other programs have the processors, and workers wait for one as the loop does."""
LEAST_SAMPLES = 5
"""Fewer samples of workers do not say which of their lines is slow."""
LEAST_FUNCTION_PERCENT = 10.0
"""A function that takes so much of the steps to make batches is a finding of its own."""
TAKE_NS, TAKE_OF_HOST_NS = 300_000, 500_000
"""What the loop needs to take a batch from a worker, through a pipe and shared memory; without a device the worker runs on the cores of the loop."""
MANY_TENSORS_NS = 10_000_000
"""What the loop needs to receive at least ten tensors of a batch: up to a millisecond each, in which both ends prove who they are."""
MOST_WORKERS = 4
LEAST_SHUFFLES = 0.5
"""An iterator that is used as it is meant to be shuffles once for all of its batches."""
_LOADER = "/torch/utils/data/dataloader.py"
_START = "_MultiProcessingDataLoaderIter.__init__"
_STOP = "_MultiProcessingDataLoaderIter._shutdown_workers"
_RECEIVES = "/torch/multiprocessing/reductions.py"
_WORKER_LOOP = "/torch/utils/data/_utils/worker.py"
_RECORD_WORKERS = " To see their slow line, record the workers with `kinetoscope run --children`."
_NEW_ITERATORS = (
    (
        "{subject} makes a new iterator of its data loader for most batches{at}, each of which shuffles the whole data set: {share} of {time} "
        "({each:ns} a batch on average)"
    ),
    "Make one iterator and keep it, as `for batch in loader` does for an epoch, instead of next(iter(loader)) in each step.",
)
_STARTS_AGAIN = (
    "The data loader starts its workers again and again: that, and waiting for their first batches, takes {share} of {time}",
    (
        "Iterate over the loader itself instead of calling iter(loader) in each step, and keep its workers between epochs with "
        "DataLoader(..., persistent_workers=True)."
    ),
)
_RECEIVED = (
    (
        "{subject} receives its batches from workers as many tensors, each through a socket and shared memory of its own, for {share} of {time} "
        "({each:ns} a batch on average){at}"
    ),
    (
        "Let a collate function stack the samples of a batch into one tensor for each field (DataLoader(..., collate_fn=...)), so that a "
        "worker hands over a few large tensors instead of many small ones."
    ),
)
"""What is said, and what to change, where a loader is not used as it is meant to be."""
_WORKERS = ", where its workers spend {of_work:%} of their work"


_OF_FUNCTION = (
    "{subject} makes its batches itself (num_workers=0): {place} takes {share} of {time}{calls}{part}"
)


@Rule(
    "main-process-loading",
    "{subject} makes its batches itself (num_workers=0) for {share} of {time} ({each:ns} a batch on average){part}{at}{calls}",
    "Let workers make batches: DataLoader(..., num_workers={workers}, persistent_workers=True).",
    finds="the loop makes its batches itself, or makes a new iterator of its loader for each, which shuffles the whole data set",
    source="PyTorch's former TensorBoard plugin (10 % in XProf)",
    least=LEAST_PERCENT,
    explains=("device-idle",),
    every=True,
).selects
def main_process_loading(loop: Loop) -> Answer:
    """Steps in which the loop makes batches, and which part of making them takes longest; a match for each function where several take long."""
    waits = _waits(loop)
    if not _makes_batches(loop, waits):
        return None
    wait_ns, usual_ns = _waited_ns(loop, waits)
    if loop.share(min(wait_ns, usual_ns)) < LEAST_PERCENT:
        return None
    if _shuffles(loop, waits) >= LEAST_SHUFFLES * len(waits):
        return _waiting(loop, waits, wait_ns, "", None, *_NEW_ITERATORS)
    take_ns = TAKE_OF_HOST_NS if loop.device is None else TAKE_NS
    if loop.share(min(wait_ns, usual_ns) - take_ns * len(waits)) < LEAST_PERCENT:
        return None
    loading = loading_spans(loop.trace)
    makers = loading.fetches[loop.trace.column("spans", "thread")[loading.fetches] == loop.thread]
    part, times_ns = _times_of_lines(loop, makers if len(makers) else waits, loading.collates)
    cheaper = f", and make {part} cheaper." if part else "."
    advice = main_process_loading.advice.removesuffix(".").format(workers=workers_for(loop)) + cheaper
    return _by_function(loop, waits, wait_ns, part, _functions(times_ns), advice)


def _by_function(
    loop: Loop, waits: Rows, wait_ns: int, part: str, functions: Sequence[_Function], advice: str
) -> list[Match]:
    """A match for each function that takes much of making batches, or one for all where not several do."""
    long_ones = [
        function for function in functions if loop.share(function.part * wait_ns) >= LEAST_FUNCTION_PERCENT
    ]
    if len(long_ones) < 2:
        function = functions[0] if functions else _Function(SourceLine(), SourceLine(), 1.0)
        calls = calls_at(loop, function.slowest)
        return [_waiting(loop, waits, wait_ns, part, function.place, advice=advice, calls=calls)]
    matches = []
    for function in long_ones:
        calls = calls_at(loop, function.slowest)
        match = _waiting(loop, waits, wait_ns, part, function.place, _OF_FUNCTION, advice, calls)
        matches.append(replace(match, time_ns=function.part * wait_ns))
    return matches


class _Function(NamedTuple):
    """Lines of a function that take time, the slowest of them, and its part of all that was measured."""

    place: SourceLine
    slowest: SourceLine
    part: float


def _functions(times_ns: Mapping[SourceLine, int]) -> list[_Function]:
    """The functions of some lines, the slowest first; each from its first to its last line that takes a tenth of its time."""
    lines_of: dict[tuple[str, str], list[SourceLine]] = defaultdict(list)
    for line in times_ns:
        if line:
            lines_of[line.file, line.function].append(line)
    functions = []
    for lines in lines_of.values():
        time_ns, slowest = sum(times_ns[line] for line in lines), max(lines, key=times_ns.__getitem__)
        numbers = [line.line for line in lines if 10 * times_ns[line] >= time_ns]
        of_lines = replace(slowest, line=min(numbers), until=max(numbers))
        functions.append(_Function(of_lines, slowest, time_ns / max(sum(times_ns.values()), 1)))
    return sorted(functions, key=lambda function: -function.part)


def _waiting(
    loop: Loop,
    waits: Rows,
    wait_ns: int,
    part: str,
    line: SourceLine | None,
    text: str = "",
    advice: str = "",
    calls: str = "",
    of_work: float = 0.0,
) -> Match:
    """The match of waits for batches, with the part of making these that takes longest, and its line: for None that of the longest wait."""
    line = loop.place_of(int(longest(loop, waits)[0])) if line is None else line
    each_ns = float(loop.trace.column("spans", "duration_ns")[waits].mean())
    words = {
        "each": each_ns,
        "part": f", mostly in {part}" if part else "",
        "calls": calls,
        "of_work": of_work,
    }
    return Match(waits, wait_ns, words, place=line, module="", text=text, advice=advice, time=loop.loading)


@Rule(
    "input-wait",
    "{subject} waits for the data loader for {share} of {time} ({each:ns} a batch on average){part}{at}",
    "Make batches cheaper, or use more workers: num_workers, prefetch_factor and persistent_workers of DataLoader.",
    finds=(
        "steps wait for the workers of a `DataLoader`, or the loop starts them again and again. It names the line in which forked workers work most, by "
        "samples; of others with `--children` or the source `DataLoading()`"
    ),
    source="PyTorch's former TensorBoard plugin (10 % in XProf)",
    also=f"{LEAST_BUSY_PERCENT:g}% where other programs have the processors",
    least=LEAST_PERCENT,
    explains=("device-idle", "python-bound", "step-outlier"),
).selects
def input_wait(loop: Loop) -> Answer:
    """Steps that wait for workers, and which part of making batches takes longest."""
    waits = _waits(loop)
    if len(waits) == 0 or _makes_batches(loop, waits):
        return None
    starting_ns, starts = _starts_of_workers(loop, waits)
    if starts and 2 * (starting_ns + _longer_first_ns(loop, waits, starts)) >= loop.total_ns(waits):
        # What samples say is an estimate, and may be more than there is.
        wait_ns = min(loop.total_ns(waits) + starting_ns, int(loop.whole_ns))
        return replace(_waiting(loop, waits, wait_ns, "", None, *_STARTS_AGAIN), time=None)
    wait_ns, usual_ns = _waited_ns(loop, waits)
    least = LEAST_BUSY_PERCENT if loop.machine_is_busy else LEAST_PERCENT
    if loop.share(usual_ns) < LEAST_PERCENT or loop.share(wait_ns) < least:
        return None
    return _for_workers(loop, waits, wait_ns)


def _for_workers(loop: Loop, waits: Rows, wait_ns: int) -> Match:
    """Waits for workers, with the line in which they work most where it is known."""
    loading = loading_spans(loop.trace)
    makers = loading.fetches[loop.trace.column("spans", "thread")[loading.fetches] != loop.thread]
    part, times_ns = _times_of_lines(loop, makers, loading.collates)
    line = busiest(times_ns)
    advice = input_wait.advice.replace("batches", part, 1) if part else input_wait.advice
    advice += "" if line else _RECORD_WORKERS
    text = input_wait.text + _WORKERS if line else ""
    if _receives_many(loop, waits, wait_ns):
        text, advice = _RECEIVED
    of_work = 100.0 * times_ns.get(line, 0) / max(sum(times_ns.values()), 1)
    return _waiting(loop, waits, wait_ns, part, line or None, text, advice, of_work=of_work)


def _receives_many(loop: Loop, waits: Rows, wait_ns: int) -> bool:
    """Whether what the loop waits for is mostly to receive many tensors of each batch."""
    receives_ns, _ = loop.sampled(stacks_with(loop.trace, _RECEIVES))
    return receives_ns >= max(wait_ns / 2, MANY_TENSORS_NS * len(waits))


def workers_for(loop: Loop) -> int:
    """How many workers are advised: one core stays for the loop."""
    cores = loop.trace.run_info.cpu_count
    return MOST_WORKERS if cores is None else max(1, min(MOST_WORKERS, cores - 1))


def _waits(loop: Loop) -> Rows:
    waits = loading_spans(loop.trace).waits
    waits = waits[loop.in_steps(waits)]
    return np.asarray(waits[loop.trace.column("spans", "thread")[waits] == loop.thread])


def _makes_batches(loop: Loop, waits: Rows) -> bool:
    """Whether the loop makes its batches itself: there are no workers."""
    return len(waits) > 0 and bool(np.isin(waits[0], waits_that_make(loop.trace)))


def _waited_ns(loop: Loop, waits: Rows) -> tuple[int, int]:
    """How long the steps wait for data, and how long without a single pause.

    The time is what `breakdown` and summaries call waiting for data: while a device still works, a wait of the loop costs nothing.
    """
    wait_ns = loop.time.parts_ns[PARTS.index("data_wait_ns")] if loop.time else loop.total_ns(waits)
    # On a busy machine workers have a processor as rarely as the loop.
    wait_ns = round(wait_ns * loop.whole_ns / max(loop.duration_ns, 1))
    # Without a device to hide it, a single pause is no fault of the program.
    return wait_ns, wait_ns if loop.device is not None else min(wait_ns, _without_longest(loop, waits))


def _shuffles(loop: Loop, waits: Rows) -> int:
    """How many permutations are drawn while the loop makes batches: one for each iterator of a loader that shuffles."""
    rows = loop.rows_named("aten::randperm")
    return int(lies_in(loop.trace, waits, rows).sum())


def _without_longest(loop: Loop, waits: Rows) -> int:
    """Total wait, with the longest wait capped at the second longest.

    Workers that are too slow make the loop wait for every Nth batch only, so a median says little; one long wait is a pause of the machine,
    or the start of the workers.
    """
    if len(waits) < 2:
        return loop.total_ns(waits)
    duration = loop.trace.column("spans", "duration_ns")[waits]
    second, longest = np.sort(duration)[-2:].tolist()
    return loop.total_ns(waits) - int(longest - second)


def _longer_first_ns(loop: Loop, waits: Rows, starts: int) -> int:
    """By how much the waits after so many starts of workers, the longest ones, are longer than the others together."""
    longest_first = np.sort(loop.trace.column("spans", "duration_ns")[waits].astype(np.int64))[::-1]
    other_waits = longest_first[starts:]
    return int(longest_first[:starts].sum() - starts * (other_waits.mean() if len(other_waits) else 0))


def _starts_of_workers(loop: Loop, waits: Rows) -> tuple[int, int]:
    """How long the loop started and stopped workers in its steps, and in how many; 0 where it did so once.

    An iterator with workers draws their seed before it starts them: from that operator to the first wait for a batch, workers start. Where operators
    have no stacks, samples say how long both took; what else ran between operators, and so the end of workers, they say in any case.
    """
    spans = loop.trace.columns("spans")
    within = np.append(stacks_with(loop.trace, _LOADER, functions=(_START,)), False)
    rows = np.flatnonzero(loop.inside & (spans["thread"] == loop.thread) & within.take(spans["stack"]))
    if len(rows) == 0:
        time_ns, samples = loop.sampled(stacks_with(loop.trace, _LOADER, functions=(_START, _STOP)))
        steps = loop.step_at(loop.trace.column("samples", "time_ns")[samples])
        starts = len(np.unique(steps))
        return (time_ns, starts) if starts > 1 else (0, 0)
    begin = spans["start_ns"][rows].astype(np.int64)
    steps = loop.step_at(begin)
    starts = len(np.unique(steps))
    if starts < 2:
        return 0, 0
    wait_at = spans["start_ns"][waits].astype(np.int64)
    next_wait = np.searchsorted(wait_at, begin)
    # A wait of another step is that of another start.
    has_wait = next_wait < len(waits)
    has_wait[has_wait] = loop.step_at(wait_at[next_wait[has_wait]]) == steps[has_wait]
    starting = Intervals.of(begin[has_wait], wait_at[next_wait[has_wait]])
    all_gaps = gaps(loop.trace)
    inside = (all_gaps.thread == loop.thread) & (loop.step_at(all_gaps.start_ns) >= 0)
    stops = np.append(stacks_with(loop.trace, _LOADER, functions=(_STOP,)), False)[all_gaps.shares.stack]
    return starting.total_ns + int(charged(loop.trace, inside)[stops].sum()), starts


def _times_of_lines(
    loop: Loop, fetches: np.ndarray, collates: np.ndarray
) -> tuple[str, dict[SourceLine, int]]:
    """Which part of making batches takes longest, and how long each of its lines takes."""
    if len(fetches) == 0:
        return "", _sampled_in_workers(loop)
    spans = loop.trace.columns("spans")
    threads = np.unique(spans["thread"][fetches])
    collates = collates[np.isin(spans["thread"][collates], threads)]
    fetch_ns, collate_ns = (int(spans["duration_ns"][rows].sum()) for rows in (fetches, collates))
    in_collate = collate_ns > fetch_ns - collate_ns
    chosen = (collates if in_collate else fetches)[: 5 * MOST_ROWS]
    within = lies_in(loop.trace, chosen)
    within[chosen] = False
    if not in_collate:
        within &= ~lies_in(loop.trace, collates[: 5 * MOST_ROWS])
    rows = np.flatnonzero(within & (spans["self_ns"] > 0) & (spans["stack"] >= 0))
    times: dict[SourceLine, int] = defaultdict(int)
    for line, time_ns, _ in loop.by_place(rows, spans["self_ns"][rows]) if len(rows) else ():
        times[line] += time_ns
    for line, time_ns in _python_in(loop, chosen):
        times[line] += time_ns
    return ("the collate function" if in_collate else "the dataset" if len(collates) else ""), times


def _sampled_in_workers(loop: Loop) -> dict[SourceLine, int]:
    """The times of lines by samples of workers, where there are enough: their batches are marked by a source that `run` does not use."""
    samples = loop.trace.columns("samples")
    within = stacks_with(loop.trace, _WORKER_LOOP)
    # A forked worker has the frames of the loop that started it, too: only what its own loop called makes batches.
    stack = program_stacks(loop.trace)[samples["stack"]]
    in_workers = np.flatnonzero((samples["thread"] != loop.thread) & (stack >= 0) & within[stack])
    return loop.sampled_times_ns(in_workers) if len(in_workers) >= LEAST_SAMPLES else {}


def _python_in(loop: Loop, ranges: np.ndarray) -> list[tuple[SourceLine, int]]:
    """The lines of Python between operators in some ranges, and how long each ran."""
    spans, python = loop.trace.columns("spans"), gaps(loop.trace)
    inside = np.zeros(len(python), dtype=bool)
    for thread in np.unique(spans["thread"][ranges]).tolist():
        of_thread = ranges[spans["thread"][ranges] == thread]
        when = when_ran(loop.trace, of_thread)
        inside |= (python.thread == thread) & (
            when.within(python.start_ns, python.end_ns) == python.duration_ns
        )
    time_ns, shares = charged(loop.trace, inside), python.shares
    return [
        (loop.place_of_stack(int(shares.stack[row])), int(time_ns[row]))
        for row in np.flatnonzero((time_ns > 0) & (shares.stack >= 0)).tolist()
    ]
