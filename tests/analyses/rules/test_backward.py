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
