"""Waits for collectives on the host: which line waits, and which of them can be left out."""

import pytest

from kinetoscope.analyses.findings import examine
from kinetoscope.display.sentence import plain
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000
DDP = "/lib/python3.11/site-packages/torch/nn/parallel/distributed.py"


def waits(*frames, waits_ns=6 * MS):
    """The finding about steps of 10 ms in which a line waits for a broadcast."""
    builder = TraceBuilder()
    _, gloo = builder.thread(), builder.thread("gloo")
    stack = builder.stack(("train.py", 9, "train"), *frames)
    for step in range(8):
        at = step * 10 * MS
        builder.step(step, at, 10 * MS).span("aten::mm", at, 3 * MS, stack=stack)
        builder.span("c10d::broadcast_", at + 3 * MS, 100, stack=stack)
        builder.annotation("gloo:broadcast", at + 3 * MS + 100, waits_ns, thread=gloo)
    return [finding for finding in examine(builder.build()).findings if finding.code == "communication-wait"]


def test_the_line_that_waits_is_named_without_a_gain():
    (finding,) = waits()
    assert plain(finding.finding).startswith(
        "train.py:9 waits for broadcast between ranks for 60.0 % of step time, once a step"
    )
    assert finding.gain_ns is None


def test_buffers_that_ddp_sends_can_be_left_out():
    (finding,) = waits(
        (DDP, 1886, "DistributedDataParallel.forward"), (DDP, 2425, "DistributedDataParallel._sync_buffers")
    )
    assert "sends all buffers of the model before each forward pass" in plain(finding.finding)
    assert "broadcast_buffers=False" in finding.advice
    assert finding.gain_ns == pytest.approx(8 * 6 * MS, rel=0.01)


def test_short_waits_are_nothing():
    assert waits(waits_ns=MS // 2) == []
