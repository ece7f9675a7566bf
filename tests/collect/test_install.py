"""The switch: torch.profiler's names lead here and back, exactly, whoever has taken them and whenever."""

import json
import subprocess
import sys
import textwrap
import threading
import types

import pytest
import torch
import torch.profiler

import kinetoscope
from kinetoscope import StateError, Trace, install, uninstall
from kinetoscope.collect import is_installed
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


def test_every_name_leads_to_ours_and_what_both_share_stays():
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


def test_nothing_public_of_torchs_class_shines_through():
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
        for _ in range(20):
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


def test_a_class_that_is_none_any_more_is_refused_and_nothing_is_half_done(monkeypatch):
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: None)
    with pytest.raises(StateError, match=r"torch\.profiler\.profile is .* and no class"):
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


# ------------------------------------------------------------------------------------------------------ real programs

TRAINER = """
import sys
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
import torch, torch.profiler
from torch.autograd.profiler import record_function

class Profiler:
    "What trainers do: keep the class, check instances, drive start, step and stop by hand."
    def __init__(self, folder, make=profile):
        self.inner = make(
            activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
            on_trace_ready=tensorboard_trace_handler(folder, "worker"), record_shapes=True,
        )
        assert isinstance(self.inner, torch.profiler.profile)

    def __enter__(self):
        self.inner.start()
        return self

    def __exit__(self, *error):
        self.inner.stop()

with Profiler(sys.argv[1]) as profiler:
    for step in range(9):
        with record_function("batch"):
            torch.nn.Linear(8, 4)(torch.ones(2, 8)).sum().backward()
        profiler.inner.step()
print(type(profiler.inner).__module__)
"""


@pytest.mark.parametrize(
    ("first", "command", "module_name"),
    [
        ("", ["{script}", "{folder}"], "torch.profiler.profiler"),
        ("import kinetoscope\nkinetoscope.install()\n", ["{script}", "{folder}"], "kinetoscope.collect._session"),
        ("", ["-m", "kinetoscope", "run", "--install", "-o", "{folder}/all", "{script}", "{folder}"],
         "kinetoscope.collect._session"),
    ],
    ids=["as it is", "install first", "run --install"],
)  # fmt: skip
def test_an_unmodified_trainer_gives_the_same_files(first, command, module_name, tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(first + TRAINER, encoding="utf-8")
    words = [word.format(script=script, folder=tmp_path) for word in command]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == module_name
    files = sorted(tmp_path.glob("worker.*.pt.trace.json"))
    assert len(files) == 2
    for file, steps in zip(files, ([2, 3], [6, 7]), strict=True):
        names = [event["name"] for event in events_of(file)]
        assert [name for name in names if name.startswith("ProfilerStep")] == [
            f"ProfilerStep#{step}" for step in steps
        ]
        assert names.count("batch") == 2
    if "run" in command:
        with kinetoscope.open(tmp_path / "all.ktrace") as trace:
            assert [(row["number"], row["first_step"], row["steps"]) for row in trace.table("cycles").to_pylist()] == [
                (0, 2, 2), (1, 6, 2),
            ]  # fmt: skip


def events_of(file):
    """The slices of a Chrome trace in order of time."""
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return sorted((event for event in events if event.get("ph") == "X"), key=lambda event: event["ts"])


def test_run_with_install_says_what_it_leaves_to_the_program_and_when_nothing_came(tmp_path):
    script = tmp_path / "idle.py"
    script.write_text("import torch\ntorch.ones(2).add(1)\n", encoding="utf-8")
    command = [sys.executable, "-m", "kinetoscope", "run", "--install"]
    refused = subprocess.run([*command, "--shapes", script], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "--shapes: with --install the program decides" in refused.stderr
    idle = subprocess.run([*command, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert idle.returncode == 0
    assert "nothing was recorded: the program finished no recording of torch.profiler" in idle.stderr


def test_a_program_that_cannot_be_changed_can_be_given_torchs_collector():
    with install(engine="kineto"):
        with torch.profiler.profile(activities=CPU) as prof:
            torch.ones(2).add(1)
        assert isinstance(prof.profiler, torch.autograd.profiler.profile)
        assert prof.profiler.kineto_results.experimental_event_tree()
        assert kinetoscope.profile(activities=CPU)._asked_engine == "auto"
    for engine in ("fast", NotingEngine(), None):
        with pytest.raises(kinetoscope.ArgumentError, match="engine="):
            install(engine=engine)
    assert not is_installed()


@pytest.mark.usefixtures("native")
def test_a_program_that_records_itself_can_be_run_under_a_recording_too(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "import torch, kinetoscope\n"
        "with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU]) as prof:\n"
        "    torch.ones(2).add(1)\n"
        "print(prof.trace.info['engine'], sum(event.name == 'aten::add' for event in prof.events()))\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "kinetoscope", "run", "--no-summary", "-o", tmp_path / "outer", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "kineto 1\n"), done.stderr
    assert "another Kinetoscope session is recording in this process" in done.stderr
    with kinetoscope.open(tmp_path / "outer.ktrace") as outer:
        assert outer.table("ops").to_pandas().set_index("name").loc["aten::add", "count"] == 1


def test_several_sessions_of_a_program_are_cycles_of_one_trace(tmp_path):
    script = tmp_path / "three.py"
    script.write_text(
        "import torch\n"
        "from torch.profiler import ProfilerActivity, profile\n"
        "for size in (1, 2, 3):\n"
        "    with profile(activities=[ProfilerActivity.CPU], record_shapes=True):\n"
        "        torch.ones(size).add(1)\n",
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "-m",
        "kinetoscope",
        "run",
        "--install",
        "--no-summary",
        "-o",
        tmp_path / "all",
        script,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with kinetoscope.open(tmp_path / "all.ktrace") as trace:
        rows = [row for row in trace.table("spans").to_pylist() if row["name"] == "aten::add"]
        assert [(row["cycle"], row["shapes"][:4]) for row in rows] == [(0, "[[1]"), (1, "[[2]"), (2, "[[3]")]
