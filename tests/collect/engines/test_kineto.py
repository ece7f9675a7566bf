"""The Kineto engine: what it takes from torch's text, what the text lacks, and what happens when it cannot be had."""

import contextlib
import functools
import gc
import gzip
import json
import os
import re
import sysconfig
import tempfile
import textwrap
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.profiler
from torch.profiler import _memory_profiler
from torch.profiler._memory_profiler import Action, MemoryProfile, MemoryProfileTimeline

import kinetoscope
from kinetoscope import ProfilerActivity, StateError, profile
from kinetoscope.collect import RecordingRequest
from kinetoscope.collect.engines import kineto as kineto_module
from kinetoscope.collect.engines import kineto_recording
from kinetoscope.collect.engines.kineto import KinetoEngine
from kinetoscope.collect.engines.kineto_recording import KinetoRecording, leave_out_unselected, read_text
from kinetoscope.collect.request.torch_settings import has_setting
from kinetoscope.model.pauses import Pauses
from kinetoscope.model.schema import SpanKind
from tests.support import warm_python
from tests.support.device_text import WrittenResults
from tests.support.torch_release import TORCH

CPU = [ProfilerActivity.CPU]
# torch 2.7 takes the setting and writes no overload for it.
WRITES_OVERLOADS = not torch.__version__.startswith("2.7.")


needs_event_metadata = pytest.mark.skipif(
    not has_setting("expose_kineto_event_metadata"), reason="this torch shows no metadata of its events"
)


def program():
    layer = torch.nn.Linear(4, 4)
    layer(torch.ones(3, 4)).sum().backward()


def record(run=program, **more):
    with profile(activities=CPU, engine="kineto", **more) as session:
        run()
    return session


def names_of(trace):
    return Counter(trace.strings[name] for name in trace.column("spans", "name").tolist())


def recording_of(results, **more):
    return KinetoRecording(results, RecordingRequest(frozenset(CPU), **more), Pauses())


# ------------------------------------------------------------------------------------------------- how it is read


def test_reading_by_pipe_and_by_file_gives_the_same_trace(monkeypatch):
    traces = []
    for can_follow in (True, False):
        theirs = torch.profiler.profile(activities=CPU)
        with theirs:
            program()
        if not can_follow:
            monkeypatch.setattr(kineto_recording, "_follow", lambda *_: False)
        traces.append(read_text(theirs.profiler.kineto_results))
    piped, filed = (
        [native["strings"][name] for name in native["spans"]["name"].tolist()] for native in traces
    )
    assert piped == filed
    assert "aten::addmm" in piped


