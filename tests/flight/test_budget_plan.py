"""The plan of steps: jittered strata, the same on all ranks, nested."""

import itertools
import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.flight.budget import MOST_LEVEL, StepPlan, level_for

LEVELS = st.integers(1, 10)
JOBS = st.text(max_size=20)


@given(JOBS, LEVELS, st.integers(0, 2**40))
def test_each_stratum_has_exactly_one_recorded_step(job, level, stratum):
    plan = StepPlan(job, level)
    first = stratum << level
    assert sum(plan.records(step) for step in range(first, first + 2**level)) == 1


@given(JOBS, st.integers(0, 6), st.integers(0, 2**40))
def test_the_next_recorded_step(job, level, step):
    plan = StepPlan(job, level)
    following = plan.next_after(step)
    if level == 0:
        assert following == step + 1
    else:
        assert plan.records(following)
        assert not any(plan.records(between) for between in range(step + 1, following))


@given(JOBS, LEVELS, st.integers(0, 2**40))
def test_a_sparser_plan_records_a_part_of_what_a_denser_one_does(job, level, begin):
    steps = range(begin, begin + 200)
    sparse, dense = StepPlan(job, level + 1), StepPlan(job, level)
    assert {step for step in steps if sparse.records(step)} <= {step for step in steps if dense.records(step)}


@given(JOBS, st.integers(0, 10), st.lists(st.integers(0, 2**40), max_size=30))
def test_the_answer_depends_on_job_and_step_alone(job, level, steps):
    in_order = StepPlan(job, level)
    assert [in_order.records(step) for step in steps] == [
        StepPlan(job, level).records(step) for step in steps
    ]


def test_another_process_plans_the_same():
    text = "from kinetoscope.flight.budget import StepPlan as P; p = P('job', 3); print([k for k in range(100) if p.records(k)])"
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    plan = StepPlan("job", 3)
    assert told.strip() == str([step for step in range(100) if plan.records(step)])


def test_jobs_differ():
    plans = [StepPlan(f"job {number}", 4) for number in range(20)]
    assert len({tuple(step for step in range(320) if plan.records(step)) for plan in plans}) == 20


def test_no_period_of_the_program_is_met_always_or_never():
    plan = StepPlan("job", 5)
    recorded = [step for step in range(64_000) if plan.records(step)]
    for period in (2, 8, 32, 50, 64, 100):
        met = Counter(step % period == 0 for step in recorded)[True] / len(recorded)
        assert 0.5 / period < met < 1.6 / period, period


def test_the_distances_between_recorded_steps_vary():
    plan = StepPlan("job", 4)
    recorded = [step for step in range(4000) if plan.records(step)]
    distances = Counter(after - before for before, after in itertools.pairwise(recorded))
    assert len(distances) > 20
    assert max(distances) < 32


def test_where_all_steps_are_recorded_a_few_are_not():
    plan = StepPlan("job")
    missing = [step for step in range(6400) if not plan.records(step)]
    assert len(missing) == 100
    assert plan.share == 1 - len(missing) / 6400


def test_the_level_never_records_more_than_the_share():
    assert [level_for(share) for share in (2.0, 1.0, 0.9, 0.5, 0.49, 0.25, 0.01)] == [0, 0, 1, 1, 2, 2, 7]
    assert level_for(1e-30) == MOST_LEVEL
