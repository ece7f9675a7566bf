import pytest

from kinetoscope.analyses.description import LONGEST, contents, environment, one_line
from kinetoscope.combine.processes import merge_processes
from kinetoscope.model.run_info import RunInfo
from tests.support.trace_builder import TraceBuilder


def facts(**known):
    trace = TraceBuilder().span("aten::mm", 0, 10).build()
    trace.info.update(known)
    return {fact.label: fact.text for fact in environment(trace)}


def test_the_program_is_its_command_line():
    assert (
        RunInfo.of({"program": {"command": ["train.py", "--name", "a b"]}}).program_line
        == "python train.py --name 'a b'"
    )
    assert RunInfo.of({"command_line": ["train.py", "3"]}).program_line == "python train.py 3"
    assert RunInfo.of({"command_line": "torchrun train.py"}).program_line == "torchrun train.py"
    assert not RunInfo.of({}).program_line
    assert not RunInfo.of({"program": "soon", "command_line": []}).program_line


def test_how_it_ended_is_said_where_it_is_known():
    assert RunInfo.of({"program": {"ended": "exit code 0"}}).program_ended == "exit code 0"
    assert not RunInfo.of({"program": {"ended": 3}}).program_ended


def test_equal_devices_are_counted():
    entries = [{"name": "H100"}, {"name": "H100"}, {"name": "L4"}, {"name": 3}, "cpu"]
    assert facts(devices=entries)["Devices"] == "2 × H100, L4"
    assert facts(deviceProperties=[{"name": "MI300X"}])["Devices"] == "MI300X"


def test_versions_are_numbers_with_a_point():
    known = facts(cuda_runtime_version=12040, cuda_driver_version="12.9", hip_runtime_version=60443483)
    assert known["CUDA"] == "12.4"
    assert "CUDA driver" not in known
    assert known["HIP"] == "6.4"


def test_options_are_those_that_were_switched_on():
    assert facts(record_shapes=1, with_stack=True, profile_memory=0)["Options"] == "shapes, stacks"


@pytest.mark.parametrize(
    ("rank", "size", "told"), [(3, 8, "3 of 8, nccl"), (0, None, "0, nccl"), ("first", 8, None)]
)
def test_the_rank_of_one_process(rank, size, told):
    job = {"rank": rank, "backend": "nccl"} | ({} if size is None else {"world_size": size})
    assert facts(distributedInfo=job).get("Ranks") == told


def ranks(numbers):
    made = []
    for number in numbers:
        builder = TraceBuilder().span("aten::mm", 0, 10)
        builder.know("distributedInfo", {"rank": number, "world_size": 8}).know(
            "host_name", f"node{number // 4}"
        )
        made.append(builder.build())
    return {fact.label: fact.text for fact in environment(merge_processes(made, [0] * len(made)))}


def test_ranks_of_several_processes_are_told_together():
    found = ranks(range(8))
    assert found["Ranks"] == "0 to 7 of 8"
    assert found["Host"].split(", ")[-1] == "node1"
    assert ranks([0, 5])["Ranks"] == "0, 5 of 8"


@pytest.mark.parametrize(
    "strange", [[], {}, 3, None, [[]], "\ud800", "x" * 100_000, {"rank": 2**70, "world_size": -1}]
)
def test_whatever_a_file_says_becomes_texts_of_a_length(strange):
    keys = (
        "devices",
        "deviceProperties",
        "distributedInfo",
        "host",
        "machine",
        "torch_version",
        "cpu_count",
        "trainer",
    )
    for value in facts(**dict.fromkeys(keys, strange)).values():
        assert len(value) <= 4 * LONGEST
        value.encode()


def test_tracks_of_devices_are_no_threads():
    builder = TraceBuilder()
    builder.thread()
    stream = builder.stream(7)
    builder.span("aten::mm", 0, 10, correlation=1).kernel("gemm", 5, 20, stream=stream, correlation=1)
    trace = builder.build()
    assert len(trace.columns("threads")) == 2
    assert "1 thread" in contents(trace.overview())
    assert "1 thread," in one_line(trace)
    assert trace.table("processes")["threads"].to_pylist() == [1]


def test_a_calibration_is_named():
    assert facts(attainable={"stream": [[1, 2]]})["Calibrated"] == "yes, by kinetoscope calibrate"
    assert "Calibrated" not in facts(attainable={})
