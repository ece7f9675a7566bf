"""Formulas that programs register."""

import warnings

import numpy as np
import pytest
import torch

import kinetoscope
from kinetoscope.model.schema import SpanKind
from kinetoscope.trace import Trace
from kinetoscope.viewer.server.routes import answer, encoded
from tests.support.counting import recorded
from tests.support.trace_builder import TraceBuilder


def small():
    builder = TraceBuilder()
    shapes = builder.shapes([[3, 4], [4, 5], []], ["float", "c10::Half", "Scalar"], ["", "", "2.5"])
    builder.span("mylib::op", 0, 100, shapes=shapes).span("aten::mm", 10, 20, shapes=shapes)
    return builder.build()


def flops(trace):
    return trace.column("spans", "flops").tolist()


def test_a_formula_sees_the_call():
    seen = []

    @kinetoscope.register_flops("mylib::op")
    def formula(call):
        seen.append(call)
        return 7

    assert flops(small()) == [7, 0]
    (call,) = seen
    assert isinstance(call, kinetoscope.OperatorCall)
    assert (call.name, call.overload) == ("mylib::op", "")
    assert call.shapes == [(3, 4), (4, 5), None]
    assert call.dtypes == ["float32", "float16", None]
    assert call.values == [None, None, 2.5]
    assert (call.numel(0), call.bytes(0), call.bytes(1), call.bytes(2)) == (12, 48, 40, 0)
    with pytest.raises(TypeError, match="argument 2 of mylib::op is not a tensor"):
        call.shape(2)


def test_open_traces_use_a_new_formula_at_once_and_lose_it_again():
    trace = small()
    assert flops(trace) == [-1, 120]
    assert trace.table("flops_coverage").to_pylist()[0]["name"] == "mylib::op"
    kinetoscope.register_flops("mylib::op")(lambda call: (10, 20))
    assert flops(trace) == [10, 0]
    assert trace.column("spans", "bytes_moved").tolist() == [20, 0]
    assert trace.table("flops_coverage").to_pylist()[0]["uncovered_ns"] == 0
    assert trace.table("flops").to_pylist()[0]["family"] == "registered"
    assert kinetoscope.unregister_flops("mylib::op")
    assert not kinetoscope.unregister_flops("mylib::op")
    assert flops(trace) == [-1, 120]


def test_it_goes_before_a_built_in_one():
    trace = small()
    kinetoscope.register_flops("aten::mm")(lambda call: 1)
    assert flops(trace) == [-1, 1]


def test_exact_names_go_before_prefixes_and_longer_ones_before_shorter():
    builder = TraceBuilder().span("triton_a", 0, 1).span("triton_red_b", 10, 1).span("triton_red_c", 20, 1)
    trace = builder.build()
    kinetoscope.register_flops("triton_", prefix=True)(lambda call: 1)
    kinetoscope.register_flops("triton_red_", prefix=True)(lambda call: 2)
    kinetoscope.register_flops("triton_red_c")(lambda call: 3)
    assert flops(trace) == [1, 2, 3]


def test_the_decorated_function_stays_what_it_is():
    def formula(call):
        return 1

    assert kinetoscope.register_flops("x::y")(formula) is formula


def fails(call):
    raise KeyError("no such weight")


@pytest.mark.parametrize(
    "formula",
    [fails, lambda call: -1, lambda call: "many", lambda call: 1.5, lambda call: True, lambda call: 2**70, lambda call: (1, -2),
     lambda call: (1, 2, 3), lambda call: float("nan"), lambda call: float("inf"), lambda: 1],
    ids=range(11),
)  # fmt: skip
def test_a_formula_that_fails_warns_once_and_the_cost_is_unknown(formula):
    kinetoscope.register_flops("mylib::op")(formula)
    builder = TraceBuilder()
    for number in range(3):
        builder.span("mylib::op", 10 * number, 5, shapes=builder.shapes([[number]], ["float"]))
    trace = builder.build()
    with pytest.warns(
        UserWarning, match=r"formula registered for 'mylib::op' failed for OperatorCall\('mylib::op'"
    ) as caught:
        assert flops(trace) == [-1, -1, -1]
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flops(builder.build()) == [-1, -1, -1]


def test_none_is_an_answer_without_a_warning():
    kinetoscope.register_flops("mylib::op")(lambda call: None)
    assert flops(small()) == [-1, 120]


def test_numbers_of_numpy_are_numbers():
    kinetoscope.register_flops("mylib::op")(lambda call: (np.int64(5), np.float64(6.0)))
    assert flops(small()) == [5, 0]


