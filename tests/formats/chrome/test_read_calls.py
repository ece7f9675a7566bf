"""Python stacks and modules in Chrome traces."""

import kinetoscope
from tests.support.kineto_text import call, kernel, op, opened
from tests.support.real_traces import real_trace


def test_calls_of_functions_and_modules_become_stacks_and_modules():
    trace = opened(
        op("train.py(3): <module>", 0, 100, cat="python_function"),
        op("nn.Module: Net_0", 10, 50, cat="python_function"),
        op("net.py(8): forward", 11, 40, cat="python_function"),
        op("nn.Module: Linear_0", 12, 10, cat="python_function"),
        op("aten::linear", 13, 5),
        op("nn.Module: Linear_1", 30, 10, cat="python_function"),
        op("<built-in method relu of type object at 0x7f>", 31, 5, cat="python_function"),
        op("aten::relu", 32, 2),
        op("aten::add", 200, 1),
    )
    rows = {row["name"]: row for row in trace.table("spans").to_pylist()}
    assert rows["aten::linear"]["stack"] == "train.py(3): <module>;net.py(8): forward"
    assert rows["aten::relu"]["stack"].endswith(";(0): <built-in method relu of type object at 0x7f>")
    assert rows["aten::add"]["stack"] is None
    assert rows["nn.Module: Net_0"]["kind"] == "module"
    assert rows["train.py(3): <module>"]["kind"] == "python"
    assert (rows["aten::linear"]["module"], rows["aten::linear"]["module_class"]) == ("Linear_0", "Linear")
    assert rows["aten::relu"]["module"] == "Linear_1"
    assert rows["aten::linear"]["parent"] is None
    frames = trace.table("frames").to_pylist()
    assert {"function": "forward", "file": "net.py", "line": 8}.items() <= frames[1].items()


def test_lines_that_are_no_lines_are_left_out():
    trace = opened(
        op(f"x.py({2**40}): f", 0, 5, cat="python_function"),
        op(f"x.py({'9' * 5000}): g", 1, 2, cat="python_function"),
    )
    assert [row["line"] for row in trace.table("frames").to_pylist()] == [0, 0]


def test_stacks_of_old_torch_are_texts_from_the_innermost_frame_on():
    stack = "net.py(8): forward;nn.Module: Linear_0;net.py(3): call;nn.Module: Net_0;train.py(1): <module>"
    trace = opened(
        op("aten::linear", 0, 5, **{"Call stack": stack}),
        op("aten::mm", 1, 1, **{"Call stack": ""}),
        op("aten::add", 9, 1, **{"Call stack": "train.py(1): <module>"}),
    )
    rows = {row["name"]: row for row in trace.table("spans").to_pylist()}
    assert rows["aten::linear"]["stack"] == "train.py(1): <module>;net.py(3): call;net.py(8): forward"
    assert rows["aten::linear"]["module"] == "Linear_0"
    assert rows["aten::add"]["stack"] == "train.py(1): <module>"
    assert rows["aten::add"]["module"] is None


def test_calls_of_the_runtime_have_the_stack_of_the_operator_around_them():
    stack = "net.py(8): forward;train.py(1): <module>"
    trace = opened(
        op("aten::linear", 0, 50, **{"Call stack": stack}),
        op("aten::mm", 10, 30, **{"Call stack": ""}),
        call("cudaLaunchKernel", 20, 10, 1),
        kernel("gemm", 60, 5, 1),
        call("cudaDeviceSynchronize", 90, 10, 2),
    )
    rows = {row["name"]: row["stack"] for row in trace.table("spans").to_pylist()}
    assert rows["cudaLaunchKernel"] == rows["aten::linear"] == "train.py(1): <module>;net.py(8): forward"
    assert rows["aten::mm"] is None
    assert rows["cudaDeviceSynchronize"] is None
    assert [(row["line"], row["self_ns"]) for row in trace.table("lines").to_pylist()][:1] == [(8, 30_000)]


def test_lines_of_old_torch_survive_a_round_trip(tmp_path):
    def lines(trace):
        keys = ("file", "line", "function", "self_ns", "device_ns")
        return sorted(tuple(row[key] for key in keys) for row in trace.table("lines").to_pylist())

    trace = kinetoscope.open(real_trace("v100_resnet50_mem"))
    trace.save(tmp_path / "x.json.gz")
    found = lines(trace)
    assert found == lines(kinetoscope.open(tmp_path / "x.json.gz"))
    assert {line: self_ns for _, line, _, self_ns, _ in found}[44] == 13_435_000
