"""What is said of a line that runs Python: the functions that it calls, and what is known of them."""

import pytest

from kinetoscope.analyses.findings import examine
from kinetoscope.analyses.rules.python_bound import calls_of_line
from kinetoscope.display.sentence import plain
from kinetoscope.model.schema import SampleState
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
