import dataclasses
import inspect
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.profiler

import kinetoscope
from kinetoscope import ArgumentError, ProfilerActivity, profile, supported_activities
from kinetoscope.collect import RecordingOptions, choose_engine
from kinetoscope.collect.engines import hybrid_check as hybrid_module
from kinetoscope.collect.engines.hybrid import HybridEngine
from kinetoscope.collect.process.active_sessions import ACTIVE_SESSIONS
from tests.support.chrome_file import read_strictly, slices
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import native  # noqa: F401  (fixture)
from tests.support.trace_builder import TraceBuilder

CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA


def chosen(engine, recorded, **options):
    """The engine that is chosen by its name to record some activities."""
    return choose_engine(RecordingOptions(engine=engine, **options), frozenset(recorded))


def test_torchs_own_objects_are_re_exported():
    for name in ("ProfilerActivity", "ProfilerAction", "record_function", "DeviceType", "kineto_available"):
        assert getattr(kinetoscope, name) is getattr(torch.profiler, name)


def test_the_cpu_is_always_supported_and_a_missing_device_never():
    supported = supported_activities()
    assert CPU in supported
    assert supported <= torch.profiler.supported_activities()
    assert (CUDA in supported) == torch.cuda.is_available()
    supported.clear()
    assert CPU in supported_activities()


@pytest.mark.parametrize("given", [[CPU], (CPU,), {CPU}, iter([CPU]), {CPU: "x"}.keys()])
def test_activities_may_be_any_iterable(given):
    assert profile(engine=NotingEngine(), activities=given).activities == {CPU}


needs_filters = pytest.mark.skipif(
    "activity_filters" not in inspect.signature(torch.autograd.profiler.profile).parameters,
    reason="this torch does not choose among kinds",
)


@needs_filters
def test_single_kinds_of_an_activity_can_be_chosen_as_in_torch():
    def recorded(kinds):
        with (
            profile(activities=[{CPU: kinds}], engine="kineto") as session,
            kinetoscope.record_function("mine"),
        ):
            torch.ones(2).add(1)
        assert session.activities == {CPU}
        assert session.activity_filters == {CPU: set(kinds)}
        return {event.name for event in session.events()} & {"mine", "aten::add"}

    assert recorded(["CPU_OP"]) == {"aten::add"}
    assert recorded(["USER_ANNOTATION"]) == {"mine"}
    assert recorded(["CPU_OP", "USER_ANNOTATION"]) == {"mine", "aten::add"}
    assert recorded([]) == set()


@needs_filters
def test_a_kind_that_torch_does_not_know_is_refused_by_name():
    session = profile(activities=[{CPU: ["cpu_op"]}], engine="kineto")
    with pytest.raises(ArgumentError, match="activities: .*'cpu_op'"):
        session.start()
    with profile(activities=[CPU], engine="kineto"):
        pass


def test_only_the_kineto_engine_chooses_among_kinds():
    with pytest.warns(UserWarning, match="Kineto.*does not choose among the kinds"):
        assert chosen("auto", [CPU], activities=[{CPU: ["CPU_OP"]}]).name == "kineto"
    with pytest.raises(ArgumentError, match="pass the activities themselves"):
        chosen("native", [CPU], activities=[{CPU: ["CPU_OP"]}])


no_cuda = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tells what happens where there is no CUDA device"
)


@no_cuda
def test_a_device_that_is_not_there_is_left_out_with_torchs_warning():
    with pytest.warns(UserWarning, match="CUDA is not available, disabling CUDA profiling") as caught:
        session = profile(activities=[CPU, CUDA], engine=NotingEngine())
    assert caught[0].filename == __file__
    assert session.activities == {CPU, CUDA}
    with session:
        pass
    assert session._options.engine.requests[0].activities == {CPU}


@no_cuda
@pytest.mark.filterwarnings("ignore:CUDA is not available, disabling CUDA profiling")
def test_a_missing_device_alone_is_an_error_of_the_start_as_in_torch():
    theirs = torch.profiler.profile(activities=[CUDA])
    with pytest.raises(AssertionError):
        theirs.start()
    ours = profile(activities=[CUDA], engine=NotingEngine())
    with pytest.raises(AssertionError, match=r"CUDA is not available here\. Available: CPU") as caught:
        ours.start()
    assert isinstance(caught.value, ArgumentError)
    assert ACTIVE_SESSIONS.current() is None


