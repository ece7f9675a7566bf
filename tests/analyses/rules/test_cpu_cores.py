"""Waits for Python's global lock, on a built trace: a recorded program has as many as the machine's load makes."""

from kinetoscope.analyses.findings import examine
from kinetoscope.model.schema import SampleState
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def loop(waiting):
    """Steps of 10 ms, 2 of which are an operator, sampled each ms; in so many of the others the thread waits for the lock, which another one holds."""
    builder = TraceBuilder()
    builder.thread("main")
    other = builder.thread("tokenizer")
    train = builder.stack(("train.py", 3, "train"))
    tokenize = builder.stack(("words.py", 7, "tokenize"))
    for step in range(8):
        start = step * 10 * MS
        builder.step(step, start, 10 * MS)
        builder.span("aten::mm", start, 2 * MS, stack=train)
        for number in range(2, 10):
            waits = number - 2 < waiting
            state = SampleState.WAITING_FOR_GIL if waits else SampleState.RUNNING
            builder.sample(start + (number + 1) * MS - 1, train, period_ns=MS, state=state)
            if waits:
                builder.sample(start + (number + 1) * MS - 1, tokenize, period_ns=MS, thread=other)
    return builder.build()


def test_waits_for_the_lock_are_named_first_with_the_line_that_holds_it():
    report = examine(loop(waiting=6))
    first = report.findings[0]
    assert first.code == "gil-contention"
    assert "tokenize (words.py:7)" in first.finding["text"]
    assert first.gain_ns == 8 * 6 * MS
    assert sum(one.gain_ns or 0 for one in report.findings) <= report.whole_ns


def test_python_that_has_the_lock_does_not_wait_for_it():
    assert "gil-contention" not in [one.code for one in examine(loop(waiting=0)).findings]
