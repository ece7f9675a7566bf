"""What activation checkpointing runs again, with the Python around it."""

import pytest

from kinetoscope.analyses.findings import examine
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000


def test_the_python_that_leads_to_operators_that_run_again_counts():
    builder = TraceBuilder()
    again = builder.stack(
        ("train.py", 5, "train"), ("torch/utils/checkpoint.py", 1, "f.<locals>.recompute_fn")
    )
    line = builder.stack(("train.py", 5, "train"))
    for step in range(6):
        at = 20 * step * MS
        builder.step(step, at, 20 * MS)
        builder.span("aten::mul", at, 4 * MS, sequence=step, stack=line)
        # For 1 ms it prepares, for 3 ms it runs forward, for 1 ms it ends that, and then it does what it is for.
        builder.backward("MulBackward0", at + 10 * MS, 8 * MS, sequence=step)
        builder.span("aten::mul", at + 11 * MS, 3 * MS, sequence=100 + step, stack=again)
        builder.span("aten::neg", at + 15 * MS, 3 * MS)
    (found,) = (one for one in examine(builder.build()).findings if one.code == "recomputation-cost")
    assert found.gain_ns == pytest.approx(6 * 5 * MS)


def test_anomaly_detection_gains_the_stacks_it_formats_inside_operators():
    builder = TraceBuilder()
    line = builder.stack(("train.py", 5, "train"))
    formats = builder.stack(("train.py", 5, "train"), ("/lib/python3/traceback.py", 1, "format_list"))
    for step in range(6):
        at = 20 * step * MS
        builder.step(step, at, 20 * MS)
        builder.span("aten::mul", at, 9 * MS, sequence=step, stack=line)
        for millisecond in range(1, 9):
            builder.sample(at + millisecond * MS, formats, period_ns=MS)
        builder.span("autograd::engine::evaluate_function: MulBackward0", at + 10 * MS, 6 * MS, stack=line)
        builder.span("aten::isnan", at + 13 * MS, 2 * MS, stack=line)
    (finding,) = (
        finding for finding in examine(builder.build()).findings if finding.code == "anomaly-detection"
    )
    assert finding.gain_ns == pytest.approx(6 * (8 + 2) * MS)
    assert finding.share_percent == pytest.approx(50.0)
