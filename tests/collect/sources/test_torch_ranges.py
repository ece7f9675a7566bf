"""Ranges that torch opens only for its own profiler are in our recordings too, and torch is as before afterwards."""

import json
import multiprocessing
import os
import threading

import pytest
import torch
import torch.profiler
import torch.utils.data.datapipes as pipes
from torch.autograd import profiler as collector

import kinetoscope
from kinetoscope.collect.sources import torch_ranges as ranges_module
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)
from tests.support.torch_release import TORCH

CONFIG = torch._C._profiler._ExperimentalConfig()
CPU = [torch.profiler.ProfilerActivity.CPU]
KEYWORDS: dict[str, object] = {
    "stream": 0,
    "kernel_file": "a/b.py",
    "grid": "grid(3,)",
    "flop": 1.5,
    "big": True,
}
OF_RANGE = {"key": "value"}
if TORCH >= (2, 11):  # older ones take no lists and no scope
    KEYWORDS["names"] = ["x", "y"]
    OF_RANGE["scope"] = "user_scope"


def quick(*given):
    return torch._C._profiler._RecordFunctionFast(*given)


def ranges():
    with quick("outer"):
        with quick("inputs", [torch.ones(3, 4), 2, [1, 2], 1.5, [torch.ones(2)], None, (1,), object()]):
            torch.ones(2)
        with quick("keywords", (torch.ones(3),), KEYWORDS):
            torch.ones(2)
        with quick("range", [], OF_RANGE):
            torch.ones(2)


NAMES = ("outer", "inputs", "keywords", "range")


def shown(session, path, names=NAMES):
    """What a Chrome trace shows of ranges, without what counts events."""
    session.export_chrome_trace(str(path))
    counted = ["External id", "Record function id", "Ev Idx", "Call stack", "Input Strides"]
    if TORCH < (2, 8):
        counted.append("finished")  # of every event
    return [
        (
            event["cat"],
            event["name"],
            {key: value for key, value in event["args"].items() if key not in counted},
        )
        for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        if event.get("ph") == "X" and event["name"] in names
    ]


def recorded(program, engine, **options):  # noqa: F811
    with kinetoscope.profile(activities=CPU, engine=engine, **options) as prof:
        program()
    return prof


@pytest.mark.parametrize(
    "options", [{}, {"record_shapes": True}, {"record_shapes": True, "profile_memory": True}]
)
def test_a_trace_shows_them_as_torchs_does(engine, options, tmp_path):  # noqa: F811
    with torch.profiler.profile(activities=CPU, **options) as theirs:
        ranges()
    ours = recorded(ranges, engine, **options)
    told = shown(theirs, tmp_path / "theirs.json")
    assert [name for _, name, _ in told] == list(NAMES)
    assert shown(ours, tmp_path / "ours.json") == told


def test_events_have_what_they_were_given(engine):  # noqa: F811
    prof = recorded(ranges, engine, record_shapes=True)
    events = {event.name: event for event in prof.events()}
    assert events["keywords"].kwinputs == KEYWORDS
    assert events["outer"].kwinputs == {}
    assert events["inputs"].input_shapes[0] == [3, 4]
    assert events["inputs"].cpu_parent is events["outer"] or events["inputs"].cpu_parent.name == "outer"


def test_other_threads_are_seen(native):  # noqa: F811
    def elsewhere():
        thread = threading.Thread(target=ranges)
        thread.start()
        thread.join()

    assert set(NAMES) <= {event.name for event in recorded(elsewhere, native).events()}


def test_beside_torchs_profiler_each_range_is_there_once(native, tmp_path):  # noqa: F811
    with kinetoscope.profile(activities=CPU, engine=native, record_shapes=True) as ours:
        with torch.profiler.profile(activities=CPU, record_shapes=True) as theirs:
            ranges()
        assert collector._is_profiler_enabled, "torch's own profiler has ended, ours has not"
        with quick("later"):
            torch.ones(2)
    told = shown(theirs, tmp_path / "theirs.json")
    assert [name for _, name, _ in told] == list(NAMES)
    assert shown(ours, tmp_path / "ours.json") == told
    assert "later" in {event.name for event in ours.events()}


def state():
    return (
        collector._is_profiler_enabled,
        collector._set_is_profiler_enabled,
        torch._C._profiler._RecordFunctionFast,
        pipes.iter.IterableWrapper.__iter__.__globals__["torch"] is torch,
        torch.autograd._profiler_enabled,
    )


def test_torch_is_as_before_afterwards(engine):  # noqa: F811
    before = state()
    recorded(ranges, engine)
    assert state() == before
    # torch's collector sees to it by itself that it can be used again.
    with torch.profiler.profile(activities=CPU):
        during = state()
        with kinetoscope.profile(activities=CPU):
            ranges()
        assert state() == during
    assert state() == before


def test_a_session_that_cannot_stop_in_time_leaves_nothing_behind(native):  # noqa: F811
    before = state()
    prof = kinetoscope.profile(activities=CPU, engine=native)
    prof.start()
    with quick("open at the end"):
        prof.stop()
        assert state() == before
    assert "open at the end" in {event.name for event in prof.events()}


def _of_child(queue, theirs):
    queue.put((collector._is_profiler_enabled, torch._C._profiler._RecordFunctionFast is theirs))


