"""Ranks: the others wait for one that is late, or that has more to do.

Ranks of a collective end it together, so the one that spent least time in it came last, whatever its clock says. Who is late is decided in
`analyses.lateness`, as for summaries.
"""

from __future__ import annotations

import numpy as np

from kinetoscope.analyses.finding import Signal
from kinetoscope.analyses.lateness import OWN_PARTS, LateRank, late_line, late_ranks, less_waiting
from kinetoscope.analyses.line_tree import times_of_lines
from kinetoscope.analyses.loop import Loop
from kinetoscope.analyses.meetings import Meetings, meetings_of_ranks
from kinetoscope.analyses.rule import Answer, Match, Rule
from kinetoscope.analyses.rules.communication import exposed_ns
from kinetoscope.ledger.ledger import ProcessLedger, raw_ledger
from kinetoscope.ledger.parts import PARTS, StepTime, busiest_places, part_names, parts_of_ledger
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows

LEAST_RANKS = 2
LEAST_PERCENT = 10.0
UNEVEN = 1.2
EVERYTHING = "its data loading, its host, its clocks, and what only it does, such as logging"
"""Where to look at a rank of which nothing more is known than that it is late."""
_LOOK_AT = {
    "data_wait": "its data loading: the storage that it reads, its worker processes, and the sizes of its samples",
    "host_wait": "its Python between operators, such as logging that only it does, and what else runs on its machine",
    "processor_wait": "what else runs on its machine, its CPU limit, and its nice value",
    "compute": "the sizes of its batches, what only it computes, and the clocks of its device or processor",
    "copy": "what it copies between host and device",
    "network": "what connects it with the others: network cards, cables and switches",
}


