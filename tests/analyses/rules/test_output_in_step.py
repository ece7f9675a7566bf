"""Output in steps: each kind is a finding of its own, at the line that leads to most of it."""

from kinetoscope.analyses.findings import examine
from kinetoscope.display.sentence import plain
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000
SERIALIZATION = "/lib/python3.11/site-packages/torch/serialization.py"


def output_findings(*calls):
    """The findings about steps of 10 ms in which each call, a line with a function of torch's serialization, takes 2 ms."""
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 10 * MS, 10 * MS)
        for number, (line, function) in enumerate(calls):
            stack = builder.stack(
                ("train.py", line, "update"), (SERIALIZATION, 5, function), (SERIALIZATION, 6, "_read_tensor")
            )
            builder.span("aten::set_", step * 10 * MS + number * 3 * MS, 2 * MS, stack=stack)
    return [finding for finding in examine(builder.build()).findings if finding.code == "output-in-step"]


def test_loading_is_not_saving():
    saving, loading = sorted(
        output_findings((3, "save"), (4, "load")), key=lambda finding: finding.place.line
    )
    assert plain(saving.finding) == "Saving at train.py:3 takes 20.0 % of step time"
    assert plain(loading.finding) == "Loading at train.py:4 takes 20.0 % of step time"
    assert "keep it in memory" in loading.advice
    assert "asynchronously" in saving.advice


def test_the_line_with_most_output_is_named():
    (finding,) = output_findings((3, "save"), (4, "save"), (4, "save"))
    assert finding.place.line == 4
    # With the millisecond between two of them.
    assert finding.share_percent == 80