@pytest.mark.parametrize("name", ["", None, 3, b"x"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(kinetoscope.ArgumentError, match="register_flops"):
        kinetoscope.register_flops(name)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(kinetoscope.ArgumentError, match="not callable"):
        kinetoscope.register_flops("mylib::op")(5)


def test_a_file_keeps_what_a_formula_gave(tmp_path):
    kinetoscope.register_flops("mylib::op")(lambda call: (10, 20))
    small().save(tmp_path / "a.ktrace")
    kinetoscope.unregister_flops("mylib::op")
    trace = kinetoscope.open(tmp_path / "a.ktrace")
    assert flops(trace) == [10, 0]
    assert trace.column("spans", "bytes_moved").tolist() == [20, 0]
    # Also through a second file, and until a formula says otherwise.
    trace.save(tmp_path / "b.ktrace")
    second = kinetoscope.open(tmp_path / "b.ktrace")
    assert flops(second) == [10, 0]
    kinetoscope.register_flops("mylib::op")(lambda call: 11)
    assert flops(second) == [11, 0]


def test_a_file_without_such_formulas_has_no_word_of_them(tmp_path):
    small().save(tmp_path / "a.ktrace")
    assert "registered_costs" not in kinetoscope.open(tmp_path / "a.ktrace").info


@pytest.mark.parametrize(
    "kept", [5, [5], [["mylib::op", 1, 2, 3, 4, 5]], [["mylib::op", "", "", "", "1", 2]], [[]], {"a": 1}]
)
def test_damaged_costs_of_a_file_are_left_out(kept):
    trace = small()
    trace.info["registered_costs"] = kept
    assert flops(trace) == [-1, 120]


def test_a_custom_operator_that_runs():
    @torch.library.custom_op("kinetoscope_tests_registry::scaled", mutates_args=())
    def scaled(a: torch.Tensor, factor: float) -> torch.Tensor:
        return (a @ a) * factor

    found = recorded(lambda: scaled(torch.ones(4, 4), 2.0))
    assert "kinetoscope_tests_registry::scaled" in found.unknown
    assert found.by_name["mm"] == 128
    kinetoscope.register_flops("kinetoscope_tests_registry::scaled")(
        lambda call: 2 * call.shapes[0][0] ** 3 + int(call.values[1])
    )
    again = recorded(lambda: scaled(torch.ones(4, 4), 2.0))
    assert again.by_name == {"kinetoscope_tests_registry::scaled": 130}
    assert again.unknown == set()


def with_kernels():
    """An operator that launches a kernel, and a kernel that nothing recorded started."""
    return Trace.from_columns(
        {
            "threads": {"index": [0, 1], "os_tid": [1, 2], "torch_tid": [1, 2], "name": ["main", "stream"]},
            "streams": {"device_type": [1], "device_index": [0], "number": [7]},
            "spans": {
                "thread": [0, 1, 1], "start_ns": [0, 50, 200], "duration_ns": [100, 100, 40], "name": [1, 2, 2],
                "kind": [SpanKind.OPERATOR, SpanKind.KERNEL, SpanKind.KERNEL], "stream": [-1, 0, 0], "shapes": [0, -1, -1],
            },
            "launches": {"host": [0], "device": [1]},
            "shapes": {"dims": ["[[4, 4], [4, 4]]"], "types": ['["float", "float"]'], "concrete": ["[]"]},
        },
        strings=["", "aten::mm", "triton_poi_fused_0"],
        info={"devices": [{"type": "cuda", "index": 0, "name": "NVIDIA H200"}]},
    )  # fmt: skip


def test_kernels_count_where_no_operator_does():
    trace = with_kernels()
    assert flops(trace) == [128, 0, 0]
    kinetoscope.register_flops("triton_", prefix=True)(lambda call: 1000)
    assert flops(trace) == [128, 0, 1000]


def test_rates_on_a_device_use_its_time_and_peak():
    row = with_kernels().table("flops").to_pylist()[0]
    assert (row["name"], row["time_ns"]) == ("aten::mm", 100)
    assert row["flops_per_s"] == pytest.approx(128 / 100e-9)
    assert row["arithmetic_intensity"] == pytest.approx(128 / 192)
    assert row["peak_percent"] == pytest.approx(100 * 128 / 67e12 / 100e-9)


def test_a_new_formula_reaches_everything_the_viewer_has_answered():
    asked = [
        ("operators", {}),
        ("operators", {"by": "shape"}),
        ("table/modules", {}),
        ("overview/work", {}),
        ("health", {}),
    ]
    with_module = TraceBuilder()
    net = with_module.module("Net")
    shapes = with_module.shapes([[4, 4]], ["float"])
    trace = with_module.span("mylib::op", 0, 100, shapes=shapes, module=net).build()

    def answers():
        return [encoded(answer(trace, path, query)).body for path, query in asked]

    before = answers()
    assert answers() == before
    kinetoscope.register_flops("mylib::op")(lambda call: 4242)
    after = answers()
    assert [
        one for one, other in zip(asked, zip(before, after, strict=True), strict=True) if other[0] == other[1]
    ] == []
    assert answer(trace, "operators", {}).table["flops"].to_pylist() == [4242]
    kinetoscope.unregister_flops("mylib::op")
    assert answers() == before
