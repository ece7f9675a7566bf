import pytest

from kinetoscope._errors import ArgumentError
from kinetoscope.viewer.pages.kernels import reported, uses_tensor_cores
from kinetoscope.viewer.server.routes import answer
from tests.support.trace_builder import TraceBuilder


def copying():
    builder = TraceBuilder()
    builder.thread("main")
    stream = builder.stream(7)
    builder.span("aten::copy_", 0, 50).runtime("cudaMemcpyAsync", 5, 40, correlation=1)
    builder.span("aten::to", 60, 50).runtime("cudaMemcpyAsync", 65, 10, correlation=2)
    host = "Memcpy HtoD (Pageable -> Device)"
    builder.copy(host, 10, 20, stream=stream, correlation=1, size_bytes=4000)
    builder.copy(host, 70, 20, stream=stream, correlation=2, size_bytes=1000)
    builder.copy("Memcpy DtoH (Device -> Pinned)", 100, 10, stream=stream)
    builder.copy("Memset (Device)", 120, 5, stream=stream, size_bytes=64)
    builder.kernel("ampere_sgemm_128x64_nn", 200, 30, stream=stream, grid=(4, 1, 1))
    builder.kernel("ampere_sgemm_128x64_nn", 240, 30, stream=stream, grid=(8, 1, 1))
    return builder.build()


def test_kernels_are_those_of_the_table_and_say_what_their_names_tell_of_tensor_cores():
    trace = copying()
    for way in ("name", "launch"):
        found = answer(trace, "kernels", {"by": way}).table
        assert found["tensor_cores"].to_pylist() == [False] * found.num_rows
        assert found.drop_columns("tensor_cores").equals(trace.table("kernels", by=way))


def test_copies_are_grouped_by_direction():
    rows = answer(copying(), "copies", {}).table.to_pylist()
    assert [(row["direction"], row["kind"], row["count"], row["total_ns"], row["bytes"]) for row in rows] == [
        ("HtoD", "memcpy", 2, 40, 5000),
        ("DtoH", "memcpy", 1, 10, None),
        (None, "memset", 1, 5, 64),
    ]
    first = rows[0]
    assert (first["source"], first["target"]) == ("pageable", "device")
    assert (first["gb_per_s"], first["min_gb_per_s"], first["max_gb_per_s"]) == (125, 50, 200)
    assert (first["blocked"], first["blocked_ns"]) == (1, 20)
    assert rows[1]["gb_per_s"] is None


def test_copies_can_be_told_apart_by_operator_and_add_up():
    trace = copying()
    rows = answer(trace, "copies", {"by": "operator"}).table.to_pylist()
    assert [row["operator"] for row in rows] == ["aten::copy_", "aten::to", None, None]
    whole = trace.table("copies")
    assert sum(row["count"] for row in rows) == whole.num_rows
    assert sum(row["total_ns"] for row in rows) == sum(whole["duration_ns"].to_pylist())


def test_without_a_device_there_is_nothing():
    trace = TraceBuilder().span("aten::add", 0, 5).build()
    assert [answer(trace, path, {}).total for path in ("kernels", "copies")] == [0, 0]


def test_an_unknown_grouping_is_refused():
    with pytest.raises(ArgumentError, match="name, launch"):
        answer(copying(), "kernels", {"by": "span"})


def test_every_request_of_a_report_has_a_response():
    trace = copying()
    for path, query in reported(trace):
        answer(trace, path, query)


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
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", None),
        ("triton_poi_fused_add_1688", None),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>(long)", None),
    ],
)
def test_tensor_cores_are_told_by_the_names_that_libraries_give(name, uses):
    assert uses_tensor_cores(name) is uses
