"""Kernels of CUDA graph replays, attributed to what was captured."""

import kinetoscope
from kinetoscope.combine.graph_replays import attribute_replays
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder


class Graphs:
    """A program that captures graphs of a model, and replays them."""

    def __init__(self):
        self.builder = TraceBuilder()
        self.builder.thread()
        self.compute = self.builder.stream(7)
        self.root = self.builder.module("Model")
        self.modules = [self.builder.module("Linear", name=f"layer{at}", parent=self.root) for at in range(2)]
        self.stacks = [self.builder.stack(("train.py", 10 + at, "forward")) for at in range(2)]
        self.launcher = self.builder.stack(("serve.py", 99, "decode"))
        self.time = 0
        self.correlation = 0

    def call(self, name, duration=4, **more):
        self.correlation += 1
        self.builder.runtime(name, self.time + 1, duration, correlation=self.correlation, **more)
        return self.correlation

    def capture(self, layers=(0, 1)):
        self.builder.runtime("cudaStreamBeginCapture", self.time, 2)
        self.time += 10
        for layer in layers:
            self.builder.span(
                "aten::addmm", self.time, 8, module=self.modules[layer], stack=self.stacks[layer]
            )
            self.call("cudaLaunchKernel")
            self.time += 10
        self.builder.runtime("cudaStreamEndCapture", self.time, 2)
        self.time += 10

    def replay(self, durations, graph, *, backwards=False):
        self.builder.span("decode", self.time, 50, module=self.root, stack=self.launcher)
        correlation = self.call("cudaGraphLaunch")
        self.time += 100
        for node, duration in enumerate(durations):
            place = len(durations) - node if backwards else node
            self.builder.kernel(
                "gemm", self.time + 1000 * place, duration, correlation=correlation, stream=self.compute,
                launch={} if graph is None else {"graph": graph, "graph_node": 100 * graph + node},
            )  # fmt: skip
        self.time += 10_000

    def attributed(self):
        return attribute_replays(self.builder.build())


def device_time(trace):
    return {row["path"]: row["device_self_ns"] for row in trace.table("modules").to_pylist()}


def losses(trace):
    return {row["code"]: row["count"] for row in trace.table("losses").to_pylist()}


def test_kernels_of_replays_belong_to_the_modules_and_lines_that_were_captured():
    graphs = Graphs()
    graphs.capture()
    for durations in ((300, 500), (310, 510)):
        graphs.replay(durations, graph=3, backwards=True)
    before, trace = device_time(graphs.builder.build()), graphs.attributed()
    assert before == {"Model": 1620, "layer0": 0, "layer1": 0}
    assert device_time(trace) == {"Model": 0, "layer0": 610, "layer1": 1010}
    kernels = trace.table("kernels", by="span").to_pylist()
    assert {(row["operator"], row["module"], row["total_ns"]) for row in kernels} == {
        ("aten::addmm", "layer0", 300), ("aten::addmm", "layer0", 310),
        ("aten::addmm", "layer1", 500), ("aten::addmm", "layer1", 510),
    }  # fmt: skip
    lines = {(row["file"], row["line"]): row["device_self_ns"] for row in trace.table("lines").to_pylist()}
    assert lines == {("train.py", 10): 610, ("train.py", 11): 1010, ("serve.py", 99): 0}
    assert losses(trace) == {}


def test_graphs_of_one_order_are_matched_by_their_numbers():
    graphs = Graphs()
    graphs.capture((0, 0))
    graphs.capture((1, 1))
    graphs.replay((1, 2), graph=8)
    graphs.replay((4, 8), graph=5)
    assert device_time(graphs.attributed()) == {"Model": 0, "layer0": 12, "layer1": 3}


def test_replays_that_several_captures_could_be_are_a_loss():
    graphs = Graphs()
    graphs.capture((0, 0))
    graphs.capture((1, 1))
    graphs.replay((1, 2), graph=8)
    trace = graphs.attributed()
    assert losses(trace) == {"unknown_replays": 2}
    assert device_time(trace) == {"Model": 3, "layer0": 0, "layer1": 0}


def test_replays_without_their_capture_are_a_loss():
    graphs = Graphs()
    graphs.capture()
    graphs.replay((1, 2, 3), graph=8)
    trace = graphs.attributed()
    assert losses(trace) == {"unknown_replays": 3}
    assert (trace.column("spans", "origin") < 0).all()


def test_without_numbers_of_nodes_the_order_in_one_stream_is_that_of_the_capture():
    graphs = Graphs()
    graphs.capture()
    graphs.replay((300, 500), graph=None)
    assert device_time(graphs.attributed()) == {"Model": 0, "layer0": 300, "layer1": 500}


def test_a_trace_written_as_json_is_attributed_when_it_is_opened(tmp_path):
    graphs = Graphs()
    graphs.capture()
    graphs.replay((300, 500), graph=3)
    path = tmp_path / "graphs.json"
    graphs.builder.build().save(path)
    with kinetoscope.open(path) as trace:
        assert {row["module"] for row in trace.table("kernels", by="span").to_pylist()} == {
            "layer0",
            "layer1",
        }


def test_a_real_capture_without_replays_is_as_it_was():
    with kinetoscope.open(real_trace("vllm_graph_capture_stack")) as trace:
        assert (trace.column("spans", "origin") < 0).all()
        assert "unknown_replays" not in losses(trace)
