"""The tree of modules."""

from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder


def net():
    builder = TraceBuilder()
    root = builder.module("Net")
    small = builder.module("Linear", name="small", parent=root)
    large = builder.module("Linear", name="large", parent=root)
    builder.span("aten::relu", 0, 10, module=root)
    builder.span("aten::linear", 20, 10, module=small, sequence=1)
    builder.span("aten::linear", 40, 50, module=large, sequence=2).span("aten::addmm", 50, 30, module=large)
    builder.backward("LinearBackward0", 200, 100, sequence=2)
    builder.span("aten::loss", 400, 5)
    builder.allocate(55, 0x10, 64)
    builder.allocate(25, 0x20, 8)
    return builder


def modules(trace):
    return {row["path"]: row for row in trace.table("modules").to_pylist()}


def test_a_module_holds_its_own_time_and_that_of_its_submodules():
    found = modules(net().build())
    assert (found["Net"]["self_ns"], found["Net"]["total_ns"]) == (10, 172)
    assert (found["large"]["self_ns"], found["large"]["total_ns"]) == (152, 152)
    assert (found["large"]["forward_ns"], found["large"]["backward_ns"]) == (50, 102)
    assert (found["Net"]["forward_self_ns"], found["Net"]["forward_ns"], found["Net"]["backward_ns"]) == (
        10,
        70,
        102,
    )
    assert (found["Net"]["operators"], found["Net"]["total_operators"]) == (1, 6)
    assert (found["Net"]["bytes"], found["Net"]["self_bytes"], found["large"]["bytes"]) == (72, 0, 64)


def test_the_tree_is_an_outline_with_the_most_expensive_first():
    rows = net().build().table("modules").to_pylist()
    assert [(row["depth"], row["path"], row["class"], row["parent"]) for row in rows] == [
        (0, "Net", "Net", None),
        (1, "large", "Linear", 0),
        (1, "small", "Linear", 0),
    ]


def test_calls_are_not_guessed():
    assert [row["calls"] for row in net().build().table("modules").to_pylist()] == [None, None, None]
    trace = Trace.from_columns(
        {
            "spans": {
                "start_ns": [0, 20],
                "duration_ns": [10, 10],
                "name": [1, 1],
                "kind": [5, 5],
                "own_module": [0, 0],
            },
            "modules": {"class": [1]},
            "threads": {"name": ["main"]},
        },
        strings=["", "Net"],
    )
    assert [row["calls"] for row in trace.table("modules").to_pylist()] == [2]


def test_roots_add_up_to_no_more_than_the_trace():
    trace = net().build()
    rows = trace.table("modules").to_pylist()
    assert sum(row["total_percent"] for row in rows if row["parent"] is None) <= 100
    assert sum(row["self_ns"] for row in rows) == sum(
        row["total_ns"] for row in rows if row["parent"] is None
    )


def test_without_modules_the_table_is_empty():
    assert TraceBuilder().span("aten::add", 0, 5).build().table("modules").num_rows == 0


def test_what_ran_in_each_module_itself():
    found = net().build().table("module_operators", where={"module": 2}).to_pylist()
    assert [(row["name"], row["kind"], row["count"], row["self_ns"], row["span"]) for row in found] == [
        ("LinearBackward0", "backward", 1, 100, 5),
        ("aten::addmm", "operator", 1, 30, 3),
        ("aten::linear", "operator", 1, 20, 2),
        ("autograd::engine::evaluate_function: LinearBackward0", "operator", 1, 2, 4),
    ]
