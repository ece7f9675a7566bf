"""The joined engine: real recordings of the host, and texts as Kineto would have written them of a device."""

import dataclasses
import threading
import warnings

import pytest
import torch

from kinetoscope import ProfilerActivity, StateError, profile
from kinetoscope.analyses.description import describe
from kinetoscope.collect import RecordingRequest
from kinetoscope.collect.engines.hybrid import HybridEngine
from kinetoscope.collect.engines.kineto import KinetoEngine
from kinetoscope.collect.engines.kineto_recording import KinetoRecording
from kinetoscope.collect.engines.native import NativeEngine
from kinetoscope.collect.request.torch_settings import changed_settings
from kinetoscope.model.pauses import Pauses
from tests.support.device_text import KERNEL_NS, WrittenResults, device_text
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import native  # noqa: F401  (fixture)

CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA
pytestmark = pytest.mark.usefixtures("native")


class KeptHost(NativeEngine):
    """The native engine, whose recording can be looked at by whoever plays the device."""

    recording = None

    def stop(self):
        self.recording = super().stop()
        return self.recording


class WrittenDevices(NotingEngine):
    """Plays torch's collector: what it leaves is a text made from what the host recorded."""

    name = "kineto"

    def __init__(self, host, **text):
        super().__init__(fail=text.pop("fail", None))
        self._host = host
        self._text = text

    def stop(self):
        super().stop()
        results = WrittenResults(lambda: device_text(self._host.recording.trace(), **self._text))
        return KinetoRecording(results, RecordingRequest(frozenset([CUDA])), Pauses())


def joined(**text):
    """A joined engine, and the two that it consists of."""
    host = KeptHost()
    devices = WrittenDevices(host, **text)
    return HybridEngine(host, devices), host, devices


def program():
    layer = torch.nn.Linear(64, 64)
    for _ in range(20):
        layer(torch.ones(8, 64)).mm(torch.ones(64, 8))


def record(engine, run=program, **more):
    with profile(activities=[CPU], engine=engine, **more) as session:
        run()
    return session


def rows_named(trace, name):
    return [
        row for row, text in enumerate(trace.column("spans", "name").tolist()) if trace.strings[text] == name
    ]


def test_kernels_are_the_operators_that_launched_them_with_stacks_modules_and_shapes():
    engine, _, devices = joined()
    session = record(engine, record_shapes=True, with_stack=True, with_modules=True)
    trace = session.trace
    assert devices.log == ["prepare", "start", "stop"]
    calls = rows_named(trace, "aten::mm")
    assert len(calls) == 20
    assert trace.column("spans", "device_ns")[calls].tolist() == [KERNEL_NS] * 20
    assert all(trace.column("spans", "shapes")[calls] >= 0)
    assert all(trace.column("spans", "stack")[calls] >= 0)
    launched = trace.column("launches", "host")
    assert [trace.strings[name] for name in trace.column("spans", "name")[launched]] == [
        "cudaLaunchKernel"
    ] * 20
    assert trace.column("spans", "parent")[launched].tolist() == calls
    (averages,) = [row for row in session.key_averages() if row.key == "aten::mm"]
    assert averages.self_device_time_total == pytest.approx(20 * KERNEL_NS / 1000)
    assert trace.complete
    assert trace.info["engine"] == "native"
    assert [fact.text for fact in describe(trace.overview()) if fact.label == "Engine"] == ["hybrid"]
    assert trace.info["deviceProperties"][0]["name"] == "A device of the tests"
    checks = trace.info["clock_checks"]
    assert (checks["device_calls"], checks["device_calls_crossing"]) == (20, 0)
    assert checks["device_earliest_ns"] < 0 < checks["device_latest_ns"]


def test_the_devices_side_is_asked_for_nothing_that_belongs_to_operators(tmp_path):
    engine, _, devices = joined()
    record(
        engine,
        record_shapes=True,
        with_stack=True,
        with_modules=True,
        with_flops=True,
        path=tmp_path / "live",
    )
    (request,) = devices.requests
    assert request.path is None
    assert not any(request.options.recorded.values())
    assert CPU not in request.activities


def test_missing_device_memory_is_a_warning():
    engine, _, devices = joined()
    with pytest.warns(UserWarning, match="device memory is not recorded"):
        trace = record(engine, profile_memory=True).trace
    assert not devices.requests[0].options.profile_memory
    assert len(trace.columns("allocations")) > 20


def test_a_hybrid_trace_survives_export_and_reading(tmp_path):
    engine, _, _ = joined()
    session = record(engine)
    session.save(tmp_path / "run.ktrace")
    session.export_chrome_trace(tmp_path / "run.json")
    from kinetoscope import open as open_trace

    for name in ("run.ktrace", "run.json"):
        with open_trace(tmp_path / name) as again:
            assert (
                again.column("spans", "device_ns")[rows_named(again, "aten::mm")].tolist() == [KERNEL_NS] * 20
            )


