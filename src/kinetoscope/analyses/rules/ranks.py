"""The ranks of a job wait for one of them: it is late, or it has more to do.

Ranks of a collective end it together, so the one that spent least time in it came last, whatever its clock says. Who is late is decided in
`analyses.lateness`, as for summaries. Source of the thresholds for uneven work: TraceML (20 and 30 %).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from kinetoscope.analyses.finding import CannotTell, Finding, Signal
from kinetoscope.analyses.lateness import late_part, late_ranks, less_waiting
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.analyses.rules.communication import exposed_ns
from kinetoscope.display.sentence import sentence
from kinetoscope.ledger.parts import PARTS, busiest_places
from kinetoscope.model.time_spent import part_words

LEAST_RANKS = 2
LEAST_PERCENT = 10.0
UNEVEN = 1.2
LEAST_UNEVEN_PERCENT = 5.0
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
# Everyone leaves these at the same time.
_MEETINGS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})


def straggler_rank(loop: Loop) -> Finding | CannotTell | None:
    """Find the rank for which the others wait again and again, as in summaries of ranks."""
    places = {row: place for row, place in busiest_places(loop.trace).items() if place.rank >= 0}
    if len(places) < LEAST_RANKS:
        several = (loop.trace.run_info.world_size or 1) > 1
        waits = loop.share(exposed_ns(loop)) >= LEAST_PERCENT
        return CannotTell("straggler-rank", Signal.ALL_RANKS) if several and waits else None
    waited: dict[tuple[int, int], int] = defaultdict(int)
    calls: dict[int, list[int]] = defaultdict(list)
    for visits in _meetings(loop):
        shortest = min(visits, key=lambda one: one["transfer_ns"])
        calls[shortest["rank"]].append(shortest["span"])
        for one in visits:
            waited[one["rank"], one["step"] or 0] += one["transfer_ns"] - shortest["transfer_ns"]
    if not waited:
        return None
    cells = np.array([*waited], dtype=np.int64)
    steps_ns = np.zeros(int(cells[:, 0].max()) + 1, dtype=np.int64)
    for place in places.values():
        if place.rank < len(steps_ns):
            steps_ns[place.rank] = place.duration_ns // max(1, place.steps)
    values = np.array([*waited.values()], dtype=np.int64)
    found = late_ranks(*less_waiting(cells[:, 0], cells[:, 1], values), steps_ns)
    if not found:
        return None
    worst = found[0]
    late = next(place for place in places.values() if place.rank == worst.row)
    more_ns = {
        name.removesuffix("_ns"): int(
            part / max(1, late.steps)
            - np.median(
                [other.parts_ns[at] / max(1, other.steps) for other in places.values() if other is not late]
            )
        )
        for at, (name, part) in enumerate(zip(PARTS, late.parts_ns, strict=True))
        if name not in ("communication_ns", "idle_ns")
    }
    phase = late_part(more_ns, worst.late_ns)
    # Of one that is late at times only, the step that is usual has nothing to gain.
    waited_ns = int(
        (values.sum() // max(1, len(places) - 1))
        if not worst.persistent
        else worst.late_ns * max(1, late.steps)
    )
    share = min(100.0, 100.0 * worst.late_ns / max(1, int(steps_ns[worst.row])))
    if not worst.persistent:
        share = min(share, loop.share(waited_ns))
    return late_finding(
        f"rank {worst.row}",
        worst.row,
        share,
        min(waited_ns, loop.whole_ns),
        phase,
        more_ns.get(phase or "", 0),
        persistent=worst.persistent,
        spans=tuple(calls[worst.row][:MOST_ROWS]),
    )


def late_finding(
    who: str,
    rank: int,
    share: float,
    gain_ns: int | None,
    phase: str | None = None,
    more_ns: int = 0,
    *,
    persistent: bool = True,
    spans: tuple[int, ...] = (),
) -> Finding:
    """The finding that others wait for a rank, or for all ranks of a host.

    Args:
        who: The rank or host, as in `rank 3`.
        rank: The rank, or the first one of the host.
        share: For how much of step time they wait, in percent.
        gain_ns: What is gained at most.
        phase: What takes it longer than others, as in the table `stragglers`; None if that is unknown.
        more_ns: How much longer, in a step.
        persistent: Whether it is late in most steps.
        spans: The calls in which it was waited for.
    """
    rest = ""
    values: tuple[tuple[float, str], ...] = ()
    if phase is not None:
        rest, values = f"; it spends {{}} more in a step on {part_words(phase)}", ((more_ns, "ns"),)
    return Finding(
        "straggler-rank",
        sentence(
            f"The other ranks wait for {who} for {{}} of step time{rest}{'' if persistent else '; only in some steps'}",
            (share, "%"),
            *values,
        ),
        f"Look at {who} alone: {_LOOK_AT.get(phase or '', EVERYTHING)}.",
        share,
        gain_ns,
        spans=spans,
        rank=rank,
    )


def unbalanced_ranks(loop: Loop) -> Finding | None:
    """Find ranks whose devices compute for longer than those of the others."""
    places = [
        place for place in busiest_places(loop.trace).values() if place.rank >= 0 and place.device != "cpu"
    ]
    if len(places) < LEAST_RANKS:
        return None
    computed = np.array([place.parts_ns[PARTS.index("compute_ns")] for place in places], dtype=np.int64)
    most, median = int(computed.max()), float(np.median(computed))
    gain_ns = int(most - computed.mean())
    busiest = places[int(np.argmax(computed))]
    steps = max(1, busiest.steps)
    return uneven_finding(busiest.rank, most / steps, median / steps, loop.share(gain_ns), gain_ns)


def uneven_finding(rank: int, most_ns: float, median_ns: float, share: float, gain_ns: int) -> Finding | None:
    """The finding that a rank computes for longer in a step than the rank in the middle, if it does so by enough."""
    if median_ns <= 0 or most_ns < UNEVEN * median_ns or share < LEAST_UNEVEN_PERCENT:
        return None
    return Finding(
        "unbalanced-ranks",
        sentence(
            f"Rank {rank} computes for {{}} a step, the rank in the middle for {{}}: the others wait for it",
            (most_ns, "ns"),
            (median_ns, "ns"),
        ),
        "Give ranks equal work: samples of equal length in each batch, even shards and pipeline stages.",
        share,
        gain_ns,
        rank=rank,
    )


def _meetings(loop: Loop) -> list[list[dict[str, Any]]]:
    """The collectives of the steps in which several ranks took part, each as one row for each rank."""
    counted = np.append(loop.trace.column("steps", "number"), -1)
    spans = loop.trace.column("spans", "step")
    order: dict[Any, int] = defaultdict(int)
    found: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in loop.collectives:
        if row["name"] not in _MEETINGS or row["rank"] is None or row["transfer_ns"] is None:
            continue
        if loop.step_count and int(counted[spans[row["span"]]]) < 0:
            continue
        kind = (row["step"], row["group"], row["name"])
        found[(*kind, order[kind, row["rank"]])].append(row)
        order[kind, row["rank"]] += 1
    return [visits for visits in found.values() if len(visits) >= LEAST_RANKS]
