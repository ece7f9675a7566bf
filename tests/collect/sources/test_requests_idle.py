"""Requests while nothing records, and those in progress when a recording begins or ends: they cost no number, reach the program as without us, and are followed from their next stretch on."""

import asyncio
import contextlib
import gc
import importlib
import sys
import threading
import weakref

import pytest
import torch

import kinetoscope
from kinetoscope._after_import import AfterImport
from kinetoscope.collect.sources import requests as module
from kinetoscope.ledger.parts import REQUEST_PARTS
from kinetoscope.tables.host.requests import request_at


def work(times=1):
    for _ in range(times):
        torch.ones(4).square_()


def in_requests(trace):
    """How many `aten::square_` ran in requests; and what holds for the requests of all traces does."""
    rows = trace.table("requests").to_pylist()
    for row in rows:
        assert sum(row[part] for part in REQUEST_PARTS) == row["duration_ns"]
        assert min(row[part] for part in REQUEST_PARTS) >= 0
    spans = trace.columns("spans")
    name = trace.strings.index("aten::square_")
    rows = (spans["name"] == name).nonzero()[0]
    return int((request_at(trace, spans["thread"][rows], spans["start_ns"][rows]) >= 0).sum())


class Turns:
    """An awaitable that is no coroutine, as event loops other than asyncio's may have them."""

    def __await__(self):
        received = yield "first"
        assert received == "sent"
        work()
        return (1, 2)


def driven(coroutine, *values):
    """Send values to a coroutine until it returns, without an event loop; return what it yields, and its result."""
    yielded, left = [], [None, *values]
    try:
        while True:
            yielded.append(coroutine.send(left.pop(0)))
    except StopIteration as stopped:
        return yielded, stopped.value


@kinetoscope.request("driven")
async def over_turns():
    work()
    return await Turns()


def test_while_nothing_records_a_request_has_no_number_and_asks_for_no_texts():
    class Silent:
        def at_begin(self):
            raise AssertionError("asked")

        at_end = at_begin

    seen = []

    async def look():
        seen.append(module._CURRENT.get())
        return 5

    assert driven(module.follow(look(), Silent())) == ([], 5)
    (of,) = seen
    assert (of.number, of.has_ended) == (-1, True)
    assert module._CURRENT.get() is None


@pytest.mark.parametrize("record", [False, True])
def test_values_results_and_what_is_yielded_pass_through_without_an_event_loop(record):
    with kinetoscope.profile() if record else pytest.MonkeyPatch.context():
        assert driven(over_turns(), "sent") == (["first"], (1, 2))
        for result in (None, (), (1,), ValueError("not raised"), StopAsyncIteration()):

            async def returns(result=result):
                return result

            decorated = kinetoscope.request("returns")(returns)
            assert driven(decorated())[1] is result
    assert module._CURRENT.get() is None


@pytest.mark.parametrize("record", [False, True])
def test_exceptions_thrown_into_a_request_arrive_and_leave(record):
    arrived = []

    @kinetoscope.request("throws")
    async def throws():
        while True:
            try:
                await Turns()
            except KeyError as error:
                arrived.append(error)

    with kinetoscope.profile() if record else pytest.MonkeyPatch.context():
        coroutine = throws()
        assert coroutine.send(None) == "first"
        mine = KeyError("mine")
        assert coroutine.throw(mine) == "first"
        assert arrived == [mine]
        with pytest.raises(OSError, match="other") as raised:
            coroutine.throw(OSError("other"))
        assert raised.traceback[-1].name == "__await__"
        with pytest.raises(RuntimeError, match="reuse"):
            coroutine.send(None)
    assert module._CURRENT.get() is None


@pytest.mark.parametrize("record", [False, True])
def test_a_request_that_is_dropped_or_closed_early_cleans_up_and_ends(record):
    closed, seen = [], []

    @kinetoscope.request("dropped")
    async def dropped():
        seen.append(module._CURRENT.get())
        try:
            await Turns()
        finally:
            closed.append(module._CURRENT.get())

    with kinetoscope.profile() if record else pytest.MonkeyPatch.context():
        coroutine = dropped()
        coroutine.send(None)
        del coroutine
        gc.collect()
        other = dropped()
        other.send(None)
        other.close()
        unstarted = dropped()
        unstarted.close()
    assert closed == seen
    assert len(seen) == 2
    assert all(of.has_ended and of.number == -1 for of in seen)
    assert module._CURRENT.get() is None


