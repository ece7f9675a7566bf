"""torch's Cuspy beside Kineto: its calls in order, devices in the trace, and what is said where it cannot record.

torch 2.15 and a CUDA driver have it; here, a session like torch's stands in for it, with torch's own collector for the host.
"""

import gzip
import json

import pytest
import torch
from torch.autograd import profiler as collector

import kinetoscope
from kinetoscope import ProfilerActivity, profile
from kinetoscope.collect.engines import cuspy
from kinetoscope.model.schema import SpanKind

CPU = ProfilerActivity.CPU


class Observer:
    """What torch registers with CUPTI: adds a kernel of the same time as the program's range."""

    available = True

    def __init__(self, log):
        self.log = log

    def open_window(self):
        self.log.append("open")

    def join(self):
        self.log.append("join")

    def set_export(self, window, host, joined):
        assert window == 3
        text = json.loads(host.read_text())
        (around,) = (
            event for event in text["traceEvents"] if event.get("name") == "work" and event["ph"] == "X"
        )
        kernel = around | {
            "cat": "kernel",
            "name": "gemm",
            "pid": 0,
            "tid": 7,
            "args": {"device": 0, "stream": 7, "correlation": 1},
        }
        text["traceEvents"].append(kernel)
        joined.write_bytes(gzip.compress(json.dumps(text).encode()))
        host.unlink()


class Session:
    """The part of torch's session that runs Cuspy."""

    log: list[str]
    missing = ""

    def __init__(self, *, activities, experimental_config=None, **settings):
        self._use_cuspy = "cuspy" in getattr(experimental_config, "custom_profiler_config", "")
        if self._use_cuspy and CPU not in activities:
            raise ValueError("Cuspy currently requires CPU activity")
        self.settings = settings | {"experimental_config": experimental_config}

    def take_pending_cuspy_export(self):
        raise AssertionError

    def prepare_trace(self):
        if self.missing:
            raise ModuleNotFoundError(self.missing)
        self._cuspy_profiler_observer, self._cuspy_window_id = Observer(self.log), None
        self.profiler = collector.profile(use_device=None, use_kineto=True, **self.settings)
        self.profiler._prepare_trace()
        self.log.append("prepare")

    def stop_trace(self):
        self._cuspy_window_id = 3 if self._cuspy_profiler_observer.available else None
        self.profiler.__exit__(None, None, None)
        self.log.append("close")


@pytest.fixture
def torchs(monkeypatch):
    """torch with Cuspy."""
    monkeypatch.setattr(cuspy, "TORCHS_SESSION", Session)
    monkeypatch.setattr(Session, "log", [], raising=False)
    return Session


def requested(**options):
    config = torch._C._profiler._ExperimentalConfig(custom_profiler_config='{"backend": "cuspy"}')
    return profile(**{"activities": [CPU], "engine": "kineto", "experimental_config": config} | options)


def work():
    with torch.profiler.record_function("work"):
        torch.ones(8).add(1)


def kernels(trace):
    spans = trace.columns("spans")
    return [trace.strings[name] for name in spans["name"][spans["kind"] == SpanKind.KERNEL]]


def test_devices_are_in_the_trace_beside_torchs_operators(torchs):
    with requested(record_shapes=True) as session:
        work()
    assert torchs.log == ["prepare", "open", "close", "join"]
    spans, strings = session.trace.columns("spans"), session.trace.strings
    assert kernels(session.trace) == ["gemm"]
    assert {"aten::add", "work"} <= {strings[name] for name in spans["name"]}
    assert session.trace.columns("spans")["shapes"].max() >= 0


def test_every_cycle_has_its_own(torchs):
    with requested(
        schedule=kinetoscope.schedule(wait=0, warmup=1, active=1, repeat=2), acc_events=True
    ) as session:
        for _ in range(4):
            work()
            session.step()
    assert torchs.log == ["prepare", "open", "close", "join"] * 2
    assert [kernels(trace) for trace in session.cycles] == [["gemm"], ["gemm"]]


def test_without_a_driver_the_host_is_recorded(torchs, monkeypatch):
    monkeypatch.setattr(Observer, "available", False)
    with requested() as session:
        work()
    assert torchs.log == ["prepare", "open", "close"]
    assert kernels(session.trace) == []
    assert [loss["code"] for loss in session.trace.losses] == ["devices_not_recorded"]
    assert "work" in session.trace.strings


def test_what_is_missing_is_named(torchs, monkeypatch):
    monkeypatch.setattr(torchs, "missing", "Cuspy requires the cupti-python package.")
    with pytest.raises(kinetoscope.ArgumentError, match=r"cannot be used here: .*cupti-python"):
        requested().start()


def test_the_native_engine_says_that_it_cannot(torchs):
    with pytest.raises(
        kinetoscope.ArgumentError, match="Cuspy adds devices to what torch's own collector records"
    ):
        requested(engine="native").start()


def test_as_an_automatic_engine_torchs_collector_records(torchs):
    with pytest.warns(UserWarning, match="Cuspy adds devices"), requested(engine="auto") as session:
        work()
    assert session.trace.info["engine"] == "kineto"
    assert kernels(session.trace) == ["gemm"]


def test_what_torch_cannot_write_is_a_loss(torchs, monkeypatch):
    def fail(*_paths):
        raise KeyError("channel")

    monkeypatch.setattr(Observer, "set_export", fail)
    with requested() as session:
        work()
    (loss,) = session.trace.losses
    assert (loss["code"], "KeyError('channel')" in loss["why"]) == ("recording_unreadable", True)
