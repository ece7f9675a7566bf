"""Python calls of whole programs: against torch.profiler's, under torch.compile, in forks, at exit, and killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity

import kinetoscope
from kinetoscope.collect.recorder.stream import STREAM
from kinetoscope.model.schema import SpanKind
from tests.support import warm_python
from tests.support.calls import Calls, name, recorded, rows_of, tree, within

HERE = __file__


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = self.activate(layer(x))
        return x

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return doubled(gradients[0])


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def batches(count: int) -> Iterator[torch.Tensor]:
    for _ in range(count):
        yield torch.ones(2, 4)


def factorial(number: int) -> int:
    return 1 if number < 2 else number * factorial(number - 1)


def fails() -> None:
    raise ValueError


def program() -> None:
    model = Net()
    for batch in batches(2):
        Doubled.apply(model(batch)).sum().backward()
    factorial(4)
    try:
        fails()
    except ValueError:
        sorted([2, 1], key=factorial)


def torch_calls(path: Path) -> list[tuple[str, Any]]:
    """The calls of this file's functions that torch.profiler saw in `program`, as `tests.support.calls.tree` has them."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], with_stack=True) as prof:
        program()
    prof.export_chrome_trace(str(path))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    calls = [event for event in events if event.get("cat") == "python_function"]
    roots: list[tuple[str, Any]] = []
    inside: dict[Any, list[tuple[str, Any]]] = {}
    for event in sorted(calls, key=lambda event: (event["ts"], -event["dur"])):
        # torch 2.15 writes none for the outermost call.
        around = inside.get(event["args"].get("Python parent id"), roots)
        inside[event["args"]["Python id"]] = around
        file, _, function = event["name"].partition("): ")
        if Path(file.rpartition("(")[0]).name == Path(HERE).name:
            inside[event["args"]["Python id"]] = []
            around.append((function, inside[event["args"]["Python id"]]))
    return roots


def test_the_same_calls_as_torchs_in_the_same_nesting(tmp_path: Path) -> None:
    program()
    theirs = within(torch_calls(tmp_path / "torch.json"), "program")
    ours = within(tree(recorded(program), file=HERE), "program")

    def plain(calls: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        # torch knows the last part of a qualified name only.
        return [(called.rpartition(".")[2], plain(inside)) for called, inside in calls]

    assert plain(ours) == plain(theirs)
    assert len(str(ours)) > 400


def test_numbers_of_operators_do_not_depend_on_calls() -> None:
    program()
    plain = recorded(program, python_calls=False)
    full = recorded(program, module_spans=True)
    assert full.column("spans", "kind").max() == SpanKind.MODULE

    def counts(trace: Any) -> list[tuple[str, int]]:
        return sorted((event.key, event.count) for event in trace.key_averages())

    assert counts(full) == counts(plain)
    shown = [(event.name, event.cpu_parent and event.cpu_parent.name) for event in full.events()]
    assert shown == [(event.name, event.cpu_parent and event.cpu_parent.name) for event in plain.events()]
    ours, others = (
        sorted((row["path"], row["operators"]) for row in trace.table("modules").to_pylist())
        for trace in (full, plain)
    )
    assert ours == others


def test_torch_compile_compiles_as_much_as_without() -> None:
    from torch._dynamo.utils import counters

    def compiled_frames(**options: Any) -> tuple[int, int, int]:
        torch._dynamo.reset()
        counters.clear()
        model = torch.compile(Net(), backend="eager", fullgraph=True)
        with Calls(**options) as calls:
            for batch in batches(3):
                model(batch).sum().backward()
        assert not calls.trace.info.get("call_threads_lost")
        stats = counters["stats"]
        return stats["unique_graphs"], counters["frames"]["ok"], counters["frames"]["total"]

    plain = compiled_frames(python_calls=False)
    assert plain[0] == 1
    assert compiled_frames() == plain
    assert compiled_frames(module_spans=True) == plain
    assert compiled_frames(python_calls=False, module_spans=True) == plain


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_rid_of_the_hooks_and_may_record_itself() -> None:
    import threading

    with Calls() as calls:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                free = sys.getprofile() is None and threading.getprofile() is None
                trace = recorded(lambda: factorial(3))
                found = [name(trace, row) for row in rows_of(trace)].count("factorial")
                code = 0 if free and found == 3 else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        factorial(2)
    assert status == 0
    assert [name(calls.trace, row) for row in rows_of(calls.trace)].count("factorial") == 2


RUN = """
import os, sys, threading
from tests.support.calls import Calls
calls = Calls(path={path!r}, module_spans=True)
def outer():
    calls.start()
    inner()
def inner():
    turned.clear()
    turned.wait()
    {end}
def busy():
    while True:
        turned.set()
        sum(map(abs, range(10)))
turned = threading.Event()
threading.Thread(target=busy, daemon=True).start()
outer()
"""


def run_to_its_end(path: Path, end: str) -> Any:
    """Runs a program that ends in the middle of a call, and opens what it recorded."""
    from pathlib import Path as _Path

    text = (
        textwrap.dedent(RUN)
        .replace("{path!r}", f"__import__('pathlib').Path({str(path)!r})")
        .replace("{end}", end)
    )
    done = warm_python.run("-c", text, cwd=_Path(__file__).parents[3])
    assert done.stderr == ""
    return done.returncode, kinetoscope.open(path)


def test_the_interpreter_may_exit_in_the_middle_of_a_recording(tmp_path: Path) -> None:
    code, trace = run_to_its_end(tmp_path / "exit.recording", "sys.exit(3)")
    assert code == 3
    seen = [name(trace, row) for row in rows_of(trace)]
    assert seen.count("outer") == seen.count("inner") == 1
    assert "busy" in seen


def test_a_killed_recording_shows_what_ran_when_it_was_killed(tmp_path: Path) -> None:
    code, trace = run_to_its_end(
        tmp_path / "killed.recording", f"os.kill(os.getpid(), {int(signal.SIGKILL)})"
    )
    assert code == -signal.SIGKILL
    spans = trace.columns("spans")
    rows = {name(trace, row): row for row in rows_of(trace)}
    running = [rows["outer"], rows["inner"], rows["posix.kill"]]
    assert [int(spans["flags"][row]) & 2 for row in running] == [2, 2, 2]
    assert sorted(spans["start_ns"][running]) == spans["start_ns"][running].tolist()
    assert spans["parent"][running[1]] == running[0]


def test_a_ring_keeps_the_calls_that_still_run() -> None:
    with Calls(ring_bytes=1 << 20) as calls:
        for _ in range(20_000):
            factorial(3)
    trace = calls.trace
    assert any(row["what"].startswith("oldest spans") for row in trace.losses), trace.losses
    seen = [name(trace, row) for row in rows_of(trace)]
    assert "test_a_ring_keeps_the_calls_that_still_run" in seen
    assert seen.count("factorial") > 1000
    # A call whose callers were overwritten stands for itself; what is left still nests.
    assert set(trace.column("spans", "lane")) == {0}


def test_paused_recordings_have_no_calls() -> None:
    with Calls() as calls:
        factorial(2)
        session = calls._engine._subscription
        assert session is not None
        STREAM.pause(session)
        factorial(3)
        STREAM.resume(session)
        factorial(4)
    assert [name(calls.trace, row) for row in rows_of(calls.trace)].count("factorial") == 2 + 4
