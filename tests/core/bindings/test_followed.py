"""The native awaitable that drives a request: whom it calls and when, and that it keeps nothing."""

import contextvars
import gc
import sys
import types

import pytest

from kinetoscope._core import Followed, Follower, RequestState

MODULE = "kinetoscope_flag_of_a_test"


@pytest.fixture
def flag(monkeypatch):
    """A module with the attribute that says whether anything records."""
    made = types.ModuleType(MODULE)
    made.flag = False
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


class Calls:
    """A follower that notes each call of the functions that it was made with."""

    def __init__(self):
        self.made = []
        self.current = contextvars.ContextVar("current", default=None)
        self.follower = Follower(
            MODULE, "flag", self.current, types.CoroutineType, RequestState,
            self.begin, lambda of: self.made.append("enter") is None, lambda of: self.made.append("leave"), self.end,
        )  # fmt: skip

    def begin(self, description):
        self.made.append(f"begin {description}")
        of = RequestState()
        of.number = 1
        return of

    def end(self, of, description, error):
        self.made.append(f"end {description} {error and error.__name__}")


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


def test_python_is_called_only_while_something_records(flag):
    calls = Calls()
    for recording, expected in (
        (False, []),
        (True, ["begin a", "enter", "leave", "enter", "leave", "end a None"]),
    ):
        flag.flag = recording
        followed = calls.follower.follow(pause(3), "a")
        followed.send(None)
        assert isinstance(calls.current.get(), RequestState)
        with pytest.raises(StopIteration) as stopped:
            followed.send(None)
        assert stopped.value.value == 3
        assert calls.made == expected
        assert calls.current.get() is None


def test_a_recording_that_ends_in_a_stretch_ends_it(flag):
    calls = Calls()
    flag.flag = True

    async def stops():
        flag.flag = False
        raise KeyError

    with pytest.raises(KeyError):
        calls.follower.follow(stops(), "a").send(None)
    assert calls.made == ["begin a", "enter", "leave", "end a KeyError"]


def test_inside_of_another_request_it_only_passes_on(flag):
    calls = Calls()
    flag.flag = True
    calls.current.set("other")
    followed = calls.follower.follow(pause(3), "a")
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
    assert calls.made == ["enter", "leave"] * 2
    assert not of.has_ended


def test_failures_of_what_it_calls_are_raised_once_and_leave_no_request(flag):
    calls = Calls()
    flag.flag = True

    def fails(description):
        raise OSError("mine")

    follower = Follower(
        MODULE, "flag", calls.current, types.CoroutineType, RequestState, fails, None, None, None
    )
    coroutine = pause(3)
    followed = follower.follow(coroutine, "a")
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
    with pytest.raises(TypeError, match="request"):
        follower.stretches(pause, "no request")
    with pytest.raises(TypeError):
        Followed()


def test_nothing_is_kept(flag):
    calls = Calls()
    description = object()

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