def test_without_named_pipes_a_temporary_file_is_used(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no pipes here")

    monkeypatch.setattr(os, "mkfifo", refuse)
    assert names_of(record().trace)["aten::linear"] == 1


def test_without_threads_a_temporary_file_is_used(monkeypatch):
    def refuse(_self):
        raise RuntimeError("can't start new thread")

    session = record()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert names_of(session.trace)["aten::linear"] == 1


def test_no_file_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    record().trace
    record(post_processing_timeout_s=100).trace
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_the_trace_says_what_is_wrong(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    trace = record().trace
    (loss,) = trace.losses
    assert loss["code"] == "recording_unreadable"
    assert "Set TMPDIR" in loss["why"]
    assert not trace.complete


def test_a_time_limit_for_torchs_objects_leaves_out_nothing_of_ours(tmp_path):
    session = record(post_processing_timeout_s=0)
    assert names_of(session.trace)["aten::linear"] == 1
    assert session.trace.complete


@pytest.mark.parametrize("profile_memory", [True, False])
def test_memory_under_torchs_collector_is_torchs_own_object(profile_memory):
    options = {"record_shapes": True, "with_stack": True, "profile_memory": profile_memory}
    session = record(lambda: torch.ones(4).add_(1), **options)
    if not profile_memory:
        with pytest.raises(ValueError, match="profile_memory=True"):
            session._memory_profile()
        return
    actions = {action for _, action, _, _ in session._memory_profile().timeline}
    assert {Action.CREATE, Action.INCREMENT_VERSION} <= actions
    assert isinstance(session._memory_profile(), MemoryProfile)


def training():
    """A small training, made before the recording, and the call that runs two steps of it."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run():
        for _ in range(2):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


ALL_OF_MEMORY = {"activities": CPU, "record_shapes": True, "with_stack": True, "profile_memory": True}


def test_a_raw_memory_timeline_holds_the_actions_of_torchs(tmp_path):
    happened = []
    for module, more in ((torch.profiler, {}), (kinetoscope, {"engine": "kineto"})):
        run = training()
        with module.profile(**ALL_OF_MEMORY, **more) as session:
            run()
        path = tmp_path / f"{module.__name__}.raw.json.gz"
        with warnings.catch_warnings():
            # torch's own call is deprecated.
            warnings.simplefilter("ignore", FutureWarning)
            session.export_memory_timeline(str(path), device="cpu")
        happened.append(Counter(tuple(row[1:]) for row in json.loads(gzip.decompress(path.read_bytes()))))
    theirs, ours = happened
    assert any(
        action == _memory_profiler._ACTION_TO_INDEX[Action.INCREMENT_VERSION] for action, _, _ in theirs
    )
    assert ours == theirs


@pytest.mark.parametrize("name", ["memory.json", "memory.json.gz", "memory.raw.json.gz"])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_memory_timeline_is_that_of_torchs_objects(name, device, tmp_path):
    run = training()
    with profile(**ALL_OF_MEMORY, engine="kineto") as session:
        run()
    session.export_memory_timeline(tmp_path / name, device=device)
    theirs = MemoryProfileTimeline(session._memory_profile())
    write = theirs.export_memory_timeline_raw if "raw" in name else theirs.export_memory_timeline
    write(str(tmp_path / "theirs"), "cpu")
    written = (tmp_path / name).read_bytes()
    ours = gzip.decompress(written) if name.endswith(".gz") else written
    assert json.loads(ours) == json.loads((tmp_path / "theirs").read_bytes())


def test_a_memory_timeline_is_written_where_torchs_analysis_fails(tmp_path, monkeypatch):
    run = training()
    with profile(**ALL_OF_MEMORY, engine="kineto") as session:
        run()

    def fail(*_):
        raise AssertionError("Double delete")

    monkeypatch.setattr(_memory_profiler.DataFlowGraph, "__init__", fail)
    path = tmp_path / "memory.raw.json.gz"
    with pytest.warns(UserWarning, match="has no tensor versions.*Double delete"):
        session.export_memory_timeline(path)
    assert {row[1] for row in json.loads(gzip.decompress(path.read_bytes()))} == {1, 2, 4}


@needs_event_metadata
@pytest.mark.parametrize("shown", [True, False])
def test_events_have_the_metadata_that_torchs_have(shown, tmp_path):
    def told(module, **more):
        config = torch.profiler._ExperimentalConfig(expose_kineto_event_metadata=shown)
        options = {"activities": CPU, "record_shapes": True, "profile_memory": True}
        with module.profile(**options, experimental_config=config, **more) as session:
            program()
            with torch.profiler.record_function("range", "given"):
                torch.ones(3)
        return session

    def of(events):
        with warnings.catch_warnings():
            # Ours always says that it is deprecated, torch where it is.
            warnings.simplefilter("ignore", FutureWarning)
            return [(event.name, event.metadata_json) for event in events]

    session, theirs = told(kinetoscope, engine="kineto"), told(torch.profiler)
    ours = of(session.events())
    try:
        assert ours == of(theirs.events())
    except AttributeError:
        # torch 2.15 has it in its collector's objects alone, among which are calls that `events()` leaves out.
        known = {(event.name(), event.metadata_json()) for event in theirs.profiler.kineto_results.events()}
        assert {one for one in ours if one[0] != "[memory]"} <= known
        assert Counter(name for name, _ in ours) == Counter(event.name for event in theirs.events())
    assert bool([text for _, text in ours if text]) == shown
    assert all(not event.kwinputs for event in session.events())
    session.save(tmp_path / "one.ktrace")
    assert of(kinetoscope.open(tmp_path / "one.ktrace").events()) == ours
    with pytest.warns(FutureWarning, match="metadata_json"):
        session.events()[0].metadata_json


@needs_event_metadata
def test_the_native_engine_names_the_metadata_that_it_does_not_show():
    config = torch.profiler._ExperimentalConfig(expose_kineto_event_metadata=True)
    with (
        pytest.warns(UserWarning, match="without effect.*expose_kineto_event_metadata") as caught,
        profile(activities=CPU, engine="native", experimental_config=config) as session,
    ):
        program()
    assert len([one for one in caught if "expose_kineto_event_metadata" in str(one.message)]) == 1
    assert session.trace.complete


def test_names_that_torch_cannot_write_are_a_loss():
    class Failing(WrittenResults):
        def save(self, path):
            """torch says on stderr that it cannot, and returns."""

    (loss,) = recording_of(Failing(str)).trace().losses
    assert "torch's collector could not write" in loss["why"]


def test_truncated_text_is_read_as_far_as_it_goes():
    event = (
        '{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": %d.000, "dur": 1.000}'
    )
    text = '{"baseTimeNanoseconds": 0, "traceEvents": [' + ",".join(event % ts for ts in range(100))
    trace = recording_of(WrittenResults(lambda: text)).trace()
    assert names_of(trace) == {"aten::add": 100}
    (loss,) = trace.losses
    assert loss["code"] == "truncated_file"
    assert (loss["where"], loss["count"]) == ("file", 1)


def test_an_exception_while_torch_writes_is_raised_without_a_deadlock():
    class Raising(WrittenResults):
        def save(self, path):
            raise MemoryError("no more")

    recording = recording_of(Raising(str))
    for _ in range(2):
        with pytest.raises(MemoryError, match="no more"):
            recording.trace()


def test_torchs_text_may_be_larger_than_a_pipe():
    event = (
        '{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": %d.000, "dur": 1.000}'
    )
    text = '{"traceEvents": [' + ",\n".join(event % ts for ts in range(50_000)) + "]}"
    assert len(text) > 4 * kineto_recording._PIPE_BYTES
    assert names_of(recording_of(WrittenResults(lambda: text)).trace()) == {"aten::add": 50_000}


def test_an_interrupted_wait_is_taken_up_again(monkeypatch):
    session = record()
    join = threading.Thread.join
    interrupts, here = iter([KeyboardInterrupt]), threading.get_ident()

    def interrupted(self, *arguments):
        # Other threads of the tests' runner wait for theirs.
        for interrupt in interrupts if threading.get_ident() == here else ():
            raise interrupt
        join(self, *arguments)

    monkeypatch.setattr(kineto_recording.threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.trace
    assert names_of(session.trace)["aten::linear"] == 1


def test_a_discarded_recording_says_so():
    recording = recording_of(WrittenResults(str))
    recording.discard()
    with pytest.raises(StateError, match="discarded"):
        recording.trace()


def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have():
    begun, gate = threading.Event(), threading.Event()

    def text():
        begun.set()
        gate.wait()
        return '{"traceEvents": []}'

    recording = recording_of(WrittenResults(text))
    waiting = threading.Thread(target=recording.trace)
    waiting.start()
    begun.wait()
    # As while a thread of the parent starts to read.
    with recording._lock:
        child = os.fork()
        if child == 0:
            try:
                recording.trace()
            except StateError:
                os._exit(7)
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    gate.set()
    waiting.join()
    assert names_of(recording.trace()) == {}


# --------------------------------------------------------------------------------------- what the text lacks


def test_overloads_are_told_from_the_names_torch_writes():
    config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)

    def run():
        torch.ones(2).add(1)
        with kinetoscope.record_function("aten::add.Tensor"):
            pass

    session = record(run, experimental_config=config)
    told = {(event.name, event.overload_name) for event in session.events()}
    known = "Tensor" if WRITES_OVERLOADS else ""
    assert {("aten::add", known), ("aten::ones", ""), ("aten::add.Tensor", "")} <= told


def test_ranges_with_quotes_are_kept_and_those_torch_cannot_write_are_counted():
    def run():
        for name in ('loss["train"]', "übung", "plain"):
            with kinetoscope.record_function(name):
                pass

    with torch.profiler.profile(activities=CPU) as theirs:
        run()
    # torch 2.15 writes double quotes as single ones.
    (quoted,) = {'loss["train"]', "loss['train']"} & set(read_text(theirs.profiler.kineto_results)["strings"])
    trace = record(run).trace
    assert {quoted, "unknown", "plain"} <= set(names_of(trace))
    (loss,) = trace.losses
    assert (loss["code"], loss["count"]) == ("unwritable_names", 1)


def test_where_torch_has_its_objects_names_and_stacks_are_what_they_are(tmp_path):
    pytest.importorskip(
        "torch.profiler._chrome_trace_export", reason="this torch cannot write from its objects"
    )
    file = tmp_path / "größe.py"
    file.write_text(
        "import torch\n"
        "def messen(x):\n"
        "    with torch.profiler.record_function('übung \\\\ \"1\"'):\n"
        "        return x + 1\n",
        encoding="utf-8",
    )
    scope = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), scope)
    traces = [
        record(lambda: scope["messen"](torch.ones(2)), **more).trace
        for more in ({"with_stack": True, "profile_memory": True}, {"profile_memory": True})
    ]
    for trace in traces:
        assert 'übung \\ "1"' in names_of(trace)
        assert trace.losses == []
        assert len(trace.columns("allocations")) >= 2
        assert "[memory]" not in names_of(trace)
    stacked = traces[0]
    frames = {stacked.strings[name] for name in stacked.column("frames", "file").tolist()}
    assert str(file) in frames
    assert names_of(traces[1])["aten::add"] == 1


def test_quotes_are_those_of_torchs_objects_where_it_has_them():
    def run():
        for name in ('loss["train"]', "loss['train']", 'loss["train"]', "it's"):
            with kinetoscope.record_function(name):
                pass

    with torch.profiler.profile(activities=CPU, profile_memory=True) as theirs:
        run()
    ours = record(run, profile_memory=True)
    assert [event.name for event in ours.events()] == [event.name for event in theirs.events()]


def test_threads_have_torchs_numbers_and_the_same_ones_in_every_recording():
    def run():
        thread = threading.Thread(target=program)
        thread.start()
        thread.join()
        program()

    with torch.profiler.profile(activities=CPU) as theirs:
        program()
    mine = {event.thread for event in theirs.events()}
    session = profile(activities=CPU, engine="kineto", acc_events=True)
    for _ in range(2):
        with session:
            run()
    for trace in session.cycles:
        here = threading.get_native_id()
        row = trace.column("threads", "os_tid").tolist().index(here)
        assert {int(trace.column("threads", "torch_tid")[row])} == mine
    assert (
        session.cycles.together().column("threads", "os_tid").tolist().count(threading.get_native_id()) == 1
    )


# How long a thread must have run at least to be reported.
TOLD_NS = 3_000_000


def run_for(enough_ns):
    """Run operators until this thread has used so much processor time."""
    until_ns = time.thread_time_ns() + enough_ns
    while time.thread_time_ns() < until_ns:
        torch.ones(4).sub(1)


def test_threads_that_ran_without_being_recorded_are_a_loss(monkeypatch):
    monkeypatch.setattr(kineto_module, "_LEAST_RAN_SHARE", 0.0)
    ran, leave = threading.Event(), threading.Event()

    def work():
        run_for(TOLD_NS)
        ran.set()
        leave.wait()

    def idle():
        leave.wait()

    threads = [threading.Thread(target=work, name="trains"), threading.Thread(target=idle, name="waits")]
    threads.append(threading.Thread(target=run_for, args=(TOLD_NS,)))

    def run():
        for thread in threads:
            thread.start()
        ran.wait()
        threads[-1].join()
        # The system's thread ends a little after Python's.
        while os.path.exists(f"/proc/self/task/{threads[-1].native_id}"):
            os.sched_yield()
        program()

    try:
        trace = record(run).trace
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    assert "aten::sub" not in names_of(trace)
    (loss,) = trace.losses
    assert (loss["code"], loss["count"]) == ("threads_not_recorded", 2)
    assert "Also ran: trains, threads that have ended." in loss["why"]


def test_a_program_of_one_thread_is_complete_with_its_backward():
    trace = record().trace
    assert trace.complete
    assert names_of(trace)["AddmmBackward0"] == 1


def test_threads_that_run_operators_are_unharmed_by_starts_and_stops():
    text = """
        import threading, torch, kinetoscope
        torch.set_num_threads(1)
        over = threading.Event()
        def work():
            x = torch.ones(4)
            while not over.is_set():
                x = (x + 1).relu()
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(60):
            with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], record_shapes=True, engine="kineto"):
                torch.ones(3) + 1
        over.set()
        for thread in threads:
            thread.join()
        print("unharmed")
    """
    done = warm_python.run("-c", textwrap.dedent(text))
    assert (done.returncode, done.stdout.split()) == (0, ["unharmed"]), done.stderr


PROFILER_FILES = ("torch/profiler/", "torch/autograd/profiler.py")


def of_the_program(session):
    """The names of events, without the calls that torch.profiler and torch's collector make of their own functions."""

    def is_theirs(event):
        return event is not None and (event.name.startswith(PROFILER_FILES) or is_theirs(event.cpu_parent))

    return Counter(
        re.sub(r"0x\w+", "", event.name)
        for event in session.events()
        # Objects may end at any time.
        if not is_theirs(event) and "_weakrefset" not in event.name and "method discard" not in event.name
    )


