"""Training loops without a trainer."""

import psutil
import pytest
import torch

import kinetoscope
from kinetoscope.integrations.composer import (
    ProfilerAction,
    Timestamp,
    TorchProfiler,
    TraceFiles,
    cyclic_schedule,
    files,
)
from tests.integrations.composer.profilers import CPU, PLACES, saved

ACTIVE = ProfilerAction.ACTIVE


def test_a_loop_of_your_own(engine, tmp_path, monkeypatch):
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(files, "clock", lambda: next(clock))
    profiler = TorchProfiler(
        "{run_name}",
        "rank{rank}.e{epoch}.b{batch}.s{sample}.t{token}.{total_wct}.{epoch_wct}.{batch_wct}.json",
        None,
        run_name="mine",
        schedule=cyclic_schedule(warmup=1, active=2),
        engine=engine,
    )
    with profiler:
        for _ in range(2):
            for _ in range(4):
                profiler.step(samples=3, tokens=10)
            profiler.next_epoch()
    assert [paths[0].name for _, paths in profiler.saved_traces] == [
        "rank0.e0.b3.s9.t30.6.0.6.0.2.0.json",
        "rank0.e1.b7.s21.t70.14.0.6.0.2.0.json",
    ]
    assert all((tmp_path / path).exists() for _, paths in profiler.saved_traces for path in paths)


def test_a_loop_that_breaks_off_is_saved_and_one_that_goes_on_is_not_cut(engine):
    with TorchProfiler(**PLACES, schedule=lambda _state: ACTIVE, engine=engine) as profiler:
        for _ in range(3):
            profiler.step()
    assert saved(profiler) == [3]
    profiler.files.overwrite = True
    with pytest.raises(ZeroDivisionError), profiler:
        profiler.step()
        1 / 0
    assert saved(profiler) == [3, 1]


def test_the_last_batch_of_a_loop_whose_length_is_known(engine):
    profiler = TorchProfiler(**PLACES, schedule=cyclic_schedule(warmup=1, active=8), engine=engine)
    profiler.start(dataloader_len=3)
    for _ in range(2):
        for _ in range(3):
            profiler.step()
        profiler.next_epoch()
    profiler.stop()
    profiler.stop()
    assert saved(profiler) == [3, 6]


def test_a_session_of_another_kind_can_use_the_file_policy(tmp_path):
    files = TraceFiles("run", "{batch}.json.gz", None, num_traces_to_keep=1)
    files.start()
    with kinetoscope.profile(
        activities=CPU,
        schedule=kinetoscope.schedule(wait=0, warmup=1, active=1, repeat=2),
        on_trace_ready=lambda session: files.save(session, Timestamp(batch=session.step_num)),
    ) as session:
        for _ in range(4):
            torch.ones(2).add(1)
            session.step()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["4.json.gz"]


def test_counters_of_the_system_are_tracks_of_the_saved_trace():
    profiler = TorchProfiler(
        **PLACES,
        activities=CPU,
        schedule=cyclic_schedule(warmup=0, active=2),
        sources=[kinetoscope.SystemCounters()],
    )
    with profiler:
        begun_s = sum(psutil.cpu_times())
        for _ in range(2):
            torch.ones(2).add(1)
            # The system counts the time of its processors in ticks, and moves some from one state to another: there is no share of none.
            while sum(psutil.cpu_times()) < begun_s + 0.03:
                pass
            profiler.step()
    with kinetoscope.open(profiler.saved_traces[0][1][0]) as trace:
        tracks = set(trace.table("counters").column("name").to_pylist())
    assert {"cpu_percent", "memory_used_bytes", "process_rss_bytes"} <= tracks
    assert any(name.startswith("network_") for name in tracks)
