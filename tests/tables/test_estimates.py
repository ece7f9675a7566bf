"""Estimates from sampled steps, with programs whose true means are known."""

import random

import numpy as np
import pytest

from kinetoscope._errors import ArgumentError
from kinetoscope.flight.budget import StepPlan
from kinetoscope.tables.estimates import effective_steps, estimate_of_mean, shares_of_steps
from tests.support.trace_builder import TraceBuilder

STEPS = 20_000


def covered(cost, *, level, runs=400, steps=STEPS, kind_of=lambda step: 0):
    """In which share of simulated programs, with other plans and noise each, the interval has the true mean of the first kind."""
    hits = 0
    kind = kind_of(np.arange(steps))
    for run in range(runs):
        values = cost(np.arange(steps), np.random.default_rng(run))
        plan = StepPlan(f"job {run}", level)
        recorded = np.array([step for step in _recorded(plan, steps) if np.all(kind == 0) or kind[step] == 0])
        found = estimate_of_mean(values[recorded], np.full(len(recorded), plan.share))
        truth = values.mean() if np.all(kind == 0) else values[kind == 0].mean()
        hits += found.low <= truth <= found.high
    return hits / runs


def _recorded(plan, steps):
    step = -1
    while (step := plan.next_after(step)) < steps:
        yield step


def test_the_interval_of_a_smooth_cost_has_the_truth():
    def cost(steps, random_):
        return 10 + 3 * steps / STEPS + random_.normal(0, 1, len(steps))

    assert 0.93 <= covered(cost, level=7) <= 0.97


def test_the_interval_of_a_periodic_cost_has_the_truth():
    # A part that swings over 50 steps.
    def cost(steps, random_):
        return 10 + 2 * np.sin(2 * np.pi * steps / 50) + random_.normal(0, 1, len(steps))

    assert 0.93 <= covered(cost, level=6) <= 0.97


def test_the_interval_of_a_kind_of_step_has_the_truth():
    # Every 50th step logs, which is another kind.
    def cost(steps, random_):
        return np.where(steps % 50 == 0, 500, 10) + random_.normal(0, 1, len(steps))

    assert 0.93 <= covered(cost, level=6, kind_of=lambda step: step % 50 == 0) <= 0.97


def test_steps_weigh_as_many_as_they_stand_for():
    values, shares = np.array([1.0] * 50 + [3.0] * 50), np.array([1.0] * 50 + [0.25] * 50)
    found = estimate_of_mean(values, shares)
    assert found.mean == pytest.approx((50 * 1 + 200 * 3) / 250)
    assert found.low < found.mean < found.high
    assert effective_steps(shares) == pytest.approx(250**2 / (50 + 50 * 16))


def test_where_all_steps_are_recorded_nothing_is_uncertain():
    assert estimate_of_mean(np.array([1.0, 5.0]), np.ones(2)) == (3.0, 3.0, 3.0)
    assert estimate_of_mean(np.array([4.0]), np.ones(1)) == (4.0, 4.0, 4.0)


def test_one_sampled_step_says_nothing_about_others():
    assert estimate_of_mean(np.array([4.0]), np.array([0.5])) == (4.0, -np.inf, np.inf)


def test_the_plan_of_a_recording_is_read():
    info = {"step_plan": {"stretches": [[0, 0.25], [100, 0.5], [200, 7], "x"], "asked": [[110, 111]]}}
    shares, asked = shares_of_steps(info, np.array([5, 99, 100, 110, 111, 250]))
    assert shares.tolist() == [0.25, 0.25, 0.5, 1, 1, 0.5]
    assert asked.tolist() == [False, False, False, True, True, False]
    for other in ({}, {"step_plan": 3}, {"step_plan": {"stretches": 1}}):
        assert shares_of_steps(other, np.array([1]))[0].tolist() == [1]


def built(numbers, plan=None):
    """A program in which `aten::mm` takes 10 ns in even steps and 20 ns in odd ones."""
    builder = TraceBuilder()
    if plan is not None:
        builder.know("step_plan", plan)
    for place, number in enumerate(numbers):
        builder.step(number, 100 * place, 100)
        builder.span("aten::mm", 100 * place + 10, 20 if number % 2 else 10)
    return builder.build()


def rows(trace, **options):
    return trace.table("estimates", **options).to_pylist()


def test_the_table_has_the_whole_step_and_each_operator():
    numbers = sorted(random.Random(1).sample(range(1000), 60))
    whole, product = rows(built(numbers, {"stretches": [[0, 0.0625]]}))
    assert (whole["name"], whole["per_step_ns"], whole["low_ns"], whole["high_ns"]) == (None, 100, 100, 100)
    mean = sum(20 if number % 2 else 10 for number in numbers) / 60
    assert (product["name"], product["steps"], product["of_steps"]) == ("aten::mm", 60, 960)
    assert product["effective_steps"] == pytest.approx(60)
    assert product["per_step_ns"] == pytest.approx(mean)
    assert product["low_ns"] < mean < product["high_ns"]


def test_too_few_steps_are_no_estimate():
    found = rows(built(range(0, 290, 10), {"stretches": [[0, 0.1]]}))
    assert [row["per_step_ns"] for row in found] == [None, None]
    assert [row["steps"] for row in found] == [29, 29]


def test_steps_that_a_capture_asked_for_stand_for_themselves():
    numbers = [*range(0, 400, 10), 501, 503, 505]
    found = rows(built(numbers, {"stretches": [[0, 0.1]], "asked": [[501, 505]]}))
    operators = {row["captured"]: row for row in found if row["name"] == "aten::mm"}
    assert (operators[True]["steps"], operators[True]["of_steps"]) == (3, 3)
    assert (operators[True]["low_ns"], operators[True]["per_step_ns"], operators[True]["high_ns"]) == (
        20,
        20,
        20,
    )
    assert (operators[False]["steps"], operators[False]["per_step_ns"]) == (40, 10)


def test_without_a_plan_all_steps_were_recorded():
    found = rows(built(range(4)))
    assert [(row["name"], row["per_step_ns"], row["low_ns"]) for row in found] == [
        (None, 100, 100),
        ("aten::mm", 15, 15),
    ]


def test_modules_and_what_is_no_choice():
    trace = built(range(3))
    assert [row["name"] for row in rows(trace, by="module")] == [None]
    with pytest.raises(ArgumentError, match="by='line' is not valid: choose from operator, module"):
        trace.table("estimates", by="line")


def test_without_steps_there_is_no_estimate():
    assert rows(TraceBuilder().build()) == []
