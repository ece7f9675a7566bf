"""Memory outside all events."""

from tests.support.trace_builder import TraceBuilder


def builder():
    made = TraceBuilder()
    made.thread("main", torch_tid=3, os_tid=77)
    made.span("aten::add", 10, 20).annotation("range", 100, 100)
    made.allocate(5, 0x10, 100)
    made.allocate(15, 0x20, 50)
    made.free(50, 0x20)
    made.free(60, 0x777)  # of a block from before: nobody knows its size
    made.allocate(70, 0x30, 512, device=(1, 0))
    return made


def test_each_is_an_event_in_its_place():
    events = builder().build().events()
    assert [(event.key, event.time_range.start) for event in events] == [
        ("[memory]", 0.005), ("aten::add", 0.01), ("[memory]", 0.05), ("[memory]", 0.07),
        ("range", 0.1),
    ]  # fmt: skip
    assert [event.cpu_memory_usage for event in events] == [100, 50, -50, 0, 0]
    assert [event.device_memory_usage for event in events] == [0, 0, 0, 512, 0]
    assert len({event.id for event in events}) == len(events)
    assert len(set(events)) == len(events)


def test_it_is_a_moment_with_nothing_but_memory():
    event = builder().build().events()[0]
    assert (event.name, event.trace_name, event.thread, event.fwd_thread) == ("[memory]", None, 3, 3)
    assert (event.cpu_time_total, event.self_cpu_time_total, event.device_time_total) == (0, 0, 0)
    assert (event.sequence_nr, event.scope, event.flops, event.count, event.overload_name) == (
        -1,
        0,
        0,
        1,
        "",
    )
    assert event.time_range.elapsed_us() == 0
    for name in (
        "input_shapes",
        "structured_input_shapes",
        "input_dtypes",
        "concrete_inputs",
        "stack",
        "kernels",
        "cpu_children",
    ):
        assert getattr(event, name) == [], name
    assert (event.flow_id, event.flow_type, event.flow_start, event.linked_correlation_id) == (0, 0, False, 0)
    assert (event.cpu_parent, event.module, event.phase, event.is_user_annotation) == (
        None,
        "",
        "forward",
        False,
    )
    assert (event.device_resource_id, int(event.device_type), event.use_device) == (77, 0, None)
    assert "MemoryEvent id=2 name=[memory]" in repr(event)


def test_they_are_one_group_where_the_first_occurs():
    averages = builder().build().key_averages()
    assert [(event.key, event.count) for event in averages] == [
        ("[memory]", 3),
        ("aten::add", 1),
        ("range", 1),
    ]
    memory = averages[0]
    assert (memory.cpu_memory_usage, memory.device_memory_usage) == (50, 512)
    assert (memory.first.key, memory.cpu_parent, memory.cpu_children) == ("[memory]", None, [])
    assert not memory.is_user_annotation
    assert "CPU Mem" in averages.table()
    assert "50 B" in averages.table(top_level_events_only=True)
    assert [event.input_shapes for event in builder().build().key_averages(True)] == [[], [], []]


def test_the_table_of_events_shows_them():
    text = builder().build().events().table()
    assert text.count("[memory]") == 3
    assert "-50 B" in text


def test_what_happens_in_a_hidden_operator_outside_all_events_is_kept():
    made = TraceBuilder().span("profiler::_record_function_exit", 0, 50).span("aten::add", 100, 10)
    made.allocate(20, 0x10, 64)
    trace = made.build()
    assert [(event.key, event.cpu_memory_usage) for event in trace.events()] == [
        ("[memory]", 64),
        ("aten::add", 0),
    ]
    assert trace.key_averages().total_average().self_cpu_memory_usage == 64


def test_memory_inside_events_makes_no_rows():
    made = TraceBuilder().span("aten::add", 0, 100).span("aten::empty", 10, 20)
    made.allocate(15, 0x10, 64)
    made.free(90, 0x10)
    assert [event.key for event in made.build().events()] == ["aten::add", "aten::empty"]
