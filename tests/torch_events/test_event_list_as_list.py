"""An event list used as programs use lists: chosen, sorted, joined, changed, copied, pickled."""

import copy
import pickle
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import StateError
from kinetoscope.torch_events.event_list import EventList
from kinetoscope.torch_events.function_event import FunctionEventAvg
from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder
from tests.tables.test_tables_properties import traces


def example() -> Trace:
    builder = TraceBuilder().know("profile_memory", 1).know("with_flops", 1)
    stack = builder.stack(("a.py", 1, "f"))
    builder.span("aten::mm", 0, 100, stack=stack, shapes=builder.shapes([[2, 3], [3, 4]], ["float", "float"]))
    builder.span("aten::empty", 10, 20)
    builder.span("aten::mm", 200, 50, shapes=builder.shapes([[5, 3], [3, 4]], ["float", "float"]))
    builder.span("aten::add", 300, 10)
    builder.allocate(15, 0x10, 64)
    builder.allocate(280, 0x20, 8)
    return builder.build()


def keys(events):
    return [event.key for event in events]


ALL = ["aten::mm", "aten::empty", "aten::mm", "[memory]", "aten::add"]


def test_chosen_events_make_a_list_with_a_table():
    events = example().events()
    chosen = EventList(event for event in events if event.name == "aten::mm")
    assert keys(chosen) == ["aten::mm", "aten::mm"]
    assert chosen.self_cpu_time_total == pytest.approx(0.13)
    text = chosen.table()
    assert "CPU Mem" in text
    assert text.count("aten::mm") == 2
    assert "Self CPU time total: 0.130us" in text
    assert keys(EventList(filter(lambda event: event.cpu_parent is None, events))) == [
        "aten::mm", "aten::mm", "[memory]", "aten::add",
    ]  # fmt: skip
    assert keys(sorted(events, key=lambda event: event.self_cpu_time_total)) == [
        "[memory]", "aten::add", "aten::empty", "aten::mm", "aten::mm",
    ]  # fmt: skip


def test_lists_join_and_compare_as_lists_do():
    events = example().events()
    assert keys(events[:1] + events[-1:]) == ["aten::mm", "aten::add"]
    plain = list(events)
    assert keys(events[:1] + plain[1:2]) == ["aten::mm", "aten::empty"]
    assert keys(plain[1:2] + events[:1]) == ["aten::empty", "aten::mm"]
    assert events == list(events)
    assert events == events.copy()
    assert events[:2] != events[1:3]
    assert events != "events"
    assert events[0] in events
    assert events.index(events[4]) == 4
    assert events.count(events[0]) == 1
    assert keys(reversed(events)) == ALL[::-1]
    with pytest.raises(TypeError, match="unhashable"):
        hash(events)


def test_changing_a_list_changes_this_list_only():
    trace = example()
    events = trace.events()
    events.sort(key=lambda event: event.name)
    assert keys(events) == sorted(ALL)
    events.sort(key=lambda event: event.self_cpu_time_total, reverse=True)
    assert keys(events)[0] == "aten::mm"
    events.append(trace.events()[4])
    events.insert(0, trace.events()[1])
    assert keys(events)[::6] == ["aten::empty", "aten::add"]
    del events[0]
    events[0] = events[-1]
    assert keys(events)[0] == "aten::add"
    events[1:] = []
    events += trace.events()[:2]
    events.extend([trace.events()[2]])
    assert keys(events) == ["aten::add", "aten::mm", "aten::empty", "aten::mm"]
    assert keys([events.pop()]) == ["aten::mm"]
    events.remove(trace.events()[0])
    events.reverse()
    assert keys(events) == ["aten::empty", "aten::add"]
    part = events[:1]
    events.clear()
    assert (len(events), keys(part)) == (0, ["aten::empty"])
    assert keys(trace.events()) == ALL
    sums = trace.key_averages()
    total = sums[0]
    total += sums[0]
    sums[0] += FunctionEventAvg()
    assert (sums[0].count, trace.key_averages()[0].count) == (4, 2)


