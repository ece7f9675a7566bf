"""The switch: torch.profiler's names lead here and back, exactly, whoever has taken them and whenever."""

import inspect
import json
import re
import sys
import textwrap
import threading
import types

import pytest
import torch
import torch.profiler

import kinetoscope
from kinetoscope import StateError, Trace, install, tensorboard_trace_handler, uninstall
from kinetoscope.collect import is_installed
from tests.support.effort import times
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

NAMES = (
    "profile", "_KinetoProfile", "schedule", "supported_activities", "tensorboard_trace_handler", "ExecutionTraceObserver",
)  # fmt: skip
UNTOUCHED = ("record_function", "ProfilerAction", "ProfilerActivity", "DeviceType", "kineto_available")
CPU = [torch.profiler.ProfilerActivity.CPU]


@pytest.fixture(autouse=True)
def not_installed():
    """Every test begins with torch as it is and must leave it so, name by name."""
    before = every_name_of_torchs_profiler()
    yield
    assert not is_installed()
    assert every_name_of_torchs_profiler() == before


def every_name_of_torchs_profiler():
    return [
        (module.__name__, name, id(value))
        for module in (torch.profiler, torch.profiler.profiler, torch.profiler.itt, torch.cuda.nvtx)
        for name, value in vars(module).items()
        if not isinstance(value, types.ModuleType)
    ]


def module(name, source, monkeypatch):
    """A loaded module with this source."""
    made = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(textwrap.dedent(source), made.__dict__)
    return made


def test_every_public_name_is_replaced_except_shared_ones():
    shared = {name: getattr(torch.profiler, name) for name in UNTOUCHED}
    with install():
        assert is_installed()
        for home in (torch.profiler, torch.profiler.profiler):
            for name in NAMES:
                assert getattr(home, name).__module__.startswith("kinetoscope"), name
        assert issubclass(torch.profiler.profile, kinetoscope.profile)
        assert issubclass(torch.profiler._KinetoProfile, kinetoscope._KinetoProfile)
        assert {name: getattr(torch.profiler, name) for name in UNTOUCHED} == shared
        assert torch.autograd.profiler.record_function is kinetoscope.record_function
        assert torch.profiler.schedule(wait=1, warmup=1, active=1) == kinetoscope.schedule(
            wait=1, warmup=1, active=1
        )


def test_the_functions_are_the_same_in_everything_but_identity():
    with install():
        for name in ("schedule", "supported_activities", "tensorboard_trace_handler"):
            theirs, ours = getattr(torch.profiler, name), getattr(kinetoscope, name)
            assert theirs is not ours
            assert (theirs.__name__, theirs.__doc__, theirs.__module__) == (
                ours.__name__,
                ours.__doc__,
                ours.__module__,
            )
            assert (theirs.__defaults__, theirs.__kwdefaults__) == (ours.__defaults__, ours.__kwdefaults__)


def test_a_program_records_with_us():
    with install():
        with torch.profiler.profile(activities=CPU) as prof:
            torch.ones(2).add(1)
        assert isinstance(prof.trace, Trace)
        assert "aten::add" in {event.name for event in prof.events()}