@no_cuda
def test_without_a_device_the_usual_activities_are_those_of_torch():
    with torch.profiler.profile() as theirs, profile(engine=NotingEngine()) as ours:
        pass
    assert ours.activities == set(theirs.activities)
    assert kinetoscope.supported_activities() == torch.profiler.supported_activities()


needs_configs = pytest.mark.skipif(
    not hasattr(torch.profiler, "ProfilerActivityConfig"), reason="torch has this from 2.15 on"
)


@needs_configs
def test_torchs_configuration_of_an_activity_is_shown_as_torch_shows_it():
    config = kinetoscope.ProfilerActivityConfig(activity_types=["CPU_OP"])
    shown = []
    for module, keywords in ((torch.profiler, {}), (kinetoscope, {"engine": "kineto"})):
        with module.profile(activities=[{CPU: config}], **keywords) as session:
            torch.ones(2).add(1)
        shown.append(session.activity_configs)
    assert shown[0] == shown[1]


@needs_configs
def test_counters_of_a_device_reach_torchs_collector_and_the_rest_is_named():
    configs = [kinetoscope.PerformanceMetricsConfig(["sm__cycles_active"]), kinetoscope.CuspyConfig()]
    engine = NotingEngine()
    with profile(
        activities={CPU: kinetoscope.ProfilerActivityConfig(profiler_configs=configs)}, engine=engine
    ) as session:
        pass
    assert engine.requests[0].options.extension_configs == tuple(configs)
    assert session.activity_filters == {}
    assert session.wait_for_exports() is None
    assert session.take_pending_cuspy_export() is None
    with pytest.raises(ArgumentError, match="'counters' in the profiler_configs"):
        profile(activities=[{CPU: kinetoscope.ProfilerActivityConfig(profiler_configs=["counters"])}])


@pytest.mark.skipif(
    hasattr(torch.profiler, "ProfilerActivityConfig"), reason="this torch has what the others lack"
)
def test_what_the_installed_torch_lacks_we_lack():
    for name in ("ProfilerActivityConfig", "PerformanceMetricsConfig", "CuspyConfig"):
        with pytest.raises(AttributeError, match=name):
            getattr(kinetoscope, name)
    assert not hasattr(profile, "take_pending_cuspy_export")


@pytest.mark.parametrize("given", [{"graph_lanes": "some"}, {"graph_lanes": "all"}])
def test_lanes_of_graphs_are_checked_as_torch_checks_them(given, tmp_path):
    with profile(engine=NotingEngine()) as session:
        pass
    with pytest.raises(ValueError, match="graph_lanes"):
        session.export_chrome_trace(str(tmp_path / "trace.json"), **given)


def test_annotations_of_graphs_are_written(tmp_path):
    made = TraceBuilder().kernel("gemm", 10, 5, launch={"graph": 4, "graph_node": 11})
    with profile(engine=NotingEngine(lambda _request: made.build())) as session:
        pass
    notes = {11: {"name": "forward", "stream": 5}}
    for name, keywords, lane in (("none.json", {}, 7), ("all.json", {"graph_lanes": "all"}, 5)):
        session.export_chrome_trace(str(tmp_path / name), cuda_graph_annotations=notes, **keywords)
        (gemm,) = slices(read_strictly(tmp_path / name), "gemm")
        assert (gemm["args"]["name"], gemm["args"]["stream"]) == ("forward", lane)


def takes_use_cuda():
    return "use_cuda" in inspect.signature(torch.autograd.profiler.profile).parameters


@pytest.mark.skipif(takes_use_cuda(), reason="this torch still has the keyword")
def test_use_cuda_is_gone_with_torchs():
    for module in (torch.profiler, kinetoscope):
        with pytest.raises(TypeError, match="use_cuda"):
            module.profile(use_cuda=False)