def test_python_calls_of_ours_are_not_in_the_trace():
    def helper(x):
        with contextlib.suppress(ValueError):
            return x + 1

    # A collection of garbage would call what other libraries have registered, in one of both recordings.
    with contextlib.ExitStack() as stack:
        gc.disable()
        stack.callback(gc.enable)
        # In a process of its own this is the first session, which loads the recorder.
        for more in (
            {"with_stack": True},
            {"with_stack": True, "profile_memory": True, "record_shapes": True},
        ):
            counted = []
            for profiler in (torch.profiler.profile, functools.partial(profile, engine="kineto")):
                x = torch.ones(3)
                with profiler(activities=CPU, **more) as session:
                    helper(x)
                    session.step()
                    helper(x)
                counted.append(of_the_program(session))
            theirs, ours = counted
            step = "torch/profiler/profiler.py"
            assert {name: count for name, count in theirs.items() if step not in name} == ours
            assert sum(name.endswith(": helper") for name in ours.elements()) == 2
            assert sum("contextlib" in name for name in ours.elements()) >= 4


def test_calls_of_the_program_inside_ours_remain():
    def loader():
        for one in (1, 2):
            yield abs(one)

    def run():
        for _ in kinetoscope.steps(loader()):
            torch.ones(2).add(1)

    names = names_of(record(run, with_stack=True).trace)
    assert not [name for name in names if "kinetoscope/" in name and "tests" not in name]
    assert sum(count for name, count in names.items() if name.endswith(": loader")) == 3
    assert names["<built-in function abs>"] == 2


