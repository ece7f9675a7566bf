"""Event lists: sequences, sorting, grouping, exports."""

import tracemalloc

import numpy as np
import pytest

from kinetoscope.torch_events.event_list import EventList
from kinetoscope.torch_events.function_event import FunctionEvent, Kernel
from kinetoscope.trace import Trace
from tests.support.hostile import HOSTILE_NAMES
from tests.support.trace_builder import TraceBuilder


def two_threads():
    builder = TraceBuilder()
    main, other = builder.thread("main", torch_tid=1), builder.thread("other", torch_tid=9)
    builder.span("late", 500, 10, thread=main).span("twice", 600, 30, thread=main)
    return builder.span("early", 0, 100, thread=other).span("twice", 10, 20, thread=other).build()


def keys(events):
    return [event.key for event in events]


def test_events_come_in_order_of_time_and_groups_by_first_occurrence():
    trace = two_threads()
    assert keys(trace.events()) == ["early", "twice", "late", "twice"]
    assert [event.thread for event in trace.events()] == [9, 9, 1, 1]
    averages = trace.key_averages()
    assert keys(averages) == ["early", "twice", "late"]
    assert averages[1].first.thread == 9
    assert averages[1].cpu_parent.name == "early"
    assert [child.name for child in averages[0].cpu_children] == ["twice"]


def test_it_is_a_sequence():
    events = two_threads().events()
    assert len(events) == 4
    assert events[-1] == events[3]
    assert keys(events[1:3]) == ["twice", "late"]
    assert keys(events[::-1][:1]) == ["twice"]
    assert isinstance(events[:2], EventList)
    assert events[0] in events
    assert len({events[0], events[0], events[1]}) == 2
    assert events[0] != "early"
    assert repr(events) == "<EventList of 4 events>"
    assert str(events[:1]) == events[:1].table()
    with pytest.raises(IndexError):
        events[4]


def test_equal_events_keep_their_order_when_sorted():
    builder = TraceBuilder()
    for place, name in enumerate("cab"):
        builder.span(name, place * 10, 5)
    assert keys(builder.build().key_averages().sorted_by("cpu_time_total")) == ["c", "a", "b"]


@pytest.mark.parametrize(
    "sort_key",
    [
        "cpu_time", "cpu_time_total", "self_cpu_time_total", "cuda_time", "device_time_total", "self_xpu_time_total",
        "cpu_memory_usage", "self_cpu_memory_usage", "cuda_memory_usage", "self_device_memory_usage", "count", "flops",
    ],
)  # fmt: skip
@pytest.mark.parametrize("view", ["events", "key_averages"])
def test_every_sort_key_of_torch_sorts(sort_key, view):
    events = getattr(two_threads(), view)()
    attribute = sort_key.replace("cuda", "device").replace("xpu", "device")
    values = [getattr(event, attribute) for event in events.sorted_by(sort_key)]
    assert values == sorted(values, reverse=True)
    assert events.values(attribute).tolist() == [getattr(event, attribute) for event in events]


def test_old_cuda_names_warn_and_work():
    for event in (two_threads().events()[0], two_threads().key_averages()[0]):
        for name in (
            "cuda_time",
            "cuda_time_total",
            "self_cuda_time_total",
            "cuda_memory_usage",
            "self_cuda_memory_usage",
        ):
            with pytest.warns(FutureWarning, match=f"`{name}` is deprecated") as caught:
                assert getattr(event, name) == 0
            assert caught[0].filename == __file__
    with pytest.warns(FutureWarning, match="use `metadata`"):
        assert two_threads().events()[0].metadata_json == ""


def with_sources(**known):
    builder = TraceBuilder()
    for key, value in known.items():
        builder.know(key, value)
    one = builder.stack(("a.py", 1, "main"), ("b.py", 2, "go"))
    two = builder.stack(("a.py", 5, "main"), ("b.py", 2, "go"))
    for place, (stack, dims, overload) in enumerate(
        [(one, [[2]], "Tensor"), (two, [[2]], "Scalar"), (one, [[3], [[1], [2]]], "Tensor"), (-1, None, "")]
    ):
        shapes = -1 if dims is None else builder.shapes(dims, concrete=[place])
        builder.span("aten::add", place * 100, 10, stack=stack, shapes=shapes, overload=overload)
    return builder.build()


