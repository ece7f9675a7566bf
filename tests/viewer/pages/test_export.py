"""Files made of a trace or of a part of it."""

import gzip
import json

import pytest

import kinetoscope
from kinetoscope import ArgumentError
from kinetoscope.viewer.pages import export as export_module
from kinetoscope.viewer.pages.export import about, export, stem
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def trace():
    builder = TraceBuilder()
    for step in range(4):
        builder.step(step, step * 1000, 1000)
        builder.span("aten::mm", step * 1000 + 100, 300)
        builder.span("aten::add", step * 1000 + 500, 0)
    return builder.build()


def made(trace, form, **query):
    file = export(trace, query, form)
    with file.file as opened:
        return file.name, opened.read()


def test_each_format_is_what_save_writes(trace, tmp_path):
    for form, (suffix, _) in export_module.FORMATS.items():
        trace.save(tmp_path / f"trace{suffix}")
        name, body = made(trace, form)
        assert name == f"trace{suffix}"
        expected = (tmp_path / f"trace{suffix}").read_bytes()
        if form == "json":
            body, expected = (json.loads(gzip.decompress(one))["traceEvents"] for one in (body, expected))
        if form == "speedscope":
            body, expected = (json.loads(one)["profiles"] for one in (body, expected))
        if form != "ktrace":  # in which times of writing stand
            assert body == expected


def test_a_file_comes_back_as_the_trace(trace, tmp_path):
    path = tmp_path / "again.ktrace"
    path.write_bytes(made(trace, "ktrace")[1])
    with kinetoscope.open(path) as again:
        assert (
            again.table("spans").column("name").to_pylist() == trace.table("spans").column("name").to_pylist()
        )


def test_a_window_is_cut_and_counted_alike(trace, tmp_path):
    for start, end in (
        (0, 1000),
        (150, 350),
        (1400, 1500),
        (1500, 2600),
        (0, 4000),
        (399, 400),
        (400, 401),
        (500, 501),
    ):
        path = tmp_path / "part.ktrace"
        name, body = made(trace, "ktrace", start=str(start), end=str(end))
        path.write_bytes(body)
        assert name == f"trace.from-{start / 1e6:.3f}ms.ktrace"
        with kinetoscope.open(path) as part:
            assert about(trace, {"start": str(start), "end": str(end)})["spans"] == len(part.columns("spans"))


def test_steps_are_chosen_by_their_numbers(trace, tmp_path):
    path = tmp_path / "part.ktrace"
    name, body = made(trace, "ktrace", steps="1-2")
    path.write_bytes(body)
    assert name == "trace.steps-1-2.ktrace"
    with kinetoscope.open(path) as part:
        assert part.column("steps", "number").tolist() == [1, 2]
        assert about(trace, {"steps": "1-2"}) == {
            "spans": len(part.columns("spans")),
            "steps": [0, 3],
        }


def test_fractions_of_a_nanosecond_in_an_address_are_cut_off(trace):
    assert made(trace, "speedscope", start="-12.7", end="1000.4") == made(
        trace, "speedscope", start="0", end="1000"
    )


@pytest.mark.parametrize(
    "query",
    [
        {"start": "10", "end": "10"},
        {"start": "x"},
        {"start": "nan"},
        {"end": "-5"},
        {"start": "1e30"},
        {"steps": "x"},
        {"steps": "5-2"},
        {"steps": "1-99999999999"},
        {"steps": "77"},
    ],
)
def test_invalid_parts_are_refused(trace, query):
    with pytest.raises(ArgumentError):
        export(trace, query, "ktrace")


def test_a_file_is_called_like_the_one_it_was_made_of(trace):
    for source, name in {
        "run.ktrace": "run",
        "a/b/host.pt.trace.json.gz": "host",
        "s3://bucket/rank0.json": "rank0",
        "v1.2": "v1.2",
        ".json": "trace",
    }.items():
        trace.info["source"] = source
        assert stem(trace) == name
    trace.info["source"] = "x" * 1000
    assert len(stem(trace)) == 100


def test_nothing_is_left_in_the_folder_for_temporary_files(trace, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made(trace, "ktrace")
    assert list(tmp_path.iterdir()) == []
