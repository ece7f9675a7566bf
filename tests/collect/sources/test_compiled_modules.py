"""Kernels of `torch.compile` as spans, with the lines and modules of the program that they compute."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kinetoscope
from kinetoscope.collect.sources.compiled_modules import CompiledModules, _modules_of
from kinetoscope.model.hierarchy import host_work
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.costs.flops import counted_flops, flops
from kinetoscope.tables.costs.peaks import MATRIX
from tests.support import compiled_programs
from tests.support.compiled_cache import compiler_cache
from tests.support.compiled_programs import PROGRAMS, CompiledProgram
from tests.support.effort import STRESS
from tests.support.torch_release import TORCH, notes_what_kernels_compute

__all__ = ["compiler_cache"]

# The compiler's own imports and its use of torch.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning:torch")

# Compiling takes seconds: the kinds of programs that differ most always, all of them in `make stress`.
OFTEN = ("mlp", "two graph breaks")
CHOSEN = [program for program in PROGRAMS if STRESS or program.name in OFTEN]


@pytest.fixture
def noting_compiler(compiler_cache: None) -> None:
    """The compiler, if it can be asked what its kernels compute."""
    if not notes_what_kernels_compute():
        pytest.skip("this torch notes what kernels compute only while it writes files for debugging")


_compiled: dict[str, Callable[[], None]] = {}


def compiled(program: CompiledProgram) -> Callable[[], None]:
    """The program, compiled once in a run, after a session was made."""
    kinetoscope.profile()
    if program.name not in _compiled:
        _compiled[program.name] = program.compiled()
    return _compiled[program.name]


def recorded(program: CompiledProgram, **options: Any) -> kinetoscope.Trace:
    run = compiled(program)
    with kinetoscope.profile(**options) as session:
        run()
    return session.trace


def recorded_eagerly(program: CompiledProgram) -> kinetoscope.Trace:
    torch.manual_seed(0)
    model, inputs = program.model().train(program.trains), program.inputs()
    with kinetoscope.profile(record_shapes=True) as session:
        for one in inputs:
            model(one).sum().backward()
    return session.trace


def in_graphs(trace: kinetoscope.Trace) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The spans that a compiled graph called, and what ran in these."""
    spans, strings = trace.columns("spans"), trace.strings
    if TORCH < (2, 11):  # opens no range for the call of a graph
        return np.flatnonzero(spans["origin"] >= 0)
    graph = [strings[name].startswith("## Call CompiledFxGraph") for name in spans["name"].tolist()]
    inside = [False] * len(spans)
    for row, parent in enumerate(spans["parent"].tolist()):
        inside[row] = parent >= 0 and (graph[parent] or inside[parent])
    return np.flatnonzero(inside)


def source_line(number: int) -> str:
    return Path(compiled_programs.__file__).read_text().splitlines()[number - 1]


def lines_of(function: Any) -> range:
    lines, first = inspect.getsourcelines(function)
    return range(first, first + len(lines))


@pytest.mark.parametrize("program", CHOSEN, ids=lambda program: program.name)
def test_every_kernel_of_a_compiled_program_has_its_line_and_its_module(
    noting_compiler: None, program: CompiledProgram
) -> None:
    trace = recorded(program)
    spans = trace.columns("spans")
    rows = in_graphs(trace)
    origin = spans["origin"][rows]
    self_ns = spans["self_ns"][rows]
    assert self_ns[origin >= 0].sum() >= 0.98 * self_ns.sum()
    assert (spans["kind"][rows] == SpanKind.FUSED_KERNEL).any()

    lines = {
        (row["file"], row["line"])
        for row in trace.table("lines").to_pylist()
        if row["self_ns"] or row["count"]
    }
    own = {line for file, line in lines if file == compiled_programs.__file__}
    assert own & set(
        lines_of(program.model.forward if isinstance(program.model, type) else compiled_programs.Block)
    )
    assert not any("torchinductor" in file for file, _ in lines)
    model = dict(program.model().named_modules(prefix="_orig_mod"))
    paths = trace.column("modules", "path")
    reached = {paths[module] for module in spans["module"][rows[origin >= 0]].tolist()}
    assert reached <= set(model)
    # Modules without a kernel of their own are those whose work is another's, such as an activation's.
    with_parameters = {path for path, module in model.items() if list(module.parameters(recurse=False))}
    assert with_parameters <= reached
    assert not [loss for loss in trace.table("losses").to_pylist() if loss["code"] == "unknown_kernels"]