def test_grouping_keeps_apart_what_was_asked_for():
    trace = with_sources()
    assert [event.count for event in trace.key_averages()] == [4]
    by_shape = trace.key_averages(group_by_input_shape=True)
    assert [(event.count, event.input_shapes) for event in by_shape] == [(2, [[2]]), (1, [[3], []]), (1, [])]
    by_frame = trace.key_averages(group_by_stack_n=1)
    assert [(event.count, event.stack) for event in by_frame] == [(3, ["b.py(2): go"]), (1, [])]
    by_stack = trace.key_averages(group_by_stack_n=5)
    assert [event.count for event in by_stack] == [2, 1, 1]
    assert by_stack[1].stack == ["b.py(2): go", "a.py(5): main"]
    by_overload = trace.events().key_averages(group_by_overload_name=True)
    assert [(event.count, event.overload_name) for event in by_overload] == [
        (2, "Tensor"),
        (1, "Scalar"),
        (1, ""),
    ]


def test_the_table_shows_what_keeps_groups_apart():
    text = (
        with_sources()
        .key_averages(group_by_stack_n=2, group_by_overload_name=True)
        .table(max_src_column_width=10)
    )
    assert "Overload Name" in text
    assert "Source Location" in text
    assert "...(2): go  " in text
    assert "...): main" in text
    text = with_sources().key_averages(group_by_input_shape=True).table()
    assert "Input Shapes" in text
    assert "[[3], []]" in text


def test_single_events_show_stacks_and_overloads_where_the_program_asked_for_them():
    # The first two events are the calls around it.
    text = with_sources(with_stack=1).events().table(row_limit=3)
    assert "b.py(2): go" in text
    assert "a.py(1): main" in text
    assert "Tensor" not in text, "torch does not record overloads unless asked"
    asked = with_sources(capture_overload_names=True).events().table(row_limit=1)
    assert "Overload Name" in asked
    assert "Tensor" in asked
    assert "Source Location" not in asked, "stacks are recorded anyway, and in the events"
    assert with_sources().events()[0].stack == ["b.py(2): go", "a.py(1): main"]


def test_nothing_gives_an_empty_table():
    trace = TraceBuilder().build()
    assert trace.events().table() == ""
    assert trace.key_averages().table() == ""
    assert trace.events().total_average().count == 0
    assert len(trace.events()[:0]) == 0


def test_hidden_operators_give_their_time_to_those_around_them():
    trace = (
        TraceBuilder()
        .annotation("range", 0, 100)
        .span("profiler::_record_function_enter_new", 10, 20)
        .span("aten::empty", 15, 5)
        .span("profiler::_record_function_exit", 200, 5)
        .build()
    )
    events = trace.events()
    assert keys(events) == ["range", "aten::empty"]
    assert [event.self_cpu_time_total for event in events] == [0.095, 0.005]
    assert keys(events[0].cpu_children) == ["aten::empty"]
    assert events[1].cpu_parent == events[0]
    assert trace.key_averages().self_cpu_time_total == pytest.approx(0.1)
    assert len(trace.columns("spans")) == 4, "the trace itself keeps them"


def test_an_only_child_of_the_same_name_is_one_event_with_its_parent():
    builder = TraceBuilder().span("f", 0, 100).span("f", 10, 80).span("f", 20, 60).span("g", 30, 10)
    builder.allocate(25, 0x10, 64)
    trace = builder.build()
    events = trace.events()
    assert keys(events) == ["f", "g"]
    assert events[0].self_cpu_time_total == pytest.approx(0.09)
    assert events[0].self_cpu_memory_usage == 64
    assert trace.key_averages()[0].count == 1
    assert trace.key_averages()[0].cpu_time_total == pytest.approx(0.1)


def test_two_children_of_the_same_name_are_events_of_their_own():
    trace = TraceBuilder().span("f", 0, 100).span("f", 10, 20).span("f", 40, 20).build()
    average = trace.key_averages()[0]
    assert average.count == 3
    assert average.cpu_time_total == pytest.approx(0.14), "torch counts a call inside a call in both"
    assert average.self_cpu_time_total == pytest.approx(0.1)