@no_cuda
@pytest.mark.skipif(not takes_use_cuda(), reason="torch removed the keyword in 2.14")
def test_use_cuda_warns_and_takes_effect():
    with pytest.warns(FutureWarning, match="use_cuda"):
        assert profile(activities=[CPU, CUDA], use_cuda=False).activities == {CPU}
    with pytest.warns((FutureWarning, UserWarning)) as caught:
        assert profile(activities=[CPU], use_cuda=True).activities == {CPU, CUDA}
    assert [w.category for w in caught] == [FutureWarning, UserWarning]
    with pytest.warns(FutureWarning), pytest.raises(ArgumentError, match="activities is empty"):
        profile(activities=[CUDA], use_cuda=False)


@pytest.mark.filterwarnings("ignore:`use_cuda`:FutureWarning")
def test_a_wrong_value_of_use_cuda_is_named():
    with pytest.raises(ArgumentError, match="use_cuda='yes'"):
        profile(use_cuda="yes")


@pytest.mark.parametrize("value", [None, 0, 1, True, False, 1.0, np.bool_(True), torch.tensor(False)])
def test_a_switch_may_be_anything_that_is_plainly_on_or_off(value):
    assert profile(engine=NotingEngine(), record_shapes=value).record_shapes is bool(value)


def test_options_are_checked_once_and_handed_on_whole(tmp_path):
    """A session made of options records with these, however often; what cannot be used never becomes options."""
    options = RecordingOptions(
        engine=NotingEngine(), activities=iter([CPU]), with_stack=1, path=tmp_path / "a"
    )
    for _ in range(2):
        session = profile.with_options(options)
        assert session.activities == {CPU}
        with session:
            pass
    assert [request.options.with_stack for request in options.engine.requests] == [True, True]
    assert options.path == tmp_path / "a"
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.with_stack = False
    for made in (RecordingOptions, profile, kinetoscope.collect._KinetoProfile):
        with pytest.raises(ArgumentError, match="with_stack='yes'"):
            made(with_stack="yes")
    with pytest.raises(ArgumentError, match="with_stack='yes'"):
        dataclasses.replace(options, with_stack="yes")