def test_transfers_between_ranks_end_on_other_threads():
    event = '{"ph": "X", "cat": "%s", "name": "%s", "pid": 1, "tid": 1, "ts": %d.0, "dur": 100.0}'
    rows = [
        ("user_annotation", "gloo:all_reduce", 1),
        ("cpu_op", "aten::add", 2),
        ("user_annotation", "mine", 3),
    ]
    text = f'{{"traceEvents": [{", ".join(event % row for row in rows)}]}}'
    trace = recording_of(WrittenResults(lambda: text)).trace()
    assert {event.name: event.is_async for event in trace.events()} == {
        "gloo:all_reduce": True, "aten::add": False, "mine": False
    }  # fmt: skip


def test_calls_inside_ours_are_left_out_where_they_are_of_python_itself(tmp_path, monkeypatch):
    """A program's file is its own, also outside of Python's path, where it has the name of a file of Python's library, or is installed."""
    first, elsewhere = tmp_path / "first", tmp_path / "elsewhere"
    library = Path(sysconfig.get_path("stdlib"))
    for folder in (first, elsewhere):
        folder.mkdir()
        for name in ("train.py", "queue.py"):
            (folder / name).write_text("")
    monkeypatch.syspath_prepend(first)
    of_python = [
        "<built-in method append of list object at 0x7f00>",
        "heapq.py(3): merge",
        "json/decoder.py(3): decode",
        f"{library}/json/decoder.py(3): decode",
    ]
    of_others = [
        f"{elsewhere}/train.py(3): train",
        f"{elsewhere}/queue.py(3): get",
        f"{library}/site-packages/somebody.py(3): work",
        "train.py(3): train",
        "queue.py(3): get",
        "gone.py(3): work",
    ]
    ours = "kinetoscope/collect/engines/kineto.py(1): stop"
    calls = [ours, *of_python, *of_others]
    events = [
        {
            "ph": "X",
            "cat": "python_function",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": row,
            "dur": 100 if name == ours else 0.5,
        }
        for row, name in enumerate(calls)
    ]
    native = read_text(WrittenResults(lambda: json.dumps({"traceEvents": events})))
    kineto_recording.leave_out_own_calls(native)
    assert [native["strings"][name] for name in native["spans"]["name"]] == of_others


