"""Texts of Chrome traces, read by the native reader."""

import json
from typing import Any

import kinetoscope._core as _core

OPERATOR, ANNOTATION, PYTHON, MODULE, KERNEL, MEMCPY, RUNTIME = 0, 2, 4, 5, 6, 7, 9
ASYNC, UNFINISHED, INSTANT = 1, 2, 8
CATEGORIES = {
    "cpu_op": (OPERATOR, False),
    "python_function": (PYTHON, False),
    "cuda_runtime": (RUNTIME, False),
    "kernel": (KERNEL, True),
    "gpu_memcpy": (MEMCPY, True),
}


def read_text(text: bytes, *, block: int = 1 << 20, max_bytes: int = 0) -> dict[str, Any]:
    """Feeds a text in blocks and returns the reader's parts."""
    kinds, devices = zip(*CATEGORIES.values(), strict=True)
    reader = _core.ChromeReader(list(CATEGORIES), list(kinds), list(devices), max_bytes)
    for at in range(0, len(text), block):
        reader.feed(memoryview(text)[at : at + block])
    return reader.finish()


def read(*events: dict[str, Any], **header: Any) -> dict[str, Any]:
    """Reads a file of these events."""
    return read_text(json.dumps({**header, "traceEvents": list(events)}).encode())


def x(name: str, ts: float, dur: float, cat: str = "cpu_op", pid: Any = 1, tid: Any = 1, **args: Any) -> dict:
    """A complete event."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return event | ({"args": args} if args else {})


def plain(parts: dict[str, Any]) -> dict[str, Any]:
    """The parts as values that compare."""
    if isinstance(parts, dict):
        return {key: plain(value) for key, value in parts.items()}
    return parts.tolist() if hasattr(parts, "tolist") else parts


def lost(parts: dict[str, Any]) -> dict[str, int]:
    """What was lost, without what was not."""
    return {name: count for name, count in parts["losses"].items() if count}


def names(parts: dict[str, Any]) -> list[str]:
    """The names of the spans in their order."""
    return [parts["strings"][name] for name in parts["spans"]["name"].tolist()]
