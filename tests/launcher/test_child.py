"""What a followed process finds out about itself."""

import gc
import multiprocessing

import pytest

pytest.importorskip("torch", reason="they use torch")

import torch
from torch.utils.data._utils import worker

from kinetoscope.collect.sources.loader_worker import NotedLoop
from kinetoscope.collect.sources.optimizer_steps import OPTIMIZER_STEPS
from kinetoscope.launcher import child_hook, notes
from kinetoscope.launcher.child import FollowedProcess, _worker_number
from kinetoscope.launcher.options import LaunchOptions


@pytest.mark.parametrize("is_watched", [False, True], ids=["torch's own", "behind a session's"])
def test_workers_are_known_by_what_they_run(tmp_path, is_watched):
    loop = NotedLoop(worker._worker_loop, str(tmp_path), lambda: 0) if is_watched else worker._worker_loop
    # Ten arguments go before the number of the worker.
    process = multiprocessing.Process(target=loop, args=[*[None] * 10, 3, 4, False, None])
    assert _worker_number(process) == 3


@pytest.mark.parametrize("target", [None, print], ids=["none", "a function without a signature"])
def test_others_are_no_workers(target):
    assert _worker_number(multiprocessing.Process(target=target)) is None


def test_the_rank_is_learned_at_the_first_step(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    followed = FollowedProcess(tmp_path, LaunchOptions(prefix=tmp_path / "child"))
    followed._claim_note("exec")
    followed._note_rank_at_first_step()
    monkeypatch.setenv("RANK", "3")
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    torch.optim.SGD([parameter], lr=0.1).step()
    assert [note["rank"] for note in notes.read_all(str(tmp_path)).values()] == [3]
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