def test_a_list_of_nothing():
    empty = EventList()
    assert (len(empty), empty.table(), str(empty), empty.self_cpu_time_total) == (0, "", "", 0)
    assert empty.total_average().count == 0
    assert len(empty.key_averages()) == 0
    assert empty.use_device is None
    assert not empty.profile_memory
    with pytest.raises(StateError, match="do not belong to a trace"):
        empty.trace.save("x")


def test_what_the_table_shows_can_be_said_as_in_torch():
    events = list(example().events())
    assert "CPU Mem" not in EventList(events, profile_memory=False).table()
    assert (
        "CPU Mem" in EventList(events, use_device="cuda", profile_memory=True, with_flops=False)[:2].table()
    )
    sums = EventList(events, profile_memory=False).key_averages()
    assert "CPU Mem" not in sums.table()


def test_a_part_is_added_up_on_its_own():
    trace = example()
    events = trace.events()
    part = events[1:].key_averages()
    assert [(event.key, event.count) for event in part] == [
        ("aten::empty", 1), ("aten::mm", 1), ("[memory]", 1), ("aten::add", 1),
    ]  # fmt: skip
    assert part[1].cpu_time_total == pytest.approx(0.05)
    by_hand = EventList(list(events[1:])).key_averages()
    for one, other in zip(part, by_hand, strict=True):
        for name in (
            "key",
            "count",
            "self_cpu_time_total",
            "cpu_memory_usage",
            "input_shapes",
            "stack",
            "flops",
        ):
            assert getattr(one, name) == pytest.approx(getattr(other, name)), name
    shapes = events[::-1].key_averages(group_by_input_shapes=True)
    assert [(event.key, event.input_shapes) for event in shapes] == [
        ("aten::add", []), ("[memory]", []), ("aten::mm", [[5, 3], [3, 4]]), ("aten::empty", []),
        ("aten::mm", [[2, 3], [3, 4]]),
    ]  # fmt: skip
    twice = (events + events).key_averages(group_by_stack_n=1)
    assert next((event.key, event.count, event.stack) for event in twice) == ("aten::mm", 2, ["a.py(1): f"])
    assert twice.self_cpu_time_total == pytest.approx(2 * events.self_cpu_time_total)


def test_sums_of_sums():
    sums = example().key_averages(group_by_input_shape=True)
    assert len(sums) == 5
    assert [(event.key, event.count) for event in sums.key_averages()] == [
        ("aten::mm", 2), ("aten::empty", 1), ("[memory]", 1), ("aten::add", 1),
    ]  # fmt: skip
    assert [(event.key, event.count) for event in sums[:1].key_averages()] == [("aten::mm", 1)]


def test_an_event_of_sums_is_one_object_and_keeps_what_a_program_notes_on_it():
    sums = example().key_averages()
    assert sums[0] is sums[0]
    sums[0].key = "matmul"
    assert "matmul" in sums.table()
    event = example().events()[0]
    event.self_cpu_percent = "12 %"
    assert event.self_cpu_percent == "12 %"


def test_what_a_program_sets_on_an_event_is_what_lists_and_tables_show():
    trace = example()
    events = trace.events()
    first, inside = events[0], events[1]
    first.name, first.note, inside.cpu_memory_usage = "matmul", "mine", 4096
    first.input_shapes.append("kept")
    again = trace.events()
    assert again[0] is events[0] is first is inside.cpu_parent
    assert (again[0].name, again[0].key, again[0].note) == ("matmul", "matmul", "mine")
    assert first.input_shapes[-1] == "kept"
    assert keys(again) == ["matmul", *ALL[1:]]
    assert "matmul" in again.table()
    assert again.values("cpu_memory_usage").tolist()[1] == 4096
    for sums in (trace.key_averages(), again.key_averages()):
        assert {event.key: event.count for event in sums} == dict.fromkeys(["matmul", *ALL[1:]], 1)
    other = pickle.loads(pickle.dumps(first))
    assert (other.name, other.note, other.input_shapes, len(other.cpu_children)) == (
        "matmul", "mine", first.input_shapes, 1,
    )  # fmt: skip
    # The trace itself is as it was.
    assert trace.table("ops").column("name").to_pylist()[0] == "aten::mm"


