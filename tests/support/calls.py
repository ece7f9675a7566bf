"""What the tests of recorded calls ask of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from kinetoscope import ProfilerActivity, Trace
from kinetoscope.collect.engines.native import NativeEngine
from kinetoscope.collect.request.options import RecordingOptions, RecordingRequest
from kinetoscope.model.schema import SpanKind


class Calls:
    """Records Python calls from `start` to `stop`; as a context manager too."""

    def __init__(self, **options: Any) -> None:
        options = {"python_calls": True} | options
        self._engine = NativeEngine()
        recorded = RecordingOptions(**options)
        request = RecordingRequest(frozenset([ProfilerActivity.CPU]), recorded, path=recorded.path)
        self._engine.prepare(request)
        self.trace: Trace

    def start(self) -> Self:
        """Begins; the calls that run now are part of the recording."""
        self._engine.start()
        return self

    def stop(self) -> Trace:
        """Ends, and reads the recording."""
        recording = self._engine.stop()
        self.trace = recording.trace()
        return self.trace

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def recorded(program: Callable[[], object], **options: Any) -> Trace:
    """Records the calls of a program."""
    with Calls(**options) as calls:
        program()
    return calls.trace


def rows_of(trace: Trace, kind: SpanKind = SpanKind.PYTHON) -> list[int]:
    """The rows of one kind."""
    rows: list[int] = np.flatnonzero(trace.column("spans", "kind") == kind).tolist()
    return rows


def name(trace: Trace, row: int) -> str:
    """The name of a span, without what stands around a local function."""
    return trace.strings[trace.column("spans", "name")[row]].rpartition("<locals>.")[2]


def file_of(trace: Trace, row: int) -> str:
    """The file of a call's function; empty for one in C."""
    stack = trace.column("spans", "own_stack")[row]
    if stack < 0:
        return ""
    return trace.strings[trace.column("frames", "file")[trace.column("stacks", "frame")[stack]]]


def tree(trace: Trace, *, file: str) -> list[tuple[str, Any]]:
    """The calls of the functions of one file as (name, calls inside); others are looked through."""
    spans = trace.columns("spans")
    roots: list[tuple[str, Any]] = []
    inside: dict[int, list[tuple[str, Any]]] = {-1: roots}
    for row in range(len(spans)):
        around = inside.get(int(spans["caller"][row]), roots)
        inside[row] = around
        if spans["kind"][row] == SpanKind.PYTHON and file_of(trace, row) == file:
            inside[row] = []
            around.append((name(trace, row), inside[row]))
    return roots


def within(calls: list[tuple[str, Any]], wanted: str) -> list[tuple[str, Any]]:
    """What lies in the first call of that name, at any depth."""
    for called, inside in calls:
        if called == wanted:
            return list(inside)
        if found := within(inside, wanted):
            return found
    return []
