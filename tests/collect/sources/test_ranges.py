"""Ranges marked through ITT and NVTX are in the trace, and the program gets what it would get without us."""

import threading

import pytest
import torch
import torch.cuda.nvtx
import torch.profiler

import kinetoscope
from kinetoscope import ArgumentError, ProfilerActivity, install, itt, profile, uninstall
from kinetoscope.collect.sources import ranges as ranges_module
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)

CPU = [ProfilerActivity.CPU]
LIBRARIES = ((torch.profiler.itt, "_itt"), (torch.cuda.nvtx, "_nvtx"))


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was():
    before = [getattr(module, name) for module, name in LIBRARIES]
    yield
    assert [getattr(module, name) for module, name in LIBRARIES] == before


class NvtxLibrary:
    """Stands where a CUDA build has NVTX: answers with depths and handles, as NVTX does."""

    def __init__(self):
        self.log = []
        self._local = threading.local()

    @property
    def depth(self):
        return getattr(self._local, "depth", 0)

    def rangePushA(self, msg):  # noqa: N802  (NVTX's name)
        if not isinstance(msg, str):
            raise TypeError("rangePushA(): incompatible function arguments")
        self.log.append(f"push {msg}")
        self._local.depth = self.depth + 1
        return self.depth - 1

    def rangePop(self):  # noqa: N802  (NVTX's name)
        self.log.append("pop")
        self._local.depth = self.depth - 1
        return self.depth

    def rangeStartA(self, msg):  # noqa: N802  (NVTX's name)
        self.log.append(f"start {msg}")
        return len(self.log)

    def rangeEnd(self, handle):  # noqa: N802  (NVTX's name)
        self.log.append(f"end {handle}")

    def markA(self, msg):  # noqa: N802  (NVTX's name)
        self.log.append(f"mark {msg}")


@pytest.fixture
def nvtx(monkeypatch):
    library = NvtxLibrary()
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", library)
    return library


def nested(trace):
    """The user's ranges of a trace, each with the range it stands in, in order of time."""
    rows = trace.table("spans").to_pylist()
    names = {row["id"]: row["name"] for row in rows if row["kind"] == "user_annotation"}
    return [(names[row["id"]], names.get(row["parent"])) for row in rows if row["id"] in names]


# ------------------------------------------------------------------------------------------------------------------ itt


def test_itt_has_the_names_and_the_state_of_torchs_module():
    assert kinetoscope.itt is itt
    assert "itt" in dir(kinetoscope)
    assert sorted(itt.__all__) == sorted(torch.profiler.itt.__all__)
    assert itt.is_available() == torch.profiler.itt.is_available()


@pytest.mark.parametrize("module", [itt, torch.profiler.itt], ids=["ours", "torch's"])
@pytest.mark.skipif(not itt.is_available(), reason="this torch was built without ITT")
def test_ranges_and_marks_are_user_annotations(module, engine):  # noqa: F811
    with profile(activities=CPU, engine=engine) as session:
        answers = [module.range_push("outer"), module.range_push("inner"), module.mark("here")]
        answers += [module.range_pop(), module.range_pop(), module.range_pop()]
        with module.range("step {} of {total}", 1, total=2):
            torch.ones(2).add(1)
    assert nested(session.trace) == [
        ("outer", None), ("inner", "outer"), ("here", "inner"), ("step 1 of 2", None),
    ]  # fmt: skip
    spans = session.trace.table("spans").to_pylist()
    assert spans[next(row["parent"] for row in spans if row["name"] == "aten::add")]["name"] == "step 1 of 2"
    torchs = torch.profiler.itt
    assert answers == [
        torchs.range_push("a"),
        torchs.range_push("b"),
        torchs.mark("c"),
        *(torchs.range_pop() for _ in "abc"),
    ]


def test_as_a_decorator(engine):  # noqa: F811
    @itt.range("each call")
    def work():
        torch.ones(2).add(1)

    with profile(activities=CPU, engine=engine) as session:
        work()
        work()
    assert nested(session.trace) == [("each call", None)] * 2


def test_an_exception_ends_the_range(engine):  # noqa: F811
    with profile(activities=CPU, engine=engine) as session:
        with pytest.raises(KeyError), itt.range("fails"):
            raise KeyError
        itt.mark("after")
    assert nested(session.trace) == [("fails", None), ("after", None)]


def test_without_itt_our_trace_has_the_ranges_all_the_same(monkeypatch, engine):  # noqa: F811
    monkeypatch.setattr(itt, "_library", None)
    assert itt.is_available() is False
    with profile(activities=CPU, engine=engine) as session, itt.range("outer"):
        assert (itt.range_push("inner"), itt.range_pop(), itt.mark("here")) == (None, None, None)
    assert nested(session.trace) == [("outer", None), ("inner", "outer"), ("here", "outer")]


