"""Sessions that record at the same time share one recording, and each gets what it would have recorded alone."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kinetoscope
from kinetoscope import ProfilerAction, ProfilerActivity, StateError
from kinetoscope._runtime import StepCount
from kinetoscope.collect.engines import native as native_engine
from kinetoscope.collect.recorder.library import load_recorder
from kinetoscope.collect.recorder.stream import STREAM
from kinetoscope.collect.sources.garbage_collections import GARBAGE_COLLECTIONS
from kinetoscope.model.schema import FLAG_BEGUN_BEFORE, FLAG_UNFINISHED, SpanKind
from tests.support.effort import STRESS, times
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures("native")

CPU = [ProfilerActivity.CPU]
FLAGS = (
    "record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops", "python_calls", "module_spans", "samples"
)  # fmt: skip


def every_step(number: int) -> ProfilerAction:
    """A schedule: record all steps, and mark them."""
    return ProfilerAction.RECORD


STEPS: dict[str, Any] = {"schedule": every_step}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Program:
    """A loop that does the same in each step, whatever records it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.step()
        self.step()

    def step(self) -> None:
        loss = self.model(torch.ones(2, 8)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def session_of(**options: Any) -> kinetoscope.profile:
    return kinetoscope.profile(activities=CPU, engine="native", **options)


@functools.cache
def functions_of_the_program() -> frozenset[str]:
    """The Python functions that a step of it calls, as calls of C functions have no stack."""
    program = Program()
    with session_of(python_calls=True, with_stack=True) as session:
        program.step()
    spans = session.trace.columns("spans")
    functions = (spans["kind"] == SpanKind.PYTHON) & (spans["stack"] >= 0)
    return frozenset(session.trace.strings[name] for name in set(spans["name"][functions].tolist()))


def comparable_spans(trace: kinetoscope.Trace) -> list[dict[str, Any]]:
    """The spans of a trace with what must be the same in every run.

    Calls are those of the program and those around it, without what starting and stopping sessions calls; and C functions are
    there only if they took long enough, or if something ran in them. What other threads of the test's runner call is left out.
    """
    table = trace.table("spans")
    # Each text of a stack once: they are long.
    stacks = table.column("stack").combine_chunks()
    texts = [*stacks.dictionary.to_pylist(), None]
    rows = table.drop_columns(["stack"]).to_pylist()
    for row, flags, stack in zip(rows, trace.column("spans", "flags"), stacks.indices, strict=True):
        row["flags"], row["stack"] = int(flags), texts[-1 if not stack.is_valid else stack.as_py()]
    found, around, thread = [], [], None
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        if row["thread"] != thread:
            around, thread = [], row["thread"]
        del around[row["depth"] :]
        around.append(row["name"])
        is_leaf = following is None or following["thread"] != thread or following["depth"] <= row["depth"]
        if row["kind"] in ("python", "module"):
            if row["os_tid"] != threading.get_native_id():
                continue
            of_program = row["flags"] & FLAG_BEGUN_BEFORE or "Program.step" in around
            if not of_program or (is_leaf and row["name"] not in functions_of_the_program()):
                continue
        found.append(row)
    return found


def told(trace: kinetoscope.Trace) -> dict[str, Any]:
    """What a trace says of its program, apart from times and numbers of rows."""
    spans = comparable_spans(trace)
    return {
        "spans": [
            (
                span["name"],
                span["kind"],
                span["depth"],
                span["module"],
                span["shapes"],
                span["stack"],
                span["bytes"],
                span["flops"],
                span["sequence"] is not None,
                span["thread_name"],
                span["flags"],
            )
            for span in spans
        ],
        # In the order in which the recording met them.
        "modules": sorted(
            (row["path"], row["class"], row["calls"], row["operators"])
            for row in trace.table("modules").to_pylist()
        ),
        "memory": sorted(
            (row["bytes"], row["category"], row["operator"] or "", row["blocks"])
            for row in trace.table("memory").to_pylist()
        ),
        "allocations": [
            (row["bytes"], row["operator"], row["match"] is not None)
            for row in trace.table("allocations").to_pylist()
        ],
        "losses": [row["code"] for row in trace.table("losses").to_pylist()],
        "flags": {name: trace.info.get(name) for name in FLAGS},
        "steps": [row["number"] for row in trace.table("steps").to_pylist()],
        "complete": trace.complete,
        "threads": len({span["thread"] for span in spans}),
    }


def first_difference(one: dict[str, Any], other: dict[str, Any]) -> Any:
    """Where two such accounts differ; None if they do not. They are too long for pytest to compare."""
    assert one.keys() == other.keys()
    for key, value in one.items():
        if value == other[key]:
            continue
        if not isinstance(value, list):
            return key, value, other[key]
        pairs = itertools.zip_longest(value, other[key])
        return key, next((at, *pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
    return None


def plans(seed: int) -> tuple[list[dict[str, bool]], list[tuple[str, int]]]:
    """Options of some sessions, and when each of them begins, pauses and ends among the steps of a program."""
    chance = random.Random(seed)
    sessions = [
        {flag: chance.random() < 0.5 for flag in (*FLAGS[:-1], "garbage_collection")} | {"samples": False}
        for _ in range(chance.randint(2, 5))
    ]
    plan: list[tuple[float, str, int]] = [(at + 0.5, "step", -1) for at in range(8)]
    for number in range(len(sessions)):
        begin, end = sorted(chance.sample(range(9), 2))
        plan += [(begin + number / 100, "start", number), (end + number / 100, "stop", number)]
        if chance.random() < 0.3 and end - begin > 3:
            plan += [
                (begin + 1 + number / 100, "pause", number),
                (begin + 2 + number / 100, "resume", number),
            ]
    return sessions, [(what, number) for _, what, number in sorted(plan)]


def carried_out(
    options: list[dict[str, bool]], plan: list[tuple[str, int]], only: int | None = None
) -> dict[int, kinetoscope.Trace]:
    """The traces of all sessions of a plan, or of one of them."""
    program = Program()
    sessions = {
        number: session_of(**one, **(STEPS if number % 3 else {}))
        for number, one in enumerate(options)
        if only is None or number == only
    }
    running: list[int] = []
    # Only the collections that the plan asks for.
    gc.collect()
    gc.disable()
    try:
        for what, number in plan:
            if what == "step":
                program.step()
                # Of the youngest objects only, which takes no time.
                gc.collect(0)
                for marking in running:
                    # Each marks its own steps, and some of them none.
                    if sessions[marking].schedule is STEPS["schedule"]:
                        sessions[marking].step()
            elif number in sessions:
                session = sessions[number]
                if what == "start":
                    session.start()
                    running.append(number)
                elif what == "stop":
                    running.remove(number)
                    session.stop()
                else:
                    session.toggle_collection_dynamic(what == "resume", CPU)
    finally:
        gc.enable()
    return {number: session.trace for number, session in sessions.items()}


@pytest.mark.parametrize("seed", range(40 if STRESS else 8))
def test_each_of_several_sessions_has_what_it_would_have_alone(seed: int) -> None:
    options, plan = plans(seed)
    functions_of_the_program()
    # Called from one line, so that the stacks are the same.
    together, *alone = (carried_out(options, plan, only) for only in (None, *range(len(options))))
    assert STREAM._subscriptions == []
    for number, trace in together.items():
        assert first_difference(told(trace), told(alone[number][number])) is None, (plan, number, options)


def names(trace: kinetoscope.Trace) -> list[str]:
    """The operators of a trace that the tests call, in order."""
    called = (span["name"].removeprefix("aten::") for span in trace.table("spans").to_pylist())
    return [name for name in called if name in ("add", "exp", "mul", "sub")]


def test_sessions_overlap_in_any_order_and_files_of_users_are_their_own(tmp_path: Any) -> None:
    first, second = (session_of(path=tmp_path / f"{name}.recording") for name in ("first", "second"))
    first.start()
    torch.ones(2).add(1)
    second.start()
    torch.ones(2).mul(1)
    first.stop()
    torch.ones(2).sub(1)
    assert names(kinetoscope.open(tmp_path / "first.recording")) == ["add", "mul"]
    second.stop()
    assert names(first.trace) == names(kinetoscope.open(tmp_path / "first.recording"))
    for session, name in ((first, "first"), (second, "second")):
        opened = kinetoscope.open(tmp_path / f"{name}.recording")
        assert told(opened) == told(session.trace)
        assert opened.complete
        assert opened.info["trace_id"] == session.trace.info["trace_id"]
    assert names(second.trace) == ["mul", "sub"]
    assert first.trace.info["trace_id"] != second.trace.info["trace_id"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.recording", "second.recording"]


def test_an_inner_session_can_be_read_while_the_outer_one_goes_on() -> None:
    with session_of() as outer:
        for number in range(3):
            with session_of(record_shapes=True) as inner:
                torch.ones(number + 1).exp()
            (row,) = (row for row in inner.trace.table("spans").to_pylist() if row["name"] == "aten::exp")
            assert row["shapes"] == f"[[{number + 1}]]"
    assert names(outer.trace).count("exp") == 3
    assert set(outer.trace.table("spans").column("shapes").to_pylist()) == {None}


@pytest.mark.parametrize(("inner", "is_as_it_was"), [({}, True), ({"record_shapes": True}, False)])
def test_a_part_is_cut_only_if_other_sessions_recorded_more(
    tmp_path: Any, inner: dict[str, bool], is_as_it_was: bool
) -> None:
    path = tmp_path / "outer.recording"
    with session_of(path=path) as outer:
        before = path.stat().st_ino
        with session_of(**inner) as session:
            torch.ones(2).exp()
        torch.ones(2).add(1)
    assert (path.stat().st_ino == before) is is_as_it_was
    assert names(outer.trace) == names(kinetoscope.open(path)) == ["exp", "add"]
    assert set(outer.trace.table("spans").column("shapes").to_pylist()) == {None}
    assert names(session.trace) == ["exp"]


def test_a_ring_that_continues_does_not_overwrite_an_ended_session() -> None:
    with session_of(ring_bytes=1 << 16) as outer:
        with session_of() as inner:
            torch.ones(2).exp()
        for _ in range(3000):
            torch.ones(2)
    assert "exp" in names(inner.trace)
    assert inner.trace.complete
    assert "exp" not in names(outer.trace)
    # What other tests of this process compiled are rows, of which so small a ring may not keep all.
    assert [row["code"] for row in outer.trace.losses if row["code"] != "recycled_rows"] == ["recycled_spans"]


@pytest.mark.parametrize(
    "options", [{"profile_memory": True}, {"profile_memory": True, "python_calls": True}]
)
def test_sessions_that_always_overlap_need_bounded_space(
    options: dict[str, bool],
) -> None:
    x = torch.ones(2)
    sizes = []

    def work() -> None:
        for _ in range(3_000):
            x + 1

    def recording_bytes() -> int:
        path = load_recorder().recording_path()
        assert path is not None
        return path.stat().st_size

    before = session_of(**options)
    before.start()
    for _ in range(times(18, 30)):
        after = session_of(**options)
        after.start()
        work()
        before.stop()
        # Read in the middle of the one that follows, which has freed what was before.
        names = before.trace.column("spans", "name")
        added = int((names == before.trace.strings.index("aten::add")).sum())
        assert added == (3_000 if not sizes else 9_000)
        assert before.trace.losses == []
        sizes.append(recording_bytes())
        work()
        before = after
    before.stop()
    # Each is in use for the time of three calls of work(); what the last ones need lies where the first ones were. The file grows
    # by its own size, and other threads of this process may need a little more at any time; without reuse, it would be six times as long.
    assert max(sizes[10:]) <= 3 * max(sizes[:4])


def test_each_thread_can_have_a_session_of_its_own() -> None:
    sessions: dict[int, kinetoscope.profile] = {}
    begun = threading.Barrier(4)

    def work(number: int) -> None:
        with session_of(record_shapes=number % 2 == 0) as session:
            begun.wait()
            for _ in range(20):
                torch.ones(number + 1).exp()
            begun.wait()
        sessions[number] = session

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions.values():
        # All threads are in each of them.
        assert names(session.trace).count("exp") == 4 * 20
        assert session.trace.complete


def leaf() -> int:
    return 1


def calls_of(trace: kinetoscope.Trace, *wanted: str) -> list[tuple[str, int]]:
    """The calls of some functions of a trace in order, by the end of their names, each with its flags."""
    rows = zip(trace.table("spans").to_pylist(), trace.column("spans", "flags").tolist(), strict=True)
    called = [(row["name"].rpartition(".")[2], flags) for row, flags in rows if row["kind"] == "python"]
    return [(name, flags) for name, flags in called if name in wanted]


def hooked_threads() -> int:
    return load_recorder().hooked_threads()


def test_calls_are_switched_on_and_off_in_a_running_recording() -> None:
    inner = session_of(python_calls=True, with_stack=True)

    def around() -> None:
        within()
        leaf()

    def within() -> None:
        leaf()
        inner.start()
        assert hooked_threads() > 0
        leaf()

    with session_of() as outer:
        assert hooked_threads() == 0
        around()

        def still_runs() -> None:
            leaf()
            inner.stop()

        still_runs()
        assert hooked_threads() == 0
        leaf()
    begun, cut = FLAG_BEGUN_BEFORE, FLAG_UNFINISHED
    found = calls_of(inner.trace, "around", "within", "leaf", "still_runs")
    assert found == [
        ("around", begun),
        ("within", begun),
        ("leaf", 0),
        ("leaf", 0),
        ("still_runs", cut),
        ("leaf", 0),
    ]
    me = calls_of(inner.trace, "test_calls_are_switched_on_and_off_in_a_running_recording")
    assert me == [("test_calls_are_switched_on_and_off_in_a_running_recording", begun | cut)]
    assert inner.trace.losses == []
    assert calls_of(outer.trace, "leaf") == []


def test_python_calls_and_module_calls_nest_whichever_is_switched_on_later() -> None:
    """Module calls that are switched on late lie around the Python calls that have been recorded longer, and the other way round."""
    kinds: dict[str, dict[str, Any]] = {
        "module": {"module_spans": True},
        "python": {"python_calls": True},
        "both": {"python_calls": True, "module_spans": True},
    }

    class Outer(nn.Module):
        def forward(self, run: Any) -> Any:
            return run()

    def nested(names: list[str]) -> dict[str, kinetoscope.Trace]:
        sessions = {name: session_of(**kinds[name]) for name in names}

        def innermost() -> None:
            for session in sessions.values():
                session.start()
            leaf()

        def middle() -> None:
            Outer()(innermost)

        Outer()(middle)
        for session in sessions.values():
            session.stop()
        return {name: session.trace for name, session in sessions.items()}

    def shown(trace: kinetoscope.Trace) -> list[tuple[str, str, int]]:
        rows = trace.table("spans").to_pylist()
        names = {"Outer", "Outer.forward", "Module._wrapped_call_impl", "middle", "innermost", "leaf"}
        return [
            (row["kind"], row["name"].rpartition("<locals>.")[2], row["depth"])
            for row in rows
            if row["name"].rpartition("<locals>.")[2] in names
        ]

    alone, *orders = (
        nested(names)
        for names in (
            ["module"],
            ["python"],
            ["both"],
            ["module", "python", "both"],
            ["python", "module", "both"],
            ["both", "python"],
        )
    )
    expected = {"module": shown(alone["module"])} | {
        name: shown(one[name]) for one, name in zip(orders, ("python", "both"), strict=False)
    }
    assert [name for _, name, _ in expected["both"]][:4] == [
        "Outer",
        "Module._wrapped_call_impl",
        "Outer.forward",
        "middle",
    ]
    for together in orders[2:]:
        for name, trace in together.items():
            assert shown(trace) == expected[name], (list(together), name)


@pytest.mark.parametrize("beside", [None, {}, {"python_calls": True}])
def test_a_pause_takes_the_hooks_of_calls_back(beside: dict[str, bool] | None) -> None:
    """Calls are cut where a session pauses, and what runs when it goes on begins anew, whatever other sessions record."""
    session = session_of(python_calls=True)

    def paused() -> None:
        session.toggle_collection_dynamic(False, CPU)
        assert (hooked_threads() > 0) is bool(beside)
        hook = threading.getprofile()
        assert (hook is None) or beside
        leaf()

    def program() -> None:
        leaf()
        paused()
        leaf()
        session.toggle_collection_dynamic(True, CPU)
        assert hooked_threads() > 0
        leaf()

    with contextlib.ExitStack() as others:
        if beside is not None:
            others.enter_context(session_of(**beside))
        session.start()
        program()
        session.stop()
    begun, cut = FLAG_BEGUN_BEFORE, FLAG_UNFINISHED
    found = calls_of(session.trace, "program", "paused", "leaf")
    assert found == [("program", cut), ("leaf", 0), ("paused", cut), ("program", begun), ("leaf", 0)]
    assert hooked_threads() == 0


def test_calls_of_a_schedule_are_hooked_while_a_cycle_records_and_else_not() -> None:
    seen = []
    schedule = kinetoscope.schedule(wait=1, warmup=1, active=1, repeat=2)
    with session_of(python_calls=True, schedule=schedule, acc_events=True) as session:
        for _ in range(7):
            seen.append(hooked_threads() > 0)
            leaf()
            session.step()
    assert seen == [False, False, True, False, False, True, False]


def test_the_self_test_of_calls_joins_a_running_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_engine, "_calls_work", False)
    with session_of() as outer:
        with session_of(module_spans=True) as inner:
            Net()(torch.ones(2, 8))
        assert native_engine._calls_work
    assert {"Net", "Linear"} == {
        row["name"] for row in inner.trace.table("spans").to_pylist() if row["kind"] == "module"
    }
    assert "Called" not in {row["name"] for row in outer.trace.table("spans").to_pylist()}


def test_calls_that_are_recorded_besides_change_nothing_in_what_is_known_of_stacks() -> None:
    def program() -> None:
        model = Net()
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()

    def recorded(**beside: bool) -> list[tuple[str, int]]:
        with contextlib.ExitStack() as others:
            if beside:
                others.enter_context(session_of(**beside))
            with session_of(with_stack=True) as session:
                program()
        trace = session.trace
        return [
            (name, int(kept))
            for name, kept in zip(trace.column("spans", "name"), trace.column("spans", "kept"), strict=True)
            for name in [trace.strings[name]]
        ]

    # Called from one line.
    alone, *others = (recorded(**beside) for beside in ({}, {"python_calls": True}, {"module_spans": True}))
    assert others == [alone, alone]


def test_calls_are_switched_on_and_off_beside_threads_that_call_and_end() -> None:
    going = threading.Event()
    going.set()

    def work() -> None:
        x = torch.ones(2)
        while going.is_set():
            leaf()
            Net()(torch.ones(2, 8))
            x.add(1)

    def ends() -> None:
        leaf()
        torch.ones(2).add(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    with session_of() as outer:
        for thread in threads:
            thread.start()
        try:
            inner = []
            for number in range(times(6, 60)):
                with session_of(python_calls=number % 3 != 1, module_spans=number % 3 != 0) as session:
                    short = threading.Thread(target=ends)
                    short.start()
                    with session_of(python_calls=True) as within:
                        leaf()
                    short.join()
                inner += [session, within]
        finally:
            going.clear()
            for thread in threads:
                thread.join()
    assert calls_of(outer.trace, "leaf", "work") == []
    for session in inner:
        spans = session.trace.columns("spans")
        # Operators of other threads may not have ended when it did.
        assert {loss["code"] for loss in session.trace.losses} <= {"unfinished_spans"}
        calls = np.isin(spans["kind"], (SpanKind.PYTHON, SpanKind.MODULE))
        end_ns = spans["start_ns"] + spans["duration_ns"]
        assert (spans["lane"][calls] == 0).all(), "calls nest"
        assert (end_ns[calls] <= session.trace.duration_ns).all()
    assert hooked_threads() == 0


def test_metadata_of_sessions_that_were_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    told_numbers: list[int] = []
    recorder = load_recorder()
    monkeypatch.setattr(recorder, "forget_sessions_before", told_numbers.append)
    sessions = [session_of() for _ in range(4)]
    sessions[0].start()
    sessions[1].start()
    sessions[0].stop()
    sessions[2].start()
    sessions[1].stop()
    assert told_numbers == [0, 0], "the first one may still be read"
    del sessions[0]
    sessions[2].start()
    sessions[0].trace
    sessions[1].stop()
    assert told_numbers[-1] > 1
    sessions[2].stop()


def test_steps_are_of_the_session_that_marked_them_and_the_program_s_own_of_all(tmp_path: Any) -> None:
    with session_of(path=tmp_path / "outer.recording", **STEPS) as outer, session_of(**STEPS) as inner:
        outer.step()
        inner.step()
        inner.step()
        with torch.profiler.record_function("ProfilerStep#70"):
            torch.ones(2).exp()
        # As if the process were killed here.
        live = kinetoscope.Trace.from_recording(tmp_path / "outer.recording")
    for trace, numbers in ((outer.trace, {0, 1, 70}), (live, {0, 1, 70}), (inner.trace, {0, 1, 2, 70})):
        assert {row["number"] for row in trace.table("steps").to_pylist()} == numbers
        assert "unmatched_notes" not in [loss["code"] for loss in trace.losses]


@pytest.mark.parametrize("asking", [(True, True), (True, False), (False, True), (False, False)])
def test_garbage_collections_are_marked_once_and_only_for_sessions_that_asked(
    asking: tuple[bool, bool],
) -> None:
    gc.collect()
    gc.disable()
    try:
        with (
            session_of(garbage_collection=asking[0]) as outer,
            session_of(garbage_collection=asking[1]) as inner,
        ):
            gc.collect()
    finally:
        gc.enable()
    for session, asked in zip((outer, inner), asking, strict=True):
        found = [row for row in session.trace.table("spans").to_pylist() if row["name"] == "Python GC"]
        assert len(found) == asked
    assert not any(getattr(one, "__self__", None) is GARBAGE_COLLECTIONS for one in gc.callbacks)


def test_metadata_belongs_to_the_session_that_was_given_it() -> None:
    with session_of() as outer, session_of() as inner:
        outer.add_metadata("whose", "outer")
        inner.add_metadata_json("also", "[1]")
        torch.ones(2)
    assert outer.trace.info["whose"] == "outer"
    assert inner.trace.info["also"] == [1]
    assert "also" not in outer.trace.info
    assert "whose" not in inner.trace.info
    assert not any(key.startswith("kinetoscope.session") for key in outer.trace.info)


def test_modules_that_only_the_other_session_called_are_not_listed() -> None:
    before, inside = Net(), nn.Sequential(nn.Tanh())
    with session_of() as outer:
        before(torch.ones(2, 8))
        with session_of() as inner:
            inside(torch.ones(2, 8))
    assert {row["class"] for row in inner.trace.table("modules").to_pylist()} == {"Sequential", "Tanh"}
    assert {row["class"] for row in outer.trace.table("modules").to_pylist()} >= {"Net", "Tanh"}


def test_a_session_that_was_dropped_makes_room_for_the_next_one() -> None:
    with session_of() as outer:
        session_of().start()
        with session_of() as inner:
            torch.ones(2).exp()
    assert "exp" in names(inner.trace)
    assert "exp" in names(outer.trace)
    assert STREAM._subscriptions == []


def test_sessions_that_stop_at_the_same_time_end_the_recording_once() -> None:
    first, second = session_of(), session_of()
    first.start()
    second.start()
    engines = [session._engine for session in (first, second)]
    parts = [engine._subscription for engine in engines]
    # Both are stopped before either is closed, as two threads may do.
    for part in parts:
        STREAM.stop(part)
    with pytest.raises(StateError, match="just being stopped"):
        session_of().start()
    for part in parts:
        STREAM.close(part)
    with session_of() as later:
        torch.ones(2).exp()
    assert names(later.trace) == ["exp"]
    for engine in engines:
        engine._subscription = None
    for session in (first, second):
        with pytest.raises(StateError):
            session.stop()


def linears(session: kinetoscope.profile) -> int:
    return session.trace.table("spans")["name"].to_pylist().count("aten::linear")


def switched_by_steps(session: kinetoscope.profile) -> StepCount:
    """What switches the recording of a session that has begun, as a flight recorder does between two steps."""
    count = StepCount(lambda number, loss: None)
    count.set_switch(session._engine.switch_steps())
    return count


def test_a_session_that_is_switched_between_steps_gets_what_it_had_switched_on():
    program, first, second = Program(), session_of(), session_of()
    first.start()
    count = switched_by_steps(first)
    program.step()
    assert count.switch_off()
    program.step()
    second.start()
    # With two sessions, the recorder cannot be switched for one of them.
    assert not count.switch_on(1)
    program.step()
    first.toggle_collection_dynamic(True, CPU)
    count.attached = True
    program.step()
    assert not count.switch_off()
    second.stop()
    assert count.switch_off()
    program.step()
    assert count.switch_on(2)
    program.step()
    count.end_mark()
    first.stop()
    assert not count.switch_off()
    assert (linears(first), linears(second)) == (6, 4)
    assert first.trace.table("steps")["number"].to_pylist() == [2]


def test_a_session_that_is_switched_between_steps_can_be_paused_as_others():
    program, session = Program(), session_of()
    session.start()
    count = switched_by_steps(session)
    assert count.switch_off()
    program.step()
    session.toggle_collection_dynamic(True, CPU)
    program.step()
    session.toggle_collection_dynamic(False, CPU)
    program.step()
    assert count.switch_on(5)
    program.step()
    session.toggle_collection_dynamic(True, CPU)
    session.stop()
    count.end_mark()
    assert linears(session) == 4
    assert len(session.trace.info["pauses"]) == 2


def test_only_the_first_session_of_a_recording_is_switched_between_steps():
    first, second = session_of(), session_of()
    first.start()
    second.start()
    assert second._engine.switch_steps() is None
    second.stop()
    first.stop()
    assert first._engine.switch_steps() is None
