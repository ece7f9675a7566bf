"""What operators do at each place of two programs, by counts that are the same in every step: calls, floating-point operations and bytes.

Times differ from run to run, such counts do not. Where they differ, the program does other work, however busy the machine is. How long that
work takes is estimated from times of the same runs: what was added or left out takes what it took in the run that has it; what grew or shrank
takes longer or less in proportion, but for the fixed cost of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinetoscope.comparison.matching import matched
from kinetoscope.comparison.measures import Key, Numbers, Run, population_of
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Mask, Rows

WORK = "work"
# The cheapest operators show what a call costs, unless all are large.
_CHEAP_PERCENT, _LONGEST_CALL_NS = 10, 10_000.0


@dataclass(frozen=True, eq=False)
class _Done:
    """What one side does at each place, and behind the last one what it does nowhere.

    Attributes:
        places: The places: file, function, line, text, operator and module.
        time_ns: For each step (row) the time at each place (column).
        mean_ns: The mean time of the steps that count.
        amounts: For each place the calls, floating-point operations and bytes of a step.
        is_exact: Whether these are the same in every step.
    """

    places: list[Key]
    time_ns: Numbers
    mean_ns: Numbers
    amounts: Numbers
    is_exact: Mask


@dataclass(frozen=True, eq=False)
class ChangedWork:
    """The places at which two programs certainly do other work; a column is such a place.

    Attributes:
        places: Each place in the base and in the other run; None where it is not there.
        base_ns: For each step of the base the time that is left out.
        new_ns: For each step of the other run the time that was added.
    """

    places: list[tuple[Key | None, Key | None]]
    base_ns: Numbers
    new_ns: Numbers

    def by(self, row: Rows, rows: int) -> tuple[Numbers, Numbers]:
        """The times summed by the row of each place, -1 for none, as two tables with a step in each row."""
        belongs = (row[:, None] == np.arange(rows)).astype(np.float64)
        return self.base_ns @ belongs, self.new_ns @ belongs


def changed_work(base: Sequence[Run], new: Sequence[Run], weights: tuple[Numbers, Numbers]) -> ChangedWork:
    """Find what two programs do differently; nothing where records were lost.

    Args:
        base: The recordings of one.
        new: Those of the other.
        weights: For each side the weight of each step that counts; together they are 1.
    """
    ours, theirs = sides = [_done(runs, of_side) for runs, of_side in zip((base, new), weights, strict=True)]
    usual = np.concatenate([side.mean_ns[:-1] / np.maximum(side.amounts[:-1, 0], 1) for side in sides])
    call_ns = float(np.percentile(np.append(usual, _LONGEST_CALL_NS), _CHEAP_PERCENT))
    is_complete = not any(run.losses for run in (*base, *new))
    pairs, saved, added = [], [], []
    for our_place, their_place in matched(WORK, ours.places, theirs.places) if is_complete else ():
        before, after = ours.amounts[our_place], theirs.amounts[their_place]
        if not (ours.is_exact[our_place] and theirs.is_exact[their_place]) or (before == after).all():
            continue
        base_ns, new_ns = ours.mean_ns[our_place], theirs.mean_ns[their_place]
        if min(our_place, their_place) >= 0:
            new_ns = _scaled(base_ns, call_ns, before, after)
        pairs.append((our_place, their_place))
        saved.append(max(1 - new_ns / max(base_ns, 1.0), 0.0))
        added.append(max(1 - base_ns / max(new_ns, 1.0), 0.0))
    columns = np.array(pairs, np.int64).reshape(-1, 2).T
    our_keys, their_keys = ([*side.places, None] for side in sides)
    return ChangedWork(
        [(our_keys[our_place], their_keys[their_place]) for our_place, their_place in pairs],
        ours.time_ns[:, columns[0]] * np.array(saved),
        theirs.time_ns[:, columns[1]] * np.array(added),
    )


def _scaled(time_ns: float, call_ns: float, before: Numbers, after: Numbers) -> float:
    """What some calls take after their counts have changed: the fixed cost for each of them, the rest in proportion to their size."""
    fixed_ns = min(min(call_ns, _LONGEST_CALL_NS) * before[0], time_ns)
    # By floating-point operations where they are known and differ, else by bytes, else by calls.
    growths = [now / old for old, now in zip(before, after, strict=True) if min(old, now) > 0 and old != now]
    size_growths = growths[int(before[0] != after[0]) :]
    growth = (size_growths or growths or [1.0])[0]
    return float(fixed_ns * after[0] / before[0] + (time_ns - fixed_ns) * growth)


def _done(runs: Sequence[Run], weights: Numbers) -> _Done:
    ran = population_of(runs, WORK)
    place_of: dict[Key, int] = {}
    key_place = np.array([place_of.setdefault(key[:-2], len(place_of)) for key in ran.keys], np.int64)
    of_size = np.array([(1, *key[-2:]) for key in ran.keys], np.float64).reshape(-1, 3)
    of_key, of_place = Groups(ran.row, len(ran.keys)), Groups(key_place, len(place_of) + 1)
    most = of_key.maxima(ran.count)
    varies = (most != of_key.minima(ran.count)) | (of_key.sizes() != len(weights))
    of_step = Groups.cells(ran.step, key_place[ran.row], (len(weights), len(of_place)))
    time_ns = of_step.sums(ran.time_ns)
    amounts = np.stack([of_place.sums(most * size) for size in of_size.T], axis=1)
    return _Done([*place_of], time_ns, weights @ time_ns, amounts, of_place.sums(varies) == 0)
