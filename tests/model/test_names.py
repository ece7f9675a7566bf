"""Frames and stacks in words, also from damaged files."""

import pytest

from kinetoscope.model.names import device_name, frame_texts, short_kernel_name, stack_frames, stack_texts
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder


def test_stacks_read_root_first_and_frames_innermost_first():
    builder = TraceBuilder()
    stack = builder.stack(("a.py", 1, "main"), ("b.py", 2, "go"), ("c.py", 3, "run"))
    trace = builder.build()
    assert frame_texts(trace) == ["a.py(1): main", "b.py(2): go", "c.py(3): run"]
    assert stack_texts(trace)[stack] == "a.py(1): main;b.py(2): go;c.py(3): run"
    assert stack_frames(trace, stack) == [2, 1, 0]
    assert stack_frames(trace, stack, 2) == [2, 1]
    assert stack_frames(trace, -1) == []


def test_stacks_that_name_no_frame_or_a_later_parent_do_no_harm():
    trace = Trace.from_columns(
        {"stacks": {"parent": [1, 0, 7], "frame": [-1, 0, 0]}, "frames": {"file": [1], "line": [2]}},
        strings=["", "a.py"],
    )
    assert stack_texts(trace) == ["", ";a.py(2): ", "a.py(2): "]
    assert stack_frames(trace, 1) == [0]
    assert stack_frames(trace, 2) == [0]


@pytest.mark.parametrize(
    ("kind", "index", "name"),
    [
        (0, -1, "cpu"),
        (1, 0, "cuda:0"),
        (12, 3, "xpu:3"),
        (20, 1, "privateuse1:1"),
        (200, 2, "device200:2"),
        (1, -1, "cuda"),
    ],
)
def test_devices_are_named_as_torch_names_them(kind, index, name):
    assert device_name(kind, index) == name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int)",
            "vectorized_elementwise_kernel ‹CUDAFunctor_add›",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>(cutlass_80::Params)",
            "cutlass_80_tensorop_s1688gemm_128x128",
        ),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "ncclKernel_AllReduce_RING_LL_Sum_float"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, 7>(float*)", "softmax_warp_forward"),
        ("<<<>>>", "<<<>>>"),
    ],
)
def test_kernels_are_called_by_what_tells_them_apart(name, short):
    assert short_kernel_name(name) == short