def test_a_coroutine_that_ignores_its_closing_is_an_error_as_without_a_request():
    @kinetoscope.request("stubborn")
    async def stubborn():
        with contextlib.suppress(GeneratorExit):
            await Turns()
        await Turns()

    coroutine = stubborn()
    coroutine.send(None)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        coroutine.close()


def test_requests_in_progress_are_followed_from_their_next_stretch_on_with_any_event_loop():
    @kinetoscope.request("early")
    async def early():
        await Turns()
        work(2)
        return 1

    coroutine = early()
    coroutine.send(None)
    with kinetoscope.profile() as prof, pytest.raises(StopIteration) as stopped:
        coroutine.send("sent")
    assert stopped.value.value == 1
    assert in_requests(prof.trace) == 3
    (row,) = prof.trace.table("requests").to_pylist()
    assert (row["name"], row["status"]) == ("", "finished")


def test_a_request_may_outlive_a_recording_and_be_in_the_next_one():
    async def main():
        together = asyncio.Event()

        async def part():
            await together.wait()
            work(2)

        @kinetoscope.request("long")
        async def long():
            parts = asyncio.gather(part(), part())
            await asyncio.sleep(0)
            work()
            has_worked.set()
            await may_go_on.wait()
            work()
            await parts

        has_worked, may_go_on = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(long())
        with kinetoscope.profile() as first:
            await has_worked.wait()
        with kinetoscope.profile() as second:
            may_go_on.set()
            together.set()
            await task
        work()
        return first.trace, second.trace

    first, second = asyncio.run(main())
    assert in_requests(first) == 1
    assert in_requests(second) == 5
    assert module._CURRENT.get() is None


def test_work_that_a_pool_gets_before_the_recording_belongs_to_its_request():
    from concurrent.futures import ThreadPoolExecutor

    busy, free = threading.Event(), threading.Event()

    def hold():
        busy.set()
        assert free.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert busy.wait(60)
        with kinetoscope.request("early"):
            later = pool.submit(work, 3)
            with kinetoscope.profile() as prof:
                free.set()
                later.result(60)
    assert in_requests(prof.trace) == 3


def test_many_threads_take_and_give_back_numbers_while_recordings_come_and_go():
    stop = threading.Event()
    failures = []

    @kinetoscope.request("thread")
    async def one():
        await Turns()

    def run():
        try:
            while not stop.is_set():
                driven(one(), "sent")
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=run) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(5):
            with kinetoscope.profile(engine="native") as prof:
                for _ in range(20):
                    driven(one(), "sent")
            in_requests(prof.trace)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        sys.setswitchinterval(before)
    assert not failures
    assert module._FOLLOWER.numbers_given() == 0


def test_what_describes_a_request_may_fail_without_harm():
    class Failing:
        def at_begin(self):
            raise ValueError("mine")

        at_end = at_begin

    async def work_once():
        work()
        return 7

    with kinetoscope.profile() as prof:
        assert driven(module.follow(work_once(), Failing()))[1] == 7
    (row,) = prof.trace.table("requests").to_pylist()
    assert (row["name"], row["status"]) == ("-", "finished")


def test_a_recording_in_torch_profiler_has_the_marks_too():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        driven(over_turns(), "sent")
    marks = [event.name for event in prof.events() if event.name.startswith("kinetoscope.request")]
    assert [mark.partition("#")[2][1:] for mark in marks] == [": driven", "", " ended finished"]


def test_circles_through_a_request_are_collected():
    class Owner:
        pass

    def make():
        owner = Owner()

        @kinetoscope.request("circle")
        async def circle():
            await Turns()
            return owner

        owner.coroutine = circle()
        owner.coroutine.send(None)
        return weakref.ref(owner)

    reference = make()
    gc.collect()
    assert reference() is None


def test_anyio_is_followed_also_if_it_is_imported_after_the_first_request(monkeypatch):
    import anyio.to_thread

    monkeypatch.delattr(anyio, "to_thread")
    monkeypatch.delitem(sys.modules, "anyio.to_thread")
    AfterImport("anyio.to_thread", module._wrap_anyio).wait()
    importlib.import_module("anyio.to_thread")

    @kinetoscope.request("pool")
    async def pooled():
        await anyio.to_thread.run_sync(work, 2)

    with kinetoscope.profile() as prof:
        asyncio.run(pooled())
    assert in_requests(prof.trace) == 2
