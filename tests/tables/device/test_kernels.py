import numpy as np
import pytest
from hypothesis import given

from kinetoscope import ArgumentError
from kinetoscope import open as open_trace
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.costs.evaluate import is_generated_launch
from kinetoscope.tables.device.kernels import uses_tensor_cores
from tests.ledger.test_breakdown import NCCL, traces
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder


def launched():
    """Two operators that start a kernel of two sizes, a kernel that nobody is known to have started, and a copy."""
    builder = TraceBuilder()
    model = builder.module("GPT")
    builder.thread()
    first, second = builder.stream(7), builder.stream(8)
    builder.step(0, 0, 300)
    for number, (name, start, duration, blocks) in enumerate(
        [("aten::mm", 10, 40, 2), ("aten::bmm", 110, 60, 4), ("aten::mm", 210, 10, 2)]
    ):
        builder.span(name, start, 50, module=model if name == "aten::bmm" else -1)
        builder.runtime("cudaLaunchKernel", start + 5, 5, correlation=number)
        known = {"registers": 32, "shared_bytes": 128 * blocks, "occupancy_percent": 25.0 * blocks}
        builder.kernel(
            "gemm", start + 50, duration, stream=first, correlation=number, grid=(blocks, 1, 1), block=(128, 1, 1), launch=known,
        )  # fmt: skip
    builder.kernel(NCCL, 60, 80, stream=second).copy("Memset (Device)", 0, 10, stream=second)
    builder.device_annotation("ProfilerStep#0", 0, 300, stream=first)
    return builder.build()


def test_one_row_for_each_name():
    gemm, nccl = launched().table("kernels").to_pylist()
    assert gemm == {
        "name": "gemm", "category": "compute", "count": 3, "total_ns": 110, "mean_ns": 110 / 3, "min_ns": 10, "max_ns": 60, "delay_ns": 45.0,
        "kernel_percent": pytest.approx(100 * 110 / 190), "device_percent": pytest.approx(100 * 110 / 200),
        "grid_x": None, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1, "registers": 32,
        "shared_bytes": None, "blocks_per_sm": None, "warps_per_sm": None,
        "occupancy_percent": pytest.approx((50 * 50 + 60 * 100) / 110), "operator": "aten::bmm",
        "operators": "aten::bmm; aten::mm", "module": "GPT", "devices": 1, "streams": 1, "first_ns": 60, "span": None,
        "step": None, "device_index": 0, "stream": 7, "generated": False, "flops": None, "bytes_moved": None,
        "flops_per_s": None, "bytes_per_s": None, "peak_percent": None,
            "tensor_cores": None,
    }  # fmt: skip
    known = {name: value for name, value in nccl.items() if value is not None}
    assert known == {
        "name": NCCL, "category": "communication", "count": 1, "total_ns": 80, "mean_ns": 80.0, "min_ns": 80, "max_ns": 80,
        "kernel_percent": pytest.approx(100 * 80 / 190), "device_percent": 40.0, "devices": 1, "streams": 1, "first_ns": 60,
        "device_index": 0, "stream": 8, "generated": False,
    }  # fmt: skip


def test_an_occupancy_of_zero_is_one_that_was_not_reported():
    builder = TraceBuilder()
    stream = builder.stream(7)
    for start, occupancy in ((0, 0.0), (10, 50.0), (20, 0.0)):
        name = "known" if occupancy else "unknown"
        for one in (name, "both"):
            launch = {"occupancy_percent": occupancy}
            builder.kernel(one, start + (5 if one == "both" else 0), 5, stream=stream, launch=launch)
    found = {row["name"]: row["occupancy_percent"] for row in builder.build().table("kernels").to_pylist()}
    assert found == {"known": 50.0, "unknown": None, "both": 50.0}


