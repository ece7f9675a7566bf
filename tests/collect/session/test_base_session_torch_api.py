"""What tools read from `prof.profiler` and the other lesser attributes, beside what torch's own session answers."""

import pytest
import torch
import torch.autograd.profiler
import torch.profiler

import kinetoscope
from kinetoscope import ProfilerActivity, profile, schedule
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)
from tests.support.trace_builder import TraceBuilder

CPU = [ProfilerActivity.CPU]


def program(session):
    with session:
        torch.ones(2, 3).mm(torch.ones(3, 2))
    return session


def test_with_the_kineto_engine_it_is_torchs_own_object():
    session = profile(
        activities=CPU, engine="kineto", profile_memory=True, record_shapes=True, with_stack=True
    )
    assert session.profiler is None
    program(session)
    session.trace
    inner = session.profiler
    assert isinstance(inner, torch.autograd.profiler.profile)
    pending, names = list(inner.kineto_results.experimental_event_tree()), set()
    while pending:
        event = pending.pop()
        names.add(event.name)
        pending += event.children
    assert "aten::mm" in names
    assert "aten::mm" in {event.name for event in inner.function_events}
    assert inner.total_average().count == len(inner.function_events)


def test_with_the_native_engine_it_answers_from_the_trace(native, tmp_path):  # noqa: F811
    theirs = program(torch.profiler.profile(activities=CPU))
    session = profile(activities=CPU, engine=native)
    assert session.profiler is None
    session.prepare_trace()
    assert session.profiler.kineto_results is None
    program(session)
    inner = session.profiler
    assert {event.name for event in inner.function_events} == {
        event.name for event in theirs.profiler.function_events
    }
    assert {row.key: row.count for row in inner.key_averages()} == {
        row.key: row.count for row in theirs.profiler.key_averages()
    }
    assert inner.total_average().count == theirs.profiler.total_average().count
    assert inner.self_cpu_time_total == session.events().self_cpu_time_total > 0
    assert "aten::mm" in inner.table(sort_by="count")
    assert inner.kineto_results.trace_start_ns() == session.trace.info["start_realtime_ns"]
    assert inner.trace_id == session.get_trace_id() == session.trace.info["trace_id"]
    assert (inner.with_stack, inner.record_shapes, inner.use_device) == (False, False, None)
    inner.export_chrome_trace(str(tmp_path / "one.json"))
    inner.kineto_results.save(str(tmp_path / "two.json"))
    assert {path.name for path in tmp_path.iterdir()} == {"one.json", "two.json"}


def test_what_only_torchs_collector_knows_says_which_engine_does(native):  # noqa: F811
    session = program(profile(activities=CPU, engine=native))
    with pytest.raises(AttributeError, match="no attribute '_needs_processing' with the native engine"):
        _ = session.profiler._needs_processing
    assert not hasattr(session.profiler, "_parse_kineto_results")


def test_everything_public_of_torchs_session_is_here_too():
    theirs = torch.profiler.profile(activities=CPU)
    ours = profile(activities=CPU, engine=NotingEngine())
    # What steers torch's own machinery and means nothing elsewhere.
    inner_works = {"action_map", "has_cudagraphs", "mem_tl", "step_rec_fn"}
    missing = {name for name in dir(theirs) if not name.startswith("_") and not hasattr(ours, name)}
    assert missing <= inner_works


@pytest.mark.parametrize(
    "flags", [{}, {"record_shapes": True, "with_flops": True}, {"profile_memory": True, "with_stack": True}]
)
def test_its_attributes_say_what_torchs_say(flags):
    theirs = torch.profiler.profile(activities=CPU, **flags)
    ours = profile(activities=CPU, engine=NotingEngine(), **flags)
    names = (
        "activities", "record_shapes", "with_flops", "profile_memory", "with_stack", "with_modules", "experimental_config",
        "execution_trace_observer", "acc_events", "custom_trace_id_callback", "post_processing_timeout_s", "profiler",
        "use_device", "preset_metadata", "record_steps", "on_trace_ready", "step_num", "current_action",
    )  # fmt: skip
    assert {name: getattr(ours, name) for name in names} == {name: getattr(theirs, name) for name in names}
    for session in (ours, theirs):
        session.preset_metadata_json("key", "[1]")
    assert ours.preset_metadata == theirs.preset_metadata == {"key": "[1]"}


def test_stats_have_torchs_names_and_true_numbers(engine):  # noqa: F811
    session = profile(activities=CPU, engine=engine)
    assert session._stats() is None
    program(session)
    before = session._stats()
    assert before.number_of_events == 0
    assert 0 < before.profiling_window_duration_sec < 60
    assert before.profiler_disable_call_duration_us > 0
    spans = len(session.trace.columns("spans"))
    after = session._stats()
    assert after.number_of_events == spans > 0
    assert after.parse_kineto_call_duration_us > 0
    theirs = program(torch.profiler.profile(activities=CPU))._stats()
    assert set(vars(theirs)) <= set(vars(after))


def test_stats_begin_anew_with_each_cycle():
    session = profile(
        engine=NotingEngine(make_trace=lambda request: TraceBuilder().span("x", 0, 1).build()),
        schedule=schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda session: session.trace,
    )
    seen, events_then = [], []
    with session:
        for _ in range(4):
            seen.append(session._stats())
            events_then.append(seen[-1].number_of_events)
            session.step()
    warm, recording, warm_again, recording_again = seen
    assert warm is recording
    assert warm_again is recording_again is not warm
    assert events_then == [0, 0, 0, 0]
    assert [stats.number_of_events for stats in (warm, warm_again)] == [1, 1]


def test_reading_prof_profiler_does_not_keep_the_session_alive(native):  # noqa: F811
    import gc
    import weakref

    session = program(profile(activities=CPU, engine=native))
    watched = weakref.ref(session)
    inner = session.profiler
    assert inner.function_events is not None
    del session, inner
    gc.collect()
    assert watched() is None


def test_paths_are_checked_before_anything_else(native):  # noqa: F811
    session = program(kinetoscope.profile(activities=CPU, engine=native, profile_memory=True))
    for call in (
        session.export_chrome_trace,
        session.save,
        session.export_stacks,
        session.export_memory_timeline,
    ):
        for path in (None, 3, "", b"trace.json"):
            with pytest.raises(kinetoscope.ArgumentError, match=r"path=.*need a file name"):
                call(path)


def test_memory_calls_name_the_flag_that_is_missing():
    session = profile(engine=NotingEngine())
    for call in (lambda: session.export_memory_timeline("x.html"), session._memory_profile):
        with pytest.raises(ValueError, match="needs a session with profile_memory=True"):
            call()
