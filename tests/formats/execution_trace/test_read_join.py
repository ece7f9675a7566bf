import numpy as np
import pytest

from kinetoscope import ArgumentError, Trace
from kinetoscope.formats.execution_trace.read import read_execution_trace
from tests.support.execution_trace_text import file_text, node_text, side

X = side([[6, 7, 0, 8, 4, "cpu"], 1], [[2, 4], []], ["Tensor(float)", "Int"], [[4, 1], []])


def recorded(*spans, process=4242, **info):
    """Build a trace of one thread; each span is (name, start, duration, record function number)."""
    strings = ["", *(span[0] for span in spans)]
    columns = {
        "start_ns": np.array([span[1] for span in spans], np.int64),
        "duration_ns": np.array([span[2] for span in spans], np.int64),
        "name": np.arange(1, len(spans) + 1, dtype=np.int32),
        "record_function": np.array([span[3] for span in spans], np.int64),
    }
    threads = {"os_tid": [70], "name": ["main"]}
    return Trace.from_columns(
        {"spans": columns, "threads": threads}, strings=strings, info={"process": process, **info}
    )


def noted(tmp_path, *nodes, **more):
    path = tmp_path / "et.json"
    path.write_text(file_text(*nodes, **more))
    return path


def test_a_call_that_both_know_has_times_and_tensors_in_one_row(tmp_path):
    trace = recorded(("aten::linear", 10, 50, 7), ("aten::add", 20, 5, 9))
    path = noted(
        tmp_path, node_text(4, "aten::add", 3, X, X, rf_id=9), node_text(3, "aten::linear", 2, X, rf_id=7)
    )
    linear, add = trace.table("execution", execution_trace=path).to_pylist()
    assert (linear["node"], linear["span"], linear["match"], linear["self_ns"]) == (3, 0, "both", 45)
    assert (add["node"], add["parent_node"], add["parent"], add["start_ns"], add["duration_ns"]) == (
        4,
        3,
        0,
        20,
        5,
    )
    assert (add["os_tid"], add["kind"], add["input_shapes"]) == (70, "operator", "[[2,4],[]]")
    assert (add["input_bytes"], add["output_bytes"], linear["output_bytes"]) == (32, 32, 0)


def test_what_only_one_of_them_knows_stays_and_says_so(tmp_path):
    trace = recorded(("ours", 10, 5, 7), ("no number", 20, 5, -1))
    path = noted(tmp_path, node_text(4, "theirs", 2, X, rf_id=8), node_text(5, "thread", 1, rf_id=0))
    rows = trace.table("execution", execution_trace=path).to_pylist()
    assert [(row["name"], row["match"]) for row in rows] == [
        ("ours", "trace only"), ("no number", "trace only"), ("theirs", "execution trace only"),
    ]  # fmt: skip
    assert (rows[0]["node"], rows[0]["inputs"], rows[0]["input_bytes"]) == (None, None, None)
    assert (rows[2]["span"], rows[2]["start_ns"], rows[2]["kind"], rows[2]["node"]) == (None, None, None, 4)


def test_one_number_with_two_names_is_not_one_call(tmp_path):
    trace = recorded(("aten::add", 10, 5, 7))
    rows = trace.table(
        "execution", execution_trace=noted(tmp_path, node_text(4, "aten::mul", 2, rf_id=7))
    ).to_pylist()
    assert [row["match"] for row in rows] == ["trace only", "execution trace only"]


def test_tensors_have_the_span_of_their_operator(tmp_path):
    trace = recorded(("aten::add", 10, 5, 9))
    path = noted(tmp_path, node_text(4, "aten::add", 2, X, X, rf_id=9), node_text(5, "alone", 2, X, rf_id=10))
    rows = trace.table("execution_tensors", execution_trace=path).to_pylist()
    assert [(row["node"], row["span"], row["side"]) for row in rows] == [
        (4, 0, "input"), (4, 0, "output"), (5, None, "input"),
    ]  # fmt: skip


def test_the_file_that_the_session_noted_is_found(tmp_path):
    path = noted(tmp_path, node_text(4, "aten::add", 2, X, rf_id=9))
    trace = recorded(("aten::add", 10, 5, 9), execution_trace=str(path))
    assert trace.table("execution").to_pylist()[0]["match"] == "both"
    found = trace.sql(
        "select sum(input_bytes) from execution join spans on span = spans.id where match = 'both'"
    )
    assert found.to_pylist() == [{"sum(input_bytes)": 32}]


def test_a_noted_file_that_is_gone_is_named(tmp_path):
    trace = recorded(("aten::add", 10, 5, 9), execution_trace=str(tmp_path / "gone.json"))
    with pytest.raises(ArgumentError, match=r"gone\.json.*execution_trace="):
        trace.table("execution")


def test_without_an_execution_trace_the_tables_are_empty_and_have_all_columns():
    trace = recorded(("aten::add", 10, 5, 9))
    for name in ("execution", "execution_tensors"):
        assert trace.table(name).num_rows == 0
        assert "span" in trace.table(name).column_names


def test_a_trace_that_was_read_already_can_be_joined(tmp_path):
    other = read_execution_trace(noted(tmp_path, node_text(4, "aten::add", 2, rf_id=9)))
    assert recorded(("aten::add", 1, 2, 9)).table("execution", execution_trace=other)["node"].to_pylist() == [
        4
    ]


def test_two_processes_are_not_joined(tmp_path):
    with pytest.raises(ArgumentError, match="process 77, but the trace is of process 4242"):
        recorded(("a", 1, 2, 3)).table("execution", execution_trace=noted(tmp_path, pid=77))


def test_a_trace_without_call_numbers_says_how_to_get_them(tmp_path):
    path = noted(tmp_path, node_text(4, "aten::add", 2, rf_id=9))
    with pytest.raises(ArgumentError, match="execution_trace_observer"):
        recorded(("aten::add", 1, 2, -1)).table("execution", execution_trace=path)


def test_an_empty_trace_joins_with_an_empty_file(tmp_path):
    assert recorded().table("execution", execution_trace=noted(tmp_path)).num_rows == 0
