"""The budget, on simulated programs: what recording costs there is known."""

import math
import random

import pytest

from kinetoscope.flight.budget import (
    FEWEST,
    MeasuredOverhead,
    OverheadBudget,
    StepPlan,
    level_for,
    mean_and_error,
)

STEP_NS = 10e6


def simulate(costs_ns, steps, *, limit=0.01, own_ns=2000.0, seed=0, noise=0.01, step_ns=lambda step: STEP_NS):
    """Runs a budget and its plan over simulated steps; returns both, and what recording added to the last half."""
    random_ = random.Random(seed)
    budget, plan = OverheadBudget(limit), StepPlan(f"job {seed}", level_for(0.25))
    added_ns = plain_ns = 0.0
    for step in range(steps):
        plain = step_ns(step) * (1 + random_.gauss(0, noise))
        recorded = plan.records(step)
        cost = costs_ns(step, random_) if recorded else 0.0
        if step >= steps // 2:
            added_ns += cost + own_ns
            plain_ns += plain
        if budget.add(plain + cost, own_ns, recorded, plan.share):
            plan.level = level_for(budget.share)
    return budget, plan, added_ns / plain_ns


def test_where_recording_is_cheap_all_steps_are_recorded():
    _budget, plan, added = simulate(lambda step, _: 0.002 * STEP_NS, 20_000)
    assert plan.level == 0
    assert added < 0.01


