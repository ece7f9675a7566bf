"""Execution traces and traces of the same run: every call is in both, and one table shows them together."""

import json

import pytest
import torch

import kinetoscope
from kinetoscope import ExecutionTraceObserver
from kinetoscope.formats.execution_trace.read import read_execution_trace
from tests.support import warm_python
from tests.support.effort import STRESS
from tests.support.programs import PROGRAMS, SLOW_PROGRAMS
from tests.support.strict_json import read_strictly

CPU = [kinetoscope.ProfilerActivity.CPU]
# torch's observer writes nothing of an operator that an exception leaves, as checkpointing ends its recomputation.
LEFT_BY_EXCEPTIONS = {"checkpointing": 3, "nested_checkpoints": 8, "nested_tensors": 2}
# torch's observer fails at compressed sparse tensors, which have no strides, and then often takes the process down.
CRASHES_TORCH = {"sparse_matrices"}
# Tensors that wrap others say other sizes inside of torch than outside; and TorchScript's operators begin with inputs
# other than those at their end, where the observer looks.
OTHER_SIZES = {
    "tensor_subclass", "meta_and_fake_tensors", "nested_tensors", "jacobians_by_transform", "scripted",
    "scripted_module_training",
}  # fmt: skip


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


NAMES = [name for name in PROGRAMS if name not in CRASHES_TORCH | set(SLOW_PROGRAMS)]
# What joins both is the same of either engine: an eighth of the programs shows that of torch's, and `make stress` all.
WITH_ENGINES = [
    *((name, "native") for name in NAMES),
    *((name, "kineto") for name in (NAMES if STRESS else NAMES[::8])),
]


# torch 2.15's compiler looks at gradients of tensors that have none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(("name", "engine"), WITH_ENGINES)
def test_every_program_has_a_valid_file_that_joins_with_its_times(observer, tmp_path, name, engine):
    program = PROGRAMS[name]()
    program()
    with kinetoscope.profile(
        activities=CPU, record_shapes=True, engine=engine, execution_trace_observer=observer
    ) as session:
        program()
    written = read_execution_trace(tmp_path / "et.json")
    assert len(written) == len(nodes(tmp_path / "et.json"))
    missing = LEFT_BY_EXCEPTIONS.get(name, 0)
    assert written.lost == {}
    rows = session.trace.table("execution").to_pylist()
    operators = [row for row in rows if row["kind"] in ("operator", "backward") and row["span"] is not None]
    alone = [row for row in operators if row["match"] != "both"]
    assert len(alone) <= max(0.01 * len(operators), missing)
    shapes = session.trace.table("spans")["shapes"].to_pylist()
    for row in operators:
        if row["match"] == "both" and name not in OTHER_SIZES and shapes[row["span"]] is not None:
            theirs = sizes(row["input_shapes"], row["input_types"])
            ours = json.loads(shapes[row["span"]])
            assert [mine for mine, shape in zip(ours, theirs, strict=False) if shape is not None] == [
                shape for shape in theirs if shape is not None
            ], row["name"]


def test_torchs_observer_still_fails_at_compressed_sparse_tensors(tmp_path):
    done = warm_python.run("-c", """
import torch
from torch.profiler import ExecutionTraceObserver
compressed = torch.eye(3).to_sparse_csr()
observer = ExecutionTraceObserver().register_callback("et.json")
observer.start()
compressed @ torch.ones(3, 3)
""", cwd=tmp_path)  # fmt: skip
    assert "strides_custom" in done.stderr, "torch has learnt it: empty CRASHES_TORCH"
