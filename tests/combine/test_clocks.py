"""The line between two clocks: whatever really was lies within the error that is told."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.combine.clocks import MOST_DRIFT, Bounds, Guesses, fit

BASES = st.sampled_from([0, -5_000, 1_700_000_000_000_000_000, -(10**15)])


@st.composite
def clocks(draw):
    """A true difference of two clocks, and bounds that are right for it."""
    offset = draw(BASES) + draw(st.integers(-(10**6), 10**6))
    drift = draw(st.floats(-0.9 * MOST_DRIFT, 0.9 * MOST_DRIFT))
    length = draw(st.integers(1, 10**10))
    widths = st.integers(0, 10**5)

    def side(sign):
        at = draw(st.lists(st.integers(-(10**7), length + 10**7), min_size=1, max_size=8))
        # A nanosecond of room for the true difference, which is none of whole nanoseconds.
        return at, [offset + round(drift * moment) + sign * (1 + draw(widths)) for moment in at]

    (above_at, above), (below_at, below) = side(-1), side(+1)
    return (
        Bounds(*(np.array(part, np.int64) for part in (above_at, above, below_at, below))),
        offset,
        drift,
        length,
    )


# How wrong a guess is, and where it is made.
WRONG = st.lists(st.tuples(st.integers(-(10**7), 10**7), st.floats(0, 1)), max_size=5)


def guesses(clock, wrong):
    """What the difference may be taken for, each guess wrong by some time."""
    _, offset, drift, length = clock
    at = [int(share * length) for _, share in wrong]
    made = [offset + round(drift * moment) + by for moment, (by, _) in zip(at, wrong, strict=True)]
    return Guesses(np.array(at, np.int64), np.array(made, np.int64))


@given(clocks(), WRONG, st.floats(0, 1))
def test_what_really_was_is_no_further_away_than_the_error_however_wrong_the_guesses(clock, wrong, share):
    bounds, offset, drift, length = clock
    line = fit(bounds, 0, length, guesses=guesses(clock, wrong))
    assert line is not None
    assert line.violated_ns == 0
    at = int(share * length)
    # A double counts single nanoseconds up to 9e15; the large part is compared as integers.
    found = round(line.offset_ns) - offset + (line.drift - drift) * at
    slack = 1 + abs(line.offset_ns) * 2.0**-51
    assert abs(found) <= line.error_ns(0, length) + slack


@given(clocks())
def test_more_that_is_known_never_leads_out_of_what_was_possible(clock):
    bounds, offset, drift, length = clock
    more = Bounds(
        np.append(bounds.above_at_ns, length // 2),
        np.append(bounds.above_ns, offset + round(drift * (length // 2)) - 5),
        bounds.below_at_ns,
        bounds.below_ns,
    )
    # What was possible then lies within what was possible before, and so does the line.
    assert fit(more, 0, length).error_ns(0, length) <= 2 * fit(bounds, 0, length).error_ns(0, length) + 1


@given(clocks(), st.integers(1, 10**5))
def test_relaxed_bounds_leave_more_possible(clock, error):
    bounds, _, _, length = clock
    relaxed, line = fit(bounds.relaxed(error), 0, length), fit(bounds, 0, length)
    assert 2 * relaxed.error_ns(0, length) >= line.error_ns(0, length)
    assert relaxed.error_ns(0, length) >= error


def bounds(above, below):
    """Bounds from lists of (moment, difference)."""
    return Bounds(
        *(np.array(part, np.int64) for pairs in (above, below) for part in zip(*pairs, strict=True))
    )


def test_two_marks_at_either_end_give_the_drift():
    line = fit(bounds([(0, 990), (10**9, 10_990)], [(0, 1_010), (10**9, 11_010)]), 0, 10**9)
    assert (round(line.offset_ns), round(line.drift * 1e9), line.error_ns(0, 10**9)) == (1_000, 10_000, 12)


def test_one_mark_leaves_the_drift_open_and_the_error_says_so():
    line = fit(bounds([(0, 990)], [(0, 1_010)]), 0, 10**9)
    assert abs(line.drift) < 1e-9
    assert line.error_ns(0, 10**9) == 10 + 10**6 + 2


def test_bounds_that_contradict_each_other_say_by_how_much():
    line = fit(bounds([(0, 1_000)], [(0, 900)]), 0, 0)
    assert (line.offset_ns, line.violated_ns, line.error_ns(0, 0)) == (950, 50, 2)


def test_guesses_that_agree_are_believed_within_the_bounds():
    at = np.arange(0, 10**9, 10**8)
    wide = bounds([(0, -(10**6))], [(0, 10**6)])
    # A drift of 40 parts in a million that every guess bears out; one guess is far off.
    told = 30_000 + at // 25_000
    told[3] = 900_000
    line = fit(wide, 0, 10**9, guesses=Guesses(at, told))
    assert abs(line.offset_ns - 30_000) <= 10
    assert abs(line.drift - 4e-5) <= 1e-8
    # Where they are out of the bounds, the bounds are believed.
    assert fit(wide, 0, 10, guesses=Guesses(at[:1], at[:1] + 5 * 10**6)).offset_ns <= 10**6


def test_a_drift_that_the_spread_of_guesses_explains_is_none():
    at = np.array([0, 5_000_000, 10_000_000])
    line = fit(
        bounds([(0, -(10**6))], [(0, 10**6)]), 0, 10**7, guesses=Guesses(at, np.array([0, 5_000, -4_000]))
    )
    assert abs(line.drift) < 1e-12
    assert abs(line.offset_ns) < 1


@given(BASES, st.integers(0, 10**9), st.integers(-(10**9), 10**9))
def test_without_drift_the_error_is_half_the_distance_of_the_bounds_or_more_for_a_guess(base, width, guess):
    base %= 10**9
    wide = bounds([(0, base)], [(0, base + width)])
    half = -(-width // 2)
    assert half <= fit(wide, 0, 0).error_ns(0, 0) <= half + 3
    guessed = fit(wide, 0, 0, guesses=Guesses(np.zeros(1, np.int64), np.array([base + guess])))
    assert half <= guessed.error_ns(0, 0) <= width + 3
    assert base - 1 <= guessed.offset_ns <= base + width + 1


def test_of_what_bounds_leave_open_clocks_in_order_are_believed():
    # The bounds allow for any drift from -0.001 to 0.0001; the middle of that is none that a clock in order has.
    line = fit(bounds([(0, -10), (10**9, -(10**6))], [(0, 10), (10**9, 10**5)]), 0, 10**9)
    assert abs(line.drift) < 1e-6
    assert abs(line.error_ns(0, 10**9) - 10**6) <= 100


def test_guesses_that_say_less_than_the_bounds_are_not_used():
    close = bounds([(0, -10), (10**9, -10)], [(0, 10), (10**9, 10)])
    at = np.arange(0, 10**9, 10**8)
    line = fit(close, 0, 10**9, guesses=Guesses(at, (at // 10**8 % 3) * 10**6))
    assert abs(line.offset_ns) < 1e-3


def test_with_one_side_only_nothing_is_known():
    empty = np.zeros(0, np.int64)
    one = np.zeros(1, np.int64)
    assert fit(Bounds(one, one, empty, empty), 0, 10) is None
    assert fit(Bounds(empty, empty, one, one), 0, 10) is None
