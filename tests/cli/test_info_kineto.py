"""`info` on files of Kineto."""

import json
import re

from tests.support.kineto_text import call as runtime_call
from tests.support.kineto_text import kernel, named, op

HEADER = {
    "deviceProperties": [{"id": place, "name": "AMD Instinct MI300X"} for place in range(8)],
    "distributedInfo": {
        "backend": "nccl", "rank": 3, "world_size": 16, "nccl_version": "2.22.3", "pg_config": [{}, {}],
    },
    "hip_runtime_version": 60443483,
    "cuda_runtime_version": 12040,
    "with_stack": 1,
    "schemaVersion": 1,
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    "notes": "x" * 1000,
}  # fmt: skip


def written(tmp_path, *events, **header):
    """The path of a file."""
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps({**header, "traceEvents": list(events)}))
    return path


def test_devices_ranks_and_versions_are_said_in_words(call, tmp_path):
    path = written(
        tmp_path,
        named("process_name", 100, 0, "python3"),
        op("aten::add", 0, 5),
        runtime_call("hipLaunchKernel", 1, 2, 5),
        kernel("k", 9, 1, 5),
        kernel("Memcpy", 12, 1, cat="gpu_memcpy"),
        **HEADER,
    )
    shown = call("info", path, columns=300)
    assert shown.exit_code == 0, shown.stderr
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in shown.stdout.splitlines())
    assert (facts["Devices"], facts["CUDA"], facts["HIP"]) == ("8 × AMD Instinct MI300X", "12.4", "6.4")
    assert (facts["Ranks"], facts["NCCL"]) == ("3 of 16, nccl, 2 process groups", "2.22.3")
    assert (facts["Engine"], facts["Options"]) == ("kineto", "stacks")
    assert facts["Recorded"].endswith("process 100 (python3)")
    assert facts["Contents"].endswith("1 device stream, 1 launch, 1 kernel, 1 device copy or memset")
    assert facts["Complete"] == "yes, nothing was lost"
    assert "(full value in the table `info`)" in " ".join(shown.stdout.split())
    assert "deviceProperties" not in shown.stdout
    assert "MI300X" in call("table", path, "info").stdout


def test_a_file_of_another_tool_has_no_engine(call, tmp_path):
    path = written(tmp_path, {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2})
    assert "Engine" not in call("info", path).stdout


def test_a_file_cut_short_says_so(call, tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps([op("aten::add", 0, 5), op("b", 1, 2)])[:-3])
    shown = " ".join(call("info", path, columns=300).stdout.split())
    assert "no: times, counts and memory are lower bounds" in shown
    assert "truncated file (1)" in shown


def test_json_that_is_no_trace_is_one_line(call, tmp_path):
    path = tmp_path / "settings.json"
    path.write_text('{"colour": "blue"}')
    shown = call("info", path)
    assert shown.exit_code != 0
    assert "settings.json" in shown.stderr
    assert len(shown.stderr.strip().splitlines()) <= 2
