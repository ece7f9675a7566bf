"""The Kineto traces of known programs in `tests/golden`, and the expected results.

`tools/record_golden.py` has the programs and makes the files.
"""

from pathlib import Path

import numpy as np
import pytest

import kinetoscope
from kinetoscope.model.schema import SpanKind

FOLDER = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def training():
    return kinetoscope.open(FOLDER / "training.json.gz")


def rows_named(trace, name):
    return np.flatnonzero(trace.column("spans", "name") == trace.strings.index(name))


def test_two_steps_were_marked(training):
    steps = training.columns("steps")
    assert steps["number"].tolist() == [1, 2]
    assert steps["source"].tolist() == [0, 0]
    assert (steps["duration_ns"] > 0).all()
    per_step = np.bincount(training.column("spans", "step")[rows_named(training, "aten::linear")])
    assert per_step.tolist() == [2, 2]


def test_averages_are_those_of_the_program(training):
    counts = {average.key: average.count for average in training.key_averages()}
    assert counts["aten::linear"] == counts["AddmmBackward0"] == 4
    assert counts["aten::relu"] == counts["ReluBackward0"] == 2
    assert counts["first half"] == 2
    assert counts["Optimizer.step#SGD.step"] == 2
    assert "ProfilerStep*" in counts


def test_backward_knows_its_forward_and_the_module_of_it(training):
    spans = training.columns("spans")
    backward = rows_named(training, "AddmmBackward0")
    assert (spans["kind"][backward] == SpanKind.BACKWARD).all()
    forward = spans["forward"][backward]
    assert {training.strings[name] for name in spans["name"][forward]} <= {"aten::linear", "aten::addmm"}
    paths = training.column("modules", "path")
    classes = [training.strings[row] for row in training.column("modules", "class")]
    found = [spans["module"][row] for row in backward]
    assert all(row >= 0 for row in found), paths
    assert {classes[row] for row in found} == {"Linear"}
    assert len(set(found)) == 2, "the two layers are two instances"


def test_operators_know_their_line_and_their_shapes(training):
    table = training.table("spans").to_pylist()
    linear = [row for row in table if row["name"] == "aten::linear"]
    assert all("record_golden.py" in row["stack"] and "forward" in row["stack"] for row in linear)
    assert [row["shapes"] for row in linear[:2]] == ["[[3,4],[8,4],[8]]", "[[3,8],[2,8],[2]]"]


def test_memory_is_attributed(training):
    blocks = training.columns("allocations")
    assert len(blocks) == 56
    names = training.column("spans", "name")[blocks["span"][blocks["span"] >= 0]]
    assert "aten::addmm" in {training.strings[name] for name in names}
    assert (blocks["allocated_bytes"] >= 0).all()


def test_names_are_those_in_the_file():
    trace = kinetoscope.open(FOLDER / "names.json.gz")
    kind, names = trace.column("spans", "kind"), trace.column("spans", "name")
    ranges = {trace.strings[name] for name in names[kind == SpanKind.USER_ANNOTATION]}
    # Kineto itself drops line breaks, replaces backslashes by slashes, and non-ASCII names by a placeholder.
    assert ranges == {"linebreak", "unknown", "</script>", " ", "back/slash", "{'ph':", "100 %"}
    assert trace.complete


def test_operators_without_any_flag():
    trace = kinetoscope.open(FOLDER / "operators.json.gz")
    assert trace.info["engine"] == "kineto"
    assert {average.key: average.count for average in trace.key_averages()} == {
        "aten::ones": 2,
        "aten::empty": 2,
        "aten::fill_": 2,
        "aten::matmul": 1,
        "aten::mm": 1,
        "aten::resolve_conj": 3,
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_a_distributed_job_know_themselves(rank):
    trace = kinetoscope.open(FOLDER / f"ddp_rank{rank}.json.gz")
    assert trace.info["distributedInfo"]["rank"] == rank
    assert trace.info["distributedInfo"]["world_size"] == 2
    calls = trace.table("collectives").to_pylist()
    assert [call["name"] for call in calls] == ["broadcast", "broadcast", "all_reduce"]
    assert [call["bytes"] for call in calls][-1] == 58 * 4, "all gradients of the model at once"
    assert {call["rank"] for call in calls} == {rank}
    assert all(call["transfer_ns"] > 0 for call in calls)
    assert calls[-1]["phase"] == "backward"
