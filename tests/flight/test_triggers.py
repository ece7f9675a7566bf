"""What counts as unusual."""

import math

import pytest
import torch

from kinetoscope.flight.triggers import StepTimes, is_no_number, memory_limit_bytes, on_device_out_of_memory

SECOND_NS = 1e9


def fed(*durations_s):
    times = StepTimes()
    return times, [times.add(duration_s * SECOND_NS) for duration_s in durations_s]


def test_three_slow_steps_in_a_row_are_told_once():
    times, found = fed(*[0.4] * 100, 0.8, 0.8, 0.8, 0.8)
    assert found[:-2] == [(0, 0.0)] * 102
    assert found[-2] == (3, pytest.approx(2.4 * SECOND_NS))
    assert found[-1] == (0, 0.0)
    assert times.median_ns == 0.4 * SECOND_NS


def test_single_slow_steps_are_usual():
    _, found = fed(*([0.4] * 20 + [2.0, 2.0]) * 10)
    assert not any(steps for steps, _ in found)


def test_short_steps_must_be_slow_for_a_second():
    _, found = fed(*[0.001] * 100, *[0.003] * 300)
    assert not any(steps for steps, _ in found)
    _, found = fed(*[0.001] * 100, *[0.003] * 400)
    assert sum(steps > 0 for steps, _ in found) == 1


def test_what_varies_a_lot_is_not_slow():
    _, found = fed(*[0.4, 0.8, 1.2, 1.6] * 25, 1.7, 1.8, 1.9)
    assert not any(steps for steps, _ in found)


def test_slow_steps_become_the_usual_ones():
    times, found = fed(*[0.4] * 100, *[0.8] * 200)
    assert sum(steps > 0 for steps, _ in found) == 1
    assert times.median_ns == 0.8 * SECOND_NS


def test_a_step_is_overdue_after_twice_the_longest_usual_one():
    assert fed(*[0.1] * 50)[0].overdue_ns == SECOND_NS
    assert fed(*[10.0] * 50)[0].overdue_ns == 20 * SECOND_NS
    assert fed()[0].overdue_ns == 60 * SECOND_NS


@pytest.mark.parametrize("loss", [math.nan, math.inf, torch.tensor(math.nan), torch.tensor([[-math.inf]])])
def test_losses_that_are_no_numbers(loss):
    assert is_no_number(loss)


@pytest.mark.parametrize(
    "loss",
    [
        1.0,
        0,
        torch.tensor(1.0, requires_grad=True),
        torch.tensor(3),
        torch.tensor([math.nan, 1.0]),
        torch.empty(1, device="meta"),
        "loss",
        None,
    ],
    ids=repr,
)
def test_other_losses(loss):
    assert not is_no_number(loss)


class Told:
    def __init__(self):
        self.what = []

    def tell(self, what):
        self.what.append(what)


def test_a_device_without_memory_is_told_as_long_as_somebody_listens(monkeypatch):
    observers = []
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
    told = Told()
    on_device_out_of_memory(told.tell)
    (observer,) = observers
    observer(1, 3 << 30, 80 << 30, 1 << 30)
    assert told.what == ["cuda:1 has no memory for 3 GiB: 1 GiB of 80 GiB are free"]
    what = told.what
    del told
    observer(1, 3 << 30, 80 << 30, 1 << 30)
    assert len(what) == 1


def test_without_cuda_nobody_is_told_of_device_memory():
    on_device_out_of_memory(Told().tell)


def limit_of(folder, own, **limits):
    """The limit of a process in a tree of control groups, whose files are written as text."""
    for name, text in limits.items():
        path = folder / "tree" / name.replace("__", "/").replace("_max", ".max").replace("_limit", ".limit")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "own").write_text(own)
    return memory_limit_bytes(folder / "tree", folder / "own")


def test_the_least_limit_of_the_groups_of_a_process_counts(tmp_path):
    job = {"memory_max": "max\n", "slurm__memory_max": "5000\n", "slurm__job__memory_max": "4000\n"}
    assert limit_of(tmp_path, "0::/slurm/job\n", **job) == 4000
    assert limit_of(tmp_path, "0::/slurm\n") == 5000
    assert limit_of(tmp_path, "0::/\n") is None
    # As a container sees it, whose own group is the root, or that is told of groups outside.
    assert limit_of(tmp_path, "0::/../other\n", memory_max="3000\n") == 3000
    (tmp_path / "own").unlink()
    assert memory_limit_bytes(tmp_path / "tree", tmp_path / "own") == 3000


def test_control_groups_of_the_older_kind(tmp_path):
    own = "9:name=systemd:/\n4:cpu,memory:/docker/1\n0::/\n"
    base = "memory__memory_limit_in_bytes"
    assert limit_of(tmp_path, own, **{base: f"{2**63 - 4096}\n"}) is None
    assert limit_of(tmp_path, own, **{base: "7000\n"}) == 7000
    assert limit_of(tmp_path, own, memory__docker__1__memory_limit_in_bytes="6000\n") == 6000
