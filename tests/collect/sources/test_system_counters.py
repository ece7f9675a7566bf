"""What the system says of itself, as counters: rates, times in the trace, and what happens when it says nothing."""

import json
import os
import signal
import sys
import threading
import types

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope
import kinetoscope._core as _core
from kinetoscope import ArgumentError, MissingDependencyError, StateError, SystemCounters
from kinetoscope.collect.sources.system_counters import Reading, Sampler, device_readers, system_readers
from kinetoscope.combine.sources import with_rows
from kinetoscope.storage.appended_rows import CLOCKS, LOSSES, KeptRows, read_counters
from tests.support.torch_engines import native  # noqa: F401  (a fixture)
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder

SECOND_NS = 1_000_000_000


class Clock:
    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns


def sampler_of(*readers, interval_s=1.0):
    clock = Clock()
    return Sampler(readers, interval_s, clock), clock


def kept_by(sampler):
    """What was read and not written: for each counter its times and its values."""
    found = {}
    for time_ns, name, value in sampler._samples:
        found.setdefault(name, []).append((time_ns, value))
    return found


def rows_of(samples, monotonic_ns):
    """Samples as a source appends them, and where the monotonic clock was when the trace began."""
    kept = KeptRows()
    kept._parts.clear()
    kept(CLOCKS, {"monotonic_ns": [monotonic_ns], "realtime_ns": [START_REALTIME_NS]})
    rows = [(time_ns, name, value) for name, given in samples.items() for time_ns, value in given]
    kept(
        "counters",
        dict(zip(("monotonic_ns", "name", "value"), map(list, zip(*rows, strict=True)), strict=True)),
    )
    return kept.rows()


def test_a_rate_is_the_growth_since_the_sample_before():
    totals = iter([1000, 3000, 3000])
    sampler, clock = sampler_of(lambda reading: reading.totals.update(read=next(totals)))
    for clock.now_ns in (0, 2 * SECOND_NS, 3 * SECOND_NS):
        sampler.sample()
    assert kept_by(sampler) == {"read": [(2 * SECOND_NS, 1000.0), (3 * SECOND_NS, 0.0)]}


def test_a_share_is_of_the_growth_of_the_whole_or_of_time():
    busy = iter([(10.0, 100.0), (15.0, 120.0)])
    used = iter([1.0, 2.0])

    def read(reading):
        reading.shares["cpu"] = next(busy)
        reading.shares["process"] = next(used), None

    sampler, clock = sampler_of(read)
    for clock.now_ns in (0, 4 * SECOND_NS):
        sampler.sample()
    assert kept_by(sampler) == {"cpu": [(4 * SECOND_NS, 25.0)], "process": [(4 * SECOND_NS, 25.0)]}


def test_what_was_set_back_has_no_rate_and_goes_on_from_there():
    totals = iter([1000, 10, 20])
    sampler, clock = sampler_of(lambda reading: reading.totals.update(read=next(totals)))
    for clock.now_ns in (0, SECOND_NS, 2 * SECOND_NS):
        sampler.sample()
    assert kept_by(sampler) == {"read": [(2 * SECOND_NS, 10.0)]}


