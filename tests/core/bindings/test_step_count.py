"""Steps that are only counted."""

import gc
import os
import struct
import weakref

import pytest

from kinetoscope._core import StepCount


class Otherwise:
    """Notes what it is called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, number, loss):
        self.calls.append((number, loss))


@pytest.fixture
def otherwise():
    return Otherwise()


@pytest.fixture
def count(otherwise):
    made = StepCount(otherwise)
    made.left, made.number = 100, 10
    return made


def test_steps_are_counted_until_none_is_left(count, otherwise):
    count.left = 3
    for _ in range(5):
        count.step()
    assert (count.number, count.left, otherwise.calls) == (13, 0, [(None, None)] * 2)
    assert count.take() == 3
    assert count.take() == 0


def test_a_given_number_is_that_of_the_step(count):
    count.step(70)
    count.step()
    count.step(number=5)
    assert (count.number, count.take()) == (5, 3)


def test_after_take_no_step_is_counted(count, otherwise):
    count.step()
    count.take()
    count.step()
    assert (count.number, otherwise.calls) == (11, [(None, None)])


@pytest.mark.parametrize("loss", [None, 0.5, -0.0, 1e308])
def test_a_finite_loss_needs_no_look(count, otherwise, loss):
    count.step(loss=loss)
    assert (count.take(), otherwise.calls) == (1, [])


@pytest.mark.parametrize("loss", [float("inf"), float("-inf"), 3, "nan", [0.5]])
def test_any_other_loss_is_looked_at(count, otherwise, loss):
    count.step(4, loss)
    assert (count.take(), otherwise.calls) == (0, [(4, loss)])


def test_a_loss_that_is_no_number_is_looked_at(count, otherwise):
    count.step(loss=float("nan"))
    assert (count.take(), len(otherwise.calls)) == (0, 1)


@pytest.mark.parametrize("number", [1 << 70, -(1 << 70), 2.5, "7"])
def test_a_number_that_has_no_room_is_not_taken(count, otherwise, number):
    count.step(number)
    assert (count.number, otherwise.calls) == (10, [(number, None)])


def test_an_exception_of_the_function_is_that_of_the_call():
    def fails(number, loss):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        StepCount(fails).step()


@pytest.mark.parametrize(
    ("given", "named"), [((1, 2, 3), {}), ((1,), {"number": 2}), ((), {"lost": 1}), ((1, 2), {"loss": 3})]
)
def test_other_arguments_are_refused(count, otherwise, given, named):
    with pytest.raises(TypeError, match="a number and a loss"):
        count.step(*given, **named)
    assert (count.take(), otherwise.calls) == (0, [])


def test_the_function_outlives_the_count(otherwise):
    step = StepCount(otherwise).step
    gc.collect()
    step(3, loss=None)
    assert otherwise.calls == [(3, None)]


def test_numbers_are_also_written_into_memory(count):
    memory = bytearray(32)
    count.write_to(memory, 16)
    count.step(7)
    assert struct.unpack("<4q", memory) == (0, 0, 7, 0)
    with pytest.raises(BufferError):
        memory.append(0)
    count.close()
    memory.append(0)
    count.step(8)
    assert struct.unpack("<4q", memory[:32]) == (0, 0, 7, 0)


@pytest.mark.parametrize(("memory", "offset"), [(bytearray(8), 8), (bytearray(16), 3), (bytearray(4), 0)])
def test_memory_without_room_is_refused(count, memory, offset):
    with pytest.raises(ValueError, match="offset"):
        count.write_to(memory, offset)
    memory.append(0)


def test_memory_that_cannot_be_written_is_refused(count):
    with pytest.raises(BufferError):
        count.write_to(bytes(8), 0)


def test_the_first_step_is_timed(count):
    assert count.took_ns == 0
    count.step()
    first = count.took_ns
    assert first > 0
    count.step()
    assert count.took_ns == first


def test_a_forked_child_counts_nothing(count, otherwise):
    child = os.fork()
    if child == 0:
        count.step()
        os._exit(0 if len(otherwise.calls) == 1 and count.take() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_owner_whose_method_it_calls_is_collected():
    class Owner:
        def __init__(self):
            self.count = StepCount(self.step)

        def step(self, number, loss):
            pass

    owner = Owner()
    owner.count.step()
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