def test_asynchronous_events_have_no_self_time():
    trace = TraceBuilder().span("outer", 0, 100).span("rpc", 10, 20, is_async=True).build()
    event = trace.events()[1]
    assert event.is_async
    assert event.self_cpu_time_total == 0
    assert event.cpu_time_total == pytest.approx(0.02)
    assert trace.key_averages().table().splitlines()[4].split()[3] == "0"


def test_hostile_names_stay_on_their_line_and_can_be_printed():
    builder = TraceBuilder()
    for place, name in enumerate(HOSTILE_NAMES):
        builder.span(
            name,
            place * 10,
            5,
            overload=name,
            stack=builder.stack((name, 1, name)),
            shapes=builder.shapes([name]),
        )
    trace = builder.build()
    for text in (
        trace.key_averages(True, 2, True).table(),
        trace.events().table(),
        trace.key_averages(True, 2, True).table(
            max_name_column_width=None, max_shapes_column_width=None, max_src_column_width=None
        ),
    ):
        text.encode("utf-8")
        assert all(line.isprintable() for line in text.split("\n"))
    assert trace.key_averages().table().count("\n") == 3 + len(HOSTILE_NAMES) + 2


def device_trace():
    spans = {
        "thread": [0, 0, 1, 1, 1], "start_ns": [0, 10_000, 50_000, 80_000, 90_000],
        "duration_ns": [40_000, 20_000, 25_000, 5_000, 7_000], "name": [1, 2, 3, 4, 1], "kind": [2, 0, 6, 7, 2],
        "stream": [-1, -1, 0, 0, 0],
    }  # fmt: skip
    return Trace.from_columns(
        {
            "spans": spans,
            "threads": {"os_tid": [5, 0], "torch_tid": [1, 0]},
            "streams": {"device_type": [1], "device_index": [2], "number": [7]},
            "launches": {"host": [1, 0], "device": [2, 3]},
            "allocations": {"time_ns": [15_000], "address": [64], "bytes": [4096], "device_type": [1]},
        },
        strings=["", "range", "aten::mm", "gemm", "Memcpy DtoD"],
    )


def test_device_events_have_device_times():
    trace = device_trace()
    outer, operator, kernel, _, drawn = trace.events()
    assert operator.kernels == [Kernel("gemm", 2, 25.0)]
    assert (operator.device_time_total, operator.self_device_time_total) == (25, 25)
    assert (outer.device_time_total, outer.self_device_time_total) == (30, 5)
    assert (kernel.device_time_total, kernel.cpu_time_total, kernel.self_cpu_time_total) == (25, 0, 0)
    assert int(kernel.device_type) == 1
    assert (kernel.device_index, kernel.device_resource_id) == (2, 7)
    assert kernel.activity_type == "kernel"
    assert kernel.use_device == operator.use_device == "cuda"
    assert (operator.device_index, operator.device_resource_id) == (0, 5)
    assert drawn.is_user_annotation
    assert operator.device_memory_usage == 4096
    text = trace.key_averages().table()
    for heading in ("Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "CUDA Mem", "Self CUDA Mem"):
        assert heading in text
    assert "Self CUDA time total: 30.000us" in text
    assert "Self CPU time total: 40.000us" in text
    assert [event.count for event in trace.key_averages() if event.key == "range"] == [1, 1], (
        "host and device apart"
    )
    assert [row["name"] for row in trace.table("ops").to_pylist()] == ["range", "aten::mm"]


def test_host_events_alone_still_show_what_they_started_on_the_device():
    chosen = EventList(event for event in device_trace().events() if int(event.device_type) == 0)
    text = chosen.table()
    assert "Self CUDA" in text
    assert "25.000us" in text
    assert "NaN" in text, "of no device events there are no shares"
    assert text.splitlines()[-1] == "Self CUDA time total: 0.000us"


def test_a_list_of_many_events_costs_nothing_for_each():
    count = 200_000
    trace = Trace.from_columns(
        {
            "spans": {
                "start_ns": np.arange(count) * 10,
                "duration_ns": np.full(count, 5),
                "name": np.ones(count),
            }
        },
        strings=["", "aten::add"],
    )
    trace.column("spans", "parent")
    tracemalloc.start()
    events = trace.events()
    assert isinstance(events[count - 1], FunctionEvent)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 40 * count
