"""Calls of modules as spans: one for each call, exact, on every thread."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
from torch import nn

from kinetoscope import Trace
from kinetoscope.model.schema import SpanKind
from tests.support.calls import Calls, recorded, rows_of


def module_calls(trace: Trace) -> list[tuple[str, str | None]]:
    """The path of each call, and that of the module call it ran in."""
    spans, path = trace.columns("spans"), trace.column("modules", "path")
    found = []
    for row in rows_of(trace, SpanKind.MODULE):
        around = int(spans["parent"][row])
        while around >= 0 and spans["kind"][around] != SpanKind.MODULE:
            around = int(spans["parent"][around])
        found.append((path[spans["module"][row]], path[spans["module"][around]] if around >= 0 else None))
    return found


class Twice(nn.Module):
    """Calls one module two times from one line."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(2):
            x = self.inner(x)
        return x


def test_every_call_is_a_span_of_its_instance() -> None:
    model = Twice()
    trace = recorded(lambda: model(torch.ones(1, 2)), python_calls=False, module_spans=True)
    assert module_calls(trace) == [("Twice", None), ("inner", "Twice"), ("inner", "Twice")]
    assert not rows_of(trace, SpanKind.PYTHON)
    spans = trace.columns("spans")
    names = [trace.strings[spans["name"][row]] for row in rows_of(trace, SpanKind.MODULE)]
    assert names == ["Twice", "Linear", "Linear"]
    assert sys.getprofile() is None
    assert not trace.losses


def test_operators_lie_between_start_and_end_of_their_module() -> None:
    model = Twice()
    trace = recorded(lambda: model(torch.ones(1, 2)), python_calls=False, module_spans=True)
    spans = trace.columns("spans")
    end = spans["start_ns"] + spans["duration_ns"]
    calls = rows_of(trace, SpanKind.MODULE)[1:]
    linears = [row for row in range(len(spans)) if trace.strings[spans["name"][row]] == "aten::linear"]
    assert len(linears) == len(calls) == 2
    for call, operator in zip(calls, linears, strict=True):
        assert spans["start_ns"][call] <= spans["start_ns"][operator]
        assert end[operator] <= end[call]
        assert spans["parent"][operator] == -1, "operators nest as if the calls were not there"


def test_the_table_counts_calls_and_adds_up_their_time() -> None:
    model = Twice()
    trace = recorded(lambda: model(torch.ones(1, 2)), python_calls=False, module_spans=True)
    rows = {row["path"]: row for row in trace.table("modules").to_pylist()}
    assert {path: row["calls"] for path, row in rows.items()} == {"Twice": 1, "inner": 2}
    duration = trace.column("spans", "duration_ns")
    outer, *inner = (int(duration[row]) for row in rows_of(trace, SpanKind.MODULE))
    assert (rows["inner"]["call_ns"], rows["inner"]["call_self_ns"]) == (sum(inner), sum(inner))
    assert (rows["Twice"]["call_ns"], rows["Twice"]["call_self_ns"]) == (outer, outer - sum(inner))
    plain = recorded(lambda: model(torch.ones(1, 2)), python_calls=False)
    assert (
        plain.table("modules")["calls"].to_pylist()
        == plain.table("modules")["call_ns"].to_pylist()
        == [None] * 2
    )


def test_a_module_that_calls_itself_counts_its_time_once() -> None:
    class Recursive(nn.Module):
        def forward(self, x: torch.Tensor, depth: int = 3) -> Any:
            return self(x, depth - 1) if depth else torch.neg(x)

    model = Recursive()
    trace = recorded(lambda: model(torch.ones(1)), python_calls=False, module_spans=True)
    (row,) = trace.table("modules").to_pylist()
    outermost = int(trace.column("spans", "duration_ns")[rows_of(trace, SpanKind.MODULE)[0]])
    assert (row["calls"], row["call_ns"], row["call_self_ns"]) == (4, outermost, outermost)


def test_calls_that_raise_end() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(x)

    def program() -> None:
        for _ in range(3):
            try:
                model(torch.ones(1))
            except ValueError:
                torch.neg(torch.ones(1))

    model = Fails()
    trace = recorded(program, python_calls=False, module_spans=True)
    assert module_calls(trace) == [("Fails", None)] * 3


def test_calls_on_other_threads_with_python_calls_beside_them() -> None:
    model = Twice()
    with Calls(module_spans=True) as calls:
        thread = threading.Thread(target=model, args=(torch.ones(1, 2),))
        thread.start()
        thread.join()
        model(torch.ones(1, 2))
    found = module_calls(calls.trace)
    assert sorted(found) == sorted(2 * [("Twice", None), ("inner", "Twice"), ("inner", "Twice")])
    spans = calls.trace.columns("spans")
    assert len({int(spans["thread"][row]) for row in rows_of(calls.trace, SpanKind.MODULE)}) == 2


def test_a_call_in_progress_at_the_start_and_at_the_end() -> None:
    calls = Calls(python_calls=False, module_spans=True)

    class Starts(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            calls.start()
            return torch.neg(x)

    class Stops(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            x = torch.neg(x)
            calls.stop()
            return x

    Stops()(Starts()(torch.ones(1)))
    spans = calls.trace.columns("spans")
    rows = rows_of(calls.trace, SpanKind.MODULE)
    assert [calls.trace.strings[spans["name"][row]] for row in rows] == ["Starts", "Stops"]
    assert spans["flags"][rows].tolist() == [4, 2]
    assert spans["start_ns"][rows[0]] == 0
