"""Steps that are only counted."""

import ctypes
import gc
import os
import struct
import time
import weakref

import pytest

from kinetoscope._runtime import StepCount, chosen_step


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


def log_of(memory):
    """The words of a log with the step under way, how many have ended, and two places for those."""
    words = struct.unpack("<13q", memory)
    return words[:4], words[4], (words[5:9], words[9:])


def test_numbers_are_also_written_into_memory(count):
    memory = bytearray(13 * 8)
    count.write_to(memory, 0, 32, 40, 2)
    count.step(7)
    assert log_of(memory) == ((7, 0, 0, 0), 0, ((0,) * 4, (0,) * 4))
    with pytest.raises(BufferError):
        memory.append(0)
    count.close()
    memory.append(0)
    count.step(8)
    assert memory[0] == 7


def test_steps_that_have_ended_go_round_in_the_log(count):
    memory = bytearray(13 * 8)
    count.write_to(memory, 0, 32, 40, 2)
    for number in range(3):
        count.number, count.began_ns, count.recording = number, 100 + number, number == 1
        count.log_begin(9)
        count.log_end(50)
    assert log_of(memory) == ((2, 102, 0, 9), 3, ((2, 102, 50, 0), (1, 101, 50, 1)))


@pytest.mark.parametrize(
    ("current", "logged", "table", "places"),
    [(80, 32, 40, 2), (0, 104, 40, 2), (0, 32, 40, 3), (3, 32, 40, 2), (0, 32, 1 << 63, 2), (0, 32, 40, 0)],
)
def test_memory_without_room_is_refused(count, current, logged, table, places):
    memory = bytearray(13 * 8)
    with pytest.raises(ValueError, match="offset"):
        count.write_to(memory, current, logged, table, places)
    memory.append(0)


def test_memory_that_cannot_be_written_is_refused(count):
    with pytest.raises(BufferError):
        count.write_to(bytes(104), 0, 32, 40, 2)


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


ON = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
OFF = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
BEGIN = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int64)
END = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
SEED, LEVEL = 4711, 3
AN_HOUR_NS = 3_600_000_000_000


class Switch(ctypes.Structure):
    """As StepSwitch of native/core/recording/step_switch.h; notes what it is told."""

    _fields_ = (("allowed", ctypes.c_uint32), ("on", ON), ("off", OFF), ("begin", BEGIN), ("end", END))

    def __init__(self):
        self.told, self.refuses = [], False
        super().__init__(
            1,
            ON(lambda mark, number, expected_ns: self.tell("on", number)),
            OFF(lambda mark: self.tell("off", mark is not None)),
            BEGIN(lambda mark, number: self.tell("begin", number)),
            END(lambda mark: self.tell("end", None)),
        )

    def tell(self, what, fact):
        if not self.refuses:
            self.told.append((what, fact))
        return not self.refuses


@pytest.fixture
def switch():
    return Switch()


@pytest.fixture
def following(count, switch):
    """A count at step 0, which is not recorded, that follows a plan."""
    count.left, count.number = 0, -1
    count.attached = count.recording = count.was_recorded = False
    count.set_switch(ctypes.addressof(switch))
    count.began_ns = time.monotonic_ns()
    follow(count)
    return count


def follow(count, *, level=LEVEL, others=False, together=1, for_ns=AN_HOUR_NS):
    count.arm(SEED, level, others, together, 0, time.monotonic_ns() + for_ns)


def chosen(steps, level=LEVEL):
    return [step for step in range(steps) if chosen_step(SEED, level, step >> level) == step]


def test_a_plan_is_followed_without_the_function(following, switch, otherwise):
    for _ in range(160):
        following.step()
    planned = chosen(160)
    assert otherwise.calls == []
    assert [number for what, number in switch.told if what in ("on", "begin")] == planned
    rows = following.drain()
    assert [row[0] for row in rows] == list(range(-1, 159))
    assert [row[0] for row in rows if row[5]] == [number for number in planned if number < 159]
    assert all(row[1] > 0 and row[2] > 0 and row[3] >= 0 for row in rows)
    assert following.drain() == []


def test_a_plan_can_record_all_but_the_chosen_steps(following, switch, otherwise):
    follow(following, others=True)
    for _ in range(64):
        following.step()
    assert otherwise.calls == []
    recorded = [number for what, number in switch.told if what in ("on", "begin")]
    assert recorded == [step for step in range(64) if step not in chosen(64)]
    assert [what for what, _ in switch.told].count("off") == len(chosen(64)) - (0 in chosen(64))


def test_steps_between_recorded_ones_are_looked_at_together(following, switch, otherwise):
    follow(following, level=6, together=8)
    for _ in range(640):
        following.step()
    rows = following.drain()
    assert otherwise.calls == []
    assert len(rows) < 200
    # The two after a recorded one are looked at alone, and no recorded one with others.
    numbers = {row[0] for row in rows}
    for number in chosen(630, 6):
        assert {number - 1, number, number + 1, number + 2} <= numbers
    assert [row[0] for row in rows if row[5]] == [number for number in chosen(640, 6) if number < 639]


def test_the_plan_is_left_where_there_is_more_to_do(following, switch, otherwise):
    following.step(3)
    assert otherwise.calls == [(3, None)]
    following.step(0, loss=float("inf"))
    switch.allowed = 0
    following.step(0)
    switch.allowed = 1
    follow(following, for_ns=-1)
    following.step(0)
    following.disarm()
    following.step(0)
    assert (len(otherwise.calls), following.number, switch.told) == (5, -1, [])
    follow(following)
    assert following.advance(0)
    assert not following.advance(5)
    assert (len(otherwise.calls), following.number) == (5, 0)


def test_what_passes_between_two_steps_is_no_step(following, otherwise):
    following.step()
    following.drain()
    following.began_ns, following.closing_ns = 0, 5_000_000
    following.step()
    assert following.drain() == []
    assert (following.number, following.closing_ns) == (1, 0)
    assert following.own_ns > 5_000_000
    assert otherwise.calls == []


def test_a_switch_that_refuses_changes_nothing(following, switch, otherwise):
    first = chosen(8)[0]
    for _ in range(first):
        following.step()
    switch.refuses = True
    following.step()
    assert (otherwise.calls, following.number) == ([(None, None)], first - 1)
    assert (following.attached, following.recording) == (False, False)
    switch.refuses = False
    following.step()
    assert following.recording
    switch.refuses = True
    following.step()
    assert (len(otherwise.calls), following.number, following.attached) == (2, first, True)
    assert not following.switch_off()
    switch.refuses = False
    assert following.switch_off()
    assert switch.told == [("on", first), ("off", True)]


def test_a_mark_ends_once(following, switch):
    assert following.switch_on(7)
    following.end_mark()
    following.end_mark()
    assert following.switch_off()
    assert switch.told == [("on", 7), ("end", None), ("off", False)]


def test_a_forked_child_follows_no_plan(following, switch, otherwise):
    child = os.fork()
    if child == 0:
        following.step(0)
        refused = not (following.advance() or following.switch_on(1) or following.switch_off())
        following.end_mark()
        os._exit(0 if refused and len(otherwise.calls) == 1 and not switch.told else 1)
    assert os.waitpid(child, 0)[1] == 0