IMPORTS = {
    "from": "from torch.profiler import profile, schedule, tensorboard_trace_handler",
    "from, renamed": "from torch.profiler import profile as p\nprofile = p",
    "module": "import torch.profiler as tp\ndef __getattr__(name): return getattr(tp, name)",
    "star": "from torch.profiler import *",
    "inner module": "from torch.profiler.profiler import profile",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_whoever_imported_a_name_before_has_ours_and_gets_torchs_back(how, monkeypatch):
    torchs = torch.profiler.profile
    library = module("a_library", IMPORTS[how], monkeypatch)
    assert library.profile is torchs
    with install():
        assert library.profile is torch.profiler.profile is not torchs
    assert library.profile is torchs


@pytest.mark.parametrize("how", IMPORTS)
def test_whoever_imports_a_name_meanwhile_gets_torchs_at_the_end(how, monkeypatch):
    torchs = torch.profiler.profile
    with install():
        library = module("a_library", IMPORTS[how], monkeypatch)
        assert library.profile is not torchs
    assert library.profile is torchs


def test_a_session_of_torchs_is_none_of_ours_whatever_was_installed():
    torchs = torch.profiler.profile(activities=CPU)
    with install():
        assert isinstance(torchs, torch.profiler.profile)
        assert not isinstance(torchs, kinetoscope.profile)
    assert not isinstance(torchs, kinetoscope.profile)


def test_what_was_imported_from_kinetoscope_is_never_touched(monkeypatch):
    with install():
        library = module("a_library", "from kinetoscope import profile, schedule", monkeypatch)
    assert library.profile is kinetoscope.profile
    assert library.schedule is kinetoscope.schedule


def test_isinstance_holds_for_every_class_and_every_session():
    torchs, torchs_base = torch.profiler.profile, torch.profiler._KinetoProfile
    before = torchs(activities=CPU)
    with install():
        made = torch.profiler.profile(engine=NotingEngine())
        ours = kinetoscope.profile(engine=NotingEngine())
        for session in (before, made, ours):
            assert isinstance(session, torch.profiler.profile)
            assert isinstance(session, torch.profiler._KinetoProfile)
        # A reference that was kept where nobody can find it: a default argument, a tuple.
        for kept in (torchs, torchs_base):
            assert isinstance(made, kept)
            assert issubclass(torch.profiler.profile, kept)
        assert issubclass(torchs, torch.profiler.profile)
        assert not isinstance(3, torch.profiler.profile)
        observer = torch.profiler.ExecutionTraceObserver()
        assert isinstance(observer, kinetoscope.ExecutionTraceObserver)


def test_a_class_that_a_program_derives_answers_for_itself():
    with install():

        class Mine(torch.profiler.profile):
            def step(self):
                self.stepped = True
                super().step()

        engine = NotingEngine()
        with Mine(engine=engine) as session:
            session.step()
        assert session.stepped
        assert engine.log == ["prepare", "start", "stop"]
        assert isinstance(session, torch.profiler.profile)
        assert not isinstance(torch.profiler.profile(engine=NotingEngine()), Mine)


def test_no_public_attribute_is_inherited_from_torchs_class():
    with install():
        for name in ("profile", "_KinetoProfile"):
            stand_in = getattr(torch.profiler, name)
            from_torch = {
                member
                for owner in stand_in.__mro__
                if owner.__module__.startswith("torch")
                for member in vars(owner)
                if not member.startswith("_")
            }
            found = {
                member: next(owner for owner in stand_in.__mro__ if member in vars(owner))
                for member in from_torch
            }
            assert [member for member, owner in found.items() if owner.__module__.startswith("torch")] == []


def test_everything_that_is_replaced_has_the_signature_of_torchs_and_takes_its_arguments():
    torchs = {name: getattr(torch.profiler, name) for name in NAMES}
    with install():
        compared = 0
        for name, theirs in torchs.items():
            ours = getattr(torch.profiler, name)
            assert inspect.signature(ours) == inspect.signature(theirs), name
            pairs = {"": (ours, theirs)} if not isinstance(theirs, type) else methods(ours, theirs)
            for method, (our_function, their_function) in pairs.items():
                expected = inspect.signature(their_function)
                assert inspect.signature(our_function) == expected, (name, method)
                # Not only in the description: what the function itself is made of takes each of them.
                code = our_function.__code__
                taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                takes_all = code.co_flags & inspect.CO_VARKEYWORDS
                assert takes_all or set(expected.parameters) <= set(taken), (name, method)
                compared += 1
        assert compared > 30


def methods(ours, theirs):
    """The functions of two classes by name, where both have one."""
    found = {}
    for name in dir(theirs):
        pair = tuple(inspect.getattr_static(one, name) for one in (ours, theirs))
        pair = tuple(getattr(one, "__func__", one) for one in pair)
        if all(isinstance(one, types.FunctionType) for one in pair):
            found[name] = pair
    return found


def test_our_own_classes_keep_their_own_signatures():
    with install():
        assert "engine" in inspect.signature(kinetoscope.profile).parameters
        assert "engine" not in inspect.signature(torch.profiler.profile).parameters
        assert torch.profiler.profile(engine=NotingEngine()).schedule is not None


def layers():
    """Operators that both have formulas for, inside each other, and some that only ours have one for."""
    convolution = torch.nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)
    torch.nn.functional.relu(convolution(torch.ones(2, 4, 9, 9))).sum().backward()
    torch.nn.functional.conv2d(torch.ones(1, 4, 9, 9), torch.ones(4, 4, 3, 3), padding="same")
    torch.nn.functional.linear(torch.ones(2, 5, 4), torch.ones(3, 4), torch.ones(3))
    torch.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5))
    torch.ones(3) * 2 + torch.ones(2, 3)
    torch.tensor(2.0) * 3
    torch.vmap(torch.mv)(torch.ones(2, 3, 4), torch.ones(2, 4))
    torch.ones(0, 3) @ torch.ones(3, 0)


