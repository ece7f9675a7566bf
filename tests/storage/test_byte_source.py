"""Where the bytes of a trace come from: pipes and stores that may have none."""

import errno
import os
import sys
import threading
import time

import fsspec
import pytest

import kinetoscope
from kinetoscope._errors import ArgumentError, FormatError, MissingDependencyError
from kinetoscope.storage.byte_source import ByteSource, read_text_file, urls_like
from tests.support.trace_builder import TraceBuilder


@pytest.fixture
def pipe(tmp_path):
    """A named pipe."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("name", ["x.ktrace", "x.json", "x.json.gz"])
def test_a_trace_comes_through_a_named_pipe(tmp_path, pipe, name):
    TraceBuilder().span("aten::mm", 0, 100).build().save(tmp_path / name)
    writer = threading.Thread(target=lambda: pipe.write_bytes((tmp_path / name).read_bytes()))
    writer.start()
    trace = kinetoscope.open(pipe)
    writer.join()
    assert trace.table("spans").column("name").to_pylist() == ["aten::mm"]


def test_a_writer_that_is_there_is_waited_for(pipe):
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pipe.open("wb", buffering=0) as writing, ByteSource.of(pipe) as source:
        os.close(reading)
        writing.write(b"later")
        assert source.peek(5) == b"later"
        assert source.read(5) == b"later"


def test_a_named_pipe_without_a_writer_is_an_error_and_no_endless_wait(pipe, monkeypatch):
    moments_s = iter((0.0, 1.0, 6.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(moments_s))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(OSError, match="nothing writes to") as error:
        kinetoscope.open(pipe)
    assert error.value.filename == str(pipe)


class Broken(fsspec.AbstractFileSystem):
    """A store whose package raises its own exceptions."""

    protocol = "broken"

    def _open(self, path, mode="rb", **_):
        if "open" in path:
            raise RuntimeError("no credentials")
        return Stream()

    def glob(self, *_, **__):
        raise RuntimeError("no list")


class Stream:
    """A file whose connection is lost."""

    def read(self, count):
        raise RuntimeError("connection lost")

    def readinto(self, buffer):
        raise RuntimeError("connection lost")

    def close(self):
        pass


@pytest.fixture
def broken(monkeypatch):
    """The protocol `broken://`."""
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "broken", Broken)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(("place", "why"), [("open", "no credentials"), ("read", "connection lost")])
def test_any_error_of_a_store_is_one_of_reading(place, why):
    with pytest.raises(OSError, match=why) as error:
        kinetoscope.open(f"broken://{place}.json")
    assert (error.value.errno, error.value.filename) == (errno.EIO, f"broken://{place}.json")


@pytest.mark.usefixtures("broken")
def test_a_pattern_too():
    with pytest.raises(OSError, match="no list"):
        urls_like("broken://*.json")


def test_a_protocol_that_does_not_exist_is_a_wrong_argument():
    with pytest.raises(ArgumentError, match="foo://x: .*foo"):
        kinetoscope.open("foo://x")


def test_a_protocol_without_its_package_says_which(monkeypatch):
    def missing(_):
        raise ImportError('HTTPFileSystem requires "requests" and "aiohttp" to be installed')

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingDependencyError, match="http://x/a.json: HTTPFileSystem requires"):
        kinetoscope.open("http://x/a.json")


def test_a_text_that_people_write_is_small_and_utf_8(tmp_path):
    path = tmp_path / "budget.toml"
    path.write_bytes("größer".encode())
    assert read_text_file(path, 8) == "größer"
    with pytest.raises(FormatError, match="larger than 7 bytes"):
        read_text_file(path, 7)
    path.write_bytes(b"\xff")
    with pytest.raises(FormatError, match="not a text in UTF-8"):
        read_text_file(path, 7)
