"""Opening files by what they hold."""

import gzip
import io
import json
import os
import sys

import pytest

from kinetoscope import FormatError, MissingDependencyError, open  # noqa: A004
from tests.support.recording_builder import RecordingBuilder
from tests.support.trace_builder import TraceBuilder


def recording(path, *, killed=False):
    builder = RecordingBuilder(state=0 if killed else 1)
    builder.thread(1, os_tid=9)
    builder.span(0, 50, builder.name("aten::add"))
    builder.span(60, 0 if killed else 70, builder.name("aten::mul"))
    return builder.write(path)


def test_the_content_decides_and_not_the_name(tmp_path):
    with open(recording(tmp_path / "odd.json")) as trace:
        assert len(trace.columns("spans")) == 2
    TraceBuilder().span("aten::add", 0, 5).build().save(tmp_path / "x.ktrace")
    (tmp_path / "x.ktrace").rename(tmp_path / "noname")
    with open(str(tmp_path / "noname")) as trace:
        assert len(trace.columns("spans")) == 1


def test_the_recording_of_a_killed_process_opens_and_says_so(tmp_path):
    with open(recording(tmp_path / "run.recording", killed=True)) as trace:
        assert trace.info["complete"] is False
        assert not trace.complete
        assert {loss["code"] for loss in trace.losses} == {"recording_not_stopped", "unfinished_spans"}
        assert trace.table("spans").column("unfinished").to_pylist() == [False, True]


def test_a_missing_file_is_the_usual_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        open(tmp_path / "missing")


def test_urls_are_opened_through_fsspec(tmp_path):
    pytest.importorskip("fsspec", reason="fsspec is an optional dependency")
    builder = TraceBuilder().span("aten::add", 0, 5)
    builder.thread("main")
    builder.build().save(tmp_path / "x.ktrace")
    for path in (recording(tmp_path / "run.recording"), tmp_path / "x.ktrace"):
        with open(f"file://{path}") as trace:
            assert trace.info["source"] == f"file://{path}"
            assert trace.path is None
            assert trace.strings[trace.column("spans", "name")[0]] == "aten::add"
            assert trace.columns("threads")["name"]
    (tmp_path / "no").write_bytes(b"no")
    with pytest.raises(FormatError, match=f"file://{tmp_path}/no: the file does not contain a trace"):
        open(f"file://{tmp_path}/no")


def test_without_fsspec_a_url_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match="pip install fsspec"):
        open("s3://bucket/run.ktrace")


JSON = json.dumps([{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]).encode()


@pytest.mark.parametrize("content", [JSON, gzip.compress(JSON, mtime=0), b"\xef\xbb\xbf\n " + JSON])
def test_json_is_read_from_paths_files_and_urls(tmp_path, content):
    path = tmp_path / "x.unknown"
    path.write_bytes(content)
    for source in (path, str(path), os.fsencode(path), io.BytesIO(content)):
        with open(source) as trace:
            assert trace.strings[trace.column("spans", "name")[0]] == "a"
    with open(path) as trace:
        assert trace.path == path
        assert "source" not in trace.info
    with path.open("rb") as file:
        assert len(open(file).columns("spans")) == 1
        assert not file.closed
    fsspec = pytest.importorskip("fsspec", reason="fsspec is an optional dependency")
    fsspec.filesystem("memory").pipe("/folder/t.json", content)
    told = []
    with open("memory://folder/t.json", progress=lambda *facts: told.append(facts)) as trace:
        assert trace.info["source"] == "memory://folder/t.json"
        assert trace.path is None
        assert len(trace.columns("spans")) == 1
    assert told[-1] == (len(content), len(content), 1)


def test_a_file_is_read_from_where_it_stands(tmp_path):
    file = io.BytesIO(b"something before" + JSON)
    file.seek(16)
    assert len(open(file).columns("spans")) == 1


def test_files_of_our_own_are_read_from_open_files_too(tmp_path):
    TraceBuilder().span("aten::add", 0, 5).build().save(tmp_path / "x.ktrace")
    for path in (tmp_path / "x.ktrace", recording(tmp_path / "run.recording")):
        with path.open("rb") as file, open(file) as trace:
            assert trace.strings[trace.column("spans", "name")[0]] == "aten::add"
            assert trace.info["source"] == str(path)


class Pipe(io.RawIOBase):
    """Bytes that come a few at a time, without end or place known."""

    def __init__(self, content):
        self.rest = io.BytesIO(content)

    def readable(self):
        return True

    def seekable(self):
        return False

    def read(self, size=-1):
        return self.rest.read(min(size, 3) if size >= 0 else 3)

    def readinto(self, buffer):
        return self.rest.readinto(memoryview(buffer)[:3])


@pytest.mark.parametrize("content", [JSON, gzip.compress(JSON, mtime=0)])
def test_a_source_may_give_a_few_bytes_at_a_time_and_not_know_its_size(content):
    told = []
    assert len(open(Pipe(content), progress=lambda *facts: told.append(facts)).columns("spans")) == 1
    assert told[-1] == (len(content), None, 1)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}', "open it in speedscope"),
        ('{"meta": {"interval": 1, "processType": 0}, "libs": [], "threads": []}', "Firefox Profiler"),
        ('{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', "read_execution_trace"),
        ('{"nodes": [], "startTime": 1, "endTime": 2, "samples": []}', "developer tools"),
    ],
)  # fmt: skip
def test_json_of_other_tools_is_told_by_what_it_is(tmp_path, text, what):
    path = tmp_path / "x.json"
    for data in (text.encode(), gzip.compress(text.encode())):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=what) as caught:
            open(path)
        assert str(path) in str(caught.value)


def test_what_kinetoscope_writes_for_others_is_told_too(tmp_path):
    path = tmp_path / "x.speedscope.json"
    TraceBuilder().span("aten::mm", 0, 100).build().save(path)
    with pytest.raises(FormatError, match="open it in speedscope"):
        open(path)
