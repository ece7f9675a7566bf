"""`kinetoscope report`: one file, or the summary of any trace."""

import json

from tests.support.trace_builder import TraceBuilder


def test_it_writes_a_page_named_after_the_trace(call, trace_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = call("report", trace_path)
    assert said.exit_code == 0
    assert said.output.startswith("run.html: ")
    assert "<title>run.ktrace" in (tmp_path / "run.html").read_text(encoding="utf-8")
    assert call("report", trace_path, "-o", tmp_path / "other.html").exit_code == 0
    assert (tmp_path / "other.html").is_file()


def test_text_is_the_summary_of_the_trace(call, trace_path, tmp_path):
    said = call("report", "--text", trace_path, columns=100)
    assert said.exit_code == 0
    assert "kinetoscope train.py --lr 0.1" in said.output
    assert "2 steps" in said.output
    assert "  fc  Linear" in said.output
    assert "█" in said.output
    # What is known of this process is not of the run.
    assert "peak RSS" not in said.output
    assert "overhead" not in said.output
    assert "\x1b" not in said.output
    assert [path.name for path in tmp_path.iterdir()] == ["run.ktrace"]


def test_json_is_what_the_summary_is_made_of(call, trace_path):
    blocks = json.loads(call("report", "--json", trace_path).output)
    assert (blocks[0]["block"], blocks[0]["text"]) == ("heading", "train.py --lr 0.1")
    tables = {one["columns"][0]["heading"]: one for one in blocks if one["block"] == "table"}
    assert [column["unit"] for column in tables["operators"]["columns"]][:5] == ["", "ns", "%", "", "ns"]
    assert tables["operators"]["rows"][0][:4] == ["aten::addmm", 2_000_000, 20.0, 1]


def test_text_fits_a_narrow_terminal(call, trace_path):
    lines = call("report", "--text", trace_path, columns=40).output.splitlines()
    assert 0 < max(map(len, lines)) <= 40
    assert len(lines) <= 40


def test_text_tells_of_devices(call, tmp_path):
    builder = TraceBuilder()
    stream = builder.stream(7)
    builder.runtime("cudaLaunchKernel", 0, 10, correlation=1)
    builder.kernel("gemm", 500, 250, stream=stream, correlation=1).kernel("relu", 800, 200, stream=stream)
    builder.build().save(tmp_path / "run.ktrace")
    text = call("report", "--text", tmp_path / "run.ktrace", columns=100).output
    assert "cuda:0 busy 45.0 % of the recorded time" in text
    assert any(line.startswith("gemm") and "55.6 %" in line for line in text.splitlines())


def test_a_file_that_is_no_trace_is_one_line(call, tmp_path):
    (tmp_path / "x.txt").write_text("no trace", encoding="utf-8")
    said = call("report", tmp_path / "x.txt")
    assert said.exit_code == 1
    assert len(said.output.strip().splitlines()) == 1
    assert not list(tmp_path.glob("*.html"))


def test_it_writes_only_the_pages_that_are_named(call, trace_path, tmp_path):
    assert call("report", trace_path, "--page", "memory", "-o", tmp_path / "memory.html").exit_code == 0
    assert '"timeline":null' in (tmp_path / "memory.html").read_text(encoding="utf-8")
    failed = call("report", trace_path, "--page", "nothing", "-o", tmp_path / "other.html")
    assert failed.exit_code == 1
    assert "choose one or more of overview, timeline" in failed.output