@Rule(
    "straggler-rank",
    "The other ranks wait for {who} for {share} of {time}{more}{sometimes}",
    f"Look at {EVERYTHING}.",
    finds="the other ranks wait for one again and again",
    source="as in summaries of ranks: `kinetoscope.analyses.lateness`",
    also="1%, in each third of the steps; 9 steps of two ranks, 4 of eight",
    needs=Signal.ALL_RANKS,
    explains=("exposed-communication", "poor-overlap"),
    of_kinds=False,
).selects
def straggler_rank(loop: Loop) -> Answer:
    """The rank for which the others wait again and again."""
    of_rank = {time.rank: time for time in busiest_places(loop.trace).values() if time.rank >= 0}
    if len(of_rank) < LEAST_RANKS:
        is_one_of_several = (loop.trace.run_info.world_size or 1) > 1
        waits = loop.share(exposed_ns(loop)) >= LEAST_PERCENT
        return Signal.ALL_RANKS if is_one_of_several and waits else None
    steps: set[int | None] = {*loop.trace.column("steps", "number").tolist()} or {None}
    met, _, step, span = meetings_of_ranks(loop.trace, dict.fromkeys(of_rank, steps))
    times, waited_ns = [*of_rank.values()], met.duration_ns - met.shortest_ns[met.place]
    less_ns = less_waiting(*_by_step(met.rank, step[met.rows], waited_ns))
    step_ns = np.array([time.duration_ns // max(1, time.steps) for time in times])
    ledgers = {ledger.activity.owner.rank: ledger for ledger in raw_ledger(loop.trace)}
    of_ranks = [ledgers[time.rank] for time in times]
    worst = next(iter(late_ranks(*less_ns, step_ns, _work_of(of_ranks))), None)
    return None if worst is None else _straggler(loop, times, of_ranks, worst, met, span)


def _work_of(ledgers: list[ProcessLedger]) -> dict[str, tuple[Rows, Rows]]:
    """What ranks do themselves in the steps that count, for `late_ranks`."""
    parts = [parts_of_ledger(ledger) for ledger in ledgers]
    rows = np.repeat(np.arange(len(ledgers)), [int(ledger.counted.sum()) for ledger in ledgers])
    counted = np.concatenate([ledger.counted for ledger in ledgers])
    return {
        name: (rows, np.concatenate([times[f"{name}_ns"] for times in parts])[counted]) for name in OWN_PARTS
    }


def _straggler(
    loop: Loop,
    times: list[StepTime],
    ledgers: list[ProcessLedger],
    worst: LateRank,
    met: Meetings,
    span: Rows,
) -> Match:
    late = times[worst.row]
    of_ranks = [
        {key: time_ns / max(int(ledger.counted.sum()), 1) for key, time_ns in times_of_lines(ledger).items()}
        for ledger in ledgers
    ]
    share = min(100.0, 100.0 * worst.late_ns / max(1, late.duration_ns // max(1, late.steps)))
    time_ns = worst.late_ns * max(1, late.steps)
    if not worst.persistent:
        # Of one that is late at times only, the step that is usual has nothing to gain.
        time_ns = int(met.waited_ns.sum() // max(1, len(times) - 1))
        share = min(share, loop.share(time_ns))
    arrived_last = met.rows[(met.rank == worst.row) & (met.last[met.place] == worst.row)]
    return late_match(
        f"rank {late.rank}", late.rank, share, min(time_ns, loop.whole_ns), worst.part, worst.more_ns,
        late_line(of_ranks, worst).named, worst.persistent, span[arrived_last],
        on_host=not ledgers[worst.row].on_device,
    )  # fmt: skip


def _by_step(rank: Rows, step: Rows, time_ns: Rows) -> tuple[Rows, Rows, Rows]:
    cells = Groups.by([rank, step])
    return rank[cells.first], step[cells.first], cells.sums(time_ns)


def late_match(
    who: str,
    rank: int,
    share: float,
    gain_ns: int | None,
    phase: str | None = None,
    more_ns: int = 0,
    line: str = "",
    persistent: bool = True,
    rows: Rows | None = None,
    *,
    on_host: bool,
) -> Match:
    """The match that others wait for a rank, or for all ranks of a host.

    Args:
        who: The rank or host, as in `rank 3`.
        rank: The rank, or the first one of the host.
        share: For how much of step time they wait, in percent.
        gain_ns: What is gained at most.
        phase: What takes it longer than others, as in the table `stragglers`; None if that is unknown.
        more_ns: How much longer, in a step.
        line: The line at which it takes longer; empty if that is unknown.
        persistent: Whether it is late in most steps.
        rows: The calls in which it was waited for.
        on_host: Whether its steps are those of a process that uses no device.
    """
    (words_of_phase,) = part_names(on_host, (f"{phase}_ns",)) if phase else ("",)
    spends = f"; it spends {units.duration(more_ns)} more in a step on {words_of_phase}" if phase else ""
    spends += f" at {line}" if spends and line else ""
    words = {"who": who, "more": spends, "sometimes": "" if persistent else "; only in some steps"}
    advice = f"Look at {who} alone: {_LOOK_AT.get(phase or '', EVERYTHING)}."
    return Match(values=words, gain_ns=gain_ns, spans=rows, share_percent=share, advice=advice, rank=rank)


@Rule(
    "unbalanced-ranks",
    "Rank {rank} computes for {most:ns} a step, the rank in the middle for {median:ns}: the others wait for it",
    "Give ranks equal work: samples of equal length in each batch, even shards and pipeline stages.",
    finds=f"one rank computes {UNEVEN} times as long as the rank in the middle",
    source="TraceML (20 and 30 %)",
    least=5.0,
    explains=("exposed-communication", "poor-overlap", "straggler-rank"),
    of_kinds=False,
).selects
def unbalanced_ranks(loop: Loop) -> Answer:
    """Ranks whose devices compute for longer than those of the others."""
    every = [time for time in busiest_places(loop.trace).values() if time.rank >= 0]
    times = [time for time in every if time.device != "cpu"]
    if len(times) < LEAST_RANKS:
        return None
    computed = np.array([time.parts_ns[PARTS.index("compute_ns")] for time in times], dtype=np.int64)
    busiest, most = times[int(np.argmax(computed))], int(computed.max())
    gain_ns, steps = int(most - computed.mean()), max(1, busiest.steps)
    return uneven_match(busiest.rank, most / steps, float(np.median(computed)) / steps, gain_ns, gain_ns)


def uneven_match(rank: int, most_ns: float, median_ns: float, time_ns: float, gain_ns: int) -> Match | None:
    """The match that a rank computes for longer in a step than the rank in the middle, if it does so by enough."""
    if median_ns <= 0 or most_ns < UNEVEN * median_ns:
        return None
    words = {"rank": str(rank), "most": most_ns, "median": median_ns}
    return Match(values=words, time_ns=time_ns, gain_ns=gain_ns, rank=rank)
