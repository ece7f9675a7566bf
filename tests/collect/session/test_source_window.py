"""Sources beside the engine: when they are told what, and that their failures stay theirs."""

import threading
import warnings

import pytest
import torch

from kinetoscope import RecorderError, SystemCounters, profile, schedule
from kinetoscope.combine.extend import extend
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import native  # noqa: F401  (a fixture)
from tests.support.trace_builder import TraceBuilder


class NotingSource:
    """Writes the calls it gets into a log; `fail` names calls that raise."""

    def __init__(self, log, fail=(), error=None):
        self.log = log
        self.fail = set(fail)
        self.error = error or RuntimeError("no more paper")

    def _note(self, call):
        self.log.append(f"source {call}")
        if call in self.fail:
            raise self.error

    def open(self):
        self._note("open")

    def start(self):
        self._note("start")

    def stop(self):
        self._note("stop")
        return self

    def close(self):
        self._note("close")

    def add_to(self, trace):
        self._note("add_to")
        return extend(trace, info={"noted": len(self.log)})

    def discard(self):
        self._note("discard")


def one_span(_request):
    builder = TraceBuilder()
    builder.thread()
    builder.span("aten::add", 0, 100)
    return builder.build()


def session(log, fail=(), error=None, **keywords):
    engine = NotingEngine(make_trace=one_span)
    engine.log = log
    return profile(engine=engine, sources=[NotingSource(log, fail, error)], **keywords)


def test_a_source_runs_around_each_recording_and_is_open_for_the_whole_session():
    log = []
    with session(
        log, schedule=schedule(wait=0, warmup=1, active=1, repeat=2), on_trace_ready=lambda prof: prof.trace
    ) as prof:
        for _ in range(4):
            prof.step()
    recording = [
        "prepare", "source start", "start", "source stop", "stop", "build", "source add_to",
    ]  # fmt: skip
    assert log == ["source open", *recording, *recording, "source close"]


def test_a_trace_is_added_to_once_and_is_the_same_object_afterwards():
    log = []
    with session(log) as prof:
        pass
    assert prof.trace is prof.trace
    assert log.count("source add_to") == 1
    assert prof.trace.info["noted"] == log.index("source add_to") + 1


def test_a_recording_that_nobody_reads_is_forgotten_by_its_source_too():
    log = []
    prof = session(log, schedule=schedule(wait=0, warmup=1, active=1, repeat=2))
    prof.start()
    for _ in range(3):
        prof.step()
    with pytest.warns(UserWarning, match="dropped because"):
        prof.step()
    prof.stop()
    assert log.count("source discard") == 1


def test_recordings_by_hand_open_and_close_their_sources():
    log = []
    prof = session(log)
    prof.start_trace()
    prof.stop_trace()
    assert log == ["prepare", "source open", "source start", "start", "source stop", "source close", "stop"]


def test_an_engine_that_cannot_start_leaves_no_source_running():
    log = []
    engine = NotingEngine(fail={"start": RecorderError("no room")})
    engine.log = log
    with pytest.raises(RecorderError, match="no room"):
        profile(engine=engine, sources=[NotingSource(log)]).start()
    assert [entry for entry in log if entry.startswith("source")] == [
        "source open", "source start", "source stop", "source discard", "source close",
    ]  # fmt: skip


@pytest.mark.parametrize("call", ["open", "start", "stop", "add_to"])
def test_a_failing_source_is_one_warning_and_a_loss(call):
    log = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with session(log, fail=[call]) as prof:
            pass
        trace = prof.trace
        assert prof.trace is trace
    assert len(caught) == 1
    assert f"{call}() failed: RuntimeError: no more paper" in str(caught[0].message)
    assert trace.table("spans").num_rows == 1
    (loss,) = trace.losses
    assert loss["code"] == "source_failed"
    assert f"{call}() failed" in loss["why"]


@pytest.mark.filterwarnings("ignore:the source NotingSource")
def test_a_failure_is_said_once_however_many_recordings_there_are():
    log = []
    ready = []
    with session(
        log,
        fail=["start"],
        schedule=schedule(wait=0, warmup=1, active=1, repeat=3),
        on_trace_ready=lambda prof: ready.append(prof.trace),
    ) as prof:
        for _ in range(6):
            prof.step()
    assert log.count("source start") == 3
    assert len(ready) == 3
    assert prof.trace.losses[0]["count"] == 1


def test_an_interrupt_in_a_source_comes_out_and_leaves_nothing_running():
    log = []
    with pytest.raises(KeyboardInterrupt):
        session(log, fail=["start"], error=KeyboardInterrupt()).start()
    assert log[-1] == "source close"
    with session([]) as after:
        pass
    assert after.trace.complete


class WritingEngine(NotingEngine):
    """An engine with a file that sources can write to."""

    def append_rows(self, table, columns, *, buffered=False):
        self.log.append(f"append {table}")
        return True


class WritingSource(NotingSource):
    """A source that writes as soon as it can."""

    def write_to(self, append):
        self._note("write_to")
        append("notes", {"text": ["a"]})


@pytest.mark.parametrize("engine_class", [WritingEngine, NotingEngine])
def test_a_source_can_write_once_the_recording_has_begun(engine_class):
    log = []
    engine = engine_class(make_trace=one_span)
    engine.log = log
    with profile(engine=engine, sources=[WritingSource(log), NotingSource(log)]):
        log.append("program")
    # The source of compiled modules writes, too, what other tests have compiled in this process.
    begun = [
        entry
        for entry in log[log.index("start") : log.index("program")]
        if entry != "append compiled_kernels"
    ]
    # Without a file of the engine, rows are kept in memory.
    written = ["append notes"] if engine_class is WritingEngine else []
    assert begun == ["start", "source write_to", *written]


def test_a_source_that_fails_to_write_is_a_warning_and_the_job_goes_on():
    log = []
    engine = WritingEngine(make_trace=one_span)
    engine.log = log
    with pytest.warns(UserWarning, match=r"write_to\(\) failed: RuntimeError: no more paper"):  # noqa: SIM117
        with profile(engine=engine, sources=[WritingSource(log, ["write_to"])]) as prof:
            log.append("program")
    assert "program" in log
    assert [loss["code"] for loss in prof.trace.losses] == ["source_failed"]


def test_a_session_of_another_thread_may_be_stopped_while_sources_run():
    log = []
    prof = session(log)
    prof.start()
    stopper = threading.Thread(target=prof.stop)
    stopper.start()
    stopper.join()
    assert log[-2:] == ["stop", "source close"]


def test_counters_stand_beside_the_operators_of_a_real_recording(native, tmp_path):  # noqa: F811
    with profile(engine=native, sources=[SystemCounters(gpu=False, interval_s=0.001)]) as prof:
        torch.randn(64, 64) @ torch.randn(64, 64)
    trace = prof.trace
    names = set(trace.table("counters")["name"].to_pylist())
    assert {"memory_used_bytes", "memory_available_bytes", "process_rss_bytes"} <= names
    times = trace.column("counters", "time_ns")
    assert times.min() >= 0
    assert times.max() <= trace.duration_ns
    assert (times[1:] >= times[:-1]).all()
    assert trace.complete
    assert not any(thread.name == "kinetoscope counters" for thread in threading.enumerate())
