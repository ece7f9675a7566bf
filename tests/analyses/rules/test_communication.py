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


def small_messages(count, *, size=1000):
    """The finding about steps of 10 ms in which a line sends so many messages, each in 0.2 ms."""
    builder = TraceBuilder()
    main, gloo = builder.thread(), builder.thread("gloo")
    stack, sizes = builder.stack(("train.py", 9, "average")), builder.shapes([[size]], ["float"])
    for step in range(8):
        at = step * 10 * MS
        builder.step(step, at, 10 * MS, thread=main).span("aten::mm", at, 3 * MS, thread=main, stack=stack)
        for number in range(count):
            begin = at + 3 * MS + number * MS // 5
            builder.span("c10d::allreduce_", begin, 100, thread=main, stack=stack, shapes=sizes)
            builder.annotation("gloo:all_reduce", begin + 100, MS // 5 - 200, thread=gloo, shapes=sizes)
    return next(f for f in examine(builder.build()).findings if f.code == "communication-wait")


def test_many_small_messages_can_be_one():
    finding = small_messages(30)
    assert "waits for small all_reduce calls between ranks" in plain(finding.finding)
    assert "flatten what is sent into one tensor" in finding.advice
    # All but one for the first byte of each step, and its bytes.
    assert 0 < finding.gain_ns < 8 * 29 * MS // 5


@pytest.mark.parametrize("messages", [{"count": 10}, {"count": 30, "size": 1_000_000}])
def test_few_or_large_messages_stay_as_they_are(messages):
    finding = small_messages(**messages)
    assert finding.gain_ns is None
    assert "small" not in plain(finding.finding)