def test_kernels_of_backward_belong_to_the_lines_and_modules_of_forward(noting_compiler: None) -> None:
    trace = recorded(PROGRAMS[0])
    spans = trace.table("spans").to_pylist()
    backward = [span for span in spans if span["kind"] == "fused_kernel" and span["phase"] == "backward"]
    forward = [span for span in spans if span["kind"] == "fused_kernel" and span["phase"] == "forward"]
    assert backward
    assert forward
    assert {span["module"] for span in backward} & {span["module"] for span in forward}
    gelu = [span for span in spans if span["name"] == "cpp_fused_gelu_1"]
    assert [span["module"] for span in gelu] == ["_orig_mod.blocks.0", "_orig_mod.blocks.1"]
    assert all("Block.forward" in span["stack"].rpartition(";")[2] for span in gelu)


class Pair(nn.Module):
    """Two layers whose products the compiler's pattern matcher joins with their sum, and in backward with that of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + self.b(x)


def test_fused_products_belong_to_the_module_of_their_weight(
    noting_compiler: None,
) -> None:
    run = torch.compile(nn.Sequential(Pair(), Pair()))

    def step() -> None:
        run(torch.ones(16, 16, requires_grad=True)).sum().backward()

    kinetoscope.profile()
    step()
    with kinetoscope.profile() as session:
        step()
    rows = session.trace.table("origins").to_pylist()
    products = [row["module"] for row in rows if row["operator"].startswith(("aten.mm.", "aten.addmm."))]
    joined = [row["module"] for row in rows if row["operator"].startswith("aten.addmm.")]
    layers = [f"_orig_mod.{pair}.{layer}" for pair in (0, 1) for layer in ("a", "b")]
    assert len(joined) == 4
    assert {module.rpartition(".")[0] for module in joined} == {"_orig_mod.0", "_orig_mod.1"}
    # Of each layer one in forward, and two in backward.
    assert sorted(products) == sorted(3 * layers)


def node_in(graph: torch.fx.Graph, inputs: tuple[Any, ...], *path: str) -> torch.fx.Node:
    """A node that adds its inputs, which the program has in some modules."""
    node = graph.call_function(torch.ops.aten.add.Tensor, inputs)
    node.meta |= {"seq_nr": 1, "nn_module_stack": {one: (one, nn.Module) for one in path}}
    return node


def test_inserted_nodes_belong_to_the_common_module_of_their_neighbors() -> None:
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")

    def made(*inputs: Any) -> torch.fx.Node:
        return graph.call_function(torch.ops.aten.add.Tensor, inputs)

    one = node_in(graph, (x, 1), "net", "net.block", "net.block.q")
    other = node_in(graph, (x, 2), "net", "net.block", "net.block.k")
    total = made(one, other)
    again = made(total, total)
    first = made(x, x)
    node_in(graph, (first, 1), "net", "net.norm")
    turned = graph.call_function(torch.ops.aten.t.default, (weight,))
    turned.meta["nn_module_stack"] = {one: (one, nn.Module) for one in ("net", "net.block", "net.block.out")}
    product = graph.call_function(torch.ops.aten.addmm.default, (other, one, turned))
    product.meta["nn_module_stack"] = {one: (one, nn.Module) for one in ("net", "net.block")}
    of_program = node_in(graph, (one, other))
    of_backward = graph.call_function(torch.ops.aten.add.Tensor, (one, other))
    of_backward.meta |= {"partitioner_tag": "is_backward", "fwd_nn_module_stack": None}

    def path(node: torch.fx.Node) -> list[str]:
        return [one.path for one in _modules_of(node)]

    assert path(total) == path(again) == ["net", "net.block"]
    assert path(first) == ["net", "net.norm"]
    assert path(product)[-1] == "net.block.out"
    # Of the compiled module itself: nothing is guessed.
    assert path(of_program) == path(of_backward) == path(made(of_program, one)) == path(made(x, x)) == []


def test_nodes_of_a_kernel_have_weights_that_add_up_to_one(noting_compiler: None) -> None:
    trace = recorded(PROGRAMS[0])
    origins = trace.columns("origins")
    sums = np.bincount(origins["first"], origins["weight"])
    assert np.allclose(sums[np.unique(origins["first"])], 1)
    rows = trace.table("origins").to_pylist()
    assert {"aten.addmm.default", "aten.erf.default"} <= {row["operator"] for row in rows}
    fused = [span for span in trace.table("spans").to_pylist() if span["kind"] == "fused_kernel"]
    assert all(span["bytes_moved"] > 0 for span in fused)
    gelu = next(span for span in fused if span["name"] == "cpp_fused_gelu_1")
    line = next(at for at in lines_of(compiled_programs.Block) if "functional.gelu" in source_line(at))
    assert all(
        text.endswith(f"in blocks.0, compiled_programs.py:{line}")
        for text in json.loads(gelu["arguments"])["computes"]
    )


@pytest.mark.parametrize(
    "program", [one for one in CHOSEN if one.name in ("mlp", "vit block")], ids=lambda one: one.name
)
def test_a_compiled_program_has_the_operations_of_the_eager_one(
    noting_compiler: None, program: CompiledProgram
) -> None:
    trace, eager = recorded(program, record_shapes=True), recorded_eagerly(program)
    found, expected = counted_flops(trace), counted_flops(eager)
    assert found.covered_percent == expected.covered_percent == 100
    assert found.flops
    assert expected.flops
    by_family = {
        name: sum(row["flops"] or 0 for row in one.table("flops").to_pylist() if row["family"] in MATRIX)
        for name, one in (("compiled", trace), ("eager", eager))
    }
    assert by_family["compiled"] == by_family["eager"] > 0
    # What is fused is computed by other formulas, and again where a kernel needs it again.
    fused, apart = found.flops - by_family["compiled"], expected.flops - by_family["eager"]
    assert 0.8 * apart <= fused <= 1.6 * apart
    rows = [row for row in trace.table("ops").to_pylist() if row["kind"] == "fused_kernel"]
    assert sum(row["flops"] for row in rows) == sum(
        row["flops"] for row in trace.table("flops").to_pylist() if row["family"] == "fused"
    )
    assert all(row["bytes_moved"] > 0 for row in rows)
    assert any(row["flops_per_s"] for row in rows)


def test_the_operations_of_a_kernel_are_those_of_its_nodes(noting_compiler: None) -> None:
    trace = recorded(PROGRAMS[0])
    gelu = [span for span in trace.table("spans").to_pylist() if span["name"] == "cpp_fused_gelu_1"]
    # mul, mul, erf, add and mul, on each of the elements of the hidden layer.
    assert [span["flops"] for span in gelu] == [5 * 64 * 2 * compiled_programs.WIDTH] * 2
    assert [span["bytes_moved"] for span in gelu] == [2 * 4 * 64 * 2 * compiled_programs.WIDTH] * 2
    # Sizes of inputs were not recorded: operators outside of graphs have no operations.
    assert counted_flops(trace).covered_percent < 100


def test_operators_that_a_graph_calls_have_their_operations_without_recorded_sizes(
    noting_compiler: None,
) -> None:
    without, shaped = recorded(PROGRAMS[0]), recorded(PROGRAMS[0], record_shapes=True)

    def products(trace: kinetoscope.Trace) -> list[tuple[Any, ...]]:
        spans = trace.table("spans").to_pylist()
        return [
            (span["name"], span["flops"], span["bytes_moved"])
            for span in spans
            if span["name"] in ("aten::mm", "aten::addmm")
        ]

    assert products(without) == products(shaped)
    assert {name for name, flops, _ in products(without) if flops} == {"aten::mm", "aten::addmm"}
    families = {row["family"] for row in without.table("flops").to_pylist() if row["flops"]}
    assert families == {"matmul", "fused"}
    # The peak is that of the element type that the graph states.
    multiplied = next(
        row for row in flops(without, {"float32": 1e9}).to_pylist() if row["family"] == "matmul"
    )
    assert multiplied["peak_percent"] == pytest.approx(100 * multiplied["flops_per_s"] / 1e9)


def test_modules_of_a_compiled_program_have_the_operations_of_their_kernels(noting_compiler: None) -> None:
    trace, eager = recorded(PROGRAMS[0], record_shapes=True), recorded_eagerly(PROGRAMS[0])
    rows = {row["path"]: row for row in trace.table("modules").to_pylist()}
    spans = trace.table("spans").to_pylist()
    inside = sum(span["flops"] or 0 for span in spans if span["module"] is not None)
    assert sum(row["self_flops"] for row in rows.values()) == inside == rows["_orig_mod"]["flops"]
    # A layer's products are those of the eager one; beside them, its gradient of the bias is fused.
    for row in eager.table("modules").to_pylist():
        if row["class"] == "Linear":
            found = rows[f"_orig_mod.{row['path']}"]
            assert found["self_flops"] == pytest.approx(row["self_flops"], rel=0.02), row["path"]
    # Without recorded sizes, those outside of graphs are lacking, such as the sums of gradients.
    inference = recorded(PROGRAMS[-1]).table("modules").to_pylist()
    assert all(row["flops"] is not None for row in inference)
    assert max(row["flops"] for row in inference) > 0


def test_operations_of_sizes_that_change_are_unknown(compiler_cache: None) -> None:
    kinetoscope.profile()
    call = torch.compile(lambda x: x.sin() + x.cos(), dynamic=True)
    call(torch.randn(12))
    with kinetoscope.profile(record_shapes=True) as session:
        call(torch.randn(24))
    (kernel,) = [row for row in session.trace.table("spans").to_pylist() if row["kind"] == "fused_kernel"]
    assert kernel["flops"] is None
    assert kernel["bytes_moved"] is None


def test_the_time_of_a_kernel_is_divided_among_its_modules(noting_compiler: None) -> None:
    trace = recorded(PROGRAMS[0])
    spans, origins = trace.columns("spans"), trace.columns("origins")
    host = host_work(trace).mask
    expected: dict[int, float] = {}
    several = 0
    for row in np.flatnonzero(host).tolist():
        first, module, self_ns = (int(spans[name][row]) for name in ("origin", "module", "self_ns"))
        parts = np.flatnonzero(origins["first"] == first) if first >= 0 else []
        several += len({int(origins["module"][part]) for part in parts}) > 1
        for part in parts:
            at = int(origins["module"][part])
            expected[at] = expected.get(at, 0) + self_ns * origins["weight"][part]
        if first < 0 and module >= 0:
            expected[module] = expected.get(module, 0) + self_ns
    assert several
    found = {row["id"]: row["self_ns"] for row in trace.table("modules").to_pylist()}
    assert found == {row: pytest.approx(expected.get(row, 0), abs=100) for row in found}
    assert sum(found.values()) == spans["self_ns"][host & (spans["module"] >= 0)].sum()


class Regions(nn.Module):
    """Two regions of equal structure, which share one compiled graph; compiling each puts a module around it."""

    def __init__(self) -> None:
        super().__init__()
        self.regions = nn.ModuleList(
            torch.compile(nn.Sequential(nn.Linear(8, 8), nn.SiLU())) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for region in self.regions:
            x = region(x)
        return x


@pytest.mark.parametrize("noted_here", [True, False])
def test_regions_that_share_a_graph_have_each_their_own_modules(
    noting_compiler: None, monkeypatch: pytest.MonkeyPatch, noted_here: bool
) -> None:
    from kinetoscope.collect.sources import compiled_modules

    kinetoscope.profile()
    model, x = Regions(), torch.randn(4, 8, requires_grad=True)
    model(x).sum().backward()
    if not noted_here:  # as of a module that comes from the compiler's cache
        monkeypatch.setattr(compiled_modules, "COMPILED_MODULES", CompiledModules())
    with kinetoscope.profile() as session:
        model(x).sum().backward()
    spans = session.trace.table("spans").to_pylist()
    modules = [
        span["module"] for span in spans if span["kind"] == "fused_kernel" or span["name"] == "aten::addmm"
    ]
    assert {module.split(".")[1] for module in modules} == {"0", "1"}
    assert {module.replace("regions.0", "regions.1") for module in modules} <= dict(
        model.named_modules()
    ).keys()
    assert [module.split(".")[2:] for module in modules if "regions.0" in module] == [
        module.split(".")[2:] for module in modules if "regions.1" in module
    ]


def test_modules_that_a_function_closes_over_have_their_names(noting_compiler: None) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, values, (x,)).sum()

    kinetoscope.profile()
    gradient = torch.compile(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0)))
    x = torch.randn(4, 4)
    gradient(parameters, x)
    with kinetoscope.profile() as session:
        gradient(parameters, x)
    paths = set(session.trace.column("modules", "path"))
    assert paths <= {"Sequential", *dict(model.named_modules())}
    # Before 2.12 torch does not know the modules of gradients that functions compute, and nothing else is left to compute here.
    assert ("0.0" in paths) is (TORCH >= (2, 12))


def test_nodes_of_a_lookup_are_weighted_by_the_rows_read(noting_compiler: None) -> None:
    rows, width = 4, 16
    model = nn.Sequential(nn.Embedding(5000, width), nn.LayerNorm(width)).eval()
    ids = torch.arange(rows)
    kinetoscope.profile()
    call = torch.compile(model, dynamic=False)
    with torch.no_grad():
        call(ids)
        with kinetoscope.profile() as session:
            call(ids)
    (kernel,) = [span for span in session.trace.table("spans").to_pylist() if span["kind"] == "fused_kernel"]
    assert kernel["module"] == "_orig_mod.1"
    origins = session.trace.table("origins").to_pylist()
    (lookup,) = [row["weight"] for row in origins if row["operator"] == "aten.embedding.default"]
    assert 0 < lookup < 0.5
    # What goes in and comes out, not the 5,000 rows.
    assert 2 * rows * width * 4 < kernel["bytes_moved"] < 4 * rows * width * 4


def test_modules_of_one_class_that_a_function_calls_are_apart(noting_compiler: None) -> None:
    first, second = nn.Sequential(nn.GELU()), nn.Sequential(nn.Tanh())

    def both(x: torch.Tensor) -> torch.Tensor:
        return first(x).sum() + second(x).sum()

    kinetoscope.profile()
    call, x = torch.compile(both), torch.randn(8)
    call(x)
    with kinetoscope.profile() as session:
        call(x)
    rows = session.trace.table("modules").to_pylist()
    assert [row["class"] for row in rows if row["depth"] == 0] == ["Sequential"] * 2
    leaves = [row for row in rows if row["depth"] == 1]
    assert {row["class"] for row in leaves} == {"GELU", "Tanh"}
    assert len({row["parent"] for row in leaves}) == 2
    kernels = [span for span in session.trace.table("spans").to_pylist() if span["kind"] == "fused_kernel"]
    assert all(span["module"] for span in kernels)


def test_memory_that_a_graph_allocates_for_a_kernel_is_that_of_its_module(noting_compiler: None) -> None:
    if TORCH < (2, 11):
        pytest.skip(
            "this torch opens no range for the call of a graph, so what it allocates is not seen to be the graph's"
        )
    trace = recorded(PROGRAMS[0], profile_memory=True, record_shapes=True)
    rows = trace.table("modules").to_pylist()
    size = {row["path"]: row["self_bytes"] for row in rows}
    model = PROGRAMS[0].model()
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert len(linear) == 5
    assert all(size[f"_orig_mod.{name}"] > 0 for name in linear)
    # Where a block belongs changes no sum.
    spans = trace.columns("spans")
    assert rows[0]["bytes"] == spans["self_bytes"][host_work(trace).mask & (spans["module"] >= 0)].sum()
    written = [row for row in trace.table("memory").to_pylist() if row["category"] == "activation"]
    assert written
    assert not [row for row in written if row["operator"].startswith("## Call CompiledFxGraph")]
    hidden = [row["bytes"] for row in written if row["module"] == "_orig_mod.blocks.0.up"]
    assert hidden == [4 * 64 * 2 * compiled_programs.WIDTH]


def test_recording_changes_neither_results_nor_the_generated_modules(compiler_cache: None) -> None:
    from torch._dynamo.utils import counters
    from torch._inductor.codecache import PyCodeCache

    compiled(PROGRAMS[0])
    model = PROGRAMS[0].model().eval()
    call, (x,) = torch.compile(model), PROGRAMS[0].inputs()
    alone = call(x)
    before = [dict(vars(module)) for module in PyCodeCache.modules]
    counted = {name: dict(values) for name, values in counters.items()}
    with kinetoscope.profile() as session:
        observed = call(x)
    assert torch.equal(alone, observed)
    assert [dict(vars(module)) for module in PyCodeCache.modules] == before
    assert {name: dict(values) for name, values in counters.items()} == counted
    assert "fused_kernel" in session.trace.table("spans")["kind"].to_pylist()


def test_compiling_inside_the_recording_is_recorded_with_its_kernels(compiler_cache: None) -> None:
    torch._dynamo.reset()
    with kinetoscope.profile() as session:
        torch.compile(compiled_programs.Broken())(torch.randn(16, compiled_programs.WIDTH))
    spans = session.trace.table("spans").to_pylist()
    assert {span["module"] for span in spans if span["kind"] == "fused_kernel"} == {"_orig_mod"}


def test_a_later_process_finds_what_an_earlier_one_noted(noting_compiler: None) -> None:
    from torch._inductor.codecache import PyCodeCache

    from kinetoscope.collect.sources.compiled_modules import COMPILED_MODULES

    compiled(PROGRAMS[0])
    file = next(
        file
        for file in (module.__file__ for module in PyCodeCache.modules)
        if COMPILED_MODULES.calls_of(file)
    )
    noted, stored = COMPILED_MODULES.calls_of(file), CompiledModules().calls_of(file)
    assert noted
    assert stored
    assert [(call.line, call.kernel, call.fused, call.bytes) for call in stored] == [
        (call.line, call.kernel, call.fused, call.bytes) for call in noted
    ]
    assert [[node.frames for node in call.nodes] for call in stored] == [
        [node.frames for node in call.nodes] for call in noted
    ]


KILLED = """
import sys
import torch
import kinetoscope
from tests.support.compiled_programs import PROGRAMS

