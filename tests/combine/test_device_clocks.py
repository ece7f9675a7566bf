"""Whether two clocks agree, told from calls that must lie between the begins and ends of operators."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.combine.device import ThreadTimes, fit_clocks


def times(operators, calls):
    """A thread's operators and calls, each as (begin, end)."""
    columns = [[pair[side] for pair in pairs] for pairs in (operators, calls) for side in (0, 1)]
    begins, finishes, *calls = (np.array(values, np.int64) for values in columns)
    return ThreadTimes(np.sort(np.concatenate((begins, finishes))), *calls)


def operators(count):
    """Operators 1000 ns long, 200 ns apart, and a call in the middle of each."""
    begins = [1200 * row for row in range(count)]
    return [(begin, begin + 1000) for begin in begins], [(begin + 400, begin + 700) for begin in begins]


def test_calls_inside_operators_fit_and_say_how_exactly():
    fit = fit_clocks([times(*operators(50))])
    assert fit.fits
    assert (fit.calls, fit.calls_crossing, fit.largest_crossing_ns) == (50, 0, 0)
    # A call could be earlier by 400 until it leaves its operator, and later by 300.
    assert (fit.earliest_ns, fit.latest_ns) == (-400, 300)


def test_calls_between_operators_fit_as_well():
    assert fit_clocks([times([(0, 10), (20, 30)], [(11, 19), (31, 40), (-5, -1)])]).calls_crossing == 0


def test_a_few_crossing_calls_are_counted():
    ran, calls = operators(500)
    calls[3] = (calls[3][0], calls[3][1] + 350)
    fit = fit_clocks([times(ran, calls)])
    assert fit.fits
    assert (fit.calls_crossing, fit.largest_crossing_ns) == (1, 50)


def test_clocks_that_disagree_do_not_fit():
    ran = [(begin, begin + 10) for begin in range(0, 100_000, 20)]
    fit = fit_clocks([times(ran, [(start, start + 500) for start in range(5, 90_000, 700)])])
    assert not fit.fits
    assert fit.calls_crossing == fit.calls


def test_threads_without_operators_or_calls_say_nothing():
    for one in (times([], [(0, 10)]), times([(0, 10)], [])):
        fit = fit_clocks([one])
        assert (fit.calls, fit.calls_crossing, fit.earliest_ns, fit.latest_ns) == (0, 0, None, None)
        assert fit.fits


def program(seed, count):
    """Operators of random lengths at random distances of at least 10 us, and a call inside each."""
    rng = np.random.default_rng(seed)
    begins = np.cumsum(rng.integers(13_000, 90_000, count))
    lengths = rng.integers(1_000, 3_000, count)
    starts = begins + lengths // 4
    return begins, begins + lengths, starts, starts + lengths // 2


def crossing(calls):
    """How many calls have the begin or end of an operator inside them."""
    low = np.searchsorted(calls.moments_ns, calls.starts_ns, side="right")
    return np.count_nonzero(np.searchsorted(calls.moments_ns, calls.ends_ns, side="left") > low)


@given(st.integers(-50_000_000, 50_000_000), st.integers(1, 100), st.integers(0, 1 << 30))
def test_every_crossing_call_is_counted_whatever_the_difference(offset_ns, count, seed):
    begins, ends, starts, finishes = program(seed, count)
    calls = ThreadTimes(np.sort(np.concatenate((begins, ends))), starts + offset_ns, finishes + offset_ns)
    fit = fit_clocks([calls])
    assert fit.calls_crossing == crossing(calls)
    assert (fit.largest_crossing_ns > 0) == (fit.calls_crossing > 0)
    assert fit.earliest_ns is None or fit.earliest_ns <= 0
    assert fit.latest_ns is None or fit.latest_ns >= 0
