import threading

import pytest
import torch

from kinetoscope import StateError
from kinetoscope.integrations.pyg import timeit
from tests.support.simulated_accelerator import cuda

__all__ = ["cuda"]


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time, as a list with one number."""
    time_s = [100.0]
    monkeypatch.setattr(timeit, "_clock", staticmethod(lambda: time_s[0]))
    return time_s


def test_a_block_has_a_duration_and_prints_it(now, capsys):
    with timeit() as timer:
        now[0] += 1.5
    assert timer.duration == 1.5
    assert capsys.readouterr().out == "Time: 1.50000000s\n"


@pytest.mark.parametrize(("divisor", "expected"), [(0, 6.0), (1, 6.0), (4, 1.5)])
def test_the_duration_is_divided_by_more_than_one_and_without_log_nothing_is_printed(
    now, divisor, expected, capsys
):
    with timeit(log=False, avg_time_divisor=divisor) as timer:
        now[0] += 6
    assert timer.duration == expected
    assert capsys.readouterr().out == ""


def test_a_decorated_function_returns_its_own_result_and_each_call_prints(now, capsys):
    @timeit()
    def wait(seconds):
        """Waits."""
        now[0] += seconds
        return seconds * 10

    assert [wait(1), wait(2)] == [10, 20]
    assert capsys.readouterr().out == "Time: 1.00000000s\nTime: 2.00000000s\n"
    assert wait.__doc__ == "Waits."


def test_a_function_that_calls_itself_is_timed_at_every_depth(now, capsys):
    @timeit()
    def count(depth):
        now[0] += 1
        if depth:
            count(depth - 1)

    count(1)
    assert capsys.readouterr().out == "Time: 1.00000000s\nTime: 2.00000000s\n"


def test_reset_takes_the_time_so_far_and_begins_anew(now, capsys):
    with timeit() as timer:
        now[0] += 3
        timer.reset()
        assert timer.duration == 3
        now[0] += 1
    assert timer.duration == 1
    assert capsys.readouterr().out == "Time: 3.00000000s\nTime: 1.00000000s\n"


def test_reset_after_the_block_takes_the_time_since_it_began_and_begins_anew(now):
    with timeit(log=False) as timer:
        now[0] += 3
    del timer.duration
    now[0] += 1
    timer.reset()
    assert timer.duration == 4
    now[0] += 5
    timer.reset()
    assert timer.duration == 5


def test_threads_do_not_disturb_each_other(now):
    timer = timeit(log=False)
    with timer:
        now[0] += 1

        def elsewhere() -> None:
            with pytest.raises(StateError):
                timer.reset()
            with timer:
                now[0] += 2
            durations.append(timer.duration)

        durations: list[float] = []
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert durations == [2]
    assert timer.duration == 3


def test_what_the_block_raises_comes_through(now):
    with pytest.raises(KeyError), timeit(log=False) as timer:
        now[0] += 2
        raise KeyError
    assert timer.duration == 2


def test_the_accelerator_is_waited_for_at_both_ends_and_at_each_reset(cuda):
    with timeit(log=False) as timer:
        cuda.log.append("in")
        timer.reset()
    assert cuda.log == ["waited", "in", "waited", "waited"]


def test_an_accelerator_nobody_has_used_is_left_asleep(cuda):
    cuda.used = False
    with timeit(log=False):
        pass
    assert cuda.log == []


def test_real_work_takes_time():
    with timeit(log=False) as timer:
        torch.ones(100).sum()
    assert timer.duration > 0