def test_one_row_for_each_size():
    rows = launched().table("kernels", by="launch").to_pylist()
    assert [(row["name"], row["count"], row["total_ns"], row["grid_x"], row["shared_bytes"]) for row in rows] == [
        (NCCL, 1, 80, None, None), ("gemm", 1, 60, 4, 512), ("gemm", 2, 50, 2, 256),
    ]  # fmt: skip


def test_one_row_for_each_time_it_ran():
    trace = launched()
    rows = trace.table("kernels", by="span").to_pylist()
    assert [(row["name"], row["count"], row["first_ns"], row["operator"], row["step"]) for row in rows] == [
        ("gemm", 1, 60, "aten::mm", 0), (NCCL, 1, 60, None, 0), ("gemm", 1, 160, "aten::bmm", 0), ("gemm", 1, 260, "aten::mm", 0),
    ]  # fmt: skip
    kinds = trace.column("spans", "kind")[[row["span"] for row in rows]]
    assert set(kinds.tolist()) == {SpanKind.KERNEL}


def test_a_kernel_in_several_places_has_no_one_place():
    builder = TraceBuilder().span("aten::mm", 0, 5)
    builder.thread()
    for device in range(2):
        builder.kernel("gemm", 0, 10, stream=builder.stream(7, device=device))
    (row,) = builder.build().table("kernels").to_pylist()
    assert (row["devices"], row["streams"], row["device_index"], row["stream"]) == (2, 2, None, None)


def test_what_a_source_says_of_a_kernel_tells_that_it_communicates():
    builder = TraceBuilder().kernel("my_fused_kernel", 0, 5, arguments={"Collective name": "allreduce"})
    builder.kernel("dma_request", 10, 4).kernel("cross_device_reduce_1stage", 20, 3)
    assert builder.build().table("kernels")["category"].to_pylist() == [
        "communication",
        "copy",
        "communication",
    ]


def test_another_way_of_adding_up_is_refused():
    with pytest.raises(ArgumentError, match="by='grid' is not valid: use one of name, launch, span"):
        launched().table("kernels", by="grid")


def test_a_trace_without_a_device_has_no_kernels():
    trace = TraceBuilder().span("aten::mm", 0, 5).build()
    assert [trace.table("kernels", by=by).num_rows for by in ("name", "launch", "span")] == [0, 0, 0]


@given(traces())
def test_however_kernels_are_added_up_it_is_the_same_time(builder):
    trace = builder.build()
    kernels = [span for span in builder.spans if span.kind == SpanKind.KERNEL]
    for by in ("name", "launch", "span"):
        rows = trace.table("kernels", by=by).to_pylist()
        assert sum(row["count"] for row in rows) == len(kernels)
        assert sum(row["total_ns"] for row in rows) == sum(span.duration_ns for span in kernels)
        assert all(row["min_ns"] <= row["mean_ns"] <= row["max_ns"] for row in rows)
        shares = [row["kernel_percent"] for row in rows if row["kernel_percent"] is not None]
        assert not shares or sum(shares) == pytest.approx(100)
    work = sum(row["work_ns"] for row in trace.table("devices").to_pylist())
    copied = sum(row["duration_ns"] for row in trace.table("copies").to_pylist())
    assert work == copied + sum(span.duration_ns for span in kernels)


def compiled_for_a_device():
    """A matrix product and a pointwise kernel from Triton, each launched twice, and a kernel that nobody generated."""
    builder = TraceBuilder()
    builder.thread()
    shapes = builder.shapes([[64, 64], [64, 64]], ["c10::BFloat16", "c10::BFloat16"])
    facts = {"kernel_backend": "triton", "kernel_file": "/cache/ab/cab.py", "num_warps": 4}
    known = {
        "triton_tem_fused_mm_0": {"kernel_flop": 2 * 64**3, "kernel_num_gb": 24576 / 1e9},
        "triton_poi_fused_relu_1": {"kernel_num_gb": 16384 / 1e9},
        "triton_poi_fused_add_2": {},
        "aten::mm": None,
    }
    for number, (name, stated) in enumerate([*known.items(), *known.items()]):
        builder.span(
            name, 100 * number, 50, shapes=shapes, arguments=None if stated is None else facts | stated
        )
        builder.runtime("cudaLaunchKernel", 100 * number + 5, 5, correlation=number)
        builder.kernel(name.replace("aten::mm", "gemm"), 100 * number + 20, 40, correlation=number)
    builder.know("devices", [{"type": "cuda", "index": 0, "name": "NVIDIA H200"}])
    return builder.build()


