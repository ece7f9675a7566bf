"""When memory runs out under a session: the report is there before the exception goes on, and nothing takes its place."""

import re
import traceback
import warnings

import pytest

pytest.importorskip("torch", reason="what is recorded are torch programs")

import torch
from torch import nn

import kinetoscope
from kinetoscope.collect.session.out_of_memory import _device, _requested_bytes, is_out_of_memory
from tests.support.recorded import CPU, profile
from tests.support.report_vectors import parts_of


class Greedy(nn.Module):
    """A layer whose forward asks for more memory than there is."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(100, 100)

    def forward(self, x):
        x = self.first(x)
        return x + torch.zeros(1 << 50)


def run_out(model):
    model(torch.ones(64, 100))


def reports(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Reports that nobody chose a place for must not land elsewhere."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_report_tells_what_was_asked_for_where_and_who_held_the_rest(here):
    model = Greedy()
    with (
        pytest.raises(RuntimeError, match="can't allocate memory") as raised,
        profile(profile_memory=True, oom_report=here / "report.txt"),
    ):
        run_out(model)
    assert reports(here) == ["report.memory.html", "report.txt"]
    text = (here / "report.txt").read_text(encoding="utf-8")
    assert text.startswith("Out of memory: RuntimeError: ")
    assert "requested    4 PiB" in text
    assert re.search(r"at +.*test_out_of_memory\.py\(\d+\): forward +return x \+ torch\.zeros", text)
    assert re.search(r"operator +aten::empty < aten::zeros ", text)
    assert re.search(r"module +Greedy\n", text)
    assert re.search(r"39\.5 KiB .*parameter +first ", text)
    assert re.search(r" 25 KiB .*activation +first, aten::addmm, .*forward", text)
    directory, _ = parts_of((here / "report.memory.html").read_text(encoding="utf-8"))
    assert "\nrequested    4 PiB\n" in directory["notice"]
    assert directory["start"] == "#/memory?device=cpu"
    assert "memory/live?by=all&device=cpu" in directory["parts"]
    (note,) = raised.value.__notes__
    assert str(here / "report.txt") in note


def test_the_report_is_there_before_the_exception_leaves_the_block(here):
    seen = []
    try:
        with profile(profile_memory=True) as prof:
            try:
                run_out(Greedy())
            finally:
                seen.append(reports(here))
    except RuntimeError:
        seen.append(reports(here))
    assert seen[0] == []
    assert len(seen[1]) == 2
    assert all(
        re.fullmatch(r"kinetoscope-oom-\d+-\d{8}-\d{6}(\.txt|\.memory\.html)", name) for name in seen[1]
    )
    assert prof.trace.table("memory_peak").num_rows > 0


def test_the_report_goes_beside_the_recording(here):
    with pytest.raises(RuntimeError), profile(profile_memory=True, path=here / "run.recording"):
        run_out(Greedy())
    assert reports(here) == ["run.oom.memory.html", "run.oom.txt", "run.recording"]


@pytest.mark.parametrize("error", [MemoryError("no more"), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")])  # fmt: skip
def test_other_out_of_memory_exceptions_are_recognized(here, error):
    with pytest.raises(type(error)) as raised, profile(profile_memory=True):
        torch.ones(10)
        raise error
    assert raised.value is error
    assert len(reports(here)) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"profile_memory": True, "oom_report": False}, MemoryError()),
        ({"profile_memory": False}, MemoryError()),
        ({"profile_memory": True}, RuntimeError("something else")),
        ({"profile_memory": True}, ValueError("DefaultCPUAllocator: can't allocate memory")),
        ({"profile_memory": True}, KeyboardInterrupt()),
    ],
)
def test_no_report_where_none_is_wanted_or_nothing_ran_out(here, options, error):
    with pytest.raises(type(error)), profile(**options):
        torch.ones(10)
        raise error
    assert reports(here) == []


def test_a_session_stopped_by_hand_reports_while_the_exception_is_handled(here):
    prof = profile(profile_memory=True)
    prof.start()
    try:
        run_out(Greedy())
    except RuntimeError:
        prof.stop()
    assert len(reports(here)) == 2
    prof.start()
    torch.ones(1)
    prof.stop()
    assert len(reports(here)) == 2


def test_a_decorated_function_reports(here):
    with pytest.raises(RuntimeError):
        profile(profile_memory=True)(run_out)(Greedy())
    assert len(reports(here)) == 2


def test_a_session_that_waits_has_nothing_to_report(here):
    waiting = kinetoscope.schedule(wait=5, warmup=1, active=1)
    with (
        warnings.catch_warnings(),
        pytest.raises(RuntimeError, match="can't allocate"),
        kinetoscope.profile(activities=CPU, profile_memory=True, schedule=waiting),
    ):
        warnings.simplefilter("ignore")
        run_out(Greedy())
    assert reports(here) == []


def test_a_report_that_cannot_be_written_is_a_warning_and_the_exception_stays(here):
    with (
        pytest.warns(UserWarning, match=r"could not be written: .*no folder"),
        pytest.raises(RuntimeError, match="can't allocate memory") as raised,
        profile(profile_memory=True, oom_report=here / "no folder" / "report.txt"),
    ):
        run_out(Greedy())
    assert raised.type is RuntimeError
    assert not hasattr(raised.value, "__notes__")


def test_where_warnings_are_errors_the_failure_is_a_note(here):
    with (
        pytest.raises(RuntimeError, match="can't allocate memory") as raised,
        profile(profile_memory=True, oom_report=here / "no folder" / "report.txt"),
    ):
        run_out(Greedy())
    (note,) = raised.value.__notes__
    assert "could not be written" in note
    assert "no folder" in "".join(traceback.format_exception(raised.value))


def test_sizes_and_devices_are_parsed_from_messages():
    assert _requested_bytes("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has") == 20 << 30
    assert _requested_bytes("you tried to allocate 1024 bytes. Error code 12") == 1024
    assert _requested_bytes("no more") is None
    assert (
        _device(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 1 has"))
        == "cuda:1"
    )
    assert _device(torch.OutOfMemoryError("XPU out of memory. Tried")) == "xpu"
    assert _device(MemoryError()) == "cpu"
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried"))
    assert not is_out_of_memory(None)