def test_several_threads_each_have_their_kernels():
    def run():
        threads = [threading.Thread(target=program) for _ in range(2)]
        for thread in threads:
            thread.start()
        program()
        for thread in threads:
            thread.join()

    engine, _, _ = joined()
    trace = record(engine, run).trace
    assert trace.column("spans", "device_ns")[rows_named(trace, "aten::mm")].tolist() == [KERNEL_NS] * 60


def test_a_thread_of_python_is_known_by_what_the_runtime_calls_it():
    me = threading.get_native_id()
    engine, _, _ = joined(
        tid_of=lambda tid: threading.get_ident() & 0xFFFFFFFF if tid == me else tid,
    )
    session = record(engine)
    identity, trace = threading.get_ident() & 0xFFFFFFFF, session.trace
    assert identity not in trace.column("threads", "os_tid").tolist()
    assert set(trace.column("spans", "device_ns")[rows_named(trace, "aten::mm")].tolist()) == {KERNEL_NS}


def test_clocks_that_differ_are_mended_or_the_trace_says_so():
    engine, _, _ = joined(shift_ns=30_000_000)
    trace = record(engine).trace
    checks = trace.info["clock_checks"]
    assert checks["device_calls"] == 20
    assert trace.complete == (checks["device_calls_crossing"] <= 0.01 * 20)


def test_devices_whose_collector_fails_leave_the_host_and_a_loss():
    engine, _, devices = joined(fail={"stop": RuntimeError("the device is gone")})
    trace = record(engine).trace
    assert len(rows_named(trace, "aten::mm")) == 20
    (loss,) = trace.losses
    assert loss["code"] == "devices_not_recorded"
    assert "the device is gone" in loss["why"]
    assert devices.log == ["prepare", "start", "stop"]


def test_when_the_host_cannot_start_the_devices_are_stopped():
    devices = NotingEngine()
    engine = HybridEngine(NotingEngine(fail={"start": StateError("no")}), devices)
    with pytest.raises(StateError, match="no"):
        profile(activities=[CPU], engine=engine).start()
    assert devices.log == ["prepare", "start", "stop", "discard"]


def test_host_and_devices_are_paused_independently():
    host, devices = NotingEngine(), NotingEngine()
    engine = HybridEngine(host, devices)
    engine.prepare(RecordingRequest(frozenset([CPU, CUDA])))
    engine.start()
    engine.toggle(False, frozenset([CPU, CUDA]))
    engine.toggle(True, frozenset([CUDA]))
    engine.stop().discard()
    assert host.log == ["prepare", "start", "off CPU", "stop", "discard"]
    assert devices.log == ["prepare", "start", "off CUDA", "on CUDA", "stop", "discard"]


def test_torchs_own_collector_runs_for_devices_alone_beside_our_recorder(monkeypatch):
    make = KinetoEngine._prepared_collector

    def of_devices_alone(engine, request):
        # torch refuses to be asked for a device that is not there, and collects nothing of it if it is told to start.
        made = make(engine, dataclasses.replace(request, activities=frozenset([CPU])))
        made.kineto_activities = {CUDA}
        return made

    monkeypatch.setattr(KinetoEngine, "_prepared_collector", of_devices_alone)
    session = record(HybridEngine())
    trace = session.trace
    assert len(rows_named(trace, "aten::mm")) == 20
    assert len(trace.columns("launches")) == 0
    assert trace.complete
    assert trace.info["clock_checks"]["device_calls"] == 0
    monkeypatch.undo()
    with profile(activities=[CPU], engine="kineto") as after:
        program()
    assert len(rows_named(after.trace, "aten::mm")) == 20


def test_settings_of_torchs_collector_reach_it_without_a_warning():
    config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    engine, _, devices = joined()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record(engine, experimental_config=config, post_processing_timeout_s=60)
    handed = changed_settings(devices.requests[0].options.experimental_config)
    assert handed["enable_cuda_sync_events"] is True
    assert devices.requests[0].options.post_processing_timeout_s == 60


def test_several_cycles_can_be_put_together():
    engine, _, _ = joined()
    session = profile(activities=[CPU], engine=engine, acc_events=True)
    for _ in range(2):
        with session:
            program()
        session.trace
    trace = session.cycles.together()
    assert trace.info["clock_checks"]["device_calls"] == 40
    assert trace.column("spans", "device_ns")[rows_named(trace, "aten::mm")].tolist() == [KERNEL_NS] * 40