def test_kernels_that_a_compiler_generated_have_what_it_states_of_them():
    trace = compiled_for_a_device()
    kernels = {row["name"]: row for row in trace.table("kernels").to_pylist()}
    product, relu, unstated, gemm = (
        kernels[name]
        for name in ("triton_tem_fused_mm_0", "triton_poi_fused_relu_1", "triton_poi_fused_add_2", "gemm")
    )
    assert [row["generated"] for row in (product, relu, unstated, gemm)] == [True, True, True, False]
    assert [row["flops"] for row in (product, relu, unstated, gemm)] == [4 * 64**3, None, None, None]
    assert [row["bytes_moved"] for row in (product, relu, unstated, gemm)] == [49152, 32768, None, None]
    assert product["flops_per_s"] == pytest.approx(4 * 64**3 / 80e-9)
    assert relu["bytes_per_s"] == pytest.approx(32768 / 80e-9)
    assert product["peak_percent"] == pytest.approx(100 * 4 * 64**3 / 80e-9 / 989.4e12)
    assert relu["peak_percent"] is None
    ops = {row["name"]: row for row in trace.table("ops").to_pylist()}
    assert ops["triton_tem_fused_mm_0"]["flops"] == 4 * 64**3
    assert ops["triton_poi_fused_relu_1"]["flops"] is None
    assert ops["triton_poi_fused_relu_1"]["bytes_moved"] == 32768


def test_launches_of_generated_kernels_are_found_in_a_real_trace():
    with open_trace(real_trace("vllm_graph_capture_stack")) as trace:
        generated = np.flatnonzero(is_generated_launch(trace))
        names = {trace.strings[row] for row in trace.column("spans", "name")[generated].tolist()}
    assert len(generated) == 48
    assert all(name.startswith("triton_") for name in names)


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(P)",
            True,
        ),
        ("cutlass_75_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align1", True),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", True),
        ("turing_h1688gemm_128x128_nn", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", True),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(P)", True),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(P)", True),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN", True),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32", True),
        ("volta_sgemm_64x64_nt", False),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_tn_align1>(P)", False),
        ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)", False),
        ("void gemv2T_kernel_val<int, int, float>(P)", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)", None),
        ("volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1", True),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw_tilesize128x128x8_ffma", False),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", None),
        ("triton_poi_fused_add_1688", None),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long)", None),
    ],
)
def test_tensor_cores_are_told_by_the_names_that_libraries_give(name, uses):
    assert uses_tensor_cores(name) is uses


def test_the_delay_of_a_kernel_is_the_mean_of_its_known_launches():
    trace = launched()
    delays = [row["delay_ns"] for row in trace.table("launches").to_pylist()]
    assert {row["name"]: row["delay_ns"] for row in trace.table("kernels").to_pylist()} == {
        "gemm": np.mean(delays),
        NCCL: None,
    }
    each = trace.table("kernels", by="span").to_pylist()
    assert [row["delay_ns"] for row in each if row["name"] == "gemm"] == delays


def test_a_name_that_does_not_tell_of_tensor_cores_has_no_answer():
    names = {
        "turing_h1688gemm_128x128_nn": True,
        "ampere_sgemm_128x64_nn": False,
        "elementwise_kernel": None,
    }
    builder = TraceBuilder()
    stream = builder.stream(7)
    for number, name in enumerate(names):
        builder.kernel(name, 10 * number, 5, stream=stream)
    rows = builder.build().table("kernels").to_pylist()
    assert {row["name"]: row["tensor_cores"] for row in rows} == names
