"""Who is late again and again: what holds in all parts of a recording, and more often than by chance."""

import numpy as np
import pytest

from kinetoscope.analyses.lateness import OWN_PARTS, LateRank, late_line, late_part, late_ranks, less_waiting
from kinetoscope.analyses.loop import SourceLine

STEP_NS = 10_000_000


def named(arrivals):
    """The ranks named, by when each (a row) arrives in each step (a column)."""
    arrived = np.array(arrivals, dtype=np.int64)
    row, step = np.indices(arrived.shape)
    waited = arrived.max(axis=0) - arrived
    order = np.random.default_rng(1).permutation(arrived.size)
    flat = (row.ravel()[order], step.ravel()[order], waited.ravel()[order])
    found = late_ranks(*less_waiting(*flat), np.full(len(arrived), STEP_NS))
    return [(one.row, one.late_ns, one.persistent) for one in found]


def constant(ranks, steps, late):
    return [
        [1_000 * ((rank * 7 + step) % 5) + late.get(rank, 0) for step in range(steps)]
        for rank in range(ranks)
    ]


@pytest.mark.parametrize(("ranks", "steps"), [(2, 9), (3, 6), (5, 5), (8, 4), (100, 3)])
def test_a_rank_is_named_from_so_many_steps_on(ranks, steps):
    assert [row for row, *_ in named(constant(ranks, steps, {1: 2_000_000}))] == [1]
    assert named(constant(ranks, steps - 1, {1: 2_000_000})) == []


def test_one_step_names_nobody():
    assert named(constant(8, 1, {7: 4_500_000})) == []


def test_the_second_of_two_stragglers_is_named_although_it_is_never_the_latest():
    found = named(constant(8, 20, {2: 3_000_000, 5: 1_500_000}))
    assert [(row, persistent) for row, _, persistent in found] == [(2, True), (5, True)]


def test_late_for_a_part_of_the_recording_is_not_late_again_and_again():
    arrivals = constant(2, 24, {})
    for step in range(15):
        arrivals[1][step] += 3_000_000
    # In 15 of 24 steps, but the machine may have been busy for as long.
    assert named(arrivals) == []


def test_late_steps_in_a_row_are_one_event():
    arrivals = constant(4, 30, {})
    for step in range(10, 16):
        arrivals[2][step] += 4_000_000
    assert named(arrivals) == []
    for step in (1, 5, 20, 25):
        arrivals[2][step] += 4_000_000
    assert [(row, persistent) for row, _, persistent in named(arrivals)] == [(2, False)]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("steps", [8, 30])
def test_machines_that_are_busy_for_a_while_name_hardly_anybody(ranks, steps):
    """Each rank is slow for stretches, as where other processes take its processor: lengths of stretches from one step to half of all."""
    alarms = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        stay = random.uniform(0.3, 0.95)
        arrivals = random.normal(0, 100_000, (ranks, steps))
        for rank in range(ranks):
            slow = False
            for step in range(steps):
                slow = slow if random.random() < stay else random.random() < 0.5
                arrivals[rank, step] += 3_000_000 * slow * random.uniform(0.5, 1.5)
        alarms += bool(named(arrivals + 1e6))
    assert alarms <= 10


def test_a_rank_without_a_core_is_late_by_that_whatever_else_takes_longer():
    more_ns = {"compute": 100, "data_wait": 1_000, "processor_wait": 700}
    assert late_part(more_ns, 1_000) == "processor_wait"
    assert late_part({**more_ns, "processor_wait": 200}, 1_000) == "data_wait"
    assert late_part({"compute": 50, "host_wait": -900}, 1_000) is None


def named_by_work(input_ns, *, wait_less_ns, seed, ranks=8, steps=12, compute_ns=0):
    """The ranks named on a busy machine, where waits vary by half a step.

    What each takes longer for its input, and by how much less it waits; `compute_ns` is what the last one computes longer.
    """
    varies = np.random.default_rng(seed)
    row, step = (places.ravel() for places in np.indices((ranks, steps)))
    late_ns = varies.normal(0, STEP_NS / 5, ranks * steps) + np.array(wait_less_ns)[row]
    parts_ns = {part: varies.normal(1_000_000, 20_000, ranks * steps) for part in OWN_PARTS}
    parts_ns["data_wait"] += np.array(input_ns)[row]
    parts_ns["compute"] += compute_ns * (row == ranks - 1)
    work = {part: (row, values.astype(np.int64)) for part, values in parts_ns.items()}
    order = np.lexsort((row, step))
    late = (row[order], step[order], late_ns[order].astype(np.int64))
    found = late_ranks(*late, np.full(ranks, STEP_NS), work)
    return [(one.row, one.part) for one in found if one.persistent]


def test_a_rank_whose_own_work_takes_longer_is_named_where_waits_vary_too_much():
    late = [0, 0, 0, 2_500_000, 0, 0, 0, 0]
    named_ranks = [named_by_work(late, wait_less_ns=late, seed=seed) for seed in range(20)]
    assert named_ranks.count([(3, "data_wait")]) >= 19


def test_a_part_that_another_one_makes_up_for_makes_no_rank_late():
    more = [0, 0, 0, 0, 0, 0, 0, 3_000_000]
    for seed in range(20):
        assert named_by_work(more, wait_less_ns=[0] * 8, seed=seed, compute_ns=-2_900_000) == []


def test_a_rank_that_waits_clearly_longer_for_others_is_not_late():
    more = [0, 0, 0, 3_000_000, 0, 0, 0, 0]
    for seed in range(20):
        assert named_by_work(more, wait_less_ns=[-20 * value for value in more], seed=seed) == []


def test_ranks_that_only_vary_are_not_named():
    assert [named_by_work([0] * 8, wait_less_ns=[0] * 8, seed=seed) for seed in range(100)].count([]) >= 99


def test_few_steps_say_nothing_of_own_work():
    late = [0, 3_000_000]
    assert named_by_work(late, wait_less_ns=late, seed=1, ranks=2, steps=5) == []


def test_the_line_is_the_one_that_takes_longer_than_on_other_ranks():
    loads, works = SourceLine("train.py", 3, "train"), SourceLine("train.py", 5, "train")
    usual = {(works, "compute_ns"): 50_000_000.0, (loads, "data_wait_ns"): 2_000_000.0}
    of_ranks = [usual, usual | {(loads, "data_wait_ns"): 5_000_000.0, (works, "host_wait_ns"): 9e6}, usual]
    late = LateRank(1, 3_000_000, 9.0, persistent=True, part="data_wait")
    assert late_line(of_ranks, late) == loads
    # No line explains it.
    assert not late_line([usual] * 3, LateRank(1, 3_000_000, 9.0, persistent=True, part="data_wait"))


def test_in_few_steps_waits_alone_name_nobody():
    row, step = (places.ravel() for places in np.indices((4, 20)))
    late = less_waiting(row, step, np.where(row == 2, 0, 3_000_000) + 1_000 * ((row + step) % 3))
    step_ns, nothing = np.full(4, STEP_NS), {part: (row, np.full(80, 1_000_000)) for part in OWN_PARTS}
    assert [one.row for one in late_ranks(*late, step_ns)] == [2]
    assert late_ranks(*late, step_ns, nothing) == []
    explained = nothing | {"compute": (row, np.where(row == 2, 4_000_000, 1_000_000))}
    assert [(one.row, one.part) for one in late_ranks(*late, step_ns, explained)] == [(2, "compute")]