@pytest.mark.parametrize("cost", [0.03, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_budget_is_kept_whatever_recording_costs(cost, seed):
    budget, plan, added = simulate(lambda step, _: cost * STEP_NS, 20_000, seed=seed)
    assert added <= 0.0105
    assert plan.level > 0
    told = budget.overhead(plan.share)
    assert told.low - 0.0002 <= cost * plan.share + 0.0002 <= told.high + 0.001


def test_a_budget_is_used_and_not_only_kept():
    _budget, plan, _added = simulate(lambda step, _: 0.03 * STEP_NS, 40_000)
    assert plan.share >= 0.125


def test_rare_costs_are_kept_within_the_budget():
    _budget, _plan, added = simulate(
        lambda step, random_: STEP_NS * (1.0 if random_.random() < 0.02 else 0.02), 60_000
    )
    assert added <= 0.015


def test_a_periodic_program_does_not_mislead():
    # Logging makes every 50th step three times as long.
    budget, plan, added = simulate(
        lambda step, _: 0.03 * STEP_NS, 40_000, step_ns=lambda step: STEP_NS * (3 if step % 50 == 0 else 1)
    )
    assert added <= 0.0105
    told = budget.overhead(plan.share)
    assert told.low - 0.001 <= 0.03 * plan.share <= told.high + 0.001


def test_a_program_that_slows_down_is_no_cost():
    budget, plan, _added = simulate(
        lambda step, _: 0.0, 20_000, own_ns=0.0, step_ns=lambda step: STEP_NS * (1 + step / 5000)
    )
    assert plan.level == 0
    assert abs(budget.overhead(plan.share).share) < 0.002


def test_costs_that_triple_are_noticed():
    # First a third of what it costs later: the share must fall.
    budget, plan, _ = simulate(lambda step, _: STEP_NS * (0.02 if step < 20_000 else 0.06), 100_000)
    assert plan.share * 0.06 <= 0.0105
    assert budget.overhead(plan.share).share <= 0.0105


def test_too_few_comparisons_are_no_estimate():
    budget, plan = OverheadBudget(0.01), StepPlan("job", 2)
    for step in range(20):
        assert not budget.add(STEP_NS, 0.0, plan.records(step), plan.share)
    told = budget.overhead(plan.share)
    assert told.comparisons < FEWEST
    assert told.text(0.01) == f"not known yet ({told.comparisons} of 30 comparisons) of 1 %"


def test_steps_that_cannot_be_compared_are_left_out():
    budget = OverheadBudget(0.01)
    for recorded in (False, None, False, True, None, False, True, True):
        budget.add(STEP_NS, 0.0, recorded, 0.25)
    assert budget.overhead(0.25) == MeasuredOverhead(0.0, 0.0, math.inf, 0)


def test_the_interval_is_printed():
    assert MeasuredOverhead(0.006, 0.004, 0.008, 100).text(0.01) == "0.6 % (0.4 to 0.8 %) of 1 %"
    assert MeasuredOverhead(0.12, -0.01, 0.5, 100).text(0.005) == "12 % (0 to 50 %) of 0.5 %"
    assert MeasuredOverhead(0.0004, 0.0, 0.0009, 100).text(0.01) == "0.04 % (0 to 0.09 %) of 1 %"


def test_the_interval_covers_the_mean():
    random_ = random.Random(1)
    covered = 0
    for _ in range(300):
        mean, error = mean_and_error([random_.gauss(1.0, 0.5) for _ in range(100)])
        covered += abs(mean - 1.0) <= 1.96 * error
    assert 0.9 <= covered / 300 <= 0.99


def test_short_steps_are_looked_at_together():
    budget, plan = OverheadBudget(0.01), StepPlan("job", 5)
    for step in range(1000):
        # Looking costs 3 % of a step; of n steps together a part of n.
        budget.add(1e6, 0.03e6 / budget.together, plan.records(step), plan.share)
    assert 12 <= budget.together <= 24
    for step in range(1000, 2000):
        budget.add(1e9, 0.03e6 / budget.together, plan.records(step), plan.share)
    assert budget.together == 1


def test_what_the_next_step_pays_for_a_recorded_one_counts():
    plan, random_ = StepPlan("job", 4), random.Random(3)
    budget = OverheadBudget(0.01)
    after = False
    for step in range(20_000):
        recorded = plan.records(step)
        cost = 0.1 if recorded else 0.05 if after else 0.0
        budget.add(STEP_NS * (1 + cost + random_.gauss(0, 0.005)), 0.0, recorded, plan.share)
        after = recorded
    told = budget.overhead(1 / 16)
    assert told.low <= 0.15 / 16 <= told.high


def test_what_two_steps_after_a_recorded_one_pay_counts():
    plan, random_ = StepPlan("job", 4), random.Random(4)
    budget = OverheadBudget(0.01)
    costs = [0.0, 0.0]
    for step in range(20_000):
        recorded = plan.records(step)
        costs.append(0.1 if recorded else 0.05 if costs[-1] == 0.1 else 0.03 if costs[-2] == 0.1 else 0.0)
        budget.add(STEP_NS * (1 + costs[-1] + random_.gauss(0, 0.005)), 0.0, recorded, plan.share)
    told = budget.overhead(1 / 16)
    assert told.low - 0.0002 <= 0.18 / 16 <= told.high + 0.0002


def test_the_recorders_threads_count():
    budget, plan = OverheadBudget(0.01), StepPlan("job", level_for(0.25))
    for step in range(40_000):
        recorded = plan.records(step)
        # The sampler works while steps are recorded; something costs 0.2 % always.
        if step % 200 == 0:
            budget.add_threads(0.002 + 0.02 * plan.share)
        if budget.add(STEP_NS * (1 + 0.01 * recorded), 0.0, recorded, plan.share):
            plan.level = level_for(budget.share)
    told = budget.overhead(plan.share)
    assert 0.002 + 0.03 * plan.share == pytest.approx(told.share, rel=0.05)
    assert told.share <= 0.01
    assert 0.0625 <= plan.share <= 0.25


def test_counting_steps_that_are_looked_at_together_counts():
    budget, plan = OverheadBudget(0.01), StepPlan("job", 4)
    for step in range(2000):
        budget.add(1e6, 0.0, plan.records(step), plan.share, passing_ns=2e3)
    told = budget.overhead(plan.share)
    # As measured, and at most as much again for what it displaces from caches.
    assert told.low == pytest.approx(0.002, abs=1e-5)
    assert told.high == pytest.approx(0.004, abs=1e-5)


def test_how_many_steps_are_looked_at_together_is_chosen_now_and_then():
    class Counting(OverheadBudget):
        chosen = 0

        def _choose_together(self):
            self.chosen += 1
            super()._choose_together()

    budget = Counting(0.01)
    for _ in range(3201):
        budget.add(1e6, 100.0, recorded=False, planned_share=0.01)
    # After 32, 64, 128 and then 256 steps each.
    assert budget.chosen == 14


def test_looks_at_many_steps_count_and_are_made_fewer():
    budget, plan = OverheadBudget(0.01), StepPlan("job", 5)
    for step in range(2000):
        budget.add(1e6, 500.0 / budget.together, plan.records(step), plan.share)
        if step % 250 == 0:
            # What is left for steps takes 6 us for each, and once in a while much longer.
            steps = 250 // budget.together
            budget.add_look(6e3 * steps + (1e6 if step == 1000 else 0), 250e6, steps)
    assert 2 <= budget.together <= 8
    told = budget.overhead(plan.share)
    assert told.low >= 0.0005
    budget.add_look(1e6, 0.0, 1)
    assert budget.overhead(plan.share) == told


def test_a_plan_that_would_exceed_the_budget_is_not_tried():
    levels = set()
    # One of 16 steps costs 0.56 %, and one of 8 would cost 1.1 %.
    budget, plan = OverheadBudget(0.01), StepPlan("job", 4)
    budget.share = 1 / 16
    for step in range(60_000):
        recorded = plan.records(step)
        if budget.add(STEP_NS * (1 + 0.09 * recorded), 0.0, recorded, plan.share):
            plan.level = level_for(budget.share)
            levels.add(plan.level)
    assert levels == {4}
