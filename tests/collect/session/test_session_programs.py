"""Real programs under torch's session and under ours, with both engines: what comes out must agree."""

import asyncio
import json
import threading
import warnings
from collections import Counter

import pytest
import torch
import torch.profiler

import kinetoscope
from kinetoscope import ProfilerActivity, StateError
from kinetoscope.collect.engines.native import native_engine_status
from tests.support import warm_python
from tests.support.chrome_file import partly_overlapping, read_strictly, slices
from tests.support.perfetto import complaints, needs_perfetto

CPU = [ProfilerActivity.CPU]


@pytest.fixture
def native() -> str:
    status = native_engine_status()
    if not status.available:
        pytest.skip(f"the native engine cannot serve here: {status.reason}")
    return "native"


@pytest.fixture(params=["kineto", "native"])
def engine(request) -> str:
    return request.getfixturevalue("native") if request.param == "native" else request.param


def make_step():
    """One training step of a small model, ready to be called."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.ones(2, 4)

    def step():
        with torch.profiler.record_function("forward"):
            loss = model(data).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return step


def names_of(trace):
    """How often each name stands in a trace of ours."""
    spans = trace.columns("spans")
    names = [trace.strings[name] for name in spans["name"].tolist()]
    return Counter(names)


def operators(counted):
    """Without the marks that a session makes itself."""
    return Counter({name: count for name, count in counted.items() if not name.startswith("ProfilerStep#")})


def marks(counted):
    return sorted(name for name in counted if name.startswith("ProfilerStep#"))


SCHEDULES = {
    "one cycle": {"wait": 1, "warmup": 1, "active": 2, "repeat": 1},
    "cycles without end": {"wait": 0, "warmup": 1, "active": 1},
    "back to back": {"wait": 0, "warmup": 0, "active": 2},
    "late": {"wait": 1, "warmup": 1, "active": 1, "skip_first": 2},
    "too late": {"wait": 20, "warmup": 1, "active": 1},
    "cut off": {"wait": 0, "warmup": 1, "active": 9},
}


@pytest.mark.filterwarnings(
    "ignore:.*warmup", "ignore:.*Profiler clears events", "ignore:nothing was recorded"
)
@pytest.mark.parametrize("numbers", SCHEDULES.values(), ids=SCHEDULES)
def test_the_same_steps_are_recorded_and_handed_over(engine, numbers):
    seen = {}
    for who in ("torch", "ours"):
        cycles = []
        if who == "torch":
            session = torch.profiler.profile(
                activities=CPU,
                schedule=torch.profiler.schedule(**numbers),
                on_trace_ready=lambda p, cycles=cycles: cycles.append(
                    (p.step_num, Counter(event.name() for event in p.profiler.kineto_results.events()))
                ),
            )
        else:
            session = kinetoscope.profile(
                activities=CPU,
                engine=engine,
                schedule=kinetoscope.schedule(**numbers),
                on_trace_ready=lambda p, cycles=cycles: cycles.append((p.step_num, names_of(p.trace))),
            )
        step = make_step()
        with session:
            for _ in range(7):
                step()
                session.step()
        seen[who] = cycles
    assert [number for number, _ in seen["ours"]] == [number for number, _ in seen["torch"]]
    for (_, ours), (_, theirs) in zip(seen["ours"], seen["torch"], strict=True):
        assert marks(ours) == marks(theirs)
        assert operators(ours) == operators(theirs)


def test_without_a_schedule_there_are_no_marks(engine):
    step = make_step()
    with kinetoscope.profile(activities=CPU, engine=engine) as session:
        step()
        session.step()
        step()
    counted = names_of(session.trace)
    assert marks(counted) == []
    assert counted["aten::linear"] == 4


def test_every_thread_is_seen_and_any_thread_may_stop(native):
    def work():
        torch.ones(3) + 1

    session = kinetoscope.profile(activities=CPU, engine=native)
    session.start()
    for target in (work, session.stop, work):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    assert names_of(session.trace)["aten::add"] == 1


def test_an_exception_leaves_a_trace_and_no_recording(engine):
    def fail():
        torch.ones(3) + 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), kinetoscope.profile(activities=CPU, engine=engine) as session:
        fail()
    torch.ones(3) * 2
    counted = names_of(session.trace)
    assert counted["aten::add"] == 1
    assert counted["aten::mul"] == 0


def test_exports_can_be_repeated_and_the_trace_outlives_the_session(engine, tmp_path):
    session = kinetoscope.profile(activities=CPU, engine=engine, record_shapes=True)
    with session:
        torch.ones(3) + 1
    session.add_metadata("note", 'say "hi"\n')
    for name in ("a.json", "b.json.gz", "a.json"):
        session.export_chrome_trace(str(tmp_path / name))
    session.save(tmp_path / "run.ktrace")
    trace = session.trace
    assert "aten::add" in session.key_averages().table()
    assert any(event.name == "aten::add" for event in session.events())
    del session
    assert names_of(trace)["aten::add"] == 1
    file = read_strictly(tmp_path / "a.json")
    assert file["note"] == 'say "hi"\n'
    assert file["record_shapes"] == 1
    assert slices(file, "aten::add")[0]["args"]["Input Dims"][0] == [3]
    assert names_of(kinetoscope.open(tmp_path / "run.ktrace"))["aten::add"] == 1


def test_the_tensorboard_handler_writes_a_file_for_each_cycle(engine, tmp_path):
    handler = kinetoscope.tensorboard_trace_handler(tmp_path, use_gzip=True)
    numbers = {"wait": 0, "warmup": 1, "active": 1, "repeat": 2}
    step = make_step()
    with kinetoscope.profile(
        activities=CPU, engine=engine, schedule=kinetoscope.schedule(**numbers), on_trace_ready=handler
    ) as session:
        for _ in range(4):
            step()
            session.step()
    files = sorted(tmp_path.iterdir())
    steps = [marks(Counter(event["name"] for event in slices(read_strictly(file)))) for file in files]
    assert steps == [["ProfilerStep#1"], ["ProfilerStep#3"]]


def test_memory_is_recorded(engine):
    with kinetoscope.profile(activities=CPU, engine=engine, profile_memory=True) as session:
        torch.ones(1000)
    blocks = session.trace.columns("allocations")
    assert 4000 in blocks["bytes"].tolist()
    assert (blocks["bytes"] == 0).sum() >= 1


def test_stacks_lead_to_this_file(engine):
    with kinetoscope.profile(activities=CPU, engine=engine, with_stack=True, with_modules=True) as session:
        make_step()
    trace = session.trace
    spans, stacks, frames = (trace.columns(name) for name in ("spans", "stacks", "frames"))
    row = [trace.strings[name] for name in spans["name"].tolist()].index("aten::linear")
    stack, files = int(spans["stack"][row]), []
    while stack >= 0:
        files.append(trace.strings[frames["file"][stacks["frame"][stack]]])
        stack = int(stacks["parent"][stack])
    assert any(file.endswith("test_session_programs.py") for file in files)
    classes = {trace.strings[name] for name in trace.columns("modules")["class"].tolist()}
    assert {"Sequential", "Linear"} <= classes


def test_a_program_that_never_stops_its_session_ends_quietly(engine):
    program = (
        "import sys, torch, kinetoscope as k\n"
        "session = k.profile(activities=[k.ProfilerActivity.CPU], engine=sys.argv[1])\n"
        "session.start()\n"
        "torch.ones(3) + 1\n"
    )
    done = warm_python.run("-c", program, engine)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------- beside torch.profiler


def test_the_native_engine_runs_beside_torchs_session_either_way_round(native):
    for outer_is_ours in (True, False):
        ours = kinetoscope.profile(activities=CPU, engine=native)
        theirs = torch.profiler.profile(activities=CPU)
        outer, inner = (ours, theirs) if outer_is_ours else (theirs, ours)
        with outer, inner:
            torch.ones(3) + 1
        assert names_of(ours.trace)["aten::add"] == 1
        assert sum(event.name == "aten::add" for event in theirs.events()) == 1


def test_the_kineto_engine_is_refused_while_torch_profiles():
    with torch.profiler.profile(activities=CPU) as theirs:
        with pytest.raises(StateError, match="already in use"):
            kinetoscope.profile(activities=CPU, engine="kineto").start()
        torch.ones(3) + 1
    assert sum(event.name == "aten::add" for event in theirs.events()) == 1


def test_a_recording_that_another_profiler_took_is_a_loss():
    with (
        kinetoscope.profile(activities=CPU, engine="kineto") as session,
        torch.profiler.profile(activities=CPU),
    ):
        torch.ones(3) + 1
    (loss, *_) = session.trace.losses
    assert loss["code"] == "recording_taken"
    assert "torch.profiler ran while" in loss["why"]
    assert not session.trace.complete


@pytest.mark.parametrize("profile_memory", [False, True])
def test_the_kineto_engine_is_stopped_by_its_own_thread_only(profile_memory):
    session = kinetoscope.profile(activities=CPU, engine="kineto", profile_memory=profile_memory)
    session.start()
    failures = []

    def stop():
        try:
            session.stop()
        except StateError as error:
            failures.append(str(error))

    thread = threading.Thread(target=stop)
    thread.start()
    thread.join()
    assert "by the thread that started it" in failures[0]
    torch.ones(3) + 1
    session.stop()
    assert names_of(session.trace)["aten::add"] == 1


def test_a_thread_that_ends_while_torch_records_it_takes_the_recording_along():
    session = kinetoscope.profile(activities=CPU, engine="kineto")
    thread = threading.Thread(target=session.start)
    thread.start()
    thread.join()
    session.stop()
    (loss,) = session.trace.losses
    assert loss["code"] == "recording_thread_ended"
    with session:
        torch.ones(3) + 1
    assert names_of(session.trace)["aten::add"] == 1
    assert session.trace.complete


def test_the_kineto_engine_says_that_it_keeps_no_file(tmp_path):
    with (
        pytest.warns(UserWarning, match="path and ring_bytes: without effect"),
        kinetoscope.profile(activities=CPU, engine="kineto", path=tmp_path / "x", ring_bytes=1 << 20),
    ):
        pass


# ------------------------------------------------------------------------------------------------- native recording


def test_the_live_recording_can_be_kept_and_a_temporary_one_goes(native, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    with kinetoscope.profile(activities=CPU, engine=native, path=tmp_path / "run.recording"):
        torch.ones(3) + 1
    assert names_of(kinetoscope.open(tmp_path / "run.recording"))["aten::add"] == 1
    with kinetoscope.profile(activities=CPU, engine=native) as session:
        torch.ones(3) + 1
        assert len(list((tmp_path / "tmp").glob("kinetoscope*"))) == 1
    assert names_of(session.trace)["aten::add"] == 1
    del session
    assert list((tmp_path / "tmp").glob("kinetoscope*")) == []


def test_auto_is_native_if_possible_and_warns_otherwise(monkeypatch):
    from kinetoscope.collect import EngineStatus, RecordingOptions, choose_engine

    auto, by_name = RecordingOptions(engine="auto"), RecordingOptions(engine="native")

    monkeypatch.setattr(
        "kinetoscope.collect.engines.native.native_engine_status",
        lambda: EngineStatus(False, "no compiler was found.", {}),
    )
    with pytest.warns(
        UserWarning, match=r"Kineto\), which is slower: no compiler was found\. engine='kineto'"
    ):
        assert choose_engine(auto, frozenset(CPU)).name == "kineto"
    with pytest.raises(kinetoscope.RecorderError, match="not available: no compiler"):
        choose_engine(by_name, frozenset(CPU))
    monkeypatch.setattr(
        "kinetoscope.collect.engines.native.native_engine_status", lambda: EngineStatus(True, "yes", {})
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_engine(auto, frozenset(CPU)).name == "native"


# ------------------------------------------------------------------------------------- the exported file, like torch's


def export_both(engine, tmp_path, **flags):
    files = []
    for who in (torch.profiler.profile, lambda **k: kinetoscope.profile(engine=engine, **k)):
        step = make_step()
        with who(activities=CPU, **flags) as session:
            step()
        path = tmp_path / f"{len(files)}.json"
        session.export_chrome_trace(str(path))
        files.append(json.loads(path.read_text()))
    return files


def test_the_exported_file_has_the_shape_of_torchs(engine, tmp_path):
    theirs, ours = export_both(engine, tmp_path, record_shapes=True, profile_memory=True)
    # torch names the machine; ours are anonymous unless asked.
    assert theirs.keys() - ours.keys() <= {"trace_id", "host_name"}
    assert {
        key: ours[key] for key in ("schemaVersion", "displayTimeUnit", "record_shapes", "profile_memory")
    } == {key: theirs[key] for key in ("schemaVersion", "displayTimeUnit", "record_shapes", "profile_memory")}

    def shape(file):
        """For each phase and category the keys of the events."""
        found = {}
        for event in file["traceEvents"]:
            if event.get("cat") != "Trace" and event.get("s") != "g":
                found.setdefault((event["ph"], event.get("cat")), set()).update(event)
        return found

    assert shape(ours) == shape(theirs)
    counted = [
        Counter((e["cat"], e["name"]) for e in slices(file) if e["cat"] != "Trace") for file in (theirs, ours)
    ]
    assert counted[0] == counted[1]

    def inputs(file, key):
        return Counter(
            (e["name"], json.dumps(e["args"].get(key))) for e in slices(file) if e["cat"] == "cpu_op"
        )

    for key in ("Input Dims", "Input type", "Sequence number"):
        if key == "Sequence number":
            assert [key in e["args"] for e in slices(ours)].count(True) > 0
        else:
            assert inputs(ours, key) == inputs(theirs, key), key
    arrows = [sum(e.get("cat") == "fwdbwd" for e in file["traceEvents"]) for file in (theirs, ours)]
    assert arrows[1] >= arrows[0] > 0


@needs_perfetto
def test_perfetto_takes_every_slice_of_a_real_run(engine, tmp_path):
    async def ranges():
        async def one(name):
            with torch.profiler.record_function(name):
                await asyncio.sleep(0)
                torch.ones(3) + 1
                await asyncio.sleep(0)

        await asyncio.gather(*(one(f"task {number}") for number in range(4)))

    step = make_step()
    everything = {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_modules": True}
    with kinetoscope.profile(
        activities=CPU, engine=engine, schedule=kinetoscope.schedule(wait=0, warmup=1, active=3), **everything
    ) as session:
        for _ in range(4):
            step()
            asyncio.run(ranges())
            session.step()
    session.export_chrome_trace(tmp_path / "trace.json")
    assert partly_overlapping(read_strictly(tmp_path / "trace.json")) == []
    spans, blocks = (len(session.trace.columns(name)) for name in ("spans", "allocations"))
    calls = sum(event["cat"] == "python_function" for event in slices(read_strictly(tmp_path / "trace.json")))
    # Where the calls of Python are no spans, with_stack=True makes slices of the operators' stacks.
    made = calls if engine == "native" else 0
    framing = 3  # slice and moments that say when it was recorded
    assert complaints(tmp_path / "trace.json") == (spans + blocks + made + framing, [])
