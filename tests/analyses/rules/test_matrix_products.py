"""Products in 16 bits on a processor that is slow at them."""

import pytest

from kinetoscope.analyses.findings import examine
from tests.support.trace_builder import TraceBuilder

MS = 1_000_000
RATES = {"call": [[1, 1000]], "stream": [[100_000_000, 2 * MS]], "matmul float32": [[100_000_000, 10 * MS]]}


def codes(kind, took_ns):
    """What is found in steps of 10 ms with a product of 2 * 128^3 operations."""
    builder = TraceBuilder().know("attainable", RATES)
    shapes = builder.shapes([[128, 128], [128, 128]], [kind, kind])
    line = builder.stack(("train.py", 5, "train"))
    for step in range(8):
        builder.step(step, step * 10 * MS, 10 * MS)
        builder.span("aten::mm", step * 10 * MS, took_ns, shapes=shapes, stack=line)
        builder.span("aten::neg", step * 10 * MS + took_ns, 10 * MS - took_ns - 1000, stack=line)
    return [one.code for one in examine(builder.build()).findings]


@pytest.mark.parametrize(
    ("kind", "took_ns", "is_found"),
    [("c10::Half", 9 * MS, True), ("c10::BFloat16", 9 * MS, True), ("float", 9 * MS, False)],
)
def test_products_in_16_bits_that_are_far_slower_than_in_32(kind, took_ns, is_found):
    assert ("half-precision" in codes(kind, took_ns)) == is_found


def test_those_that_are_as_fast_are_no_finding():
    assert "half-precision" not in codes("c10::Half", MS)
