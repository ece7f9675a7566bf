"""The ranks of a job wait for one of them: it is late, or it has more to do.

Ranks of a collective end it together, so the one that spent least time in it came last, whatever its clock says. Who is late is decided in
`analyses.lateness`, as for summaries. Source of the thresholds for uneven work: TraceML (20 and 30 %).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from kinetoscope.analyses.finding import CannotTell, Finding, Signal
from kinetoscope.analyses.lateness import late_ranks, less_waiting
from kinetoscope.analyses.loop import MOST_ROWS, Loop
from kinetoscope.analyses.rules.communication import exposed_ns
from kinetoscope.display.sentence import sentence
from kinetoscope.tables.breakdown import PARTS, busiest_places

LEAST_RANKS = 2
LEAST_PERCENT = 10.0
UNEVEN = 1.2
LEAST_UNEVEN_PERCENT = 5.0
EVERYTHING = "its data loading, its host, its clocks, and what only it does, such as logging"
"""Where to look at a rank of which nothing more is known than that it is late."""
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
    own = late.duration_ns - late.parts_ns[0] - late.parts_ns[1]
    who = "it" if late.device == "cpu" else "its device"
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
        worst.row,
        share,
        f"; {who} neither computes nor communicates for {{}}{'' if worst.persistent else '; only in some steps'}",
        ((100.0 * own / max(1, late.duration_ns), "%"),),
        min(waited_ns, loop.whole_ns),
        tuple(calls[worst.row][:MOST_ROWS]),
    )


def late_finding(
    rank: int,
    share: float,
    rest: str,
    values: tuple[tuple[float, str], ...],
    gain_ns: int | None,
    spans: tuple[int, ...] = (),
    look_at: str = EVERYTHING,
) -> Finding:
    """The finding that others wait for a rank; `rest` says more of it, with `values` in its places, and `look_at` where to look."""
    return Finding(
        "straggler-rank",
        sentence(f"The other ranks wait for rank {rank} for {{}} of step time{rest}", (share, "%"), *values),
        f"Look at rank {rank} alone: {look_at}.",
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
        if len(loop.steps) and int(counted[spans[row["span"]]]) < 0:
            continue
        kind = (row["step"], row["group"], row["name"])
        found[(*kind, order[kind, row["rank"]])].append(row)
        order[kind, row["rank"]] += 1
    return [visits for visits in found.values() if len(visits) >= LEAST_RANKS]