def test_vars_has_every_attribute_that_torchs_events_store():
    trace = example()
    event, sums = trace.events()[0], trace.key_averages()[0]
    assert [getattr(event, name) for name in vars(event)] == list(vars(event).values())
    assert {"name", "time_range", "cpu_children", "input_shapes", "stack"} <= set(vars(event))
    assert {"device_type", "scope", "is_async", "cpu_parent", "node_id"} <= set(vars(sums))
    # Having looked at them changes nothing, and is not pickled.
    assert event.self_cpu_time_total == pytest.approx(0.08)
    assert pickle.loads(pickle.dumps(event)).own == {}
    assert vars(trace.events()[3])["name"] == "[memory]"


def test_without_torch_an_event_is_of_its_own_class_only():
    program = (
        "import sys; from kinetoscope.trace import Trace\n"
        "from kinetoscope.torch_events.event_list import events_of\n"
        "events = events_of(Trace.from_columns({}, strings=[''], info={}))\n"
        "print(events.__class__.__module__, isinstance(events, list), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "kinetoscope.torch_events.event_list False False\n"


@pytest.mark.parametrize("again", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
@pytest.mark.parametrize("view", ["events", "key_averages"])
def test_lists_can_be_copied_and_pickled(again, view):
    events = getattr(example(), view)()
    other = again(events)
    assert other.table() == events.table()
    assert [event.cpu_time_total for event in other] == [event.cpu_time_total for event in events]
    assert [bool(event.cpu_parent) for event in other] == [bool(event.cpu_parent) for event in events]
    assert other.trace.info == events.trace.info
    shown = again(EventList(events, profile_memory=False))
    assert "CPU Mem" not in shown.table()


def test_a_pickled_event_takes_its_trace_along_once():
    trace = example()
    event = trace.events()[1]
    event.note = "mine"
    other = pickle.loads(pickle.dumps([event, event.cpu_parent, trace.events()[3], trace]))
    assert other[0].cpu_parent == other[1]
    assert other[0].note == "mine"
    assert other[2].cpu_memory_usage == 8
    assert other[0].trace is other[3]
    assert other[3].column("spans", "self_ns").tolist() == trace.column("spans", "self_ns").tolist()
    assert copy.copy(trace) is copy.deepcopy(trace) is trace
    assert copy.copy(trace.events()) == trace.events()


SUMS = (
    "key", "count", "cpu_time_total", "self_cpu_time_total", "cpu_memory_usage", "self_cpu_memory_usage", "input_shapes",
    "overload_name", "stack", "flops", "is_user_annotation",
)  # fmt: skip


@given(
    traces(),
    st.slices(14),
    st.fixed_dictionaries(
        {
            "group_by_input_shapes": st.booleans(),
            "group_by_stack_n": st.integers(0, 3),
            "group_by_overload_name": st.booleans(),
        }
    ),
)
def test_any_part_is_added_up_as_one_by_one(trace, part, grouping):
    for events in (trace.events(), trace.events()[part]):
        columns = events.key_averages(**grouping)
        by_hand = EventList(list(events)).key_averages(**grouping)
        assert len(columns) == len(by_hand)
        for one, other in zip(columns, by_hand, strict=True):
            for name in SUMS:
                assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-9), (name, one, other)
        # Floating-point sums may round the last digit the other way.
        assert re.sub(r"[\d.]+", "#", columns.table()) == re.sub(r"[\d.]+", "#", by_hand.table())


@given(traces())
def test_a_list_shows_its_events_however_it_was_made(trace):
    events = trace.events()
    listed = EventList(list(events))
    assert listed == events
    assert listed.table(row_limit=-1) == events.table(row_limit=-1)
    for key in ("cpu_time", "count", "self_cpu_memory_usage", "key"):
        assert listed.sorted_by(key) == events.sorted_by(key)
    assert repr(listed.total_average()) == repr(events.total_average())
