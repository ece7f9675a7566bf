"""What is computed is never guessed: without sizes it is unknown, and a sum that leaves out much is null."""

import pytest
import torch

import kinetoscope
from kinetoscope.tables.costs.call import OperatorCall
from kinetoscope.tables.costs.evaluate import Standing, built_in, distinct_calls, rule_of
from kinetoscope.tables.costs.flops import NO_SHAPES, counted_flops
from kinetoscope.viewer.server.routes import answer
from tests.support.counting import recorded
from tests.support.trace_builder import TraceBuilder


@pytest.mark.parametrize("inputs", [None, ([[]] * 8, [""] * 8), ([[]] * 8, ["TensorList"] * 8)])
def test_no_operator_counts_operations_on_inputs_of_unknown_sizes(inputs):
    builder = TraceBuilder()
    shapes = -1 if inputs is None else builder.shapes(*inputs)
    for row, name in enumerate(sorted(built_in())):
        builder.span(name, 10 * row, 5, shapes=shapes)
    trace = builder.build()
    calls = distinct_calls(trace)
    assert not calls.flops.any()
    unknown = {
        trace.strings[trace.column("spans", "name")[row]]
        for row, standing in zip(calls.first, calls.standing, strict=True)
        if standing == Standing.NO_INPUTS
    }
    assert {"aten::mm", "aten::add", "aten::sqrt", "aten::gelu", "aten::_foreach_add_", "aten::_fused_adam_"} <= {
        name + suffix for name in unknown for suffix in ("", "_")
    }  # fmt: skip
    assert not unknown & {"aten::fill_", "aten::arange"}, "these compute nothing, whatever their sizes"


def test_of_a_tensor_without_sizes_the_other_argument_does_not_tell():
    formula = rule_of("aten::mul").formula
    call = OperatorCall("aten::mul", [None, ()], [None, "float32"], [None, None])
    with pytest.raises(TypeError, match=r"first argument of aten::mul"):
        formula(call)
    power = OperatorCall("aten::pow", [None, ()], [None, "float32"], [2, None])
    assert rule_of("aten::pow").formula(power).flops == 1


@pytest.mark.parametrize(
    "run",
    [
        lambda: torch.linalg.eig(torch.eye(3)),
        lambda: torch.linalg.lstsq(torch.eye(3), torch.eye(3)),
        lambda: torch.special.bessel_j0(torch.ones(3)),
        lambda: torch.addr(torch.ones(3, 5), torch.ones(3), torch.ones(5)),
        lambda: torch.conv_tbc(torch.ones(7, 2, 3), torch.ones(3, 3, 4), torch.ones(4), 1),
        lambda: torch.nn.functional.fractional_max_pool2d(torch.ones(1, 1, 8, 8), 2, output_size=3),
        lambda: torch.nn.functional.grid_sample(
            torch.ones(1, 1, 4, 4), torch.zeros(1, 2, 2, 2), mode="bicubic"
        ),
    ],
    ids=["eig", "lstsq", "bessel", "addr", "conv_tbc", "fractional", "bicubic_grid"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rare_operators_are_unknown_and_not_0(run):
    found = recorded(run)
    assert len(found.unknown) == 1
    assert not found.unknown & set(found.by_name)


def train():
    """A step with operators that have many elements, and some that have one."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("engine", ["native", "kineto"])
def test_a_program_that_was_recorded_without_shapes_has_no_flops(engine):
    with kinetoscope.profile(engine=engine) as prof:
        train()
    trace = prof.trace
    assert set(trace.column("spans", "flops").tolist()) == {-1}
    for table in ("ops", "steps"):
        found = trace.table(table)
        assert found.num_rows > 0
        assert found["flops"].null_count == found["flops_per_s"].null_count == found.num_rows
    work = answer(trace, "overview/work", {})
    assert (work["flops"], work["flops_per_s"], work["why"]) == (None, None, NO_SHAPES)


def partly(unknown_ns):
    """A step, a module and a trace in which an operator without a formula takes some of 1000 ns."""
    builder = TraceBuilder()
    builder.step(0, 0, 2000)
    net = builder.module("Net")
    square = builder.shapes([[100, 100], [100, 100]], ["float", "float"])
    builder.span("aten::mm", 0, 1000 - unknown_ns, shapes=square, module=net)
    builder.span("mylib::op", 1000, unknown_ns, shapes=square, module=net)
    return builder.build()


@pytest.mark.parametrize(("unknown_ns", "flops"), [(50, 2_000_000), (100, 2_000_000), (150, None)])
def test_a_sum_that_leaves_out_more_than_a_tenth_of_the_time_is_null(unknown_ns, flops):
    trace = partly(unknown_ns)
    step = trace.table("steps").to_pylist()[0]
    assert step["flops"] == flops
    assert step["flops_covered_percent"] == pytest.approx(100 - unknown_ns / 10)
    assert (step["flops_per_s"] is None) == (flops is None)
    module = answer(trace, "table/modules", {}).table.to_pylist()[0]
    assert (module["flops"], module["self_flops"]) == (flops, flops)
    found = counted_flops(trace)
    assert found.flops == flops
    assert found.covered_percent == pytest.approx(100 - unknown_ns / 10)
    if flops is None:
        assert found.why == (
            "FLOPs are known for only 85.0 % of the operators' time; "
            "not for mylib::op (no formula): see the table flops_coverage"
        )
        tile = answer(trace, "overview/work", {})["tile"]
        assert (tile["value"], tile["hint"]["text"]) == ([None, "FLOP/s"], found.why)
    else:
        assert found.why == ""


def test_utilisation_of_a_step_of_which_little_is_known_is_null():
    def used(unknown_ns):
        return partly(unknown_ns).table("steps", peak_flops=1e15)["mfu"].to_pylist()[0]

    assert used(50) == pytest.approx(2e6 / 1e15 / 2e-6)
    assert used(150) is None


def test_an_operator_of_which_some_calls_have_no_shapes():
    def flops(without_ns):
        builder = TraceBuilder()
        square = builder.shapes([[100, 100], [100, 100]], ["float", "float"])
        builder.span("aten::mm", 0, 1000, shapes=square).span("aten::mm", 1000, without_ns)
        return builder.build().table("ops").to_pylist()[0]["flops"]

    assert flops(100) == 2_000_000
    assert flops(200) is None


@pytest.mark.parametrize("memory", [True, False])
def test_what_only_moves_data_moves_twice_its_result_where_memory_was_recorded(memory):
    rows, some = torch.ones(100, 50), torch.arange(20)
    with kinetoscope.profile(record_shapes=True, profile_memory=memory) as prof:
        torch.cat([rows, rows])
        rows[some]
    moved = {row["name"]: row["bytes_moved"] for row in prof.trace.table("flops").to_pylist()}
    expected = {"aten::cat": 2 * 200 * 50 * 4, "aten::index": 2 * 20 * 50 * 4}
    assert {name: moved[name] for name in expected} == (expected if memory else dict.fromkeys(expected))
