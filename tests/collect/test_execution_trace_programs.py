"""Execution traces and traces of the same run: every call is in both, and one table shows them together."""

import json

import pytest
import torch

import kinetoscope
from kinetoscope import ExecutionTraceObserver
from kinetoscope.formats.execution_trace import read_execution_trace
from tests.support.programs import PROGRAMS
from tests.support.strict_json import read_strictly

CPU = [kinetoscope.ProfilerActivity.CPU]
# torch's observer writes nothing of an operator that an exception leaves, and checkpointing ends its recomputation so.
LEFT_BY_EXCEPTIONS = {"checkpointing": 3}
# TorchScript's operators begin with inputs whose sizes neither engine can see; the observer looks at their end.
SIZES_UNSEEN = {"scripted"}


@pytest.fixture
def observer(tmp_path):
    made = ExecutionTraceObserver().register_callback(tmp_path / "et.json")
    yield made
    made.unregister_callback()


def nodes(path):
    return read_strictly(path.read_text(encoding="utf-8"))["nodes"]


def sizes(dims, types):
    """The sizes of the inputs that are tensors, and not lists of them."""
    parts = zip(json.loads(dims), json.loads(types), strict=False)
    return [shape if kind.startswith("Tensor(") else None for shape, kind in parts]


def test_every_window_of_a_schedule_is_in_the_file_and_joins_with_its_trace(observer, tmp_path):
    cycles = []
    with kinetoscope.profile(
        activities=CPU,
        schedule=kinetoscope.schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda session: cycles.append(session.trace),
        execution_trace_observer=observer,
        record_shapes=True,
    ) as session:
        for _ in range(8):
            torch.ones(3).sin()
            session.step()
    assert not observer.is_registered
    assert [node["name"] for node in nodes(tmp_path / "et.json")].count("aten::sin") == 4
    assert len(cycles) == 2
    for trace in cycles:
        rows = trace.table("execution").to_pylist()
        sines = [row for row in rows if row["name"] == "aten::sin" and row["match"] == "both"]
        assert len(sines) == 2
        assert all(row["input_bytes"] == 12 and row["duration_ns"] > 0 for row in sines)


@pytest.mark.parametrize("engine", ["native", "kineto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_a_valid_file_that_joins_with_its_times(observer, tmp_path, name, engine):
    program = PROGRAMS[name]()
    program()
    with kinetoscope.profile(
        activities=CPU, record_shapes=True, engine=engine, execution_trace_observer=observer
    ) as session:
        program()
    written = read_execution_trace(tmp_path / "et.json")
    assert len(written) == len(nodes(tmp_path / "et.json"))
    assert written.mended == {}
    missing = LEFT_BY_EXCEPTIONS.get(name, 0)
    assert sum(written.lost.values()) <= missing
    rows = session.trace.table("execution").to_pylist()
    operators = [row for row in rows if row["kind"] in ("operator", "backward") and row["span"] is not None]
    alone = [row for row in operators if row["match"] != "both"]
    assert len(alone) <= max(0.01 * len(operators), missing)
    shapes = session.trace.table("spans")["shapes"].to_pylist()
    for row in operators:
        if row["match"] == "both" and name not in SIZES_UNSEEN and shapes[row["span"]] is not None:
            theirs = sizes(row["input_shapes"], row["input_types"])
            ours = json.loads(shapes[row["span"]])
            assert [mine for mine, shape in zip(ours, theirs, strict=False) if shape is not None] == [
                shape for shape in theirs if shape is not None
            ], row["name"]