def test_removing_spans_renumbers_the_rows_of_kernels():
    def event(name, category, ts, **args):
        pid, tid = (0, 7) if category == "kernel" else (1, 1)
        return json.dumps(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": ts,
                "dur": 1,
                "args": args,
            }
        )

    rows = [event(f"op{row}", "cpu_op", 10 * row) for row in range(6)]
    rows += [event(f"k{row}", "kernel", 10 * row, grid=[row, 1, 1], stream=7, device=0) for row in range(3)]
    native = read_text(WrittenResults(lambda: f'{{"traceEvents": [{", ".join(rows)}]}}'))
    leave_out_unselected(native, None, [(10_000, 20_000), (40_000, float("inf"))])
    names = [native["strings"][name] for name in native["spans"]["name"].tolist()]
    assert sorted(names) == ["k0", "k1", "k2", "op0", "op2", "op3"]
    kernels = native["kernels"]
    assert [names[row] for row in kernels["span"].tolist()] == ["k0", "k1", "k2"]
    assert kernels["grid_x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("device", ["XPU", "HPU", "MTIA", "PrivateUse1"])
def test_streams_are_of_the_device_that_was_asked_for(device):
    numbers = {"XPU": 12, "HPU": 15, "MTIA": 19, "PrivateUse1": 20}
    text = (
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 1, '
        '"args": {"stream": 7, "device": 0}}]}'
    )
    activity = getattr(ProfilerActivity, device)
    request = RecordingRequest(frozenset([ProfilerActivity.CPU, activity]))
    trace = KinetoRecording(WrittenResults(lambda: text), request, Pauses()).trace()
    assert trace.column("streams", "device_type").tolist() == [numbers[device]]
    assert trace.column("spans", "kind").tolist() == [SpanKind.KERNEL]


# --------------------------------------------------------------------------------------------- torch's own objects


needs_trace_only = pytest.mark.skipif(
    not has_setting("trace_only"), reason="this torch always makes its objects"
)


def objects_of(session):
    return len(session.profiler.kineto_results.events())


@needs_trace_only
def test_unneeded_event_objects_are_not_made_and_ours_stand_in():
    session = record()
    objects = session.profiler.kineto_results
    names = {event.name() for event in objects.events()}
    assert {type(event).__module__ for event in objects.events()} == {
        "kinetoscope.collect.engines.event_objects"
    }
    assert names == {session.trace.strings[name] for name in session.trace.column("spans", "name").tolist()}
    assert {node.name for node in objects.experimental_event_tree()} <= names


@pytest.mark.parametrize(
    "more",
    [
        {"experimental_config": torch._C._profiler._ExperimentalConfig()},
        {"profile_memory": True},
        {"with_stack": True},
    ],
    ids=lambda more: next(iter(more)),
)
def test_torchs_event_objects_are_made_if_they_may_be_read(more):
    session = record(**more)
    assert objects_of(session) > 5
    assert names_of(session.trace)["aten::linear"] == 1


def test_in_the_place_of_torchs_profiler_by_name_objects_are_made():
    with kinetoscope.install(engine="kineto"):
        session = torch.profiler.profile(activities=CPU)
        with session:
            program()
    assert objects_of(session) > 5
    assert {event.name for event in session.profiler.function_events} >= {"aten::linear"}


def test_torchs_results_can_be_saved_before_and_after_the_trace_was_read(tmp_path):
    session = record()
    for name in ("before.json", "after.json"):
        session.profiler.kineto_results.save(tmp_path / name)
        session.trace
    session.profiler.export_chrome_trace(str(tmp_path / "exported.json"))
    written = [json.loads(path.read_text(encoding="utf-8"))["traceEvents"] for path in tmp_path.iterdir()]
    assert len(written) == 3
    assert written[0] == written[1] == written[2]
    assert session.profiler.kineto_results.trace_start_ns() == session.trace.info["start_realtime_ns"]


@pytest.mark.skipif(
    TORCH < (2, 12),
    reason="a collector of older releases of torch that was prepared and never started fails every later one, torch's too",
)
def test_an_engine_that_is_refused_does_not_stop_the_other_profiler():
    engine = KinetoEngine()
    engine.prepare(RecordingRequest(frozenset(CPU)))
    with torch.profiler.profile(activities=CPU) as theirs:
        with pytest.raises(StateError, match="already in use"):
            engine.start()
        with pytest.raises(StateError, match="without being started"):
            engine.stop()
        program()
    assert "aten::linear" in {event.name for event in theirs.events()}


@pytest.mark.parametrize("switch", ["with_modules", "with_flops", "with_stack", "record_shapes"])
def test_no_flag_makes_torch_warn_of_our_own_call(switch):
    # Warnings are errors here; torch 2.14 and newer warn of with_modules, which does something with us where there are stacks.
    session = record(**({"with_stack": True} if switch == "with_modules" else {}) | {switch: True})
    assert names_of(session.trace)["aten::linear"] == 1
    assert getattr(session.profiler, switch) is True


def test_a_range_that_is_open_across_two_recordings_does_not_write_to_freed_memory():
    def recording():
        return profile(engine="kineto", activities=CPU)

    for _ in range(5):
        with recording() as first:
            for _ in range(50):
                torch.ones(3) + 1
            crossing = kinetoscope.record_function("crossing")
            crossing.__enter__()
        with recording() as second:
            # Takes the memory of the first recording's events, which torch has freed.
            taken = [bytearray(1000 + 16 * number) for number in range(4000)]
            crossing.__exit__(None, None, None)
            torch.ones(3) + 1
            assert all(block.count(0) == len(block) for block in taken)
        names = second.trace.table("spans").column("name").to_pylist()
        assert "aten::add" in names
        assert "crossing" not in names
        assert "crossing" in first.trace.table("spans").column("name").to_pylist()


@pytest.mark.parametrize("outer", ["kinetoscope.profile(engine='kineto')", "torch.profiler.profile()"])
def test_a_forked_child_records_with_the_collector_that_records_its_parent(tmp_path, outer):
    program = (
        "import os, torch, kinetoscope\n"
        "kinetoscope.profile\n"
        f"with {outer} as prof:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        with kinetoscope.profile(engine='kineto') as own:\n"
        "            torch.ones(3).add(1)\n"
        "        print([event.name for event in own.events()].count('aten::add'), flush=True)\n"
        "        os._exit(0)\n"
        "    code = os.waitpid(child, 0)[1]\n"
        "    torch.ones(3).add(1)\n"
        "print(code, [event.name for event in prof.events()].count('aten::add'))\n"
    )
    done = warm_python.run("-c", program, cwd=tmp_path)
    assert done.stdout == "1\n0 1\n", done.stderr
