from collections import Counter

from hypothesis import given, settings

import kinetoscope
from kinetoscope.analyses.flame import MEASURES, ORDERS
from kinetoscope.combine.processes import merge_processes
from kinetoscope.model.processes import Placement
from kinetoscope.viewer.pages.stacks import reported
from kinetoscope.viewer.server.routes import answer, encoded
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder

MAIN = ("train.py", 3, "<module>")
STEP = ("train.py", 9, "step")
CALL = ("/x/site-packages/torch/nn/modules/module.py", 1778, "Module._call_impl")
FORWARD = ("model.py", 7, "GPT.forward")


def trained():
    """A step with a forward and a backward function, a kernel, and memory."""
    builder = TraceBuilder()
    builder.thread()
    stream = builder.stream(7)
    step = builder.stack(MAIN, STEP)
    forward = builder.stack(MAIN, STEP, CALL, FORWARD)
    builder.span("step", 0, 1000, stack=step, scope=7)
    builder.span("aten::linear", 100, 200, stack=forward, sequence=1)
    builder.span("aten::addmm", 120, 150, stack=forward)
    builder.runtime("cudaLaunchKernel", 130, 20, correlation=1, stack=forward)
    builder.kernel("gemm", 400, 90, stream=stream, correlation=1)
    builder.span("no stack", 2000, 50)
    builder.allocate(125, 4096, 640)
    builder.allocate(2010, 8192, 64)
    builder.allocate(2030, 16384, 32, stack=step)
    return builder.build()


def nodes(trace, **query):
    """The nodes of a flame graph: for each path of functions (total, own, count)."""
    paths, found = [], {}
    for row in answer(trace, "flame", query).to_pylist():
        path = (*(paths[row["parent"]] if row["parent"] is not None else ()), row["function"])
        paths.append(path)
        found[path] = (row["total"], row["own"], row["count"])
    return found


def test_flame_graph_of_host_time():
    assert nodes(trained()) == {
        ("<module>",): (1000, 0, 5),
        ("<module>", "step"): (1000, 800, 5),
        ("<module>", "step", "Module._call_impl"): (200, 0, 3),
        ("<module>", "step", "Module._call_impl", "GPT.forward"): (200, 200, 3),
    }


def test_frames_of_torch_are_hidden():
    found = nodes(trained(), library="hide")
    assert found[("<module>", "step", "GPT.forward")] == (200, 200, 3)
    assert len(found) == 3
    assert answer(trained(), "flame", {}).column("user").to_pylist() == [True, True, False, True]


def test_callers():
    assert nodes(trained(), order="callers", library="hide") == {
        ("step",): (800, 0, 2),
        ("step", "<module>"): (800, 800, 2),
        ("GPT.forward",): (200, 0, 3),
        ("GPT.forward", "step"): (200, 0, 3),
        ("GPT.forward", "step", "<module>"): (200, 200, 3),
    }


def test_device_time_and_bytes():
    trace = trained()
    assert nodes(trace, by="device", order="callers")[("GPT.forward",)] == (90, 0, 1)
    # An allocation has its own stack, else that of its span.
    assert nodes(trace, by="bytes")[("<module>",)] == (672, 0, 2)
    choices = answer(trace, "flame_choices", {})
    assert {one["by"]: (one["total"], one["known"]) for one in choices["measures"]} == {
        # What ran outside the range has no stack.
        "cpu": ([2050], [1000]),
        "device": ([90], [90]),
        "bytes": ([736], [672]),
    }


def test_operators_of_each_frame():
    rows = answer(trained(), "flame_operators", {"by": "cpu"}).to_pylist()
    assert [(row["node"], row["name"], row["kind"], row["count"], row["value"]) for row in rows] == [
        (1, "Python between operators", None, 2, 800),
        (3, "aten::addmm", "operator", 1, 130),
        (3, "aten::linear", "operator", 1, 50),
        (3, "cudaLaunchKernel", "runtime", 1, 20),
    ]
    rows = answer(trained(), "flame_operators", {"by": "bytes"}).to_pylist()
    assert [(row["name"], row["kind"], row["value"]) for row in rows] == [
        ("no stack", "operator", 32),
        ("aten::addmm", "operator", 640),
    ]


def test_built_in_methods_of_different_objects_are_one():
    builder = TraceBuilder()
    builder.thread()
    for place in (0, 1):
        frame = ("", 0, f"<built-in method mm of Tensor object at 0x7f{place}>")
        builder.span("aten::mm", 100 * place, 50, stack=builder.stack(MAIN, frame))
    assert nodes(builder.build())[("<module>", "<built-in method mm of Tensor object>")] == (100, 100, 2)


def test_each_process_of_several():
    both = merge_processes([trained(), trained()], [Placement(0, error_ns=0), Placement(50, error_ns=0)])
    assert nodes(both)[("<module>",)][0] == 2000
    assert nodes(both, process="1") == nodes(trained())
    choices = answer(both, "flame_choices", {})
    assert len(choices["processes"]) == 2
    assert choices["measures"][0]["known"] == [2000, 1000, 1000]


def test_trace_without_stacks():
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::add", 0, 10)
    trace = builder.build()
    choices = answer(trace, "flame_choices", {})
    assert choices["stacks"] == 0
    assert all(one["known"] == [0] for one in choices["measures"])
    assert answer(trace, "flame", {}).num_rows == 0
    assert reported(trace) == (("flame_choices", {}),)


def check_sums(trace):
    """Every flame graph and its operators add up to the tables."""
    stacks = trace.table("stacks")
    tables = {
        "cpu": sum(
            sum(stacks[name].to_pylist()) for name in ("self_ns", "python_self_ns", "blocked_self_ns")
        ),
        "device": sum(stacks["device_self_ns"].to_pylist()),
    }
    for by in MEASURES:
        for order in ORDERS:
            for library in ("show", "hide"):
                query = {"by": by, "order": order, "library": library}
                found = answer(trace, "flame", query).to_pydict()
                own = Counter()
                for row in answer(trace, "flame_operators", query).to_pylist():
                    own[row["node"]] += row["value"]
                assert own == Counter({node: value for node, value in enumerate(found["own"]) if value})
                if by in tables:
                    assert sum(found["own"]) == tables[by]


@settings(max_examples=examples(8), deadline=None)
@given(any_traces())
def test_all_flame_graphs_add_up_to_the_tables(trace):
    check_sums(trace)
    for path, query in reported(trace):
        assert encoded(answer(trace, path, query)).status == 200


def test_a_real_trace_adds_up_to_the_tables():
    check_sums(kinetoscope.open(real_trace("mi300_resnet_stack_rccl_rank0of8")))