def before(x):
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()

(program,) = [one for one in PROGRAMS if one.name == "two graph breaks"]
session = kinetoscope.profile(path=sys.argv[1], engine="native")
older = torch.compile(before)
older(torch.ones(8))
session.start()
older(torch.ones(8))
program.compiled()
print("recorded", flush=True)
sys.stdin.read()
"""


@pytest.mark.stress("it compiles with a cache of its own")
def test_a_killed_process_keeps_what_was_compiled(
    noting_compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "killed.recording"
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", KILLED, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "recorded\n"
        os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    trace = kinetoscope.open(path)
    assert not trace.complete
    compiles, breaks = (trace.table(name).to_pylist() for name in ("compiles", "graph_breaks"))
    # Of three parts; from the compiler's cache, backward comes with forward.
    assert [row["stage"] for row in compiles].count("frame") == 3
    assert [row["stage"] for row in compiles].count("backward") in (0, 3)
    assert all(row["function"] and row["dynamo_ns"] for row in compiles if row["stage"] == "frame")
    assert all(row["span"] is not None for row in compiles)
    assert sorted((row["function"], row["count"]) for row in breaks) == [
        ("before", 1),
        ("forward", 1),
        ("forward", 1),
    ]
    kernels = [span for span in trace.table("spans").to_pylist() if span["name"].startswith("cpp_fused_")]
    assert {span["kind"] for span in kernels} == {"fused_kernel"}
    assert any(span["module"] == "_orig_mod" for span in kernels)
    assert all("Broken.forward" in span["stack"] for span in kernels if span["module"])
    assert unknown_kernels(trace) == []
    # As where the compiler's cache was cleared: the recording has the notes itself.
    monkeypatch.setattr("kinetoscope.combine.compiled._SUFFIX", ".of-nobody")
    elsewhere = kinetoscope.open(path)
    assert unknown_kernels(elsewhere) == []
    assert elsewhere.table("spans").to_pylist() == trace.table("spans").to_pylist()
    # And as of a session that noted nothing.
    monkeypatch.setattr("kinetoscope.combine.compiled.noted_calls", lambda recordings: {})
    assert unknown_kernels(kinetoscope.open(path)) == [len(kernels)]


def unknown_kernels(trace: kinetoscope.Trace) -> list[int]:
    return [loss["count"] for loss in trace.table("losses").to_pylist() if loss["code"] == "unknown_kernels"]


def test_kernels_from_a_cache_without_our_notes_have_lines_and_a_loss(
    compiler_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kinetoscope.collect.sources import compiled_modules

    run = compiled(PROGRAMS[0])
    monkeypatch.setattr("kinetoscope.combine.compiled._SUFFIX", ".of-nobody")
    monkeypatch.setattr(compiled_modules, "COMPILED_MODULES", CompiledModules())
    with kinetoscope.profile() as session:
        run()
    trace = session.trace
    rows = in_graphs(trace)
    assert (trace.column("spans", "origin")[rows] >= 0).all()
    gelu = [span for span in trace.table("spans").to_pylist() if span["name"] == "cpp_fused_gelu_1"]
    text = Path(compiled_programs.__file__).read_text().splitlines()
    line = next(at for at, one in enumerate(text, 1) if "functional.gelu(self.up" in one)
    assert all(span["stack"].endswith(f"({line}): Block.forward") for span in gelu), gelu[0]["stack"]
    (loss,) = [loss for loss in trace.table("losses").to_pylist() if loss["code"] == "unknown_kernels"]
    assert loss["count"] == len(rows)


def test_a_compiler_without_the_hooked_functions_compiles_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.graph  # noqa: F401  (what is imported already is watched at once)

    def fail(first: bool = False) -> None:
        raise AttributeError("torch._inductor.config.trace has no such setting")

    modules = CompiledModules()
    modules.open(modules)
    monkeypatch.setattr(modules, "_install", fail)
    modules.watch()
    modules.close(modules)
    assert modules.failures == {"AttributeError: torch._inductor.config.trace has no such setting": 1}


def test_a_generated_file_without_lines_of_the_program_has_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.graph  # noqa: F401  (files are looked up only where the compiler was imported)
    from torch._inductor.codecache import PyCodeCache

    file = tmp_path / "generated.py"
    file.write_text("cpp_fused_0 = async_compile.cpp()\nasync_compile.wait(globals())\ncpp_fused_0(x)\n")
    monkeypatch.setitem(PyCodeCache.linemaps, str(file), [])
    calls = CompiledModules().calls_of(str(file))
    assert [(call.line, call.kernel, call.nodes) for call in calls or ()] == [(3, "cpp_fused_0", ())]