@pytest.mark.usefixtures("native")
def test_flops_of_events_are_torchs_and_those_of_tables_ours():
    def counted():
        with torch.profiler.profile(activities=CPU, with_flops=True) as prof:
            layers()
        return prof

    theirs = counted()
    with install():
        ours = counted()
    with kinetoscope.profile(activities=CPU, with_flops=True) as own:
        layers()
    of_torch = [(event.name, event.flops) for event in theirs.events() if event.flops]
    assert [(event.name, event.flops) for event in ours.events() if event.flops] == of_torch
    assert len(of_torch) > 6
    assert {event.key: event.flops for event in ours.key_averages() if event.flops} == {
        event.key: event.flops for event in theirs.key_averages() if event.flops
    }
    assert ours.key_averages().table().splitlines()[1] == theirs.key_averages().table().splitlines()[1]
    flops = sorted(own.trace.table("ops").column("flops").to_pylist(), key=str)
    assert sorted(ours.trace.table("ops").column("flops").to_pylist(), key=str) == flops
    # By our own names events and tables agree.
    assert own.key_averages().total_average().flops == sum(one or 0 for one in flops)
    assert ours.key_averages().total_average().flops != sum(one or 0 for one in flops)


def test_what_needs_a_recording_fails_before_one_as_in_torch(tmp_path):
    calls = (
        lambda prof: prof.events(),
        lambda prof: prof.key_averages(),
        lambda prof: prof.export_chrome_trace(str(tmp_path / "a.json")),
        lambda prof: prof.export_stacks(str(tmp_path / "a.txt")),
    )
    theirs = torch.profiler.profile(activities=CPU, with_stack=True)
    with install():
        ours = torch.profiler.profile(activities=CPU, with_stack=True)
        for call in calls[:2]:
            with pytest.raises(AssertionError):
                call(theirs)
        for call in calls:
            for session in (ours, kinetoscope.profile(activities=CPU, with_stack=True)):
                with pytest.raises(AssertionError, match="there is no trace yet") as error:
                    call(session)
                assert isinstance(error.value, kinetoscope.NotRecordedError)
                assert isinstance(error.value, RuntimeError)


def test_the_attributes_that_programs_read_beside_the_results_are_torchs():
    def attributes():
        with torch.profiler.profile(activities=CPU) as prof:
            torch.ones(2).add(1)
        actions = {"prepare_trace", "start_trace", "stop_trace", "_trace_ready"}
        acts = {
            (before.name, after and after.name): [
                name for call in calls if (name := getattr(call, "__name__", "")) in actions
            ]
            for (before, after), calls in prof.action_map.items()
            if "DEVICE_STOPPED" not in (before.name, after and after.name)
        }
        inner = prof.profiler
        assert 0 < inner.profiling_start_time_ns < inner.profiling_end_time_ns
        return acts, prof.has_cudagraphs, inner.enabled, inner.use_cpu, inner.kineto_activities

    theirs = attributes()
    with install():
        assert attributes() == theirs


