import gzip
import json

import pytest

from kinetoscope import ArgumentError, FormatError
from kinetoscope.formats.execution_trace.read import read_execution_trace
from tests.support.execution_trace_text import file_text, node_text, side

ADD = node_text(
    5, "aten::add", 2,
    side([[6, 7, 0, 8, 4, "cpu"], [8, 9, 2, 2, 4, "cpu"], 1], [[2, 4], [2], []], ["Tensor(float)", "Tensor(float)", "Int"],
         [[4, 1], [1], []]),
    side([[10, 11, 0, 8, 4, "cpu"]], [[2, 4]], ["Tensor(float)"], [[4, 1]]),
    rf_id=3, seq_id=12, op_schema="aten::add(Tensor self) -> Tensor", tid=2, fw_tid=1, scope=1,
)  # fmt: skip


def read(tmp_path, content, name="et.json"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_execution_trace(path)


def test_a_node_has_its_names_numbers_and_parts(tmp_path):
    trace = read(tmp_path, file_text(ADD, pid=77))
    node = trace.table("nodes").to_pylist()[0]
    assert (trace.schema, trace.process, len(trace)) == ("1.1.1-chakra.0.0.4", 77, 2)
    assert node == {
        "id": 5, "name": "aten::add", "parent": 2, "rf_id": 3, "torch_tid": 2, "sequence": 12, "forward_torch_tid": 1, "scope": 1,
        "op_schema": "aten::add(Tensor self) -> Tensor", "kernel_backend": None, "kernel_file": None,
        "input_shapes": "[[2,4],[2],[]]", "input_types": '["Tensor(float)","Tensor(float)","Int"]',
        "input_strides": "[[4,1],[1],[]]", "inputs": '[[6,7,0,8,4,"cpu"],[8,9,2,2,4,"cpu"],1]',
        "output_shapes": "[[2,4]]", "output_types": '["Tensor(float)"]', "outputs": '[[10,11,0,8,4,"cpu"]]',
    }  # fmt: skip


def test_threads_and_the_process_have_no_call_number_and_the_process_no_parent(tmp_path):
    process = read(tmp_path, file_text()).table("nodes").to_pylist()[0]
    assert (process["id"], process["rf_id"], process["parent"]) == (1, None, None)


def test_each_tensor_has_a_row(tmp_path):
    tensors = read(tmp_path, file_text(ADD)).table("tensors").to_pylist()
    assert [(row["side"], row["argument"], row["tensor"], row["storage"]) for row in tensors] == [
        ("input", 0, 6, 7), ("input", 1, 8, 9), ("output", 0, 10, 11),
    ]  # fmt: skip
    assert tensors[1] == {
        "node": 5, "side": "input", "argument": 1, "tensor": 8, "storage": 9, "offset": 2, "elements": 2, "item_bytes": 4,
        "bytes": 8, "device": "cpu", "type": "float", "shape": "[2]", "strides": "[1]",
    }  # fmt: skip


def test_tensors_in_lists_are_found_however_deep(tmp_path):
    one, two, three = ([number, 50, 0, 1, 8, "cuda:0"] for number in (20, 21, 22))
    kind = "GenericList[GenericList[Tensor(long int),Tensor(long int)],GenericList[Tensor(long int)]]"
    text = file_text(
        node_text(2, "cat", 1, side([3, [[one, two], [three]]], [[], [[[1], []], [[1]]]], ["Int", kind]))
    )
    tensors = read(tmp_path, text).table("tensors").to_pylist()
    assert [(row["argument"], row["tensor"], row["shape"]) for row in tensors] == [
        (1, 20, "[1]"), (1, 21, "[]"), (1, 22, "[1]"),
    ]  # fmt: skip
    assert {(row["type"], row["device"], row["strides"]) for row in tensors} == {("long int", "cuda:0", None)}


def test_six_plain_numbers_are_no_tensor(tmp_path):
    text = file_text(
        node_text(
            2, "view", 1, side([[1, 2, 3, 4, 5, 6]], [[[]] * 6], ["GenericList[" + "Int," * 5 + "Int]"])
        )
    )
    assert read(tmp_path, text).table("tensors").num_rows == 0


def test_compressed_files_are_read_whatever_their_name(tmp_path):
    assert len(read(tmp_path, gzip.compress(file_text(ADD).encode()), "et.json")) == 2


def test_what_a_killed_process_leaves_is_refused_with_the_reason(tmp_path):
    whole = file_text(node_text(2, "a", 1), node_text(3, "cut", 2))
    with pytest.raises(FormatError, match="not an execution trace that was finished"):
        read(tmp_path, whole[:-300])


def test_nodes_that_are_none_are_counted(tmp_path):
    document = json.loads(file_text(ADD))
    document["nodes"] += [None, {"id": "7", "name": "x"}, {"id": 8}]
    trace = read(tmp_path, json.dumps(document))
    assert (len(trace), trace.lost) == (2, {"unreadable_nodes": 3})


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": None}, {"inputs": {"values": 3}}, {"attrs": "x"}, {"attrs": [1, {"name": "rf_id", "value": "no"}]},
        {"inputs": {"values": [[1, 2, 3, 4, 5, "cpu"]], "types": [7]}}, {"ctrl_deps": "x"}, {"outputs": []},
        {"inputs": {"values": [[2**70, 2, 3, 4, 5, "cpu"]], "types": ["Tensor(float)"], "shapes": "?", "strides": [["a"]]}},
        {"attrs": [{"name": "rf_id", "value": 2**64}]},
    ],
)  # fmt: skip
def test_nodes_of_other_shapes_are_read_as_far_as_they_go(tmp_path, change):
    document = json.loads(file_text(ADD))
    document["nodes"][0] |= change
    trace = read(tmp_path, json.dumps(document))
    assert trace.table("nodes").num_rows == 2
    assert trace.table("tensors").num_rows <= 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no valid JSON"),
        ('{"schema": NaN, "nodes": []}', "NaN is not JSON"),
        ("[]", "no list `nodes`"),
        ('{"schema": "1.1.1", "nodes": 3}', "no list `nodes`"),
        ('{"traceEvents": []}', ": a Chrome trace, not"),
        ('{"nodes": []}', "of schema None"),
        ('{"schema": "1.0.3-chakra.0.0.4", "nodes": []}', "of schema '1.0.3-chakra.0.0.4'"),
        ('{"schema": "2.1.0", "nodes": []}', "of schema '2.1.0'"),
        ('{"schema": 1.1, "nodes": []}', "of schema 1.1"),
        (gzip.compress(b"{}", mtime=0)[:-4], "truncated"),
        ("[" * 100_000, "no valid JSON"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path, content, words):
    with pytest.raises(FormatError, match=words):
        read(tmp_path, content)


@pytest.mark.parametrize("schema", ["1.1.0-chakra.0.0.4", "1.1.2", "1.1.1-chakra.0.0.5"])
def test_every_1_1_is_read(tmp_path, schema):
    assert read(tmp_path, file_text(ADD, schema=schema)).schema == schema


def test_a_table_of_another_name_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="choose 'nodes' or 'tensors'"):
        read(tmp_path, file_text()).table("spans")
