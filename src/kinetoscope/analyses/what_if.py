"""What a step would take if parts of it took what they need and no more: alone, and in a job of ranks that wait for each other.

In a trace of several ranks, what each gains is taken out of the time between its collectives, and these are replayed (`analyses.replay`): a rank that is not the
last to arrive gains nothing for the job.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.analyses.account import WhatIf, account_of, accounts, mended_rows
from kinetoscope.analyses.meetings import RankMeetings, meetings_of_ranks
from kinetoscope.analyses.replay import RankSteps, Replay
from kinetoscope.ledger.ledger import ProcessLedger
from kinetoscope.model.groups import Groups
from kinetoscope.model.names import source_line
from kinetoscope.model.rows import Rows
from kinetoscope.model.time_spent import CAUSES, ENTRIES
from kinetoscope.model.trace_data import TraceData
from kinetoscope.tables.stacks import project_lines, span_stacks

LEAST_RANKS = 2


def what_if(trace: TraceData, *mended: str) -> WhatIf:
    """Predict a step in which some things take what they need, and no more; see `Account.what_if`.

    Args:
        trace: The trace of one process, or of the ranks of a job.
        mended: What changes.

    Returns:
        The step as it is and as it would be: on average over the steps of the process with most time or, of ranks that ran collectives together, of the
        median rank, in a replay of the collectives.

    Raises:
        ArgumentError: There is no time above the floor that one of these is about.
    """
    ranks = _ranks(trace)
    met, start_ns, *_ = _meetings(trace, ranks)
    if len(ranks) < LEAST_RANKS or not len(met.rows):
        return account_of(trace).what_if(*mended)
    rows = mended_rows(account_of(trace).rows, mended)
    replay = Replay(met, start_ns, _steps(ranks), len(ranks))
    recorded_ns, replayed_ns = replay.recorded_ns(), replay.step_ns(replay.own_ns)
    if recorded_ns <= 0 or replayed_ns < 0:
        return account_of(trace).what_if(*mended)
    chosen = {_key(row) for row in rows}
    parts: list[tuple[Rows, Rows, Rows]] = []
    alone_ns = 0.0
    for index, ledger in enumerate(ranks):
        taken = _taken(trace, ledger, chosen)
        alone_ns = max(alone_ns, float(ledger.cells.time_ns[taken].sum()) / max(int(ledger.counted.sum()), 1))
        visits = met.rank == index
        begin_ns = start_ns[met.rows[visits]]
        time_ns, gain_ns = _placed(trace, ledger, taken, begin_ns, begin_ns + met.duration_ns[visits])
        parts.append((np.full(len(time_ns), index), time_ns, gain_ns))
    then_ns = replay.step_ns(
        *replay.shorter(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    )
    return WhatIf(recorded_ns, recorded_ns - max(replayed_ns - then_ns, 0), alone_ns)


def _ranks(trace: TraceData) -> list[ProcessLedger]:
    rank = np.append(trace.column("processes", "rank"), -1)
    return [
        ledger
        for ledger in accounts(trace)
        if not ledger.work.unit.overlaps and rank[ledger.process] >= 0 and ledger.counted.any()
    ]


def _steps(ranks: list[ProcessLedger]) -> RankSteps:
    counted = [np.flatnonzero(ledger.counted) for ledger in ranks]
    return RankSteps(
        np.repeat(np.arange(len(ranks)), [len(rows) for rows in counted]),
        np.concatenate([ledger.work.start_ns[rows] for ledger, rows in zip(ranks, counted, strict=True)]),
        np.concatenate([ledger.work.end_ns[rows] for ledger, rows in zip(ranks, counted, strict=True)]),
    )


def _meetings(trace: TraceData, ranks: list[ProcessLedger]) -> RankMeetings:
    numbers, step_numbers = np.append(trace.column("processes", "rank"), -1), trace.column("steps", "number")
    counted = {
        int(numbers[ledger.process]): set(step_numbers[ledger.work.row[ledger.counted]].tolist())
        for ledger in ranks
    }
    return meetings_of_ranks(trace, counted)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells apart rows of the account that a change can be about."""
    return row["entry"], row["cause"] or "", row["operator"], row["file"] or "", row["line"] or 0


