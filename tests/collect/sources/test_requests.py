"""Requests in real programs: coroutines that take turns, threads of pools, generators, cancellation, and what does not reach the program."""

import asyncio
import concurrent.futures
import contextvars
import threading

import pytest
import torch

import kinetoscope
from kinetoscope.collect.sources import requests as module
from kinetoscope.ledger.parts import REQUEST_PARTS


def work(times=1):
    """Operators that a request runs; returns how many."""
    for _ in range(times):
        torch.ones(4).square_()
    return times


def recorded(run):
    """The rows of `requests` of a program, after a look at what holds for all."""
    with kinetoscope.profile() as prof:
        run()
    rows = prof.trace.table("requests").to_pylist()
    for row in rows:
        assert sum(row[part] for part in REQUEST_PARTS) == row["duration_ns"]
        assert min(row[part] for part in REQUEST_PARTS) >= 0
    return prof.trace, rows


def squares(trace, name):
    """How many `aten::square_` ran in requests of a name."""
    from kinetoscope.tables.host.requests import request_at

    spans = trace.columns("spans")
    rows = (spans["name"] == trace.strings.index("aten::square_")).nonzero()[0]
    known = trace.table("requests").to_pylist()
    of = request_at(trace, spans["thread"][rows], spans["start_ns"][rows])
    return sum(one >= 0 and known[one]["name"] == name for one in of.tolist())


def test_a_function_and_a_block_are_requests_with_their_arguments():
    @kinetoscope.request("double", kind="sync")
    def double(number):
        work()
        return 2 * number

    def run():
        assert double(4) == 8
        with kinetoscope.request("block", batch=3, device=torch.device("cpu")):
            work(2)

    trace, (first, second) = recorded(run)
    assert (first["name"], first["status"], first["arguments"]) == ("double", "finished", '{"kind": "sync"}')
    assert (second["name"], second["arguments"]) == ("block", '{"batch": 3, "device": "cpu"}')
    assert (squares(trace, "double"), squares(trace, "block")) == (1, 2)
    assert first["compute_ns"] > 0
    assert double.__name__ == "double"


@pytest.mark.parametrize(
    "options",
    [{}, {"record_shapes": True}, {"profile_memory": True}, {"samples": False}, {"engine": "kineto"}],
    ids=str,
)
def test_marks_are_the_same_whoever_opens_them(options):
    @kinetoscope.request("outer")
    def outer():
        work()
        with torch.profiler.record_function("inside"):
            work(2)

    with kinetoscope.profile(**options) as prof:
        outer()
        work()
    (row,) = prof.trace.table("requests").to_pylist()
    assert (row["name"], row["status"], row["stretches"]) == ("outer", "finished", 1)
    assert squares(prof.trace, "outer") == 3
    spans, strings = prof.trace.columns("spans"), prof.trace.strings
    names = [strings[name] for name in spans["name"]]
    mark = names.index("kinetoscope.request #0: outer")
    inside = names.index("inside")
    assert spans["kind"][mark] == spans["kind"][inside]
    assert spans["parent"][inside] == mark
    assert spans["parent"][names.index("kinetoscope.request #0 ended finished")] == -1


def test_coroutines_that_take_turns_are_told_apart():
    turns = []

    @kinetoscope.request("turns")
    async def decorated(number, times):
        for _ in range(3):
            turns.append(number)
            work(times)
            await asyncio.sleep(0)
        return number

    async def main():
        assert await asyncio.gather(decorated(0, 1), decorated(1, 2)) == [0, 1]

    trace, rows = recorded(lambda: asyncio.run(main()))
    assert turns == [0, 1] * 3
    assert squares(trace, "turns") == 9
    assert [row["stretches"] for row in rows] == [4, 4]
    # While one ran, the other waited for it on its thread.
    assert all(row["others_ns"] > 0 for row in rows)


def test_a_block_in_a_coroutine_is_followed_through_its_awaits_and_tasks():
    async def part(times):
        work(times)
        await asyncio.sleep(0)
        work(times)

    async def one(name):
        work(7)  # not part of it
        async with kinetoscope.request(name):
            work()
            await asyncio.gather(part(2), part(3))
            work()
        await asyncio.sleep(0)
        work(7)

    async def main():
        await asyncio.gather(one("a"), one("b"))

    trace, rows = recorded(lambda: asyncio.run(main()))
    assert sorted(row["name"] for row in rows) == ["a", "b"]
    assert (squares(trace, "a"), squares(trace, "b")) == (12, 12)


def test_one_object_may_be_entered_by_several_tasks_at_once():
    shared = kinetoscope.request("shared")

    async def one(first, times):
        async with shared:
            work(times)
            # The task that entered first ends first.
            await (asyncio.sleep(0) if first else asyncio.sleep(0.01))
            work(times)

    async def main():
        await asyncio.gather(one(True, 1), one(False, 3))

    trace, rows = recorded(lambda: asyncio.run(main()))
    assert squares(trace, "shared") == 8
    first, second = rows
    assert first["start_ns"] + first["duration_ns"] < second["start_ns"] + second["duration_ns"]
    assert second["compute_ns"] > 0