def test_a_last_sample_right_after_another_gives_no_rate_but_the_only_one_does():
    totals = iter([0, 100, 101])
    sampler, clock = sampler_of(lambda reading: reading.totals.update(read=next(totals)))
    for clock.now_ns in (0, SECOND_NS // 10, SECOND_NS // 5):
        sampler.sample()
    assert kept_by(sampler) == {"read": [(SECOND_NS // 10, 1000.0)]}


@given(
    st.lists(
        st.tuples(st.integers(1, 10 * SECOND_NS), st.integers(0, 10**9), st.floats(0, 1)),
        min_size=2,
        max_size=20,
    )
)
def test_rates_are_never_negative_and_shares_within_100_percent(steps):
    state = {"total": 0, "part": 0.0, "whole": 0.0}

    def read(reading):
        reading.totals["bytes"] = state["total"]
        reading.shares["busy"] = state["part"], state["whole"]

    sampler, clock = sampler_of(read, interval_s=1e-9)
    for elapsed_ns, grown, part in steps:
        sampler.sample()
        clock.now_ns += elapsed_ns
        state["total"] += grown
        state["whole"] += 1.0
        state["part"] += part
    found = kept_by(sampler)
    assert all(value >= 0 for _, value in found["bytes"])
    assert all(-1e-9 <= value <= 100 + 1e-9 for _, value in found["busy"])
    in_all = sum(
        value * (time_ns - before_ns) / 1e9
        for (before_ns, _), (time_ns, value) in zip([(0, 0), *found["bytes"]], found["bytes"], strict=False)
    )
    assert in_all == pytest.approx(sum(grown for _, grown, _ in steps[:-1]))


def test_a_reader_that_fails_is_left_out_and_told_as_a_loss():
    def fails(_reading):
        raise OSError("no such disk")

    sampler, clock = sampler_of(fails, lambda reading: reading.values.update(memory=5))
    for clock.now_ns in (0, SECOND_NS):
        sampler.sample()
    assert kept_by(sampler) == {"memory": [(0, 5), (SECOND_NS, 5)]}
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::add", 0, 100)
    kept = KeptRows()
    sampler.write_to(kept)
    sampler._thread = threading.Thread()
    sampler._thread.start()
    sampler.stop()
    trace = with_rows(builder.build(), [kept.rows()])
    assert [(loss["code"], loss["why"]) for loss in trace.losses] == [
        ("counter_samples", "OSError: no such disk")
    ]


def test_a_reading_that_hangs_does_not_hold_up_the_job(monkeypatch):
    monkeypatch.setattr("kinetoscope.collect.sources.system_counters._PATIENCE_S", 0.01)
    release = threading.Event()
    sampler = Sampler([lambda _reading: release.wait()], 1.0)
    sampler.start()
    sampler.stop()
    assert "did not end" in sampler.failure
    release.set()


class Written:
    """A recording that rows are written to; `open` says whether it is in progress."""

    def __init__(self):
        self.open = True
        self.parts = []
        self.losses = []

    def __call__(self, table, columns, *, buffered=False):
        if table == LOSSES:
            self.losses += columns["why"]
            return self.open
        assert (table, buffered) == ("counters", True)
        if self.open:
            self.parts.append(
                list(zip(columns["monotonic_ns"], columns["name"], columns["value"], strict=True))
            )
        return self.open


@given(st.lists(st.integers(1, 3 * SECOND_NS), min_size=1, max_size=30), st.floats(0.001, 3))
def test_samples_are_written_within_a_second(steps, interval_s):
    sampler, clock = sampler_of(lambda reading: reading.values.update(memory=5), interval_s=interval_s)
    written = Written()
    sampler.sample()
    sampler.write_to(written)
    taken = [(0, "memory", 5.0)]
    for step_ns in steps:
        clock.now_ns += min(step_ns, int(interval_s * 1e9))
        sampler.sample()
        taken.append((clock.now_ns, "memory", 5.0))
        kept = kept_by(sampler).get("memory", [])
        assert [row for part in written.parts for row in part] == taken[: len(taken) - len(kept)]
        # The next sample may be an interval away.
        assert all(clock.now_ns + int(interval_s * 1e9) - time_ns < SECOND_NS for time_ns, _ in kept)
    sampler._thread = threading.Thread()
    sampler._thread.start()
    sampler.stop()
    assert [row for part in written.parts for row in part] == taken
    assert kept_by(sampler) == {}


def test_samples_of_a_recording_that_has_ended_are_kept():
    sampler, clock = sampler_of(lambda reading: reading.values.update(memory=5))
    written = Written()
    sampler.write_to(written)
    # The table is announced, so that a killed recording can say what may be missing.
    assert written.parts == [[]]
    written.open = False
    for clock.now_ns in (0, SECOND_NS):
        sampler.sample()
    assert written.parts == [[]]
    assert kept_by(sampler) == {"memory": [(0, 5), (SECOND_NS, 5)]}


def test_a_reading_that_hangs_writes_nothing_into_the_next_recording(monkeypatch):
    monkeypatch.setattr("kinetoscope.collect.sources.system_counters._PATIENCE_S", 0.01)
    release = threading.Event()

    def read(reading):
        release.wait()
        reading.values["memory"] = 5

    sampler = Sampler([read], 1.0)
    written = Written()
    sampler.start()
    sampler.write_to(written)
    sampler.stop()
    release.set()
    sampler._thread.join()
    assert written.parts == [[], []]
    assert written.losses == ["reading did not end within 0.01 s"]
    assert set(kept_by(sampler)) == {"memory"}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("ring_bytes", [None, 1 << 20])
def test_a_killed_process_leaves_its_counters(native, ring_bytes, tmp_path):  # noqa: F811
    path = tmp_path / "live.recording"
    torch.ones(2).add(1)
    child = os.fork()
    if child == 0:
        try:
            counters = SystemCounters(gpu=False, interval_s=0.05)
            kinetoscope.profile(
                engine=native, path=path, ring_bytes=ring_bytes, sources=[counters], samples=False
            ).start()
            while True:
                torch.ones(2).add(1)
        finally:
            os._exit(1)
    try:
        seen = 0
        while seen < 60:
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the child died by itself"
            if path.exists():
                parts = _core.read_recording(str(path))["rows"].get("counters", [])
                seen = sum(part["rows"] for part in parts)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with kinetoscope.open(path) as trace:
        names = set(trace.table("counters")["name"].to_pylist())
        assert {"cpu_percent", "process_cpu_percent", "process_rss_bytes"} <= names
        assert len(trace.columns("counters")) >= seen
        times = trace.column("counters", "time_ns")
        assert (times[1:] >= times[:-1]).all()
        assert times[0] >= 0
        assert times[-1] <= trace.duration_ns
        losses = [(loss["code"], loss["where"]) for loss in trace.losses]
        assert ("last_second", "counters") in losses
        assert not any("damaged" in code for code, _ in losses)


@pytest.mark.parametrize("engine_name", ["native", "kineto"])
def test_counters_are_once_in_the_trace_of_a_recording_that_was_stopped(engine_name, request):
    if engine_name == "native":
        request.getfixturevalue("native")
    counters = SystemCounters(cpu=False, disk=False, network=False, gpu=False, interval_s=3600)
    with kinetoscope.profile(engine=engine_name, sources=[counters], acc_events=True) as prof:
        torch.ones(2).add(1)
    with prof:
        torch.ones(2).add(1)
    for trace in (*prof.cycles, prof.trace):
        names = trace.table("counters")["name"].to_pylist()
        assert sorted(names) == sorted(
            2 * ["memory_used_bytes", "memory_available_bytes", "process_rss_bytes"]
        )
        assert trace.complete
    together = prof.cycles.together().table("counters")
    assert len(together) >= 11


def test_samples_lie_where_the_trace_begins_by_either_clock():
    samples = {"rss": [(300, 1.0), (400, 2.0), (600, 3.0)]}
    for info in ({}, {"start_monotonic_ns": "500"}):
        builder = TraceBuilder()
        builder.thread()
        builder.span("aten::add", 0, 100)
        builder.info = info
        trace = with_rows(builder.build(), [rows_of(samples, 500)])
        # What was read last before the trace began holds when it begins.
        assert trace.table("counters").select(["time_ns", "value"]).to_pylist() == [
            {"time_ns": 0, "value": 2.0},
            {"time_ns": 100, "value": 3.0},
        ]


def test_the_readings_are_what_psutil_says():
    reading = Reading()
    for read in system_readers(cpu=True, memory=True, disk=True, network=True):
        read(reading)
    assert reading.values["process_rss_bytes"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    total = psutil.virtual_memory().total
    assert reading.values["memory_used_bytes"] + reading.values["memory_available_bytes"] == total
    part, whole = reading.shares["cpu_percent"]
    assert 0 < part <= whole
    assert reading.shares["process_cpu_percent"][0] <= sum(psutil.Process().cpu_times()[:2])
    assert reading.totals["network_sent_bytes_per_s"] <= psutil.net_io_counters().bytes_sent


def test_only_what_is_asked_for_is_read():
    counters = SystemCounters(cpu=False, disk=False, network=False, gpu=False)
    counters.start()
    kept = KeptRows()
    counters.write_to(kept)
    counters.stop()
    samples = read_counters([kept.rows()], 0)
    assert set(samples) == {"memory_used_bytes", "memory_available_bytes", "process_rss_bytes"}
    assert all(len(values) == 2 for _, values in samples.values())


@pytest.mark.parametrize("interval_s", [0, -1, float("nan"), float("inf"), "1", True, None])
def test_an_interval_that_is_none_is_refused(interval_s):
    with pytest.raises(ArgumentError, match=r"interval_s=.* need a number of seconds above 0"):
        SystemCounters(interval_s=interval_s)


def test_nothing_to_read_is_refused():
    with pytest.raises(ArgumentError, match="are all off"):
        SystemCounters(cpu=False, memory=False, disk=False, network=False, gpu=False)


def test_without_psutil_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "kinetoscope\[system\]"'):
        SystemCounters(gpu=False)


def test_devices_that_are_asked_for_and_not_there_are_an_error_before_anything_runs(monkeypatch):
    monkeypatch.setattr("kinetoscope.collect.sources.nvml._opened", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises((MissingDependencyError, StateError)):
        SystemCounters(gpu=True)
    SystemCounters(gpu=None)


def test_without_nvml_torchs_own_allocator_is_asked_and_no_device(monkeypatch):
    monkeypatch.setattr("kinetoscope.collect.sources.nvml._opened", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (read,) = device_readers(None)
    reading = Reading()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    read(reading)
    assert reading.values == {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: index * 4096)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: index * 512)
    read(reading)
    assert reading.values == {"gpu1_torch_reserved_bytes": 4096, "gpu1_torch_allocated_bytes": 512}


class _SimulatedNvml(types.ModuleType):
    """NVML with one device that tells no power."""

    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4

    class NVMLError(Exception):
        def __init__(self, value):
            self.value = value

    def __init__(self):
        super().__init__("pynvml")
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: 1
        self.nvmlDeviceGetHandleByIndex = lambda index: index
        self.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=70, memory=20)
        self.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=100, used=60, free=40)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802  (its name in the library)
        raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)


def test_devices_of_nvidia_are_read_through_nvml(monkeypatch):
    monkeypatch.setattr("kinetoscope.collect.sources.nvml._opened", None)
    monkeypatch.setitem(sys.modules, "pynvml", _SimulatedNvml())
    (read,) = device_readers(gpu=True)
    reading = Reading()
    read(reading)
    assert reading.values == {"gpu0_percent": 70, "gpu0_memory_used_bytes": 60}


def test_counters_come_out_in_every_format_and_come_back(tmp_path):
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::add", 0, 1_000_000)
    samples = {"cpu_percent": [(0, 10.0), (500_000, 90.0)], "process_rss_bytes": [(0, 4096.0)]}
    trace = with_rows(builder.build(), [rows_of(samples, 0)])
    for suffix in (".ktrace", ".json"):
        trace.save(tmp_path / f"run{suffix}")
        with kinetoscope.open(tmp_path / f"run{suffix}") as again:
            assert again.table("counters").to_pylist() == trace.table("counters").to_pylist()
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "C" and event["name"] == "cpu_percent" for event in events) == 2