def test_options_need_no_torch():
    """The launcher makes them before the program imports torch, and hands them to child processes."""
    program = (
        "import pickle, sys\n"
        "from kinetoscope.collect import RecordingOptions\n"
        "options = RecordingOptions(engine='native', record_shapes=True, path='run.recording')\n"
        "assert pickle.loads(pickle.dumps(options)) == options\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "False False\n", done.stderr


def test_an_attribute_that_is_set_counts_from_the_next_cycle_on():
    engine = NotingEngine()
    session = profile(engine=engine, on_trace_ready=lambda s: s.trace)
    session.start()
    session.with_stack = True
    session.stop()
    session.start()
    session.stop()
    assert [request.options.with_stack for request in engine.requests] == [False, True]
    with pytest.raises(ArgumentError, match="record_shapes='no'"):
        session.record_shapes = "no"
    assert session.record_shapes is False


def test_torchs_keywords_are_all_accepted_at_their_defaults():
    import inspect

    theirs = inspect.signature(torch.profiler.profile).parameters
    profile(engine=NotingEngine(), **{name: p.default for name, p in theirs.items()})


def test_the_request_carries_what_was_asked(tmp_path):
    engine = NotingEngine()
    session = profile(
        engine=engine,
        activities=[CPU],
        record_shapes=True,
        profile_memory=True,
        with_modules=True,
        path=tmp_path / "run.rec",
        ring_bytes=1 << 20,
        on_trace_ready=lambda s: s.trace,
    )
    for _ in range(2):
        session.start()
        session.stop()
    first, second = engine.requests
    assert first.options == second.options
    assert [name for name, on in first.options.recorded.items() if on] == [
        "record_shapes",
        "profile_memory",
        "with_modules",
    ]
    assert (first.path, second.path) == (tmp_path / "run.rec", tmp_path / "run.1.rec")
    assert first.options.ring_bytes == 1 << 20
    assert of_the_program(first.info) == {"record_shapes": "1", "profile_memory": "1", "with_modules": "1"}
    assert [json.loads(request.info["cycle"]) for request in engine.requests] == [
        {"number": 0},
        {"number": 1},
    ]


def test_operations_are_counted_from_shapes_that_nobody_asked_for():
    engine = NotingEngine()
    with profile(engine=engine, with_flops=True, python_calls=True, module_spans=True) as session:
        pass
    (request,) = engine.requests
    options = request.options
    assert (options.with_flops, options.needs_shapes, options.python_calls, options.module_spans) == (
        True,
    ) * 4
    assert of_the_program(request.info) == {"with_flops": "1", "python_calls": "1", "module_spans": "1"}
    assert session.record_shapes is False


# -------------------------------------------------------------------------------------------------------- metadata


OF_EVERY_CYCLE = {"trace_id", "cycle", "devices", "float32_matmul_precision", "torch_threads"}


def of_the_program(info):
    """The metadata without what every cycle has."""
    return {key: value for key, value in info.items() if key not in OF_EVERY_CYCLE}


def info_of(session):
    return {key: value for key, value in of_the_program(session.trace.info).items() if key != "complete"}


def test_metadata_joins_the_cycle_it_was_meant_for():
    session = profile(engine=NotingEngine(), on_trace_ready=lambda s: s.add_metadata("handler", "in time"))
    session.preset_metadata_json("always", "[1, 2]")
    session.add_metadata_json("before", "null")
    session.start()
    session.add_metadata("during", 'quote " backslash \\ newline \n end')
    session.stop()
    session.add_metadata("after", "\ud800")
    assert info_of(session) == {
        "always": [1, 2],
        "before": None,
        "during": 'quote " backslash \\ newline \n end',
        "handler": "in time",
        "after": "\ud800",
    }
    session.start()
    session.stop()
    assert info_of(session) == {"always": [1, 2], "handler": "in time"}


@pytest.mark.parametrize(
    "text", ["", "{", "nan", "NaN", "[Infinity]", "{'a': 1}", "1 2", "1e999", "[" * 100_000]
)
def test_metadata_that_is_no_json_is_refused_and_changes_nothing(text):
    session = profile(engine=NotingEngine())
    for call in (session.add_metadata_json, session.preset_metadata_json):
        with pytest.raises(ValueError, match="is not valid JSON"):
            call("key", text)
    session.start()
    session.stop()
    assert info_of(session) == {}


def test_json_with_a_lone_surrogate_becomes_its_escape():
    session = profile(engine=NotingEngine())
    session.preset_metadata_json("key", '"\udc80"')
    with session:
        pass
    assert session._options.engine.requests[0].info["key"] == '"\\udc80"'
    assert session.trace.info["key"] == "\udc80"


def test_an_initialised_process_group_is_described(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with profile(engine=NotingEngine()) as session:
            pass
    finally:
        torch.distributed.destroy_process_group()
    group = info_of(session)["distributedInfo"]
    assert (group["backend"], group["rank"], group["world_size"], group["pg_count"]) == ("gloo", 0, 1, 1)
    assert group["pg_config"][0]["ranks"] == [0]


# ---------------------------------------------------------------------------------------------------------- engines


def test_an_engine_by_name():
    assert chosen("kineto", [CPU]).name == "kineto"
    with pytest.raises(ArgumentError, match="engine='best'"):
        chosen("best", [CPU])
    with pytest.raises(ArgumentError, match="does not record CUDA activity alone"):
        chosen("native", [CUDA])


def test_native_with_a_device_is_hybrid(native):  # noqa: F811
    engine = chosen("native", [CPU, CUDA])
    assert isinstance(engine, HybridEngine)
    assert engine.name == "native"


@pytest.mark.usefixtures("native")
def test_auto_takes_kineto_for_a_device_that_cannot_be_checked(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(hybrid_module, "_results", {})
    with pytest.warns(
        UserWarning, match=r"Kineto.*the hybrid engine could not be checked: .*doctor"
    ) as caught:
        assert chosen("auto", [CPU, CUDA]).name == "kineto"
    assert len(caught) == 1


def test_auto_uses_kineto_for_a_device_without_the_host():
    with pytest.warns(UserWarning, match=r"Kineto.*does not record CUDA activity alone"):
        assert chosen("auto", [CUDA]).name == "kineto"


def test_asking_for_kineto_by_name_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen("kineto", [CUDA])
