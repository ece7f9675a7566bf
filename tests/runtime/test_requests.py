"""The native awaitable that drives a request: whom it calls and when, and that it keeps nothing."""

import contextvars
import ctypes
import gc
import sys
import types

import pytest

from kinetoscope._runtime import Followed, Follower, RequestState

MODULE = "kinetoscope_flag_of_a_test"


@pytest.fixture
def flag(monkeypatch):
    """A module with the attribute that says whether anything records."""
    made = types.ModuleType(MODULE)
    made.flag = False
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


class Described:
    """What names a request, and notes what it is asked for."""

    def __init__(self, made):
        self._made = made

    def at_begin(self):
        self._made.append("begin")
        return "GET", ""

    def at_end(self):
        self._made.append("end")
        return "200"


class Marks(ctypes.Structure):
    """As RangeMarks of native/core/recording/range_marks.h; notes what it is told."""

    _fields_ = (
        ("begin", ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_char_p)),
        ("end", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )

    def __init__(self, answer):
        self.made, self.open = [], []
        super().__init__(type(self)._fields_[0][1](self._begin), type(self)._fields_[1][1](self._end))
        self._answer = answer

    def _begin(self, range_, name):
        if self._answer:
            self.open.append(range_)
            self.made.append(name.decode())
        return self._answer

    def _end(self, range_):
        self.open.remove(range_)
        self.made.append("closed")


class Calls:
    """A follower that notes each call of the functions that it was made with."""

    def __init__(self):
        self.made = []
        self.current = contextvars.ContextVar("current", default=None)
        self.described = Described(self.made)
        self.follower = Follower(
            MODULE, "flag", self.current, types.CoroutineType, "request ",
            lambda name, arguments: f": {name}{arguments}", lambda status, told: f" {status} {told}",
            lambda name: self.made.append(name) or name, lambda range_: self.made.append(f"{range_} closed"),
            lambda error: error.__name__ if error else "finished",
        )  # fmt: skip

    def follow(self, awaitable):
        return self.follower.follow(awaitable, self.described)


async def pause(result):
    await Pause()
    return result


class Pause:
    def __await__(self):
        yield


def test_a_follower_without_the_module_says_that_nothing_records(monkeypatch):
    follower = Calls().follower
    assert follower.is_recording() is False
    made = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, made)
    assert follower.is_recording() is False
    made.flag = True
    assert follower.is_recording() is True
    made.flag = False
    assert follower.is_recording() is False
    del made.flag
    assert follower.is_recording() is False


FIRST = ["begin", "request 0: GET", "request 0: GET closed"]
LAST = ["end", "request 0 finished 200", "request 0 finished 200 closed"]


def test_python_is_called_only_while_something_records(flag):
    calls = Calls()
    for recording, expected in ((False, []), (True, [*FIRST, "request 0", "request 0 closed", *LAST])):
        flag.flag = recording
        followed = calls.follow(pause(3))
        followed.send(None)
        of = calls.current.get()
        assert (of.number, of.has_ended) == (0 if recording else -1, False)
        with pytest.raises(StopIteration) as stopped:
            followed.send(None)
        assert stopped.value.value == 3
        assert calls.made == expected
        assert calls.current.get() is None
        assert (of.number, of.has_ended) == (-1, True)
    assert calls.follower.numbers_given() == 0


def test_the_recorder_opens_ranges_where_it_can(flag):
    flag.flag = True
    for answers in (True, False):
        calls, marks = Calls(), Marks(answers)
        calls.follower.set_marks(ctypes.addressof(marks))
        followed = calls.follow(pause(3))
        followed.send(None)
        of = calls.current.get()
        calls.follower.note(of, " submitted")
        followed.close()
        assert marks.open == []
        shared = [
            "request 0: GET",
            "request 0 submitted",
            "request 0",
            "request 0 GeneratorExit 200",
        ]
        if answers:
            assert [one for one in marks.made if one != "closed"] == shared
            assert marks.made.count("closed") == 4
            assert calls.made == ["begin", "end"]
        else:
            assert [one for one in calls.made if one in shared] == shared


def test_open_requests_have_the_smallest_numbers(flag):
    calls = Calls()
    flag.flag = True
    follower = calls.follower
    first, second, third = (follower.begun(calls.described) for _ in range(3))
    assert [one.number for one in (first, second, third)] == [0, 1, 2]
    follower.end(second, calls.described, None)
    follower.end(first, calls.described, None)
    follower.end(first, calls.described, None)
    assert follower.numbers_given() == 1
    late = RequestState()
    assert follower.enter(late) is True
    assert follower.enter(late) is False
    assert late.number == 0
    follower.leave(late)
    follower.leave(late)
    assert follower.begun(calls.described).number == 1
    follower.end(late, calls.described, KeyError)
    assert follower.enter(late) is False
    assert calls.made[-1] == "request 0 KeyError 200 closed"


