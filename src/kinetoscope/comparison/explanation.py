"""Why the steps of one run take longer than those of another: the difference of their accounts, line by line.

The parts add up to the difference. Steps are compared with those of the same kind, so that a run with more evaluation is not one whose training
became slower.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from kinetoscope.comparison.kinds import matched_kinds, places_of_steps
from kinetoscope.comparison.matching import matched
from kinetoscope.comparison.measures import Key, Numbers, Run, noun_of, population_of
from kinetoscope.display.sentence import printable
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import look_up

# The key of a place in the base and in the other run; None where it is not there.
Pair = tuple[Key | None, Key | None]
# For each place the time on both sides, by what it was spent on.
SpentAt = dict[Pair, dict[str, list[float]]]

LEAST_SHARE = 0.05
"""A part is named if it changes by this share of the largest change, and by `LEAST_OF_STEP` of a step."""
LEAST_OF_STEP = 0.001
MOST_PARTS = 50
MOST_NAMED = 3
"""A sentence names at most this many parts, and of a part this many things that the time is spent on."""
NAMED_SHARE = 0.2
"""What a part is spent on is named if it has this share of the change."""
OTHER = "everything else"


@dataclass(frozen=True)
class Spent:
    """What time is spent on at one place.

    Attributes:
        what: A cause or an entry of the account, or an operator.
        base_ns: How long, in a step of the base.
        new_ns: The same in the other run.
    """

    what: str
    base_ns: float
    new_ns: float

    @property
    def change_ns(self) -> float:
        """How much longer."""
        return self.new_ns - self.base_ns


@dataclass(frozen=True)
class PartChange(Spent):
    """One part of the difference of a step; `what` is what most of the changed time is spent on.

    Attributes:
        spent: The same by what it is spent on, what changed most first.
        file: The file of its line, as the base names it; empty where it has none.
        line: The line in the other run, or in the base where it is there only; -1 where it has none.
        base_line: The line in the base; -1 where it has none.
        function: The function of the line.
        text: The text of the line, where the traces have it.
        module: The module, of a part that has no line.
    """

    spent: tuple[Spent, ...] = ()
    file: str = ""
    line: int = -1
    base_line: int = -1
    function: str = ""
    text: str = ""
    module: str = ""

    @property
    def where(self) -> str:
        """The line without folders, or the module; empty where it has neither."""
        if not self.file:
            return self.module
        moved = f"{self.base_line} -> " if self.base_line not in (-1, self.line) else ""
        return f"{os.path.basename(self.file)}:{moved}{self.line}"

    @property
    def sentence(self) -> str:
        """The part in words, such as `+38 ms: fresh memory at prog.py:5`."""
        at = f" {'at' if self.file else 'in'} {self.where}" if self.where else ""
        return printable(f"{signed(self.change_ns)}: {self.what}{at}")


@dataclass(frozen=True)
class KindChange:
    """The steps of one kind in both runs.

    Attributes:
        base_step: The number of the first of these steps in the base; -1 where it has none.
        new_step: The same in the other run.
        base_share: Which part of the steps of the base these are.
        new_share: The same in the other run.
        base_ns: How long one takes in the base, on average; None where it has none.
        new_ns: The same in the other run.
        parts: The parts of the difference, which add up to it; empty where one run has no such steps.
    """

    base_step: int
    new_step: int
    base_share: float
    new_share: float
    base_ns: float | None
    new_ns: float | None
    parts: tuple[PartChange, ...]

    @property
    def change_ns(self) -> float:
        """How much longer one takes; 0 where one run has no such steps."""
        return 0.0 if self.base_ns is None or self.new_ns is None else self.new_ns - self.base_ns


@dataclass(frozen=True)
class Explanation:
    """Why a step takes longer in one run than in another.

    Attributes:
        base_ns: How long a step of the base takes on average.
        new_ns: The same of the other run.
        parts: The parts of the difference, which add up to it: those that go the same way first, what changed most first, and the rest last.
        kinds: The kinds of steps, most time first.
    """

    base_ns: float
    new_ns: float
    parts: tuple[PartChange, ...]
    kinds: tuple[KindChange, ...]

    def largest(self, most: int) -> tuple[PartChange, ...]:
        """Return the first parts, and the others as one, so that they still add up to the difference."""
        shown, left = self.parts[:most], self.parts[most:]
        rest = PartChange(OTHER, sum(part.base_ns for part in left), sum(part.new_ns for part in left))
        return (*shown, rest) if left else shown

    @property
    def sentence(self) -> str:
        """The largest parts in a sentence; empty where nothing is known."""
        named = [part for part in self.parts if part.what != OTHER][:MOST_NAMED]
        return "; ".join(part.sentence for part in named)

    def to_dict(self) -> dict[str, Any]:
        """Everything as values that JSON has, with stable keys."""
        return {
            "base_ns": self.base_ns,
            "new_ns": self.new_ns,
            "change_ns": self.new_ns - self.base_ns,
            "sentence": self.sentence,
            "parts": [_as_dict(part) for part in self.parts],
            "kinds": [_kind_as_dict(kind) for kind in self.kinds],
        }


def _as_dict(change: Spent | KindChange) -> dict[str, Any]:
    """What time is spent on, how much of it on both sides, and where."""
    values = {name: None if value in ("", -1) else value for name, value in vars(change).items()}
    lists = {
        name: [_as_dict(part) for part in value] for name, value in values.items() if isinstance(value, tuple)
    }
    is_known = change.base_ns is not None and change.new_ns is not None
    return values | lists | {"change_ns": change.change_ns if is_known else None}


def _kind_as_dict(kind: KindChange) -> dict[str, Any]:
    values = _as_dict(kind)
    shares = {f"{name}_percent": 100 * values.pop(name) for name in ("base_share", "new_share")}
    return values | shares


def signed(time_ns: float) -> str:
    """A difference of times with its sign."""
    rounded = round(time_ns)
    return ("+" if rounded > 0 else "") + units.duration(rounded)


def explained(
    base: Sequence[Run], new: Sequence[Run], base_weights: Numbers, new_weights: Numbers
) -> Explanation | None:
    """Explain the difference of the mean step of two runs.

    Args:
        base: The recordings of the base.
        new: Those of the other run.
        base_weights: The weight of each step that counts, one recording after the other; together they are 1.
        new_weights: The same for the other run.

    Returns:
        The explanation; None where a recording has no account.
    """
    if any("account" not in run.populations for run in (*base, *new)):
        return None
    groups = matched_kinds(base, new)
    sides = [
        _Side(runs, weights, [kinds[side] for kinds in groups])
        for side, (runs, weights) in enumerate(((base, base_weights), (new, new_weights)))
    ]
    pair_of = _pairs(*(list(dict.fromkeys(key for row in side.spent for key in row)) for side in sides))
    all_spent: SpentAt = defaultdict(dict)
    # With how long its steps take together, and how much of that is of steps that one run has and the other has not.
    kinds: list[tuple[float, float, KindChange]] = []
    mixed_ns = 0.0
    for group in range(len(groups)):
        share = [side.share[group] for side in sides]
        if not any(share):
            continue
        mean_ns = [side.time_ns[group] / side.share[group] if side.share[group] else 0.0 for side in sides]
        parts: tuple[PartChange, ...] = ()
        if all(share):
            group_spent: SpentAt = defaultdict(dict)
            for at_side, side in enumerate(sides):
                factors = ((group_spent, 1 / share[at_side]), (all_spent, share[0] / share[at_side]))
                for key, time_ns in side.spent[group].items():
                    for spent_of_place, factor in factors:
                        spent = spent_of_place[pair_of[at_side][key[:-1]]].setdefault(key[-1], [0.0, 0.0])
                        spent[at_side] += time_ns * factor
            parts = _parts(group_spent, mean_ns)
            mixed_ns += (share[1] - share[0]) * mean_ns[1]
        else:
            mixed_ns += share[1] * mean_ns[1] - share[0] * mean_ns[0]
        step = [side.step[group] for side in sides]
        base_ns, new_ns = (mean if part else None for mean, part in zip(mean_ns, share, strict=True))
        kind = KindChange(step[0], step[1], share[0], share[1], base_ns, new_ns, parts)
        moved_ns = abs(share[1] - share[0]) * max(mean_ns)
        kinds.append((max(side.time_ns[group] for side in sides), moved_ns, kind))
    total_ns = [sum(side.time_ns) for side in sides]
    noun = noun_of(*base, *new)
    mix = _mix(max(kinds, key=itemgetter(1))[2], mixed_ns, noun) if len(kinds) > 1 else None
    by_time = sorted(kinds, key=itemgetter(0), reverse=True)
    parts = _parts(all_spent, total_ns, mix)
    return Explanation(total_ns[0], total_ns[1], parts, tuple(kind for *_, kind in by_time))


class _Side:
    """What the steps of one run were spent on, by the kind of the steps, each step with its weight."""

    def __init__(self, runs: Sequence[Run], weights: Numbers, groups: list[set[tuple[int, int]]]) -> None:
        """Add it up.

        Args:
            runs: The recordings.
            weights: The weight of each step that counts.
            groups: For each group of kinds its kinds: a recording, and the kind in it.
        """
        by_group = Groups(places_of_steps(runs, groups), len(groups))
        account = population_of(runs, "account")
        step_ns = np.concatenate([run.step_ns[run.counted] for run in runs])
        numbers = np.concatenate([run.numbers[run.counted] for run in runs])
        self.share = by_group.sums(weights).tolist()
        self.time_ns = by_group.sums(weights * step_ns).tolist()
        self.step = look_up(by_group.row_of_minimum(np.arange(len(numbers))), numbers).tolist()
        self.spent: list[dict[Key, float]] = []
        for group in range(len(groups)):
            means = account.means(np.where(by_group.of_row == group, weights, 0.0)).tolist()
            self.spent.append({key: mean for key, mean in zip(account.keys, means, strict=True) if mean})


def _pairs(base: list[Key], new: list[Key]) -> tuple[dict[Key, Pair], dict[Key, Pair]]:
    """The place of each key of both runs, matched: lines that have moved are one."""
    sides = [list(dict.fromkeys(key[:-1] for key in keys)) for keys in (base, new)]
    lines = [[key for key in keys if key[0] == "line"] for keys in sides]
    # The row -1 is that of a line without a partner.
    base_lines, new_lines = ([*keys, None] for keys in lines)
    rows = matched("line", *([key[1:] for key in keys] for keys in lines))
    pairs: list[Pair] = [(base_lines[base_row], new_lines[new_row]) for base_row, new_row in rows]
    unmoved = dict.fromkeys(key for keys in sides for key in keys if key[0] != "line")
    pairs += [(key if key in sides[0] else None, key if key in sides[1] else None) for key in unmoved]
    return (
        {key: pair for pair in pairs if (key := pair[0]) is not None},
        {key: pair for pair in pairs if (key := pair[1]) is not None},
    )


def _parts(
    spent: SpentAt,
    whole_ns: Sequence[float],
    mix: PartChange | None = None,
) -> tuple[PartChange, ...]:
    """The parts of a difference: those that go its way first, and what is not worth a name last."""
    parts = [_part(pair, times_ns) for pair, times_ns in spent.items()]
    if mix is not None:
        parts.append(mix)
    least_ns = max(
        LEAST_SHARE * max((abs(part.change_ns) for part in parts), default=0.0), LEAST_OF_STEP * max(whole_ns)
    )
    up = whole_ns[1] >= whole_ns[0]
    parts.sort(key=lambda part: ((part.change_ns > 0) != up, -abs(part.change_ns), part.where, part.what))
    named = [part for part in parts if abs(part.change_ns) >= least_ns][:MOST_PARTS]
    if len(named) == len(parts):
        return tuple(named)
    base_ns, new_ns = sum(part.base_ns for part in named), sum(part.new_ns for part in named)
    return (*named, PartChange(OTHER, whole_ns[0] - base_ns, whole_ns[1] - new_ns))


def _part(pair: Pair, spent: dict[str, list[float]]) -> PartChange:
    all_spent = sorted(
        (Spent(words_of_spent, *times) for words_of_spent, times in spent.items()),
        key=lambda spent: (-abs(spent.change_ns), spent.what),
    )
    base_ns, new_ns = (sum(times) for times in zip(*spent.values(), strict=True))
    change_ns = new_ns - base_ns
    named = [
        spent
        for spent in all_spent
        if spent.change_ns * change_ns > 0 and abs(spent.change_ns) >= NAMED_SHARE * abs(change_ns)
    ]
    words = units.listed([spent.what for spent in named[:MOST_NAMED]] or [all_spent[0].what])
    base, new = pair
    key = base if new is None else new
    assert key is not None  # noqa: S101  (a place is of at least one side)
    if key[0] == "line":
        _, file, function, line, text = key
        moved = base[3] if base is not None else -1
        named_as = base[1] if base is not None else file
        return PartChange(words, base_ns, new_ns, tuple(all_spent), named_as, line, moved, function, text)
    return PartChange(words, base_ns, new_ns, tuple(all_spent), module=key[1] if key[0] == "module" else "")


def _mix(kind: KindChange, change_ns: float, noun: str) -> PartChange:
    """The part of a difference that is one of how many steps of each kind there are, named by the kind whose number changed most."""
    step = kind.new_step if kind.new_step >= 0 else kind.base_step
    shares = (
        f"{units.percent(100 * kind.new_share)} of the {noun}s, not {units.percent(100 * kind.base_share)}"
    )
    return PartChange(f"{noun}s like {noun} {step} are {shares}", max(-change_ns, 0.0), max(change_ns, 0.0))
