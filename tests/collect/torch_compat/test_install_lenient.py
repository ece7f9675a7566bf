"""Under `install()` a mistake that torch lets pass is a warning, and one that it raises an exception for is an exception."""

import gzip
import json
import warnings

import pytest
import torch
import torch.profiler

import kinetoscope
from kinetoscope import ProfilerActivity
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)

CPU = [ProfilerActivity.CPU]
PASS, RAISE = {}, {}


def passes(function):
    """Something that torch lets pass; what it returns is the same with us."""
    PASS[function.__name__] = function
    return function


def raises(error):
    """Something that torch raises this for."""

    def add(function):
        RAISE[function.__name__] = function, error
        return function

    return add


def work():
    torch.ones(3).add(1)


def finished(tp, **options):
    with tp.profile(activities=CPU, **options) as session:
        work()
    return session


def names(session):
    return sorted(event.name for event in session.events())


@passes
def read_in_warm_up(tp, _folder):
    with tp.profile(activities=CPU, schedule=tp.schedule(wait=0, warmup=2, active=1)) as session:
        work()
        return len(session.events()), len(session.key_averages())


@passes
def choose_activities_by_a_dictionary(tp, _folder):
    found = []
    for value in (None, 1, True):
        with tp.profile(activities={ProfilerActivity.CPU: value}) as session:
            work()
        found.append(names(session))
    return found


@passes
def read_shares_after_the_table(tp, _folder):
    averages = finished(tp).key_averages()
    averages.table()
    return [type(average.self_cpu_percent) for average in averages] + [
        type(average.total_cpu_percent) for average in averages
    ]


@passes
def export_into_a_missing_folder(tp, folder):
    session = finished(tp)
    session.export_chrome_trace(str(folder / "missing" / "trace.json"))
    return names(session)


@passes
def export_over_a_folder(tp, folder):
    session = finished(tp)
    (folder / "in the way").mkdir(exist_ok=True)
    session.export_chrome_trace(str(folder))
    return names(session)


@passes
def metadata_that_is_no_json(tp, folder):
    with tp.profile(activities=CPU) as session:
        session.add_metadata_json("key", "{bad")
        work()
    return names(session)


@passes
def preset_metadata_that_is_no_json(tp, folder):
    session = tp.profile(activities=CPU)
    session.preset_metadata_json("key", "{bad")
    session.preset_metadata_json("traceEvents", "1")
    with session:
        work()
    return names(session)


@passes
def events_while_it_records(tp, folder):
    with tp.profile(activities=CPU) as session:
        work()
        so_far = len(session.events()), len(session.key_averages())
    return so_far, names(session)


@passes
def second_start(tp, folder):
    with tp.profile(activities=CPU) as session:
        session.start()
        work()
    return "aten::ones" in names(session)


@passes
def second_stop(tp, folder):
    # torch forgets its events then; ours stay.
    finished(tp).stop()


@passes
def start_again(tp, folder):
    session = finished(tp)
    with session:
        work()
    return names(session)


@passes
def schedule_of_numbers(tp, folder):
    with tp.profile(activities=CPU, schedule=lambda step: step) as session:
        work()
        session.step()
        work()


@passes
def switches_that_are_numbers(tp, folder):
    return names(finished(tp, record_shapes=2, with_stack=0))


@passes
def observer_without_a_file(tp, folder):
    return tp.ExecutionTraceObserver().get_output_file_path()


@passes
def memory_timeline_of_unknown_format(tp, folder):
    everything = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    finished(tp, **everything).export_memory_timeline(str(folder / "timeline.txt"))


@passes
def memory_timeline_of_a_device_that_is_not_here(tp, folder):
    everything = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    session = finished(tp, **everything)
    written = []
    for name in ("timeline.json", "timeline.json.gz", "timeline.raw.json.gz"):
        session.export_memory_timeline(str(folder / name), device="xpu:7")
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        written.append(json.loads(gzip.decompress(content) if name.endswith(".gz") else content))
    return written


@raises(RuntimeError)
def memory_timeline_of_a_device_that_no_torch_has(tp, folder):
    everything = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    finished(tp, **everything).export_memory_timeline(str(folder / "timeline.json"), device="unknown")


@raises(FileNotFoundError)
def compressed_export_into_a_missing_folder(tp, folder):
    finished(tp).export_chrome_trace(str(folder / "missing" / "trace.json.gz"))


