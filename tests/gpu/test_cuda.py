"""What only NVIDIA's and AMD's devices have: captured graphs, NCCL, kernels of Triton."""

import importlib.util
import os

import pytest
import torch


def captured(x):
    """A graph of known operators, captured on a stream that they have run on before."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            (x @ x).relu().sum()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (x @ x).relu().sum()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def test_a_captured_graph_is_one_launch_of_many_kernels(record, cuda):
    graph = captured(torch.ones(64, 64, device=cuda))

    def program():
        for _ in range(5):
            graph.replay()

    trace = record(program).trace
    kernels = trace.table("kernels").to_pylist()
    assert sum(row["count"] for row in kernels) >= 15
    assert all(row["count"] % 5 == 0 for row in kernels)
    launches = trace.table("launches").to_pylist()
    assert len({row["correlation"] for row in launches}) == 5
    # What was captured before the recording is not known.
    assert {row["code"] for row in trace.losses} == {"unknown_replays"}, trace.losses


def test_kernels_of_a_graph_whose_capture_is_recorded_have_their_operators(record, cuda):
    x = torch.ones(64, 64, device=cuda)
    captured(x).replay()

    def program():
        graph = captured(x)
        for _ in range(5):
            graph.replay()

    trace = record(program).trace
    origins = trace.table("origins").to_pylist()
    assert {"aten::mm", "aten::clamp_min", "aten::sum"} <= {row["operator"] for row in origins}, origins[:3]
    assert trace.complete, trace.losses


def test_nccl_of_a_single_rank(record, cuda, tmp_path):
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        pytest.skip("this torch has no NCCL")
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=cuda)
    try:
        x = torch.ones(1 << 16, device=cuda)
        torch.distributed.all_reduce(x)
        torch.cuda.synchronize()
        trace = record(lambda: [torch.distributed.all_reduce(x) for _ in range(4)]).trace
    finally:
        torch.distributed.destroy_process_group()
    # Alone, NCCL may have nothing to launch: the calls are there in any case.
    rows = trace.table("collectives").to_pylist()
    assert len(rows) == 4
    assert {row["name"].replace("_", "") for row in rows} == {"allreduce"}, rows


def test_kernels_of_triton_have_their_names(record, cuda):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    import triton
    import triton.language as tl

    @triton.jit
    def doubled_by_the_tests(x, out, count, block: tl.constexpr):
        place = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(out + place, 2 * tl.load(x + place, mask=place < count), mask=place < count)

    x, out = torch.ones(1000, device=cuda), torch.empty(1000, device=cuda)
    doubled_by_the_tests[(4,)](x, out, 1000, block=256)
    torch.cuda.synchronize()
    trace = record(lambda: [doubled_by_the_tests[(4,)](x, out, 1000, block=256) for _ in range(3)]).trace
    (row,) = [row for row in trace.table("kernels").to_pylist() if "doubled_by_the_tests" in row["name"]]
    assert row["count"] == 3
    assert row["grid_x"] == 4
