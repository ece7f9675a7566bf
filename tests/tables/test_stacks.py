"""Stacks with the time spent in each."""

from tests.support.trace_builder import TraceBuilder


def test_totals_include_the_stacks_that_begin_with_one():
    builder = TraceBuilder()
    root, left = ("a.py", 1, "main"), ("b.py", 2, "left")
    builder.span("x", 0, 5, stack=builder.stack(root))
    builder.span("y", 10, 20, stack=builder.stack(root, left))
    builder.span("z", 40, 7, stack=builder.stack(root, ("c.py", 3, "right")))
    rows = builder.build().table("stacks").to_pylist()
    assert [
        (row["frame"], row["depth"], row["parent"], row["self_ns"], row["total_ns"], row["count"])
        for row in rows
    ] == [
        ("a.py(1): main", 0, None, 5, 32, 1),
        ("b.py(2): left", 1, 0, 20, 20, 1),
        ("c.py(3): right", 1, 0, 7, 7, 1),
    ]
    assert rows[1]["stack"] == "a.py(1): main;b.py(2): left"