@raises(ValueError)
def unknown_metric(tp, folder):
    finished(tp, with_stack=True).export_stacks(str(folder / "stacks.txt"), "unknown")


@raises(RuntimeError)
def handler_that_cannot_make_its_folder(tp, folder):
    (folder / "file").write_text("", encoding="utf-8")
    tp.tensorboard_trace_handler(str(folder / "file" / "folder"))(finished(tp))


@raises(TypeError)
def metadata_that_is_no_text(tp, folder):
    with tp.profile(activities=CPU) as session:
        session.add_metadata_json("key", {"a": 1})


@raises(TypeError)
def activities_that_are_none(tp, folder):
    tp.profile(activities=5)


@raises(TypeError)
def schedule_that_cannot_be_called(tp, folder):
    with tp.profile(activities=CPU, schedule=3):
        work()


@raises(TypeError)
def schedule_of_texts(tp, folder):
    tp.schedule(wait="1", warmup=1, active=1)


@raises(TypeError)
def handler_that_cannot_be_called(tp, folder):
    with tp.profile(activities=CPU, on_trace_ready=3):
        work()


@raises(TypeError)
def switch_that_is_a_text(tp, folder):
    with tp.profile(activities=CPU, with_stack="yes"):
        work()


@raises(TypeError)
def trace_id_that_is_no_text(tp, folder):
    with tp.profile(activities=CPU, custom_trace_id_callback=lambda: 3):
        work()


@raises(TypeError)
def time_limit_that_is_a_text(tp, folder):
    tp.profile(activities=CPU, post_processing_timeout_s="x").start()


@raises(ValueError)
def time_limit_below_zero(tp, folder):
    tp.profile(activities=CPU, post_processing_timeout_s=-1).start()


@raises(TypeError)
def toggling_what_is_no_activity(tp, folder):
    with tp.profile(activities=CPU) as session:
        session.toggle_collection_dynamic(True, ["x"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PASS)
def test_mistakes_that_torch_tolerates_are_warnings(name, engine, tmp_path):  # noqa: F811
    theirs = PASS[name](torch.profiler, tmp_path)
    with kinetoscope.install(engine=engine), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        ours = PASS[name](torch.profiler, tmp_path)
    assert ours == theirs
    if name not in (
        "second_stop", "start_again", "switches_that_are_numbers", "observer_without_a_file", "read_in_warm_up",
        "choose_activities_by_a_dictionary", "read_shares_after_the_table",
    ):  # fmt: skip
        assert heard, "it passes, but in silence"
    with torch.profiler.profile(activities=CPU) as session:
        work()
    assert names(session), "torch.profiler works afterwards"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RAISE)
def test_what_torch_refuses_is_refused_with_the_same_type(name, native, tmp_path):  # noqa: F811
    scenario, error = RAISE[name]
    with pytest.raises(error):
        scenario(torch.profiler, tmp_path)
    with kinetoscope.install(engine=native), pytest.raises(error):
        scenario(torch.profiler, tmp_path)


def test_what_is_not_said_about_a_program_of_ours_is_an_error(native, tmp_path):  # noqa: F811
    session = finished(kinetoscope, engine=native)
    with pytest.raises(OSError, match="missing"):
        session.export_chrome_trace(str(tmp_path / "missing" / "trace.json"))
    with pytest.raises(kinetoscope.ArgumentError, match="bad"):
        session.add_metadata_json("key", "{bad")


def test_what_is_left_out_leaves_a_valid_file(native, tmp_path):  # noqa: F811
    with kinetoscope.install(engine=native), torch.profiler.profile(activities=CPU) as session:
        with pytest.warns(UserWarning, match="left out of the trace"):
            session.add_metadata_json("bad", "{bad")
        session.add_metadata_json("good", "[1]")
        work()
    session.export_chrome_trace(str(tmp_path / "trace.json"))
    written = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert (written["good"], "bad" in written) == ([1], False)


def test_an_execution_trace_without_a_folder_ends_no_program(native, tmp_path):  # noqa: F811
    # Not beside torch: its observer stays registered for the rest of the process when it cannot open its file.
    with kinetoscope.install(engine=native):
        with pytest.warns(UserWarning, match="no execution trace is recorded"):
            observer = torch.profiler.ExecutionTraceObserver().register_callback(
                str(tmp_path / "missing" / "et.json")
            )
        session = finished(torch.profiler, execution_trace_observer=observer)
        observer.unregister_callback()
    assert names(session)