def test_work_in_a_pool_belongs_to_the_request_that_handed_it_over():
    busy, free = threading.Event(), threading.Event()

    def first():
        busy.set()
        assert free.wait(60)

    @kinetoscope.request("pool")
    async def pooled(pool):
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, free.set)
        # The only thread of the pool is busy until then.
        assert await loop.run_in_executor(pool, work, 3) == 3
        assert await asyncio.to_thread(work, 2) == 2

    async def main():
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(first)
            assert busy.wait(60)
            await pooled(pool)

    trace, (row,) = recorded(lambda: asyncio.run(main()))
    assert squares(trace, "pool") == 5
    assert row["threads"] == 3
    assert row["executor_ns"] > 5_000_000


def test_generators_are_requests_without_their_consumers():
    closed = []

    @kinetoscope.request("items")
    def items():
        try:
            received = yield work(1)
            assert received == "more"
            yield work(2)
        finally:
            closed.append("items")
        return "done"

    @kinetoscope.request("stream")
    async def stream():
        try:
            for number in range(3):
                work(1)
                await asyncio.sleep(0)
                yield number
        finally:
            closed.append("stream")

    async def consume():
        found = []
        async for one in stream():
            work(10)
            found.append(one)
        return found

    def run():
        generator = items()
        assert next(generator) == 1
        work(10)
        assert generator.send("more") == 2
        with pytest.raises(StopIteration) as stopped:
            next(generator)
        assert stopped.value.value == "done"
        early = items()
        next(early)
        early.close()
        assert asyncio.run(consume()) == [0, 1, 2]

    trace, rows = recorded(run)
    assert [(row["name"], row["status"]) for row in rows] == [
        ("items", "finished"), ("items", "canceled"), ("stream", "finished"),
    ]  # fmt: skip
    assert (squares(trace, "items"), squares(trace, "stream")) == (4, 3)
    assert closed == ["items", "items", "stream"]


def test_errors_and_cancellation_end_requests_and_reach_the_program():
    @kinetoscope.request("fails")
    async def fails():
        await asyncio.sleep(0)
        raise KeyError("mine")

    @kinetoscope.request("endless")
    async def endless():
        await asyncio.Event().wait()

    async def main():
        with pytest.raises(KeyError, match="mine"):
            await fails()
        task = asyncio.create_task(endless())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    _, rows = recorded(lambda: asyncio.run(main()))
    assert [(row["name"], row["status"]) for row in rows] == [("fails", "error"), ("endless", "canceled")]


def test_a_request_in_a_request_is_part_of_it():
    def run():
        with kinetoscope.request("outer"):
            work()
            with kinetoscope.request("inner"):
                work(2)

    trace, rows = recorded(run)
    assert [row["name"] for row in rows] == ["outer"]
    assert squares(trace, "outer") == 3
    assert "inner" in {row["name"] for row in trace.table("ops").to_pylist()}


def test_threads_have_requests_of_their_own():
    barrier = threading.Barrier(4)

    @kinetoscope.request("thread")
    def handle():
        barrier.wait(60)
        work(2)

    def run():
        threads = [threading.Thread(target=handle) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    trace, rows = recorded(run)
    assert len(rows) == 4
    assert len({row["thread"] for row in rows}) == 4
    assert squares(trace, "thread") == 8


def test_a_request_that_began_before_the_recording_is_there_without_its_name():
    with kinetoscope.request("early"):
        _, rows = recorded(lambda: contextvars.copy_context().run(inside))
    assert [row["name"] for row in rows] == ["late"]


def inside():
    module._CURRENT.set(None)
    with kinetoscope.request("late"):
        work()


def test_the_number_of_different_texts_is_limited(monkeypatch):
    monkeypatch.setattr(module, "_TEXTS", module.LimitedTexts("other requests"))
    monkeypatch.setattr(module, "MOST_TEXTS", 3)

    def run():
        for number in range(4):
            with kinetoscope.request("known", id=number):
                work()
        with kinetoscope.request("unknown"):
            work()

    trace, rows = recorded(run)
    assert [row["arguments"] for row in rows] == ['{"id": 0}', '{"id": 1}', '{"id": 2}', "", ""]
    assert rows[-1]["name"] == "other requests"
    # Numbers are used again.
    assert sum(text.startswith("kinetoscope.request #1") for text in trace.strings) == 0


def test_steps_after_too_many_different_names_are_not_called_requests(monkeypatch):
    monkeypatch.setattr(module, "MOST_TEXTS", 1)
    names = module.StepNames()
    with kinetoscope.profile(engine="native") as prof:
        for name in ("prefill", "decode"):
            names.begin(name, {})
            names.end()
    marks = {text for text in prof.trace.strings if text.startswith("kinetoscope.step ")}
    assert marks == {"kinetoscope.step prefill", "kinetoscope.step other steps"}


def test_what_cannot_be_written_does_not_fail_the_request():
    circular = {}
    circular["self"] = circular

    def run():
        with kinetoscope.request("odd", value=circular, rate=float("nan"), long="x" * 10_000):
            work()
        with pytest.raises(kinetoscope.ArgumentTypeError, match="name=5"):
            kinetoscope.request(5)

    _, (row,) = recorded(run)
    assert row["arguments"] == '{"value": null, "rate": null, "long": null}'
