"""What a followed process finds out about itself."""

import gc
import multiprocessing

import pytest

pytest.importorskip("torch", reason="they use torch")

import torch
from torch.utils.data._utils import worker

from kinetoscope.collect.session.state import SessionState
from kinetoscope.collect.sources.loader_worker import RecordedLoop
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS
from kinetoscope.launcher import child_hook, notes
from kinetoscope.launcher.child import ChildRecording, FollowedProcess, _worker_number
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.program import Program


@pytest.mark.parametrize("is_watched", [False, True], ids=["torch's own", "behind a session's"])
def test_workers_are_known_by_what_they_run(tmp_path, is_watched):
    loop = RecordedLoop(worker._worker_loop, str(tmp_path), lambda: 0) if is_watched else worker._worker_loop
    # Ten arguments go before the number of the worker.
    process = multiprocessing.Process(target=loop, args=[*[None] * 10, 3, 4, False, None])
    assert _worker_number(process) == 3


@pytest.mark.parametrize("target", [None, print], ids=["none", "a function without a signature"])
def test_others_are_no_workers(target):
    assert _worker_number(multiprocessing.Process(target=target)) is None


def test_what_comes_when_the_recording_is_over_is_in_the_note(tmp_path):
    followed = FollowedProcess(tmp_path, LaunchOptions(prefix=tmp_path / "child"))
    followed._claim_note(None)
    recording = ChildRecording(Program("train.py"), followed._options, {})
    followed._add_facts(recording, rank=2)
    recording._state = SessionState.ENDED
    followed._add_facts(recording, ended="exit code 3")
    assert recording.facts == {"rank": 2}
    (note,) = notes.read_all(str(tmp_path)).values()
    assert (note.get("rank"), note["ended"]) == (None, "exit code 3")


def test_the_rank_is_learned_at_the_first_step(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    followed = FollowedProcess(tmp_path, LaunchOptions(prefix=tmp_path / "child"))
    followed._recording = ChildRecording(Program("train.py"), followed._options, followed._own_facts("exec"))
    assert "rank" not in followed._recording.facts
    followed._note_rank_at_first_step()
    monkeypatch.setenv("RANK", "3")
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    torch.optim.SGD([parameter], lr=0.1).step()
    assert followed._recording.facts["rank"] == 3
    assert len(OPTIMIZER_STEPS) == 0


@pytest.mark.parametrize("was_on", [True, False], ids=["on", "off"])
def test_no_garbage_is_looked_for_while_a_recording_begins(was_on):
    seen = []
    try:
        (gc.enable if was_on else gc.disable)()
        child_hook._without_garbage_collection(lambda: seen.append(gc.isenabled()))
        seen.append(gc.isenabled())
    finally:
        gc.enable()
    assert seen == [False, was_on]
