"""Traces, places and servers for the tests of this room."""

import pytest

from kinetoscope.integrations.composer import files
from tests.integrations.composer.profilers import a_trace
from tests.support.noting_engine import NotingEngine
from tests.support.s3 import s3, s3_server
from tests.support.trace_builder import TraceBuilder

__all__ = ["s3", "s3_server"]

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    """Traces go below the working folder; no launcher of the tests themselves gives them a rank."""
    monkeypatch.chdir(tmp_path)
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def slept(monkeypatch):
    """The seconds that uploads would wait between attempts; nothing waits."""
    seconds = []
    monkeypatch.setattr(files, "sleep", seconds.append)
    return seconds


@pytest.fixture
def small_trace():
    builder = TraceBuilder()
    builder.span("aten::mm", 10, 20)
    return builder.build()


@pytest.fixture
def engine():
    """An engine that notes what it is asked for, and whose recordings have one operator."""
    return NotingEngine(a_trace)
