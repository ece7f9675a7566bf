"""What a backend says of its own calls: NCCL describes them this way, and here a small library stands in for it."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from kinetoscope.collect.recorder import build
from kinetoscope.tables.device.collective_facts import CALLS
from tests.support.recorded import named, profile

DESCRIBES = """
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <ATen/ops/ones.h>
extern "C" void reduce_all() {
  const at::Tensor x = at::ones({8});
  std::vector<at::Tensor> in{x}, out{x};
  std::vector<int64_t> none, two{1, 2};
  const auto sequence = std::make_tuple(int64_t(3), false);
  const auto group = std::make_tuple(std::string("7"), std::string("tensor \\"parallel\\""));
  RECORD_PARAM_COMMS_DATA(sequence, group, in, out, 1, "allreduce", 8, 8, at::kHalf, none, two, 0, 1, 4);
}
"""


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backend")
    source, library = folder / "backend.cpp", folder / "backend.so"
    source.write_text(DESCRIBES)
    root = Path(torch.__file__).parent
    cxx, _ = build.compilers()
    subprocess.run(
        [
            *cxx, "-std=c++20", "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            "-isystem", root / "include", "-isystem", root / "include" / "torch" / "csrc" / "api" / "include",
            source, "-o", library, f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return ctypes.CDLL(str(library))


@pytest.mark.slow
@pytest.mark.stress("it compiles a backend with torch's headers for 18 s")
@pytest.mark.parametrize("record_shapes", [False, True])
def test_a_call_that_a_backend_describes_is_known_with_and_without_shapes(backend, record_shapes):
    with profile(record_shapes=record_shapes) as session:
        backend.reduce_all()
    (row,) = session.trace.table("collectives").to_pylist()
    assert {key: row[key] for key in (
        "span", "name", "group", "group_description", "group_size", "group_rank", "dtype", "bytes", "input_elements",
        "output_splits",
    )} == {
        "span": named(session.trace, "record_param_comms")[0], "name": "all_reduce", "group": "7",
        "group_description": 'tensor "parallel"', "group_size": 4, "group_rank": 1, "dtype": "float16", "bytes": 16,
        "input_elements": 8, "output_splits": "[1, 2]",
    }  # fmt: skip


def test_calls_within_one_process_have_no_facts():
    with profile(record_shapes=True) as session:
        torch.ones(3) + 1
    assert len(session.trace.columns("collectives")) == 0


def test_every_call_that_torch_has_is_read_at_the_right_places():
    schemas = {
        schema.name: schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("c10d::")
    }
    # It sends nothing.
    known = set(schemas) - {"c10d::check_for_nan"}
    # Not every release of torch has all.
    assert set(CALLS) - known <= {"c10d::gather_into_tensor_"}
    assert known <= set(CALLS)
    for name in known:
        _, gives, takes, peer = CALLS[name]
        arguments = [argument.name for argument in schemas[name].arguments]
        assert gives < 0 or arguments[gives].startswith(("tensor", "output")), name
        assert takes < 0 or arguments[takes].startswith(("tensor", "input")), name
        assert peer < 0 or arguments[peer] in ("root_rank", "src", "dst"), name
        assert ("async_op" in arguments) == ("async_op" in arguments[-2:]), name
