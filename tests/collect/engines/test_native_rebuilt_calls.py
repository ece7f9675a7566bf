"""Python slices of `with_stack=True` against those of torch.profiler: a slice is one call, under torch's name for it."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function

import kinetoscope
from tests.support.chrome_file import partly_overlapping, slices

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).name


def single(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


def double(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    return y.neg()


def either(x: torch.Tensor, which: bool) -> torch.Tensor:
    return x.relu() if which else x.neg()


def look_up(x: torch.Tensor) -> torch.Tensor:
    return single(x)


def descend(x: torch.Tensor, depth: int) -> torch.Tensor:
    if depth == 0:
        return x.relu()
    return descend(x, depth - 1).neg()


def looping(x: torch.Tensor) -> torch.Tensor:
    y = x.abs()
    for _ in range(3):
        y = y.relu()
    return y


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def one_line(_: Any) -> None:
    x = torch.ones(2, 4)
    for _ in range(5):
        single(x)


def two_instructions(_: Any) -> None:
    x = torch.ones(2, 4)
    for _ in range(3):
        double(x)


def two_calls_in_one_line(_: Any) -> None:
    x = torch.ones(2, 4)
    torch.add(single(x), single(x))


def two_branches(_: Any) -> None:
    x = torch.ones(2, 4)
    for which in (True, False, True, False):
        either(x, which)


def calls_of_calls(_: Any) -> None:
    x = torch.ones(2, 4)
    for _ in range(3):
        look_up(x)


def recursion(_: Any) -> None:
    x = torch.ones(2, 4)
    for _ in range(2):
        descend(x, 3)


def a_loop_inside(_: Any) -> None:
    x = torch.ones(2, 4)
    for _ in range(3):
        looping(x)


def comprehension(_: Any) -> None:
    x = torch.ones(2, 4)
    for y in [single(x) for _ in range(3)]:
        double(y)


def backward(_: Any) -> None:
    x = torch.ones(2, 4, requires_grad=True)
    for _ in range(2):
        single(x).sum().backward()


def trained(x: torch.Tensor) -> None:
    double(single(x).abs()).sum().backward()


def backward_in_a_call(_: Any) -> None:
    x = torch.ones(2, 4, requires_grad=True)
    for _ in range(3):
        trained(x)


def indexes(_: Any) -> None:
    x = torch.ones(4, 4, 4)
    for _ in range(2):
        single(x[1:, 1:, 1:])


def ranges(_: Any) -> None:
    x = torch.ones(2, 4)
    for _ in range(2):
        with record_function("range"):
            single(x)
            double(x)


def modules_in_a_row(_: Any) -> None:
    net = Net()
    net(net(torch.ones(2, 4)))


def modules(_: Any) -> None:
    net = Net()
    x = torch.ones(2, 4)
    for _ in range(2):
        net(x)
    net(net(x))


def steps(prof: Any) -> None:
    x = torch.ones(2, 4)
    for _ in range(3):
        single(x)
        single(x)
        prof.step()


PROGRAMS = [
    two_instructions, two_calls_in_one_line, two_branches, recursion, a_loop_inside, backward, backward_in_a_call, indexes, ranges,
    modules_in_a_row, steps,
]  # fmt: skip
# Functions that a loop calls and that run operators at one place only: one call may have run them all, as `torch.tensor` does.
UNSURE = {one_line: [single], calls_of_calls: [look_up, single], comprehension: [single]}


def exported(kind: type[Any], program: Callable[[Any], None], path: Path, **flags: bool) -> dict[str, Any]:
    with kind(activities=[ProfilerActivity.CPU], **(flags or {"with_stack": True})) as prof:
        program(prof)
    prof.export_chrome_trace(str(path))
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    return loaded


def of_category(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in slices(trace) if event.get("cat") == category]


def calls_with_operators(trace: dict[str, Any]) -> list[str]:
    """The calls of this file's functions and of modules in which an operator ran, in the order of time."""
    operators = [(event["ts"], event["ts"] + event["dur"]) for event in of_category(trace, "cpu_op")]
    calls = [
        event
        for event in of_category(trace, "python_function")
        if HERE in event["name"] or event["name"].startswith("nn.Module: ")
    ]
    found = [
        event
        for event in calls
        if any(event["ts"] <= began and ended <= event["ts"] + event["dur"] for began, ended in operators)
    ]
    return [
        event["name"]
        for event in sorted(found, key=lambda event: (event["ts"], -event["dur"]))
        # Of calls that began before, torch says the line they are in.
        if not event["name"].endswith(": exported") and ": test_" not in event["name"]
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_slice_is_a_call_as_torch_sees_it(program: Callable[[Any], None], tmp_path: Path) -> None:
    theirs = exported(torch.profiler.profile, program, tmp_path / "theirs.json")
    ours = exported(kinetoscope.profile, program, tmp_path / "ours.json")
    assert calls_with_operators(ours) == calls_with_operators(theirs)
    assert partly_overlapping(ours) == []


@pytest.mark.parametrize(
    ("program", "functions"), UNSURE.items(), ids=[program.__name__ for program in UNSURE]
)
def test_calls_that_one_call_looks_like_are_one_marked_slice(
    program: Callable[[Any], None], functions: list[Callable[..., Any]], tmp_path: Path
) -> None:
    theirs = calls_with_operators(exported(torch.profiler.profile, program, tmp_path / "theirs.json"))
    ours = exported(kinetoscope.profile, program, tmp_path / "ours.json")
    names = {name for name in theirs for function in functions if name.endswith(f": {function.__name__}")}
    assert all(theirs.count(name) > 1 for name in names)
    first_calls = [
        name for place, name in enumerate(theirs) if name not in names or name not in theirs[:place]
    ]
    assert calls_with_operators(ours) == first_calls
    assert {
        event["name"] for event in of_category(ours, "python_function") if "Calls" in event["args"]
    } == names
    assert partly_overlapping(ours) == []


def all_loops(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x.relu()
    return x


def undecided(_: Any) -> None:
    x = torch.ones(2, 4)
    for _ in range(3):
        all_loops(x)


@pytest.mark.parametrize(
    ("program", "name", "calls"),
    [(undecided, ": all_loops", 3), (modules, "nn.Module: Net_0", 4)],
    ids=["loops", "modules"],
)
def test_a_slice_that_may_be_several_calls_is_marked(
    program: Callable[[Any], None], name: str, calls: int, tmp_path: Path
) -> None:
    ours = exported(kinetoscope.profile, program, tmp_path / "ours.json")
    joined = [event for event in of_category(ours, "python_function") if event["name"].endswith(name)]
    assert joined
    assert len(joined) == calls or any("Calls" in event["args"] for event in joined)


def test_a_slice_that_is_certainly_one_call_is_not_marked(tmp_path: Path) -> None:
    certain = exported(kinetoscope.profile, a_loop_inside, tmp_path / "certain.json")
    assert not any("Calls" in event["args"] for event in of_category(certain, "python_function"))


def test_modules_alone_have_slices(tmp_path: Path) -> None:
    ours = exported(kinetoscope.profile, modules_in_a_row, tmp_path / "ours.json", with_modules=True)
    names = [event["name"] for event in of_category(ours, "python_function")]
    assert names.count("nn.Module: Net_0") == 2
    assert names.count("nn.Module: Linear_1") == 2
    assert all(name.startswith("nn.Module: ") for name in names)


def marked_step(prof: Any) -> None:
    single(torch.ones(2, 4))
    prof.step()


def test_a_step_that_ends_in_a_call_overlaps_it_in_no_part(tmp_path: Path) -> None:
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=3)
    with kinetoscope.profile(activities=[ProfilerActivity.CPU], with_stack=True, schedule=schedule) as prof:
        for _ in range(4):
            marked_step(prof)
    path = tmp_path / "steps.json"
    prof.export_chrome_trace(str(path))
    trace = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    steps = [event for event in slices(trace) if event["name"].startswith("ProfilerStep")]
    calls = [event for event in slices(trace) if event["name"].endswith(": marked_step")]
    assert (len(steps), len(calls)) == (3, 3)
    for step in steps:
        for call in calls:
            (_, first_ends), (second_begins, _) = sorted(
                ((event["ts"], event["ts"] + event["dur"]) for event in (step, call)),
                key=lambda times: (times[0], -times[1]),
            )
            inside = max(step["ts"] + step["dur"], call["ts"] + call["dur"]) == first_ends
            assert inside or first_ends <= second_begins
