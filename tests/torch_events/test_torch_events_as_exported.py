"""What `events()` says of a call is what the exported trace says of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="the events are those of programs that torch runs")

import torch
from torch import nn
from torch.profiler import ProfilerActivity

import kinetoscope
from kinetoscope.formats.chrome.write import write_chrome_trace
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)

if TYPE_CHECKING:
    from pathlib import Path

CPU = [ProfilerActivity.CPU]
CONFIG = torch._C._profiler._ExperimentalConfig(verbose=True)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.second(self.first(x)))


def train(model: Twice) -> None:
    model(torch.ones(2, 4)).sum().backward()


def exported(session: Any, path: Path) -> list[dict[str, Any]]:
    session.export_chrome_trace(str(path))
    written: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [event for event in written if event.get("ph") == "X"]


def of_calls(event: dict[str, Any]) -> tuple[Any, ...]:
    args = event["args"]
    around, module = args["Python parent id"], args.get("Python module id", -1)
    return event["name"], args["Python id"], -1 if around is None else around, module


@pytest.mark.parametrize("calls", [True, False])
def test_calls_are_the_same_with_the_same_numbers(engine, calls, tmp_path):  # noqa: F811
    model = Twice()
    options: dict[str, Any] = {"python_calls": True} if calls else {}
    with kinetoscope.profile(
        activities=CPU, engine=engine, with_stack=True, experimental_config=CONFIG, **options
    ) as session:
        train(model)
    written = sorted(
        of_calls(event)
        for event in exported(session, tmp_path / "t.json")
        if event["cat"] == "python_function"
    )
    listed = sorted(
        (event.name, event.python_id, event.python_parent_id, event.python_module_id)
        for event in session.events()
        if event.is_python_function
    )
    names = {number: name for name, number, _, _ in written}
    assert sorted(names) == list(range(1, len(written) + 1))
    calls_in = Counter(around for _, _, around, _ in written)
    around_of = {number: around for _, number, around, _ in written}
    # As torch's, the list has one event for a call and the only one in it that has the same name, such as those around a worker of tests.
    merged = set(names) - {number for _, number, _, _ in listed}
    assert all(
        names[number] == names[around_of[number]] and calls_in[around_of[number]] == 1 for number in merged
    )

    def listed_around(number: int) -> int:
        around = around_of[number]
        while around in merged:
            around = around_of[around]
        return around

    assert listed == [
        (name, number, listed_around(number), module)
        for name, number, _, module in written
        if number not in merged
    ]
    modules = Counter((name, module) for name, _, _, module in listed if name.startswith("nn.Module: "))
    assert modules == {
        ("nn.Module: Twice_0", 0): 1,
        ("nn.Module: Linear_0", 0): 1,
        ("nn.Module: Linear_1", 1): 2,
    }


def strided() -> None:
    matrix = torch.ones(3, 4)
    views = [
        matrix.t(),
        matrix[:, ::2],
        matrix.expand(2, 3, 4),
        torch.ones(1, 1).expand(5, 1),
        torch.ones(2, 0),
    ]
    views += [
        torch.ones(3, 1)[:, :1].t(),
        torch.ones(3, 4).as_strided((2, 2), (1, 1)),
        matrix,
        torch.tensor(1.0),
    ]
    for view in views:
        view + 1
    torch.cat([matrix, matrix[:, :4]])
    torch.add(matrix.to_sparse(), matrix.to_sparse())
    torch.nn.functional.linear(matrix.t(), matrix.t())


def inputs_of(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    keys = ("Input Dims", "Input Strides", "Input type")
    ordered = sorted(events, key=lambda event: event["ts"])
    return [
        (event["name"], *(event["args"].get(key, []) for key in keys))
        for event in ordered
        if event["cat"] == "cpu_op"
    ]


def test_shapes_strides_and_types_are_those_of_torchs_trace(engine, tmp_path):  # noqa: F811
    strided()
    with torch.profiler.profile(activities=CPU, record_shapes=True) as theirs:
        strided()
    with kinetoscope.profile(activities=CPU, engine=engine, record_shapes=True) as ours:
        strided()
    written = inputs_of(exported(ours, tmp_path / "ours.json"))
    assert written == inputs_of(exported(theirs, tmp_path / "theirs.json"))
    assert len({json.dumps(strides) for _, _, strides, _ in written}) > 8
    listed = [
        (event.name, event.structured_input_shapes, event.structured_input_strides, event.input_dtypes)
        for event in ours.events()
    ]
    visible = Counter(json.dumps(one) for one in listed)
    assert not visible - Counter(json.dumps(one) for one in written)


def test_grouping_by_shapes_does_not_tell_strides_apart(engine):  # noqa: F811
    square = torch.ones(3, 3)
    with kinetoscope.profile(activities=CPU, engine=engine, record_shapes=True) as session:
        torch.add(square, 1)
        torch.add(square.t(), 1)
    (added,) = (one for one in session.key_averages(group_by_input_shape=True) if one.key == "aten::add")
    assert added.count == 2


def test_numbers_of_torchs_collector_are_exported(tmp_path):
    with kinetoscope.profile(
        activities=CPU, engine="kineto", with_stack=True, experimental_config=CONFIG
    ) as session:
        train(Twice())
    written = exported(session, tmp_path / "t.json")
    of_host = [event["args"] for event in written if event["cat"] in ("cpu_op", "python_function")]
    assert len({args["Ev Idx"] for args in of_host}) == len(of_host)
    assert {event["args"]["Record function id"] for event in written if event["cat"] == "cpu_op"} == {0}
    again = tmp_path / "again.json"
    write_chrome_trace(kinetoscope.open(tmp_path / "t.json"), again)
    events = json.loads(again.read_text(encoding="utf-8"))["traceEvents"]
    assert sorted(one["args"]["Ev Idx"] for one in events if "Ev Idx" in one.get("args", {})) == sorted(
        args["Ev Idx"] for args in of_host
    )
