"""Which kinds of steps of several recordings are the same, so that like is compared with like: training with training, evaluation with evaluation.

Kinds are those of the table `step_kinds`, whose numbers are of one trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kinetoscope.comparison.matching import nearest
from kinetoscope.comparison.measures import Run
from kinetoscope.comparison.statistics import MOST_CLASSES
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.tables.step_kinds import Operators

# The number of a recording, and that of a kind in it.
Kinds = set[tuple[int, int]]

ALIKE = 0.75
"""Kinds of steps of two recordings are one if they have so much of their operators in common, in the time that these take."""


def kinds_of_runs(runs: Sequence[Run]) -> tuple[list[Operators], list[Kinds]]:
    """The kinds of steps of some recordings, see `merged_kinds`."""
    return merged_kinds([
        {kind: run.kind_operators[kind] if kind >= 0 else {} for kind in np.unique(run.step_kind).tolist()}
        for run in runs
    ])  # fmt: skip


def places_of_steps(runs: Sequence[Run], kinds: Sequence[Kinds]) -> Rows:
    """For each step that counts, one recording after the other, the place in `kinds` of those that its own is one of."""
    index_of = {kind: index for index, members in enumerate(kinds) for kind in members}
    of_steps = [
        index_of[recording, kind]
        for recording, run in enumerate(runs)
        for kind in run.step_kind[run.counted].tolist()
    ]
    return np.array(of_steps, np.int64)


def classes_of_steps(runs: Sequence[Run]) -> Rows:
    """For each step that counts, one recording after the other, its class: steps of one kind with equal numbers of operators.

    Where that makes more than `MOST_CLASSES`, the kinds themselves are the classes.
    """
    kind = places_of_steps(runs, kinds_of_runs(runs)[1])
    operators = np.concatenate([run.step_counts["operators"][run.counted] for run in runs]).astype(np.int64)
    classes = Groups.by([kind, operators])
    is_few = len(classes) <= MOST_CLASSES or kind.max(initial=0) == 0
    return classes.of_row.astype(np.int64) if is_few else kind


def typical_operators(operators: Operators) -> int:
    """How many operators a step of a kind has."""
    return round(sum(count for count, _ in operators.values()))


def similar_sizes(our_count: int, their_count: int) -> float:
    """How similar two kinds of steps are of which only the numbers of operators are known: 1 for equal ones."""
    return min(our_count, their_count) / max(our_count, their_count, 1)


def matched_kinds(base: Sequence[Run], new: Sequence[Run]) -> list[tuple[Kinds, Kinds]]:
    """Match the kinds of steps of two runs.

    Kinds that only one run has are compared with those of the other that they contain: a step that also evaluates with one that does not.

    Args:
        base: The recordings of one run.
        new: Those of the other.

    Returns:
        For each group of kinds that are compared with each other those of the base and those of the other run; one of them may be empty.
    """
    (ours, our_members), (theirs, their_members) = kinds_of_runs(base), kinds_of_runs(new)
    pairs = nearest(ours, theirs, _similarity, ALIKE)
    if not pairs and ours and theirs:
        # The programs have little in common: what takes most of one is compared with what takes most of the other.
        pairs.append((0, 0))
    groups = [({our_kind}, {their_kind}) for our_kind, their_kind in pairs]
    alone: list[tuple[set[int], set[int]]] = []
    for number, (kinds, other_kinds) in enumerate(((ours, theirs), (theirs, ours))):
        for kind in sorted(set(range(len(kinds))) - {pair[number] for pair in pairs}):
            contained = [
                (_contained(other_kinds[other], kinds[kind]), -other, group)
                for group, members in enumerate(groups)
                for other in members[1 - number]
            ]
            part, _, group = max(contained, default=(0.0, 0, 0))
            if part >= ALIKE:
                groups[group][number].add(kind)
            else:
                alone.append(({kind}, set()) if number == 0 else (set(), {kind}))

    def members(kinds: set[int], of_kinds: list[Kinds]) -> Kinds:
        return set().union(*(of_kinds[kind] for kind in kinds))

    every = (*groups, *alone)
    return [(members(pair[0], our_members), members(pair[1], their_members)) for pair in every]


def merged_kinds(recordings: Sequence[Mapping[int, Operators]]) -> tuple[list[Operators], list[Kinds]]:
    """The kinds of steps of several recordings of one program.

    Args:
        recordings: For each the operators of its kinds, by their numbers.

    Returns:
        For each kind the operators of an example, and which kinds of which recordings it is.
    """
    examples: list[Operators] = []
    members: list[Kinds] = []
    for recording, kinds in enumerate(recordings):
        pairs = dict(nearest([*kinds.values()], examples, _similarity, ALIKE))
        for index, (kind, operators) in enumerate(kinds.items()):
            if index in pairs:
                members[pairs[index]].add((recording, kind))
            else:
                examples.append(operators)
                members.append({(recording, kind)})
    return examples, members


def _similarity(ours: Operators, theirs: Operators) -> float:
    """How much of their operators two kinds of steps have in common, by time: 1 for the same, 0 for nothing (weighted Jaccard similarity)."""
    least = most = 0.0
    for name in ours.keys() | theirs.keys():
        (count, time_ns), (other_count, other_ns) = ours.get(name, (0.0, 0.0)), theirs.get(name, (0.0, 0.0))
        mean_ns = (time_ns + other_ns) / ((count > 0) + (other_count > 0))
        least += min(count, other_count) * mean_ns
        most += max(count, other_count) * mean_ns
    return least / most if most else 1.0


def _contained(part: Operators, whole: Operators) -> float:
    """How much of the operators of one kind of steps another one has, too, by time."""
    part_ns = sum(count * time_ns for count, time_ns in part.values())
    common_ns = sum(
        min(count, whole.get(name, (0.0, 0.0))[0]) * time_ns for name, (count, time_ns) in part.items()
    )
    return common_ns / part_ns if part_ns else 0.0
