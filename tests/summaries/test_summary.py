"""The summary of a rank: what it holds, that its size has a bound, and that it says what it leaves out."""

import os
import random
import re

import pyarrow.parquet as pq
import pytest
from hypothesis import given

import kinetoscope
from kinetoscope.combine.processes import merge_processes
from kinetoscope.summaries import summary as summaries
from kinetoscope.summaries.summary import FORMAT, file_of, is_summary, read, summary_of
from tests.support.any_trace import any_traces
from tests.support.trace_builder import TraceBuilder


def long_run(steps, names):
    builder = TraceBuilder()
    builder.know("rank", 4)
    for step in range(steps):
        builder.step(step, step * 1_000, 1_000)
        for number in range(3):
            builder.span(
                f"aten::op_{(3 * step + number) % names}", step * 1_000 + 300 * number, 100 + step % 97
            )
    return builder.build()


def test_a_long_run_is_no_larger_than_a_bound_and_what_is_left_out_is_a_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(summaries, "MOST_STEPS", 50)
    monkeypatch.setattr(summaries, "MOST_NAMES", 10)
    (row,) = summary_of(long_run(300, 30)).to_pylist()
    assert (row["rank"], len(row["steps"])) == (4, 50)
    assert [step["step"] for step in row["steps"]] == [*range(250, 300)]
    assert {(one["code"], one["what"], one["count"]) for one in row["losses"]} == {
        ("summary_limit", "steps", 250), ("summary_limit", "operators", 20),
    }  # fmt: skip


def test_the_largest_summary_is_smaller_than_a_megabyte(tmp_path):
    # Every limit is reached: names have many different durations.
    path = tmp_path / "s.parquet"
    path.write_bytes(file_of(summary_of(long_run(6_000, 900))))
    assert os.path.getsize(path) < 1 << 20


@given(any_traces())
def test_any_trace_has_a_summary_that_survives_a_file(tmp_path_factory, trace):
    made = summary_of(trace)
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    path.write_bytes(file_of(made))
    again = read(path)
    assert again.to_pylist() == made.to_pylist()
    for row in made.to_pylist():
        for step in row["steps"]:
            assert (
                sum(step[name] for name in step if name not in ("step", "start_ns", "duration_ns", "kind"))
                == step["duration_ns"]
            )


def test_a_trace_of_several_ranks_has_a_summary_of_each(tmp_path):
    paths = []
    for rank in range(2):
        builder = TraceBuilder()
        builder.know("rank", rank)
        builder.know("process", 10 + rank)
        builder.span("aten::mm", 0, 100 + rank)
        paths.append(tmp_path / f"{rank}.ktrace")
        builder.build().save(paths[-1])
    found = summary_of(kinetoscope.merge(paths)).to_pylist()
    assert [row["rank"] for row in found] == [0, 1]
    assert [row["sketches"][0]["total_ns"] for row in found] == [100, 101]


def test_processes_without_ranks_have_one_summary(tmp_path):
    traces = []
    for process in range(2):
        builder = TraceBuilder()
        builder.know("process", 10 + process)
        builder.span("aten::mm", 0, 100)
        traces.append(builder.build())
    (row,) = summary_of(merge_processes(traces)).to_pylist()
    assert (row["rank"], row["sketches"][0]["count"]) == (None, 2)


def test_the_trace_is_found_from_any_folder(tmp_path, monkeypatch):
    TraceBuilder().build().save(tmp_path / "run.ktrace")
    monkeypatch.chdir(tmp_path)
    job = kinetoscope.summarize("run.ktrace", output="out")
    assert job.summaries["source"].to_pylist() == [str(tmp_path / "run.ktrace")]


def damaged(content, chance):
    """One of the ways in which a file is damaged; never its own content."""
    changed = bytearray(content)
    while changed == content:
        at = chance.randrange(len(content))
        kind = chance.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[at : at + 4096] = bytes(len(changed[at : at + 4096]))
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            changed[at:at] = chance.randbytes(1 + chance.randrange(8))
        else:
            changed[-1 - chance.randrange(200)] = chance.randrange(256)
    return bytes(changed)


def test_a_damaged_file_is_an_error_of_one_line_and_never_another_summary(tmp_path):
    whole = file_of(summary_of(long_run(20, 9)))
    path = tmp_path / "s.parquet"
    chance = random.Random(28)
    for _ in range(120):
        path.write_bytes(damaged(whole, chance))
        is_summary(path)
        with pytest.raises(kinetoscope.FormatError, match=re.escape(str(path))) as error:
            read(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("version", "message"),
    [("5", "is a summary of version 5, and this release reads version"), (None, "no checksum")],
)
def test_a_file_of_another_version_or_without_a_checksum_is_an_error(tmp_path, version, message):
    summary = summary_of(long_run(20, 9))
    path = tmp_path / "s.parquet"
    pq.write_table(summary.replace_schema_metadata({"kinetoscope.summary": version or str(FORMAT)}), path)
    assert is_summary(path)
    with pytest.raises(kinetoscope.FormatError, match=message):
        read(path)


def test_a_file_that_another_program_wrote_anew_is_an_error(tmp_path):
    path = tmp_path / "s.parquet"
    path.write_bytes(file_of(summary_of(long_run(20, 9))))
    pq.write_table(pq.read_table(path), path)
    with pytest.raises(
        kinetoscope.FormatError, match="written anew by another program: its checksum does not match"
    ):
        read(path)


def test_a_column_that_is_missing_is_named(tmp_path):
    path = tmp_path / "s.parquet"
    path.write_bytes(file_of(summary_of(long_run(20, 9)).drop_columns(["rank"])))
    with pytest.raises(kinetoscope.FormatError, match="it has no column 'rank'"):
        read(path)
