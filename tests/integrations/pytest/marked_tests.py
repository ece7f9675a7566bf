"""Tests that are recorded, limited and, on purpose, not all passed: `test_pytest_plugin` runs them and looks at the outcome."""

import asyncio
import sys
import unittest
from pathlib import Path

import pytest
import torch
from torch import nn

import kinetoscope


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, batch):
        return self.second(torch.relu(self.first(batch)))


@pytest.fixture
def net():
    """Setting up is not part of the test, and no limit counts it."""
    made = Net()
    for _ in range(20):
        made(torch.zeros(1, 16))
    return made


# ------------------------------------------------------------------------------------------------------------ limits


@pytest.mark.kinetoscope(
    max_step_ms=60_000, max_operators=30, max_allocations=30, max_peak_bytes=100_000, max_kernels=0
)
def test_within_all_limits(net):
    net(torch.zeros(8, 16))


@pytest.mark.kinetoscope(max_operators=4, max_allocations=2, max_peak_bytes=1024, max_step_ms=1e-6)
def test_beyond_all_limits(net):
    net(torch.zeros(8, 16))


@pytest.mark.kinetoscope(max_step_ms=1e-6, warmup_steps=1)
def test_slow_steps(net, kinetoscope_trace):
    for _ in range(3):
        with kinetoscope_trace.step():
            net(torch.zeros(8, 16))


@pytest.mark.kinetoscope(max_step_ms=1e-6)
def test_first_step_of_an_optimizer(net):
    # The range that an optimizer puts around its step; making a real one loads torch's compiler, which takes a second.
    net(torch.zeros(8, 16)).sum().backward()
    with torch.autograd.profiler.record_function("Optimizer.step#SGD.step"):
        torch.zeros(1)


@pytest.mark.kinetoscope(max_step_ms=60_000, warmup_steps=2)
def test_all_steps_are_warm_up(kinetoscope_trace):
    with kinetoscope_trace.step():
        torch.zeros(1)


@pytest.mark.kinetoscope(max_operators=2)
def test_fails_itself_beyond_a_limit(net):
    net(torch.zeros(8, 16))
    raise RuntimeError("its own failure")


@pytest.mark.xfail(reason="known to be too much", strict=True)
@pytest.mark.kinetoscope(max_operators=0)
def test_expected_to_exceed(net):
    net(torch.zeros(8, 16))


@pytest.mark.parametrize("size", [1, 2, 30])
@pytest.mark.kinetoscope(max_operators=100)
def test_parametrized(size):
    values = torch.zeros(4)
    for _ in range(size):
        values = values.add(1).mul(2).neg().abs()


@pytest.mark.kinetoscope(max_operators=0, record_shapes=True)
class TestNearerMarker:
    def test_from_the_class(self):
        torch.zeros(1)

    @pytest.mark.kinetoscope(max_operators=None)
    def test_lifted(self, kinetoscope_trace):
        torch.zeros(1).add(1)
        assert kinetoscope_trace.table("spans")["shapes"].to_pylist()[-1] is not None


# ----------------------------------------------------------------------------------------------------------- fixture


def test_the_trace_of_the_whole_test(net, kinetoscope_trace):
    net(torch.zeros(8, 16))
    ops = kinetoscope_trace.table("ops").to_pydict()
    assert dict(zip(ops["name"], ops["count"], strict=True))["aten::linear"] == 2
    assert {"first", "second"} <= set(kinetoscope_trace.table("modules")["path"].to_pylist())
    assert any(
        line.endswith(Path(__file__).name) for line in kinetoscope_trace.table("lines")["file"].to_pylist()
    )
    assert isinstance(kinetoscope_trace.trace, kinetoscope.Trace)
    assert "Trace" in repr(kinetoscope_trace)
    assert not hasattr(kinetoscope_trace, "no_such_thing")


def test_the_trace_of_a_block(net, kinetoscope_trace):
    net(torch.zeros(8, 16))
    with kinetoscope_trace:
        torch.zeros(3).exp()
    net(torch.zeros(8, 16))
    assert "aten::exp" in kinetoscope_trace.table("ops")["name"].to_pylist()
    assert "aten::linear" not in kinetoscope_trace.table("ops")["name"].to_pylist()
    with pytest.raises(kinetoscope.StateError, match="only one recording per test"), kinetoscope_trace:
        torch.zeros(1)


@pytest.mark.kinetoscope(max_operators=10)
def test_limits_count_the_block_only(net, kinetoscope_trace):
    net(torch.zeros(8, 16))
    with kinetoscope_trace:
        torch.zeros(3).exp()
        with pytest.raises(kinetoscope.StateError, match="leave the block first"):
            kinetoscope_trace.table("ops")
    net(torch.zeros(8, 16))


@pytest.fixture
def looks_back(kinetoscope_trace):
    yield
    assert kinetoscope_trace.table("ops").num_rows > 0


@pytest.mark.usefixtures("looks_back")
def test_a_fixture_looks_at_the_trace_afterwards():
    torch.zeros(3).exp()


def test_asked_for_too_late(request):
    trace = request.getfixturevalue("kinetoscope_trace")
    torch.zeros(3).exp()
    with pytest.raises(kinetoscope.StateError, match="has the argument kinetoscope_trace"):
        trace.table("ops")


def test_wrong_about_its_trace(kinetoscope_trace):
    torch.zeros(3).exp()
    assert kinetoscope_trace.table("ops").num_rows == 0


# ------------------------------------------------------------------------------------------- beside other things


@pytest.mark.kinetoscope(max_operators=1)
async def test_asynchronous(net):
    await asyncio.sleep(0)
    net(torch.zeros(8, 16))


@pytest.mark.kinetoscope(max_operators=1)
class TestOfUnittest(unittest.IsolatedAsyncioTestCase):
    async def test_awaits(self):
        await asyncio.sleep(0)
        torch.zeros(3).exp()


@pytest.mark.kinetoscope(max_operators=0)
def test_skips_itself():
    torch.zeros(3).exp()
    pytest.skip("it is not the day for it")


@pytest.mark.kinetoscope(max_operators=10)
def test_records_itself():
    with kinetoscope.profile():
        torch.zeros(3).exp()


@pytest.mark.kinetoscope(max_operators=10)
def test_closes_its_trace(kinetoscope_trace):
    torch.zeros(3).exp()
    kinetoscope_trace.close()


@pytest.mark.kinetoscope(max_operators=100)
def test_whoever_traces_lines_goes_on(net):
    before, seen = sys.gettrace(), set()

    def tracer(frame, event, argument):
        seen.add((event, frame.f_code.co_name))
        return tracer

    sys.settrace(tracer)
    try:
        net(torch.zeros(1, 16))
    finally:
        sys.settrace(before)
    assert {("line", "forward"), ("return", "forward")} <= seen


@pytest.mark.kinetoscope(max_operators=10)
def test_random_numbers_stay_what_they_are(kinetoscope_trace):
    torch.manual_seed(3)
    expected = torch.rand(4).tolist()
    torch.manual_seed(3)
    assert torch.rand(4).tolist() == expected
