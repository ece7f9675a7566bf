"""Stacks with the time spent in each."""

from kinetoscope.tables.stacks import program_frames, project_lines
from kinetoscope.viewer.server.routes import answer
from tests.support.trace_builder import TraceBuilder


def test_totals_include_the_stacks_that_begin_with_one():
    builder = TraceBuilder()
    root, left = ("a.py", 1, "main"), ("b.py", 2, "left")
    builder.span("x", 0, 5, stack=builder.stack(root))
    builder.span("y", 10, 20, stack=builder.stack(root, left))
    builder.span("z", 40, 7, stack=builder.stack(root, ("c.py", 3, "right")))
    rows = builder.build().table("stacks").to_pylist()
    assert [
        (row["frame"], row["depth"], row["parent"], row["self_ns"], row["total_ns"], row["count"])
        for row in rows
    ] == [
        ("a.py(1): main", 0, None, 5, 32, 1),
        ("b.py(2): left", 1, 0, 20, 20, 1),
        ("c.py(3): right", 1, 0, 7, 7, 1),
    ]
    assert rows[1]["stack"] == "a.py(1): main;b.py(2): left"


def test_what_enters_a_range_is_not_where_its_time_goes():
    profiler = "/venv/lib/python3.11/site-packages/torch/autograd/profiler.py"
    builder = TraceBuilder()
    line = ("train.py", 7, "main")
    stack = builder.stack(line, (profiler, 919, "record_function.__enter__"), ("torch/_ops.py", 1279, "call"))
    builder.annotation("mine", 0, 100, stack=stack).span("aten::mm", 10, 20, stack=builder.stack(line))
    builder.step(0, 0, 1000, stack=builder.stack(line, (profiler, 919, "record_function.__enter__")))
    trace = builder.build()
    found = {
        row["stack"]: (row["self_ns"], row["python_self_ns"]) for row in trace.table("stacks").to_pylist()
    }
    assert {stack: times for stack, times in found.items() if any(times)} == {"train.py(7): main": (20, 80)}
    graph = answer(trace, "flame", {}).to_pylist()
    assert [(row["function"], row["own"]) for row in graph] == [("main", 100)]
    assert [(row["self_ns"], row["python_self_ns"]) for row in trace.table("lines").to_pylist()] == [(20, 80)]


def test_what_a_context_manager_of_torch_enters_is_not_where_its_time_goes():
    manager = ("/usr/lib/python3.11/contextlib.py", 137, "_GeneratorContextManager.__enter__")
    timed = ("/venv/lib/python3.11/site-packages/torch/_dynamo/utils.py", 833, "dynamo_timed")
    builder = TraceBuilder()
    line, own = ("train.py", 7, "main"), ("train.py", 3, "phase")
    builder.annotation("compile", 0, 100, stack=builder.stack(line, manager, timed, manager, timed))
    # A manager of the program's own that works before it yields.
    builder.span("aten::mm", 100, 20, stack=builder.stack(line, manager, own))
    graph = answer(builder.build(), "flame", {}).to_pylist()
    assert {row["function"]: row["own"] for row in graph if row["own"]} == {"main": 100, "phase": 20}


def test_the_line_of_a_package_is_the_line_of_the_project_that_called_it():
    builder = TraceBuilder().know("program", {"command": ["train.py"], "folder": "/code"})
    package = ("/usr/lib/python3.11/site-packages/networks/layers.py", 7, "Layer.forward")
    called = builder.stack(("/code/train.py", 3, "main"), package)
    alone = builder.stack(package)
    trace = builder.span("aten::mm", 0, 10, stack=called).span("aten::mm", 10, 10, stack=alone).build()
    lines = trace.column("frames", "line")[project_lines(trace)]
    assert lines[[called, alone]].tolist() == [3, 7]
    assert trace.column("frames", "line")[program_frames(trace)][[called, alone]].tolist() == [7, 7]
    assert project_lines(trace)[-1] == -1