def test_a_forked_child_has_torchs_own(native):  # noqa: F811
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    theirs = torch._C._profiler._RecordFunctionFast
    with kinetoscope.profile(activities=CPU, engine=native):
        child = fork.Process(target=_of_child, args=(queue, theirs))
        child.start()
        told = queue.get()
        child.join()
    assert told == (False, True)


def test_data_pipes_are_seen(engine, tmp_path):  # noqa: F811
    def program():
        source = pipes.iter.IterableWrapper(range(4))
        list(source.mux(pipes.iter.IterableWrapper(range(4, 8))).batch(2))

    def counted(session):
        names = [event.name for event in session.events()]
        return sorted(name for name in names if "=" in name)

    with torch.profiler.profile(activities=CPU) as theirs:
        program()
    assert counted(theirs)
    assert counted(recorded(program, engine)) == counted(theirs)


def counted_by_compiler(record, inside):
    """What the compiler counts while a program with a graph break is recorded; `inside` says that a range is in it."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()

    @torch.compile(backend="aot_eager")
    def compiled(x):
        if inside:
            with torch._C._profiler._RecordFunctionFast("inside"):
                x = x * 2
        if torch.autograd._profiler_enabled():
            x = x + 1
        return x.sin()

    def program():
        for size in (2, 3, 4):
            compiled(torch.ones(size))

    record(program)
    if not inside:
        # The same graphs serve afterwards. With a range in it the compiler knows that its class is another one then.
        program()
    found = {name: dict(values) for name, values in counters.items()}
    torch._dynamo.reset()
    return found


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
@pytest.mark.parametrize("inside", [False, True])
def test_graphs_and_recompilations_stay_the_same(engine, inside):  # noqa: F811
    def under_torch(program):
        # The compiler knows torch's collector, which runs on this thread under the Kineto engine, too.
        if engine == "native":
            program()
            return
        with torch.profiler.profile(activities=CPU):
            program()

    without = counted_by_compiler(under_torch, inside)
    assert without["frames"]["ok"]
    assert without["graph_break"]
    assert counted_by_compiler(lambda program: recorded(program, engine), inside) == without


def test_without_a_recorder_names_are_kept(monkeypatch):
    monkeypatch.setattr(ranges_module, "ready_recorder", lambda: None)
    prof = recorded(ranges, "kineto", record_shapes=True)
    assert set(NAMES) <= {event.name for event in prof.events()}


def test_wrong_arguments_are_refused_and_harm_nothing(native):  # noqa: F811
    with kinetoscope.profile(activities=CPU, engine=native):
        for given in ((), (1,), ("name", {}), ("name", [], [])):
            with pytest.raises(TypeError):
                quick(*given)
        # Where torch itself would end the process.
        with quick("name", None, None):
            pass


def test_what_cannot_be_written_is_left_out(native):  # noqa: F811
    def program():
        values = {
            "tensor": torch.ones(2),
            "list": [1, 2],
            "text": 'a "b"\\c\n',
            "huge": 1 << 70,
            "nan": float("nan"),
            "sur\ud800": "r\ud800",
        }
        with quick("odd", [1 << 70, [], [1, "a"], {}], values):
            os.getpid()

    (event,) = (
        event for event in recorded(program, native, record_shapes=True).events() if event.name == "odd"
    )
    assert event.kwinputs == {
        "tensor": "NULL",
        "huge": "NULL",
        "text": 'a "b"\\c\n',
        "sur?": "r?",
        "list": [1, 2],
    }


@pytest.mark.filterwarnings("ignore:Unable to infer type")
def test_lists_and_tuples_given_by_keyword_are_kept(engine, tmp_path):  # noqa: F811
    lists = {
        "numbers": [1, 2, 3],
        "reals": [1.5],
        "truths": [True],
        "tuple": (1, 2),
        "nested": [[1], [2, 3]],
        "none": None,
    }
    texts = {"texts": ["a", "b"], "empty": []}

    def program():
        with quick("lists", [], lists | texts | {"mixed": ["a", 1]}):
            os.getpid()

    # Torch's event objects have them, its text has not.
    with kinetoscope.profile(
        activities=CPU, engine=engine, record_shapes=True, experimental_config=CONFIG
    ) as prof:
        program()
    (event,) = (event for event in prof.events() if event.name == "lists")
    found = dict(event.kwinputs)
    # The native engine has what torch gives up.
    assert found.pop("mixed") == (["a", 1] if engine == "native" else None)
    assert found == lists | texts | {"tuple": [1, 2]}
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(path)
    (written,) = (
        one["args"] for one in json.loads(path.read_text())["traceEvents"] if one["name"] == "lists"
    )
    # As in torch's traces, tools find only these under their own keys.
    assert {name: written.get(name) for name in lists} == dict.fromkeys(lists)
    assert {name: written[name] for name in texts} == texts
    (again,) = (event for event in kinetoscope.open(path).events() if event.name == "lists")
    assert again.kwinputs == event.kwinputs


def test_a_list_that_contains_itself_harms_nothing(native):  # noqa: F811
    circle = [1]
    circle.append(circle)

    def program():
        with quick("circle", [], {"circle": circle, "long": list(range(100_000)), "text": "x"}):
            os.getpid()

    prof = recorded(program, native, record_shapes=True)
    (event,) = (event for event in prof.events() if event.name == "circle")
    assert event.kwinputs == {"circle": None, "long": None, "text": "x"}