@pytest.mark.usefixtures("native")
def test_with_stacks_calls_are_recorded_and_stacks_are_their_names(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    def without_operators():
        return sorted(range(2000))

    def training():
        without_operators()
        model(torch.ones(1, 2)).sum().backward()

    def recorded(make=None, **options):
        verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
        make = make or torch.profiler.profile
        options |= {} if make is kinetoscope.profile else {"experimental_config": verbose}
        with make(activities=CPU, with_stack=True, **options) as prof:
            training()
        return prof

    def stacks(prof):
        """Without functions in C, which have other names, and without what was running before."""
        names = ("aten::addmm", "aten::mm", "AddmmBackward0", "aten::ones", "nn.Module: Linear_1")
        found = []
        for event in prof.events():
            if event.name in names:
                end = [entry.endswith(": training") for entry in event.stack].index(True)
                inner = [one for one in event.stack[: end + 1] if "(" in one or one.startswith("nn.Module")]
                found.append((event.name, [one for one in inner if not one.startswith("<built-in")]))
        return found

    theirs = recorded()
    with install():
        ours = recorded()
        ours.export_chrome_trace(str(tmp_path / "calls.json"))
        # It can be switched off by the keyword that only ours have.
        assert not any("without_operators" in event.name for event in recorded(python_calls=False).events())
    assert stacks(ours) == stacks(theirs)
    assert len(stacks(ours)) > 6
    (linear,) = (event for event in ours.events() if event.name == "nn.Module: Linear_1")
    assert "nn.Module: Sequential_0" in linear.stack
    (call,) = (event for event in ours.events() if event.name.endswith(": without_operators"))
    inside = sum(child.cpu_time_total for child in call.cpu_children)
    assert call.cpu_time_total >= inside > 0
    with kinetoscope.open(tmp_path / "calls.json") as trace:
        assert any(event.name.endswith("without_operators") for event in trace.events())
    # By our own names only stacks are recorded: the calls that follow from them have no time.
    own = recorded(kinetoscope.profile)
    calls = [event for event in own.events() if event.is_python_function]
    assert calls
    assert not any("without_operators" in event.name for event in calls)
    assert {event.cpu_time_total for event in calls} == {0.0}
    assert stacks(own)


@pytest.mark.parametrize("engine", ["native", "kineto"])
def test_an_export_says_nothing_about_the_machine_unless_asked(engine, tmp_path, request):
    if engine == "native":
        request.getfixturevalue("native")
    handler = tensorboard_trace_handler(tmp_path / "handler", worker_name="worker")
    with install(engine=engine):
        with torch.profiler.profile(activities=CPU, on_trace_ready=handler, with_stack=True) as prof:
            torch.ones(2).add(1)
        prof.export_chrome_trace(str(tmp_path / "session.json"))
        prof.events().export_chrome_trace(str(tmp_path / "events.json"))
        prof.profiler.export_chrome_trace(str(tmp_path / "inner.json"))
        prof.profiler.kineto_results.save(str(tmp_path / "results.json"))
        prof.export_chrome_trace(str(tmp_path / "asked.json"), identity=True)
        run = prof.trace.run_info
    written = sorted(tmp_path.glob("**/*.json"))
    assert len(written) == 6
    secrets = {run.host, run.boot_id.split()[0], *run.command_line, *run.import_folders, str(tmp_path)}
    for path in written:
        header = json.loads(path.read_text(encoding="utf-8"))
        del header["traceEvents"]
        found = {secret for secret in secrets if f'"{secret}' in json.dumps(header)}
        assert bool(found) == (path.name == "asked.json"), (path.name, found)
        with kinetoscope.open(path) as trace:
            assert "aten::add" in {event.name for event in trace.events()}


@pytest.mark.usefixtures("native")
def test_ranges_that_overlap_have_the_memory_of_torchs():
    """As under Lightning's own profiler, which begins and ends steps inside other ranges."""

    def recorded():
        with torch.profiler.profile(activities=CPU, profile_memory=True) as prof:
            ranges = [torch.profiler.record_function(name) for name in ("whole", "first", "second", "third")]
            whole, first, second, third = ranges
            whole.__enter__()
            first.__enter__()
            kept = [torch.ones(100)]
            second.__enter__()
            kept += [torch.ones(200), torch.ones(300)]
            third.__enter__()
            del kept[0]
            first.__exit__(None, None, None)
            kept.append(torch.ones(400).add(1))
            second.__exit__(None, None, None)
            del kept[0]
            third.__exit__(None, None, None)
            whole.__exit__(None, None, None)
            kept.clear()
        return [(e.name, e.cpu_memory_usage, e.self_cpu_memory_usage) for e in prof.events()]

    theirs = recorded()
    with install():
        ours = recorded()
    assert ours == theirs
    assert {name: used for name, used, _ in ours if "aten" not in name}["first"] == 2000


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("sort_by", ["cpu_time_total", "self_cpu_memory_usage", "flops"])
def test_a_program_prints_what_it_prints_with_torch_but_for_times(sort_by):
    """As the recipes of Accelerate, Ultralytics and others: a table of all that can be recorded but for calls."""

    def printed():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(144, 2),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        tables = []

        def ready(prof):
            for group_by_input_shape in (False, True):
                events = prof.key_averages(group_by_input_shape=group_by_input_shape)
                tables.append(events.table(sort_by=sort_by, row_limit=-1))

        what = {"record_shapes": True, "profile_memory": True, "with_flops": True}
        steps = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
        with torch.profiler.profile(activities=CPU, schedule=steps, on_trace_ready=ready, **what) as prof:
            for _ in range(4):
                model(torch.ones(2, 3, 8, 8)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                prof.step()
        without_times = (re.sub(r"[\d.]+(us|ms|s|%)( |$)", "", table, flags=re.MULTILINE) for table in tables)
        return [sorted(re.sub("[ -]+", " ", line) for line in text.splitlines()) for text in without_times]

    theirs = printed()
    assert len(theirs) == 2
    with install():
        assert printed() == theirs


def test_installing_twice_changes_nothing_and_uninstalling_twice_neither():
    install()
    put_in = torch.profiler.profile
    install()
    assert torch.profiler.profile is put_in
    uninstall()
    uninstall()


def test_a_nested_with_block_leaves_the_outer_installation():
    with install():
        with install():
            assert is_installed()
        assert is_installed()
        assert issubclass(torch.profiler.profile, kinetoscope.profile)
    assert not is_installed()
    install()
    with install():
        assert is_installed()
    assert is_installed()
    uninstall()


def test_many_threads_at_once():
    torchs, seen, gate = torch.profiler.profile, [], threading.Barrier(8)

    def work():
        gate.wait()
        for _ in range(times(5, 20)):
            install()
            seen.append(torch.profiler.profile)
            uninstall()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.profiler.profile is torchs
    assert all(one is torchs or issubclass(one, kinetoscope.profile) for one in seen)


def test_a_session_that_records_is_not_disturbed_by_uninstalling():
    with install():
        session = torch.profiler.profile(activities=CPU)
        session.start()
    torch.ones(2).mul(2)
    session.stop()
    assert "aten::mul" in {event.name for event in session.events()}


def test_what_another_library_has_put_there_stays(monkeypatch):
    def wrapper():
        """Another library's."""

    with install():
        monkeypatch.setattr(torch.profiler, "schedule", wrapper)
    assert torch.profiler.schedule is wrapper
    monkeypatch.undo()
    # What monkeypatch put back was our stand-in, from while it was installed.
    torch.profiler.schedule = torch.profiler.profiler.schedule


def test_a_torch_class_replaced_by_another_object_is_refused_without_changes(monkeypatch):
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: None)
    with pytest.raises(StateError, match=r"torch\.profiler\.profile is .* not a class"):
        install()
    assert not is_installed()
    monkeypatch.undo()


def test_a_module_with_odd_contents_does_no_harm(monkeypatch):
    class Hostile:
        def __eq__(self, other):
            raise RuntimeError("compared")

        __hash__ = None

    odd = module("an_odd_one", "", monkeypatch)
    odd.__dict__["thing"] = Hostile()
    monkeypatch.setitem(sys.modules, "no_module_at_all", object())
    monkeypatch.setitem(sys.modules, "not_there", None)
    with install():
        pass


@pytest.mark.parametrize("flags", [{}, {"record_shapes": True, "with_stack": True}])
def test_a_memory_profile_without_memory_is_torchs_error(flags):
    def message():
        with torch.profiler.profile(activities=CPU, **flags) as prof:
            torch.ones(2)
        with pytest.raises(ValueError, match="profile_memory=True") as error:
            prof._memory_profile()
        return str(error.value)

    theirs = message()
    with install():
        assert message() == theirs


def test_a_program_that_cannot_be_changed_can_be_given_torchs_collector():
    with install(engine="kineto"):
        with torch.profiler.profile(activities=CPU) as prof:
            torch.ones(2).add(1)
        assert isinstance(prof.profiler, torch.autograd.profiler.profile)
        assert prof.profiler.kineto_results.experimental_event_tree()
        assert kinetoscope.profile(activities=CPU)._options.engine == "auto"
    for engine in ("fast", NotingEngine(), None):
        with pytest.raises(kinetoscope.ArgumentError, match="engine="):
            install(engine=engine)
    assert not is_installed()
