"""`kinetoscope convert`: formats by suffix, parts by option, mistakes in one line."""

import io
import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import kinetoscope
from kinetoscope._errors import ArgumentError
from kinetoscope.display import terminal as terminal_module
from kinetoscope.formats.suffixes import ONE_TABLE, WHOLE_TRACE
from kinetoscope.model import units
from tests.support.any_trace import changed
from tests.support.trace_builder import TraceBuilder

ROOT = Path(__file__).parents[2]


def run_trace():
    """Ten steps of 100 ms on rank 0, and a little on rank 1."""
    builder = TraceBuilder().know("distributedInfo", {"rank": 0, "world_size": 2})
    builder.thread("main")
    builder.thread("other")
    stack = builder.stack(("train.py", 3, "main"))
    for step in range(10):
        at_ns = step * 100_000_000
        builder.step(step, at_ns, 100_000_000)
        builder.span("aten::mm", at_ns + 10_000_000, 30_000_000, stack=stack)
        builder.runtime("cudaLaunchKernel", at_ns + 20_000_000, 5_000, correlation=step)
        builder.kernel("gemm", at_ns + 90_000_000, 20_000_000, correlation=step)
        builder.allocate(at_ns + 15_000_000, 64 * (step + 1), 1000)
    builder.span("aten::add", 5, 10, thread=1)
    return changed(builder.build(), threads={"rank": [0, 1, 0]})


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "run.ktrace"
    run_trace().save(found)
    return found


def kernels(trace):
    return [row for row in trace.table("spans").to_pylist() if row["name"] == "gemm"]


@pytest.mark.parametrize("suffix", [*WHOLE_TRACE, *ONE_TABLE, ".memory.html"])
def test_every_format_is_written(call, path, tmp_path, suffix):
    output = tmp_path / f"other{suffix}"
    shown = call("convert", path, output)
    assert shown.exit_code == 0, shown.stderr
    assert re.fullmatch(rf"{re.escape(str(output))}: [\d.]+ (B|KiB|MiB)\n", shown.stdout)
    assert output.exists()


def test_several_at_once(call, path, tmp_path):
    outputs = [tmp_path / name for name in ("a.json", "b.parquet", "c.tables")]
    shown = call("convert", path, *outputs)
    assert shown.exit_code == 0, shown.stderr
    assert [line.split(":")[0] for line in shown.stdout.splitlines()] == [str(output) for output in outputs]
    assert len(json.loads(outputs[0].read_text())["traceEvents"]) > 40
    with kinetoscope.open(outputs[2]) as again:
        assert len(again.columns("spans")) == 41


def test_a_window(call, path, tmp_path):
    shown = call("convert", path, tmp_path / "w.ktrace", "--window", "250ms:0.41s")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.endswith(", 7 of 41 spans, 160 ms\n")
    with kinetoscope.open(tmp_path / "w.ktrace") as part:
        assert part.duration_ns == 160_000_000
        assert part.column("steps", "number").tolist() == [2, 3, 4]
        assert [row["duration_ns"] for row in kernels(part)] == [20_000_000, 20_000_000]
    call("convert", path, tmp_path / "w.ktrace", "--window", "250ms:390ms", "--device", "launch")
    with kinetoscope.open(tmp_path / "w.ktrace") as part:
        assert [row["start_ns"] for row in kernels(part)] == [140_000_000]


def test_steps(call, path, tmp_path):
    shown = call("convert", path, tmp_path / "s.ktrace", "--steps", "2-4, 7")
    assert shown.exit_code == 0, shown.stderr
    with kinetoscope.open(tmp_path / "s.ktrace") as part:
        assert part.column("steps", "number").tolist() == [2, 3, 4, 7]
        assert len(kernels(part)) == 4
        assert {row["duration_ns"] for row in kernels(part)} == {20_000_000}
    call("convert", path, tmp_path / "s.ktrace", "--steps", "2", "--device", "time")
    with kinetoscope.open(tmp_path / "s.ktrace") as part:
        assert [row["duration_ns"] for row in kernels(part)] == [10_000_000, 10_000_000]


def test_ranks_then_steps_then_the_window(call, path, tmp_path):
    shown = call("convert", path, tmp_path / "r.ktrace", "--ranks", "1")
    assert ", 1 of 41 spans, " in shown.stdout
    shown = call(
        "convert", path, tmp_path / "r.ktrace", "--ranks", "0", "--steps", "3-4", "--window", ":50ms"
    )
    assert shown.exit_code == 0, shown.stderr
    with kinetoscope.open(tmp_path / "r.ktrace") as part:
        assert part.column("steps", "number").tolist() == [3]
        assert len(part.info["selections"]) == 3


def test_a_table(call, path, tmp_path):
    shown = call("convert", path, tmp_path / "ops.parquet", tmp_path / "ops.arrow", "--table", "ops")
    assert shown.exit_code == 0, shown.stderr
    assert "aten::mm" in pq.read_table(tmp_path / "ops.parquet").column("name").to_pylist()
    assert "aten::mm" in pa.ipc.open_file(tmp_path / "ops.arrow").read_all().column("name").to_pylist()


def test_a_file_of_kineto_is_converted_too(call, path, tmp_path):
    call("convert", path, tmp_path / "x.json.gz")
    shown = call("convert", tmp_path / "x.json.gz", tmp_path / "x.ktrace", "--steps", "9")
    assert shown.exit_code == 0, shown.stderr
    with kinetoscope.open(tmp_path / "x.ktrace") as again:
        assert again.column("steps", "number").tolist() == [9]
        assert len(kernels(again)) == 1


def test_on_a_terminal_it_says_what_it_writes(call, path, tmp_path, monkeypatch):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200)
    monkeypatch.setattr(terminal_module, "console", lambda **_: terminal)
    shown = call("convert", path, tmp_path / "[x].json")
    assert shown.exit_code == 0, shown.stderr
    assert f"writing {tmp_path}/[x].json" in terminal.file.getvalue()


@pytest.mark.parametrize(
    ("text", "ns"),
    [("0", 0), ("1.5s", 1_500_000_000), (" 100 ms", 100_000_000), ("250us", 250_000), ("3µs", 3_000), ("80ns", 80),
     ("2min", 120 * 10**9), (".5ms", 500_000), ("1.ms", 1_000_000), ("1h", 3600 * 10**9), ("123456789.123456789s", 123456789123456789)],
)  # fmt: skip
def test_times_with_units(text, ns):
    assert units.parse_duration(text) == ns


@pytest.mark.parametrize("text", ["", "s", "1", "-1s", "1e3s", "1,5s", "nan", "٣s"])
def test_what_is_no_time(text):
    with pytest.raises(ArgumentError, match="is not a time"):
        units.parse_duration(text)


def test_the_commands_of_the_page_on_formats_run(call, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("convert", path, "run.json.gz")
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    lines = [
        line.removeprefix("$ ")
        for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line.startswith("$ kinetoscope ")
    ]
    assert len(lines) > 5
    for line in lines:
        shown = call(*shlex.split(line)[1:])
        assert shown.exit_code == 0, (line, shown.stderr)
