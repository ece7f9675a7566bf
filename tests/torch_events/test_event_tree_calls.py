"""Calls of Python functions and modules in `events()` and `key_averages()`, against torch.profiler's with stacks."""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="the comparison is with torch's own profiler")

import torch
from torch import nn
from torch.profiler import record_function

import kinetoscope
from kinetoscope import ProfilerActivity
from kinetoscope.torch_events.event_tree import lists_python_functions
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = [ProfilerActivity.CPU]


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def nothing_of_torch(depth: int) -> int:
    return depth and nothing_of_torch(depth - 1)


def mixed(x: torch.Tensor) -> torch.Tensor:
    nothing_of_torch(3)
    return scaled(x) + x


def descending(x: torch.Tensor, depth: int) -> torch.Tensor:
    return scaled(x) if depth == 0 else descending(x, depth - 1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mixed(self.second(torch.relu(self.first(x))))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(context: Any, *given: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        return scaled(given[0]) * x * x


def functions() -> None:
    x = torch.ones(2, 4)
    for _ in range(3):
        mixed(x)
    descending(x, 3)


def training() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        trained(net, optimizer)


def trained(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def backward_in_python() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    for _ in range(2):
        Cube.apply(scaled(x)).sum().backward()


def ranges() -> None:
    x = torch.ones(2, 4)
    for number in range(2):
        with record_function(f"range {number}"):
            mixed(x)
            with record_function("inner"):
                scaled(x)


# Made once: where torch's compiler is imported, making modules runs other Python each time.
NET = nn.Sequential(Block(), Block())
PARAMETERS = [*NET.parameters()]


def modules() -> None:
    for parameter in PARAMETERS:
        parameter.grad = None
    for _ in range(2):
        NET(torch.ones(2, 4)).sum().backward()


# Setting a seed and making an optimizer runs other Python each time: traces of stacks, caches.
RECORDED = (functions, modules, backward_in_python, ranges)
PROGRAMS = (functions, training, backward_in_python, ranges)
FLAGS = [
    {"record_shapes": shapes, "profile_memory": memory}
    for shapes, memory in itertools.product((False, True), repeat=2)
]


def recorded(kind: type[Any], program: Callable[[], None], **flags: Any) -> Any:
    with kind(activities=CPU, **flags) as session:
        program()
    return session


def is_overfull(event: Any | None) -> bool:
    """Whether it lies in an event that has less time than the events in it, as ranges overlap the calls that begin and end them.

    torch's self time of that one is negative.
    """
    if event is None:
        return False
    taken = sum(child.cpu_time_total for child in event.cpu_children)
    return taken > event.cpu_time_total + 1e-3 or is_overfull(event.cpu_parent)


def tree(event: Any, kept: Callable[[Any], bool]) -> list[tuple[Any, ...]]:
    """An event with its bytes, if it is an operator, and what is in it; of what is not kept, what is in it alone."""
    inside = [node for child in event.cpu_children for node in tree(child, kept)]
    if not kept(event):
        return inside
    assert all(child.cpu_parent == event for child in event.cpu_children)
    if not is_overfull(event):
        taken = sum(child.cpu_time_total for child in event.cpu_children)
        assert event.self_cpu_time_total == pytest.approx(event.cpu_time_total - taken, abs=1e-3)
    size = None if event.is_python_function else event.cpu_memory_usage
    return [(event.name, event.is_python_function, str(event.input_shapes or []), size, inside)]


def called(session: Any, program: Callable[[], None]) -> Any:
    """The event of the call of the program."""
    (found,) = (event for event in session.events() if event.name.endswith(f"): {program.__name__}"))
    return found


def runs_operators(event: Any) -> bool:
    return not event.is_python_function or any(runs_operators(child) for child in event.cpu_children)


def in_python(event: Any) -> bool:
    """Whether it is no call of a function written in C, which are called otherwise here or are not seen."""
    return not event.is_python_function or "): " in event.name or event.name.startswith("nn.Module: ")


def rebuilt(event: Any) -> bool:
    """What is rebuilt from the stacks of operators of what torch has."""
    return in_python(event) and runs_operators(event) and not event.name.endswith(": _call_impl")


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_calls_that_run_operators_are_torchs(program, flags):
    program()
    theirs = recorded(torch.profiler.profile, program, with_stack=True, **flags)
    ours = recorded(kinetoscope.profile, program, with_stack=True, engine="native", **flags)
    assert all(event.self_cpu_time_total >= 0 for event in ours.events())
    its, mine = called(theirs, program), called(ours, program)
    assert tree(mine, lambda _: True) == tree(its, rebuilt)
    # Nobody counted them.
    calls = {event.key for event in ours.events() if event.is_python_function}
    for averages in (ours.key_averages, ours.events().key_averages, ours.events()[:].key_averages):
        assert not calls & {event.key for event in averages(include_python_functions=True)}


@pytest.mark.parametrize("flags", FLAGS[::3], ids=str)
@pytest.mark.parametrize("program", RECORDED)
def test_recorded_calls_are_torchs(program, flags):
    program()
    theirs = recorded(torch.profiler.profile, program, with_stack=True, **flags)
    ours = recorded(
        kinetoscope.profile, program, with_stack=True, python_calls=True, engine="native", **flags
    )
    assert all(event.self_cpu_time_total >= 0 for event in ours.events())
    its, mine = called(theirs, program), called(ours, program)
    assert tree(mine, in_python) == tree(its, in_python)
    of_ours = [event for event in ours.events() if event.is_python_function]
    assert [event.python_id for event in of_ours] == sorted({event.python_id for event in of_ours})
    for event in of_ours:
        around = event.cpu_parent
        while around is not None and not around.is_python_function:
            around = around.cpu_parent
        assert event.python_parent_id == (-1 if around is None else around.python_id)
        assert (event.python_module_id >= 0) == event.name.startswith("nn.Module: ")


@pytest.mark.parametrize("program", PROGRAMS)
def test_operators_have_the_same_numbers_in_every_other_table(program):
    program()
    plain = recorded(kinetoscope.profile, program, engine="native", profile_memory=True)
    full = recorded(kinetoscope.profile, program, with_stack=True, engine="native", profile_memory=True)
    full.events().total_average()
    tables = [
        sorted(
            (row["name"], row["count"], row["self_bytes"]) for row in session.trace.table("ops").to_pylist()
        )
        for session in (plain, full)
    ]
    assert tables[0] == tables[1]
    counts = [
        sorted(
            (event.key, event.count)
            for event in session.key_averages(include_python_functions=False)
            # What is allocated in a call is outside of all events only where calls are none.
            if event.key != "[memory]"
        )
        for session in (plain, full)
    ]
    assert counts[0] == counts[1]
    spans = full.trace.table("spans").to_pylist()
    for event in full.events():
        if not event.is_python_function and event.name != "[memory]":
            assert spans[event.id]["name"] == event.trace_name
    ids = [event.id for event in full.events()]
    assert len(set(ids)) == len(ids)


@pytest.fixture(scope="module")
def trained_session() -> Any:
    training()
    return recorded(kinetoscope.profile, training, with_stack=True, engine="native")


@pytest.fixture(scope="module")
def counted_session() -> Any:
    """Like `trained_session`, with recorded calls."""
    training()
    return recorded(kinetoscope.profile, training, with_stack=True, python_calls=True, engine="native")


def test_sums_have_calls_as_the_installed_torch_has_them(counted_session):
    theirs = recorded(torch.profiler.profile, training, with_stack=True)
    shown = any("Block.forward" in event.key or ": forward" in event.key for event in theirs.key_averages())
    averages = counted_session.key_averages()
    assert any(": forward" in event.key for event in averages) == shown
    assert lists_python_functions(counted_session.trace) == shown
    assert ("nn.Module: Linear_0" in averages.table(row_limit=-1)) == shown


@pytest.mark.parametrize(
    ("version", "listed"),
    [
        ("2.9.1", True),
        ("2.13.0+cpu", True),
        ("2.14.0", False),
        ("3.0.0a0", False),
        ("", False),
        (None, False),
    ],
)
def test_releases_of_torch_from_2_14_on_leave_calls_out_of_sums(version, listed):
    builder = TraceBuilder().know("with_stack", 1).know("torch_version", version)
    builder.span("run.py(1): main", 0, 100).span("aten::add", 10, 20)
    trace = builder.build()
    kinds = trace.column("spans", "kind").copy()
    kinds[0] = 4
    tables = {
        "spans": {name: trace.column("spans", name) for name in trace.columns("spans").given}
        | {"kind": kinds}
    }
    tables["threads"] = {"os_tid": [1], "torch_tid": [1]}
    known = Trace.from_columns(tables, strings=trace.strings, info=trace.info)
    assert [event.name for event in known.events()] == ["run.py(1): main", "aten::add"]
    assert [event.key for event in known.key_averages()] == ["run.py(1): main"] * listed + ["aten::add"]
    assert [event.key for event in known.events().key_averages()] == [
        event.key for event in known.key_averages()
    ]
    chosen = kinetoscope.EventList(known.events()) if hasattr(kinetoscope, "EventList") else known.events()[:]
    assert [event.key for event in chosen.key_averages()] == [event.key for event in known.key_averages()]
    for asked in (True, False):
        wanted = ["run.py(1): main"] * asked + ["aten::add"]
        assert [event.key for event in known.key_averages(include_python_functions=asked)] == wanted
        assert [event.key for event in chosen.key_averages(include_python_functions=asked)] == wanted
    # The time of what is left out is nobody else's.
    assert known.key_averages(include_python_functions=False).self_cpu_time_total == pytest.approx(0.02)


def test_totals_and_tables_count_calls_once(trained_session):
    events = trained_session.events()
    outermost = [event for event in events if event.cpu_parent is None]
    # Nobody measured how long the calls took: they only follow from the stacks of operators.
    calls = [event for event in events if event.is_python_function]
    assert calls
    assert {(event.cpu_time_total, event.self_cpu_time_total) for event in calls} == {(0.0, 0.0)}
    operators = [event for event in events if not event.is_python_function and is_in_calls_only(event)]
    # Operators that lists leave out are in no operator here, and so their time is in no event.
    assert 0 < events.self_cpu_time_total <= sum(event.cpu_time_total for event in operators) + 0.001
    total = events.total_average()
    assert total.count == len(events)
    assert total.self_cpu_time_total == pytest.approx(events.self_cpu_time_total)
    averages = events.key_averages(include_python_functions=True)
    assert averages.self_cpu_time_total == pytest.approx(events.self_cpu_time_total)
    assert sum(event.count for event in averages) == len(events) - len(calls)
    top = events.table(top_level_events_only=True, row_limit=-1)
    assert "aten::linear" not in top
    assert all(event.name[:40] in top for event in outermost)


def is_in_calls_only(event):
    while (event := event.cpu_parent) is not None:
        if not event.is_python_function:
            return False
    return True


def test_calls_are_kept_apart_by_what_called_them(counted_session):
    by_caller = counted_session.key_averages(group_by_stack_n=1, include_python_functions=True)
    ours = [event for event in by_caller if event.key.endswith(": trained")]
    assert [(event.count, [entry.rpartition(": ")[2] for entry in event.stack]) for event in ours] == [
        (2, ["training"])
    ]
    linear = [event for event in by_caller if event.key == "nn.Module: Linear_0"]
    assert [(event.count, event.stack[0].rpartition(": ")[2]) for event in linear] == [(2, "forward")]
    plain = counted_session.key_averages(include_python_functions=True)
    assert len(by_caller) > len(plain)
    assert sum(event.count for event in by_caller) == sum(event.count for event in plain)


def test_events_with_calls_can_be_pickled_and_exported(trained_session, tmp_path):
    events = trained_session.events()
    again = pickle.loads(pickle.dumps(events))
    assert [event.name for event in again] == [event.name for event in events]
    assert [event.id for event in again] == [event.id for event in events]
    events.export_chrome_trace(tmp_path / "events.json")
    trained_session.export_chrome_trace(tmp_path / "session.json")
    pair = [kinetoscope.open(tmp_path / name).columns("spans") for name in ("events.json", "session.json")]
    assert len(pair[0]) == len(pair[1])


def test_stacks_have_the_time_of_operators_only(trained_session, tmp_path):
    trained_session.export_stacks(str(tmp_path / "stacks.txt"))
    lines = (tmp_path / "stacks.txt").read_text().splitlines()
    written = sum(int(line.rpartition(" ")[2]) for line in lines)
    of_operators = sum(
        event.self_cpu_time_total for event in trained_session.events() if not event.is_python_function
    )
    assert of_operators - len(lines) <= written <= of_operators + 1


def test_without_stacks_there_are_no_calls():
    session = recorded(kinetoscope.profile, functions, engine="native", python_calls=True)
    assert not any(event.is_python_function for event in session.events())
    assert (session.trace.column("spans", "kind") == 4).any()


def test_device_work_belongs_to_the_operator_around_a_call():
    trace = Trace.from_columns(
        {
            "spans": {
                "thread": [0, 0, 0, 1], "start_ns": [0, 10, 20, 5_000], "duration_ns": [100, 50, 10, 9_000],
                "name": [1, 2, 3, 4], "kind": [0, 4, 9, 6], "stream": [-1, -1, -1, 0],
            },
            "threads": {"os_tid": [5, 0], "torch_tid": [1, 0]},
            "streams": {"device_type": [1], "device_index": [0], "number": [7]},
            "launches": {"host": [2], "device": [3]},
        },
        strings=["", "triton_op", "launch.py(3): run", "cudaLaunchKernel", "triton_kernel"],
        info={"with_stack": 1, "torch_version": "2.13.0"},
    )  # fmt: skip
    operator, call, launch, kernel = trace.events()
    assert (operator.self_device_time_total, operator.device_time_total) == (9, 9)
    assert (operator.kernels, call.kernels) == ([("triton_kernel", 0, 9)], [])
    assert (call.self_device_time_total, call.python_id, kernel.python_id) == (0, 1, -1)
    assert (call.cpu_parent, launch.cpu_parent, kernel.cpu_parent) == (operator, call, None)
    assert kernel.linked_correlation_id == operator.id
    assert [event.key for event in trace.key_averages()] == [event.key for event in trace.events()]