@pytest.mark.parametrize("wrong", [None, 3, b"x"])
def test_a_name_that_is_no_text_is_refused_and_opens_nothing(wrong):
    for call in (itt.range_push, itt.mark, lambda msg: itt.range(msg).__enter__()):
        with pytest.raises(ArgumentError, match=rf"itt: msg={wrong!r}"):
            call(wrong)


def test_threads_have_ranges_of_their_own(native):  # noqa: F811
    inside, done = threading.Event(), threading.Event()

    def work():
        itt.range_push("theirs")
        inside.set()
        done.wait()
        itt.range_pop()

    with profile(activities=CPU, engine=native) as session:
        thread = threading.Thread(target=work)
        thread.start()
        inside.wait()
        with itt.range("mine"):
            pass
        itt.range_pop()
        done.set()
        thread.join()
    assert sorted(nested(session.trace)) == [("mine", None), ("theirs", None)]


def test_what_was_open_when_a_recording_ended_is_in_no_later_one(native):  # noqa: F811
    session = profile(activities=CPU, engine=native, acc_events=True)
    with session:
        itt.range_push("left open")
    with session:
        itt.range_push("second")
        itt.range_pop()
        itt.range_pop()
    first, second = session.cycles
    assert [row["unfinished"] for row in first.table("spans").to_pylist()] == [True]
    assert nested(second) == [("second", None)]


# ----------------------------------------------------------------------------------------------------------------- nvtx


def test_nvtx_ranges_are_kept_and_the_program_gets_nvtxs_answers(nvtx, engine):  # noqa: F811
    push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop  # as a program imports them beforehand
    with profile(activities=CPU, engine=engine) as session:
        assert (push("outer"), push("inner")) == (0, 1)
        torch.cuda.nvtx.mark("here")
        assert (pop(), pop()) == (1, 0)
        with torch.cuda.nvtx.range("step {}", 7):
            pass
        handle = torch.cuda.nvtx.range_start("any thread")
        ender = threading.Thread(target=torch.cuda.nvtx.range_end, args=(handle,))
        ender.start()
        ender.join()
        torch.cuda.nvtx.range_end(99)
    assert [name for name, _ in nested(session.trace)] == ["outer", "inner", "here", "step 7", "any thread"]
    assert dict(nested(session.trace))["here"] == "inner"
    assert nvtx.log == [
        "push outer", "push inner", "mark here", "pop", "pop", "push step 7", "pop", "start any thread", "end 8", "end 99",
    ]  # fmt: skip


def test_an_error_of_the_library_is_the_programs_and_marks_nothing(nvtx):
    with profile(activities=CPU) as session:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            torch.cuda.nvtx.range_push(3)
        with pytest.raises(AttributeError, match="deviceRangeStart"):
            torch.cuda.nvtx._device_range_start("x")
    assert nested(session.trace) == []


@pytest.mark.skipif(torch.version.cuda is not None, reason="this is a CUDA build, whose NVTX works")
def test_on_a_cpu_build_nvtx_fails_as_it_does_without_us():
    def said():
        with pytest.raises(RuntimeError) as caught:
            torch.cuda.nvtx.range_push("x")
        return str(caught.value)

    plain = said()
    with profile(activities=CPU) as session:
        assert said() == plain
    assert nested(session.trace) == []


# ---------------------------------------------------------------------------------------------------------- the detours


def test_nvtx_is_wrapped_only_while_a_session_records(nvtx):
    session = profile(engine=NotingEngine())
    seen = []
    for call in (session.prepare_trace, session.start_trace, session.stop_trace):
        call()
        seen.append(torch.cuda.nvtx._nvtx is not nvtx)
    assert seen == [False, True, False]


def test_a_session_that_cannot_start_does_not_unwrap_nvtx_for_others(nvtx):
    with profile(engine=NotingEngine()):
        with pytest.raises(RuntimeError, match="another Kinetoscope session"):
            profile(engine=NotingEngine()).start()
        assert torch.cuda.nvtx._nvtx is not nvtx
    assert torch.cuda.nvtx._nvtx is nvtx


def test_a_session_dropped_without_stop_is_stopped_by_the_next_one(nvtx):
    profile(engine=NotingEngine()).start()
    with profile(engine=NotingEngine()):
        pass
    assert torch.cuda.nvtx._nvtx is nvtx


def test_install_keeps_nvtx_wrapped_between_recordings(nvtx):
    install()
    with profile(engine=NotingEngine()):
        pass
    assert torch.cuda.nvtx._nvtx is not nvtx
    torch.cuda.nvtx.range_push("x")
    uninstall()
    assert torch.cuda.nvtx._nvtx is nvtx
    assert nvtx.log == ["push x"]


def test_the_nvtx_wrapper_forwards_attributes_keywords_and_results(nvtx):
    shim = ranges_module._RecordedLibrary(nvtx, ranges_module.LibraryRanges())
    assert shim.depth == 0
    assert shim.rangePushA(msg="named") == 0
    assert shim.rangePop() == 0
    assert nvtx.log == ["push named", "pop"]
