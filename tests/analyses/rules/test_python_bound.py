"""What is said of a line that runs Python: the functions that it calls, and what is known of them."""

import pytest

from kinetoscope.analyses.findings import examine
from kinetoscope.analyses.rules.python_bound import calls_of_line
from kinetoscope.display.sentence import plain
from kinetoscope.model.schema import SampleState, SampleWait
from kinetoscope.tables.host.source_lines import SOURCE_LINES
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("json.dump(history, file)", ["json.dump"]),
        ("y = torch.from_numpy(numpy.exp(x.numpy()))", ["torch.from_numpy", "numpy.exp", "x.numpy"]),
        ("if len(rows) and (a or b):", []),
        ("return total", []),
    ],
)
def test_the_functions_that_a_line_calls(text, calls):
    assert calls_of_line(text) == calls


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("gc.collect()", "gc.freeze()"),
        ("out = subprocess.run(command)", "Starting a process"),
        ("x = torch.tensor(rows)", "torch.stack"),
        ("json.dump(history, file)", "append a line"),
        ("y = numpy.exp(x)", "Express it in torch"),
        ("total += score(row)", "Move this code out of the step"),
    ],
)
def test_the_advice_knows_what_the_line_calls(text, advice):
    builder = TraceBuilder()
    stack = builder.stack(("train.py", 5, "train"), ("train.py", 9, "report"))
    for step in range(8):
        at = step * 10 * MS
        builder.step(step, at, 10 * MS)
        builder.span("aten::mm", at, MS, stack=builder.stack(("train.py", 5, "train")))
        builder.sample(at + 5 * MS, stack, state=SampleState.RUNNING)
    trace = builder.know(SOURCE_LINES, {"train.py": {"9": text}}).build()
    (one,) = examine(trace).findings
    assert (one.code, one.place.line) == ("python-bound", 9)
    assert advice in one.advice
    called = calls_of_line(text)[0]
    assert plain(one.finding).endswith(f"at a line that calls {called}")


STANDARD = "/usr/lib/python3.11"
POOL = (f"{STANDARD}/multiprocessing/pool.py", 540, "Pool._handle_tasks")
SENDS = (f"{STANDARD}/multiprocessing/reduction.py", 51, "ForkingPickler.dumps")


def sampled(
    frames, *, state=SampleState.RUNNING, wait=SampleWait.UNKNOWN, other=(), other_state=SampleState.RUNNING
):
    """What is said of steps of 10 ms: 1 ms of an operator, then a line of the program that calls some frames while another thread is in others."""
    builder = TraceBuilder().know("program", {"folder": "/job", "command": ["train.py"]})
    builder.thread("main")
    thread = builder.thread("other")
    inside = builder.stack(("/job/train.py", 5, "train"), ("/job/train.py", 9, "clean"), *frames)
    for step in range(8):
        at = step * 10 * MS
        builder.step(step, at, 10 * MS)
        builder.span("aten::mm", at, MS, stack=builder.stack(("/job/train.py", 5, "train")))
        builder.sample(at + 5 * MS, inside, period_ns=9 * MS, state=state, wait=wait)
        if other:
            builder.sample(
                at + 6 * MS, builder.stack(*other), period_ns=8 * MS, thread=thread, state=other_state
            )
    (about,) = (about for about in examine(builder.build()).findings if about.code == "python-bound")
    return plain(about.finding)


def test_the_standard_librarys_function_in_which_most_of_the_time_is_has_its_name():
    sentence = sampled(
        [(f"{STANDARD}/re/__init__.py", 185, "sub"), (f"{STANDARD}/re/_compiler.py", 743, "compile")]
    )
    assert sentence.endswith("without any operator; most of it in re: sub > compile")


@pytest.mark.parametrize(
    ("other", "other_state", "ending"),
    [
        ((POOL, SENDS), SampleState.RUNNING, "; meanwhile another thread is in multiprocessing: Pool._handle_tasks > ForkingPickler.dumps"),
        ((("/job/train.py", 30, "prepare"),), SampleState.RUNNING, "; meanwhile another thread runs train.py:30"),
        ((POOL, SENDS), SampleState.BLOCKED, "a step)"),
        ((), SampleState.RUNNING, "a step)"),
    ],
)  # fmt: skip
def test_a_wait_names_what_another_thread_runs_meanwhile(other, other_state, ending):
    waits = sampled((), state=SampleState.BLOCKED, wait=SampleWait.LOCK, other=other, other_state=other_state)
    assert "waits for a lock or another thread" in waits
    assert waits.endswith(ending)