def test_a_step_of_an_event_loop_is_a_stretch_of_the_request_in_its_context(flag):
    calls = Calls()
    flag.flag = True
    of = calls.follower.begun(calls.described)
    context = contextvars.copy_context()
    context.run(calls.current.set, of)
    depth = calls.follower.begin_step(context)
    assert calls.made[-1] == "request 0: GET"
    # A block that was entered in this step.
    other = calls.follower.begun(calls.described)
    assert calls.follower.enter(other) is True
    calls.follower.end_step(depth)
    assert calls.made[-2:] == ["request 1: GET closed", "request 0: GET closed"]
    made = list(calls.made)
    calls.follower.end_step(calls.follower.begin_step(contextvars.copy_context()))
    flag.flag = False
    calls.follower.end_step(calls.follower.begin_step(context))
    calls.follower.note(of, " submitted")
    assert calls.made == made


def test_a_recording_that_ends_in_a_stretch_ends_it(flag):
    calls = Calls()
    flag.flag = True

    async def stops():
        flag.flag = False
        raise KeyError

    with pytest.raises(KeyError):
        calls.follow(stops()).send(None)
    assert calls.made == FIRST
    assert calls.follower.numbers_given() == 0


def test_inside_of_another_request_it_only_passes_on(flag):
    calls = Calls()
    flag.flag = True
    calls.current.set("other")
    followed = calls.follow(pause(3))
    followed.send(None)
    followed.close()
    assert calls.made == []
    assert calls.current.get() == "other"


def test_stretches_of_a_request_neither_begin_nor_end_it(flag):
    calls = Calls()
    flag.flag = True
    of = RequestState()
    followed = calls.follower.stretches(pause(3), of)
    followed.send(None)
    followed.close()
    assert calls.made == ["request 0", "request 0 closed"] * 2
    assert not of.has_ended


def test_what_describes_a_request_may_fail_unless_the_program_is_to_end(flag):
    calls = Calls()
    flag.flag = True

    class Failing:
        error = ValueError("mine")

        def at_begin(self):
            raise self.error

        at_end = at_begin

    for wrong in (Failing(), types.SimpleNamespace(at_begin=lambda: 3, at_end=lambda: 5), object()):
        calls.made.clear()
        with pytest.raises(StopIteration):
            calls.follower.follow(answer(), wrong).send(None)
        assert calls.made[0] == "request 0: "
        assert calls.made[-1].startswith("request 0 finished")
    Failing.error = KeyboardInterrupt()
    coroutine = answer()
    followed = calls.follower.follow(coroutine, Failing())
    with pytest.raises(KeyboardInterrupt):
        followed.send(None)
    coroutine.close()
    assert calls.current.get() is None
    assert calls.follower.numbers_given() == 0


async def answer():
    return None


def test_failures_of_what_it_calls_are_raised_once_and_leave_no_request(flag):
    calls = Calls()
    flag.flag = True

    failures = [OSError("mine")]

    def fails_once(name):
        if failures:
            raise failures.pop()

    follower = Follower(
        MODULE, "flag", calls.current, types.CoroutineType, "request ", lambda *texts: "", lambda *texts: "",
        fails_once, lambda range_: None, lambda error: "finished",
    )  # fmt: skip
    coroutine = pause(3)
    followed = follower.follow(coroutine, calls.described)
    with pytest.raises(OSError, match="mine"):
        followed.send(None)
    assert calls.current.get() is None
    coroutine.close()
    followed = follower.follow(5, "not awaitable")
    with pytest.raises(AttributeError, match="__await__"):
        followed.send(None)
    with pytest.raises(RuntimeError, match="failed"):
        followed.send(None)
    followed.close()
    for wrong in ((1,), (1, 2, 3)):
        with pytest.raises(TypeError, match="awaitable"):
            follower.follow(*wrong)
    for method, wrong in (
        (follower.stretches, (pause, "no request")),
        (follower.enter, ("no request",)),
        (follower.leave, ("no request",)),
        (follower.note, ("no request", "")),
        (follower.end, ("no request", None, None)),
    ):
        with pytest.raises(TypeError, match="request"):
            method(*wrong)
    with pytest.raises(TypeError):
        Followed()


def test_nothing_is_kept(flag):
    calls = Calls()
    description = calls.described

    def run():
        for recording in (False, True):
            flag.flag = recording
            for end in ("send", "close", "throw"):
                followed = calls.follower.follow(pause(description), description)
                followed.send(None)
                try:
                    if end == "close":
                        followed.close()
                    elif end == "throw":
                        followed.throw(KeyError("mine"))
                    else:
                        followed.send(None)
                except (StopIteration, KeyError):
                    pass
            calls.follower.follow(Pause(), description)
        calls.made.clear()

    def counts():
        gc.collect()
        return [
            sys.getrefcount(one) for one in (description, calls.follower, RequestState, Followed, KeyError)
        ]

    run()
    before = counts()
    for _ in range(50):
        run()
    assert counts() == before
