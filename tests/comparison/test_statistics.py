"""How sure a difference is: against values that are known, and on series of which the truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.comparison.statistics import (
    Bootstrap,
    Series,
    discoveries,
    quantile,
    stationary_counts,
    two_sided_p,
)
from tests.support.effort import STRESS, examples, times


def series(*recordings, kinds=None):
    """The steps of some recordings, all of one class unless said otherwise."""
    step_ns = np.concatenate(recordings).astype(float)
    number = np.repeat(np.arange(len(recordings)), [len(one) for one in recordings])
    return Series(step_ns, number, np.zeros(len(step_ns), np.int64) if kinds is None else np.asarray(kinds))


def compared(base, new, **options):
    """The difference of the steps themselves."""
    return Bootstrap(base, new, **options).estimate(base.step_ns[:, None], new.step_ns[:, None])


def drifting(random, count, *, mean=1e6, noise=2e4, memory=0.8):
    """Steps of which each is like the one before it: an autoregressive series of the first order."""
    shocks = random.normal(0, noise * np.sqrt(1 - memory**2), count)
    found = np.empty(count)
    value = random.normal(0, noise)
    for place, shock in enumerate(shocks):
        value = memory * value + shock
        found[place] = value
    return mean + found


# The table of Student's t in any book.
@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 63.657), (2, 9.925), (4, 4.604), (10, 3.169), (30, 2.750), (120, 2.617)]
)
def test_intervals_of_99_percent_are_those_of_students_t(freedom, t):
    assert quantile(0.01, np.array([float(freedom)]))[0] == pytest.approx(t, abs=6e-4)
    assert two_sided_p(np.array([t]), np.array([float(freedom)]))[0] == pytest.approx(0.01, rel=2e-3)


def test_of_one_degree_of_freedom_the_probability_is_that_of_cauchy():
    t = np.array([0.0, 0.5, 1.0, 20.0])
    assert two_sided_p(t, np.ones(4)) == pytest.approx(1 - 2 * np.arctan(t) / np.pi, abs=1e-9)


def test_discoveries_are_those_below_their_share_of_the_rate():
    # 0.01, 0.013 and 0.014 against 0.0125, 0.025 and 0.0375: each rank has its own bound.
    assert discoveries([0.014, 0.9, 0.01, 0.013], 0.05).tolist() == [True, False, True, True]
    # One that misses its own bound counts where a later one keeps to it.
    assert discoveries([0.02, 0.024], 0.025).tolist() == [True, True]
    assert discoveries([0.3, 0.4], 0.05).tolist() == [False, False]
    assert discoveries([], 0.05).tolist() == []


@settings(max_examples=examples(20), deadline=None)
@given(steps=st.integers(1, 60), length=st.floats(1, 20), seed=st.integers(0, 1000))
def test_a_replicate_has_as_many_steps_as_the_series(steps, length, seed):
    counts = stationary_counts(np.random.default_rng(seed), steps, length, 7)
    assert counts.shape == (7, steps)
    assert (counts.sum(axis=1) == steps).all()


def test_the_bootstrap_sees_that_steps_are_correlated():
    """The mean of an autoregressive series has a larger error than that of independent steps, by a known factor."""
    random = np.random.default_rng(3)
    steps = drifting(random, 4000, memory=0.7)
    counts = stationary_counts(np.random.default_rng(1), len(steps), 40.0, 400)
    error = np.std(counts @ steps / len(steps))
    independent = np.std(steps) / np.sqrt(len(steps))
    assert error / independent == pytest.approx(np.sqrt((1 + 0.7) / (1 - 0.7)), rel=0.2)


@settings(max_examples=examples(30), deadline=None)
@given(
    kinds=st.lists(st.integers(0, 3), min_size=4, max_size=40),
    fraction=st.sampled_from((1.0, 0.5, 0.25)),
    seed=st.integers(0, 1000),
)
def test_each_class_of_steps_keeps_its_weight(kinds, fraction, seed):
    random = np.random.default_rng(seed)
    side = series(random.uniform(1, 2, len(kinds)), kinds=kinds)
    copies = random.integers(0, 3, (5, len(kinds))).astype(float)
    copies[:, 0] += 1
    weights = side.weights(copies, fraction)
    assert weights.sum(axis=1) == pytest.approx(1.0)
    for kind in set(kinds):
        mine = np.array(kinds) == kind
        assert weights[:, mine].sum(axis=1) == pytest.approx(copies[:, mine].sum(axis=1) / copies.sum(axis=1))
    if fraction < 1:
        slow = np.argmax(side.step_ns)
        alike = copies[:, np.array(kinds) == kinds[slow]].sum(axis=1)
        used_up = (weights[:, slow] > 0) & (copies[:, slow] <= (1 - fraction) * alike)
        assert not used_up.any()


def test_steps_that_something_else_slowed_down_are_left_out():
    random = np.random.default_rng(0)
    clean = random.normal(1e6, 5e3, (2, 10, 60))
    burdened = clean + np.where(random.random((2, 10, 60)) < 0.5, random.exponential(2e6, (2, 10, 60)), 0)
    found = Bootstrap(series(*burdened[0]), series(*burdened[1]), in_turn=True)
    assert found.fraction <= 0.25
    assert Bootstrap(series(*clean[0]), series(*clean[1]), in_turn=True).fraction >= 0.5


def test_a_program_whose_steps_differ_by_design_keeps_all_of_them():
    """Every fourth step also updates weights; that the update takes longer must show, however rare it is."""
    random = np.random.default_rng(1)
    kinds = np.tile([0, 0, 0, 1], 60)
    base = np.where(kinds == 1, 3e6, 1e6) * random.normal(1, 0.003, 240)
    new = np.where(kinds == 1, 3.6e6, 1e6) * random.normal(1, 0.003, 240)
    found = compared(series(base, kinds=kinds), series(new, kinds=kinds))
    assert found.change[0] == pytest.approx(150_000, rel=0.1)


@pytest.mark.parametrize("recordings", [(1, 1), (1, 6), (6, 1)])
def test_one_recording_of_a_side_says_nothing_of_times(recordings):
    """However alike its steps are: they ran in one process, which may have been slower throughout."""
    random = np.random.default_rng(5)
    base, new = (
        series(*random.normal(scale, 2e3, (count, 400)))
        for scale, count in zip((1e6, 1.6e6), recordings, strict=True)
    )
    for found in (compared(base, new), Bootstrap(base, new).estimate_step()):
        assert np.isnan(found.p).all()
        assert np.isinf(found.half_width(0.99)).all()


def test_a_step_is_compared_as_a_ratio_which_falls_by_less_than_all_of_it():
    """Few recordings that differ by a lot: the interval of the difference would reach below no time at all."""
    random = np.random.default_rng(8)
    base, new = (
        series(*(scale * np.exp(random.normal(0, 0.5, (3, 1))) * random.normal(1, 0.01, (3, 40))))
        for scale in (1e6, 0.6e6)
    )
    difference, ratio = compared(base, new), Bootstrap(base, new).estimate_step()
    assert difference.change[0] - difference.half_width(0.99)[0] < -difference.base[0]
    assert np.exp(ratio.base[0]) == pytest.approx(difference.base[0])
    low = np.expm1(ratio.change[0] - ratio.half_width(0.99)[0])
    assert -1 < low < np.expm1(ratio.change[0])


def test_recordings_in_turn_share_the_state_of_the_machine():
    random = np.random.default_rng(7)
    machine = random.normal(1, 0.2, (12, 1))
    base, new = (1e6 * machine * random.normal(scale, 0.01, (12, 40)) for scale in (1.0, 1.05))
    paired = compared(series(*base), series(*new), in_turn=True)
    apart = compared(series(*base), series(*new))
    assert paired.error[0] < apart.error[0]
    assert paired.freedom[0] == 11


def test_a_row_that_is_seldom_interrupted_is_told_from_steps_that_nearly_all_are():
    """Steps of 1 ms of which 95 % are interrupted; a row of 50 us that is hit as often as it is long, and takes 30 us more."""
    random = np.random.default_rng(4)
    sides = []
    for row_ns in (50e3, 80e3):
        row = row_ns * random.normal(1, 0.02, (12, 20))
        rest = 1e6 * random.normal(1, 0.02, (12, 20))
        hit = random.random((12, 20))
        pause = random.exponential(8e6, (12, 20))
        row = row + np.where(hit < 0.05, pause, 0)
        sides.append((row.ravel(), (row + rest + np.where((hit >= 0.05) & (hit < 0.95), pause, 0)).ravel()))
    recordings = np.repeat(np.arange(12), 20)
    base, new = (Series(step, recordings, np.zeros(240, np.int64)) for _, step in sides)
    found = Bootstrap(base, new, in_turn=True)
    rows = [row[:, None] for row, _ in sides]
    common, own = found.estimate(*rows), found.estimate_rows(*rows)
    assert own.error[0] < common.error[0]
    assert own.change[0] == pytest.approx(30e3, rel=0.1)
    assert own.p[0] < 1e-3


@settings(max_examples=examples(30), deadline=None)
@given(
    kinds=st.lists(st.integers(0, 2), min_size=4, max_size=40),
    fraction=st.sampled_from((1.0, 0.5, 0.25)),
    seed=st.integers(0, 1000),
)
def test_the_mean_of_the_fastest_is_that_of_the_sorted_values(kinds, fraction, seed):
    values = np.random.default_rng(seed).uniform(1, 2, (len(kinds), 2))
    cut = len(kinds) // 2
    side = series(np.ones(cut), np.ones(len(kinds) - cut), kinds=kinds)
    means = side.of_fastest(values, fraction).mean(axis=0)
    expected = np.zeros(2)
    for kind, recording in set(zip(kinds, side.recording.tolist(), strict=True)):
        mine = np.sort(values[(side.kind == kind) & (side.recording == recording)], axis=0)
        part = np.clip(fraction * len(mine) - np.arange(len(mine)), 0, 1)[:, None]
        expected += (part * mine).sum(axis=0) / part.sum() * len(mine) / len(values)
    assert means == pytest.approx(expected)


def test_the_fastest_steps_of_a_row_that_does_not_run_in_every_step_are_those_of_all_rows():
    random = np.random.default_rng(2)
    base, new = (series(*random.normal(1e6, 1e4, (4, 40))) for _ in range(2))
    rows = [np.where(np.arange(160) % 4 == 0, scale * 1e5, 0.0)[:, None] for scale in (1.0, 1.5)]
    found = Bootstrap(base, new)
    common, own = found.estimate(*rows), found.estimate_rows(*rows)
    assert (own.change[0], own.error[0]) == (common.change[0], common.error[0])
    assert own.change[0] > 0


def test_the_same_input_has_the_same_result():
    random = np.random.default_rng(2)
    base, new = (series(*random.normal(1e6, 1e4, (3, 50))) for _ in range(2))
    once, again = (compared(base, new, seed=4) for _ in range(2))
    assert once.error.tolist() == again.error.tolist()
    assert once.p.tolist() == again.p.tolist()


@pytest.mark.parametrize(
    ("recordings", "in_turn"), [(4, False), (10, True), *([(10, False)] if STRESS else [])]
)
def test_intervals_hold_the_truth_as_often_as_they_say(recordings, in_turn):
    """Correlated steps, and recordings of which each has a speed of its own: 95 % intervals of a difference of 3 %."""
    random = np.random.default_rng(11)
    tries, held = times(40, 2000), 0
    for number in range(tries):
        sides = []
        for scale in (1.0, 1.03):
            speeds = random.normal(1, 0.01, recordings)
            sides.append(series(*(scale * speed * drifting(random, 80) for speed in speeds)))
        found = compared(*sides, in_turn=in_turn, seed=number)
        held += abs(found.change[0] - 0.03e6) <= found.half_width(0.95)[0]
    # 95 % less three standard deviations of so many tries; intervals may be wider than need be.
    assert held / tries >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / tries)


def test_a_row_that_is_faster_in_some_recordings_by_chance_is_not_told_to_have_changed():
    """Of both sides, one recording in six has a row that is twice as fast: these few must not be all that counts."""
    random = np.random.default_rng(6)
    tries, alarms = times(30, 1000), 0
    for number in range(tries):
        rows = [
            np.where(random.random((14, 1)) < 1 / 6, 35e3, 70e3) * random.normal(1, 0.02, (14, 18))
            for _ in range(2)
        ]
        sides = [series(*(1e6 + random.exponential(5e6, (14, 18)))) for _ in range(2)]
        found = Bootstrap(*sides, in_turn=True, seed=number)
        alarms += found.estimate_rows(*(row.reshape(-1, 1) for row in rows)).p[0] < 0.01
    assert alarms <= max(3, 0.03 * tries)
