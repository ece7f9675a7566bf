# ruff: noqa: N802  (names of CUDA)
import pytest
import torch

import kinetoscope
from kinetoscope.integrations.pyg import nvtxit


class Nsight:
    """Notes what CUDA's profiler and NVTX are told."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def cudart(self) -> "Nsight":
        return self

    def cudaProfilerStart(self) -> None:
        self.log.append("on")

    def cudaProfilerStop(self) -> None:
        self.log.append("off")

    def range_push(self, name: str) -> None:
        self.log.append(name)

    def range_pop(self) -> None:
        self.log.append("end")


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """What is told on a machine with CUDA."""
    nsight = Nsight()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", nsight.cudart)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", nsight.range_push)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", nsight.range_pop)
    return nsight.log


def test_each_call_is_a_range_with_its_number_while_the_profiler_is_on(told):
    @nvtxit()
    def step(value, *, more=0):
        """Steps."""
        told.append("run")
        return value + more

    assert [step(3), step(4, more=1)] == [3, 5]
    assert told == ["on", "step_0", "run", "end", "off", "on", "step_1", "run", "end", "off"]
    assert step.__doc__ == "Steps."


def test_a_range_in_a_range_leaves_the_profiler_on(told):
    inner = nvtxit("inner")(lambda: told.append("run"))
    nvtxit("outer")(inner)()
    assert told == ["on", "outer_0", "inner_0", "run", "end", "end", "off"]


def test_warm_up_calls_count_but_are_not_marked(told):
    step = nvtxit("step", n_warmups=2, n_iters=1)(lambda: told.append("run"))
    for _ in range(4):
        step()
    assert told == ["run", "run", "on", "step_2", "run", "end", "off", "run"]


def test_of_no_iterations_none_is_marked(told):
    nvtxit("step", n_iters=0)(lambda: told.append("run"))()
    assert told == ["run"]


def test_two_functions_of_one_decorator_keep_their_own_names(told):
    decorate = nvtxit()

    @decorate
    def one():
        """Does nothing."""

    @decorate
    def other():
        """Does nothing."""

    one()
    other()
    assert [said for said in told if said.endswith("_0")] == ["one_0", "other_0"]


def test_a_range_is_closed_whatever_the_call_raises(told):
    @nvtxit()
    def fail():
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert told == ["on", "fail_0", "end", "off"]


def test_without_cuda_the_calls_are_ranges_of_a_recording(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    step = nvtxit("train", n_warmups=1)(lambda x: x + 1)
    with kinetoscope.profile() as session:
        for _ in range(3):
            step(torch.ones(2))
    names = [event.key for event in session.events() if event.is_user_annotation]
    assert names == ["train_1", "train_2"]