def _taken(trace: TraceData, ledger: ProcessLedger, chosen: set[tuple[Any, ...]]) -> Rows:
    cells = ledger.cells
    frame = project_lines(trace)[cells.stack]
    columns: list[NDArray[Any]] = [cells.entry, cells.cause, cells.name, frame]
    groups = Groups.by(columns)
    is_chosen = np.array(
        [
            (
                ENTRIES[entry],
                CAUSES[cause],
                trace.strings[name] if name >= 0 else None,
                *source_line(trace, frame_row)[:2],
            )
            in chosen
            for entry, cause, name, frame_row in zip(
                *(column[groups.first].tolist() for column in columns), strict=True
            )
        ],
        dtype=bool,
    )
    return np.flatnonzero(is_chosen[groups.of_row] & ledger.counted[cells.step])


def _placed(
    trace: TraceData, ledger: ProcessLedger, taken: Rows, start_ns: Rows, end_ns: Rows
) -> tuple[Rows, Rows]:
    """When the time of some cells of a rank was spent, and how much at each moment.

    That of operators on the host is where they ran; other time is spread over what the rank ran on its own in the step.

    Args:
        trace: The trace.
        ledger: The account of the rank.
        taken: The cells.
        start_ns: When each collective of the rank began.
        end_ns: When it ended.
    """
    cells = ledger.cells
    key = [cells.step[taken], cells.name[taken], cells.stack[taken], cells.module[taken]]
    spans, steps = trace.columns("spans"), len(trace.columns("steps"))
    of_step = np.full(steps + 1, -1, np.int64)
    of_step[ledger.work.row] = np.arange(len(ledger.work))
    names = np.zeros(len(trace.strings) + 1, bool)
    names[cells.name[taken]] = ledger.activity.device is None
    names[-1] = False
    rows = np.flatnonzero(names.take(spans["name"]) & (of_step.take(spans["step"]) >= 0))
    ran = [of_step[spans["step"][rows]], spans["name"][rows], span_stacks(trace)[rows], spans["module"][rows]]
    groups = Groups.by([np.concatenate(pair).astype(np.int64) for pair in zip(key, ran, strict=True)])
    of_cell, of_span = groups.of_row[: len(taken)], groups.of_row[len(taken) :]
    time_ns = Groups(of_cell, len(groups)).sums(cells.time_ns[taken])
    weight = spans["duration_ns"][rows]
    span_ns = Groups(of_span, len(groups)).sums(weight)
    part = np.where(span_ns[of_span] > 0, time_ns[of_span] * (weight / np.maximum(span_ns[of_span], 1)), 0.0)
    left = Groups(cells.step[taken], len(ledger.work)).sums(cells.time_ns[taken], span_ns[of_cell] == 0)
    moments, spread = _spread(ledger, left, start_ns, end_ns)
    return (
        np.concatenate((spans["start_ns"][rows], moments)),
        np.concatenate((part, spread)).astype(np.int64),
    )


def _spread(
    ledger: ProcessLedger, left_ns: NDArray[Any], start_ns: Rows, end_ns: Rows
) -> tuple[Rows, NDArray[np.float64]]:
    """Spread an amount of each step over what a rank runs in it outside its collectives: moments, and how much at each."""
    begin, end = ledger.work.start_ns, ledger.work.end_ns
    order = np.argsort(start_ns, kind="stable")
    start, until = start_ns[order], np.maximum.accumulate(end_ns[order]) if len(order) else end_ns
    edges = np.unique(np.concatenate((begin, end, start, until)))
    moments, length = edges[:-1], np.diff(edges)
    step = np.searchsorted(begin, moments, side="right") - 1
    before = np.searchsorted(start, moments, side="right") - 1
    is_own = (step >= 0) & (moments < end[step]) & ((before < 0) | (moments >= np.append(until, 0)[before]))
    moments, length, step = moments[is_own], length[is_own], step[is_own]
    total = Groups(step, len(begin)).sums(length)
    return moments, left_ns[step] * (length / np.maximum(total[step], 1))
