"""The native reader of Chrome traces: kinds of events, and variants of JSON."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core
from tests.support.chrome_text import (
    ANNOTATION,
    ASYNC,
    INSTANT,
    KERNEL,
    MODULE,
    UNFINISHED,
    lost,
    names,
    plain,
    read,
    read_text,
    x,
)


def test_complete_events_become_spans_in_order_with_exact_times():
    parts = read(
        x("inner", 1419116104994.671, 1.001), x("outer", 1419116104994.67, 2.5), x("late", 1419116105000, 0)
    )
    spans = parts["spans"]
    assert names(parts) == ["outer", "inner", "late"]
    assert parts["base_ns"] == 1419116104994670
    assert spans["start_ns"].tolist() == [0, 1, 5330]
    assert spans["duration_ns"].tolist() == [2500, 1001, 0]
    assert lost(parts) == {}


def test_of_equal_spans_the_outer_kind_comes_first():
    parts = read(
        x("call", 10, 5, "cuda_runtime"),
        x("op", 10, 5),
        x("python", 10, 5, "python_function"),
        x("longer", 10, 6),
    )
    assert names(parts) == ["longer", "python", "op", "call"]


def test_threads_are_told_by_process_number_and_device_and_hosts_come_first():
    parts = read(
        x("k", 5, 1, "kernel", 1, 1, stream=1, device=1),
        x("b", 1, 1, pid=7, tid=9),
        x("a", 2, 1, pid=7, tid="8"),
        x("c", 3, 1, pid="Spans", tid="stream 12"),
    )
    threads = plain(parts["threads"])
    assert threads["process"] == [-1, 7, 7, 1]
    assert threads["number"] == [12, 8, 9, 1]
    assert threads["process_text"] == ["Spans", "", "", ""]
    assert threads["number_text"] == ["stream 12", "", "", ""]
    assert threads["on_device"] == [0, 0, 0, 1]
    assert names(parts) == ["c", "a", "b", "k"]


def test_facts_of_operators_go_to_columns():
    parts = read(
        x(
            "aten::mm", 0, 1,
            **{
                "External id": 7, "Record function id": 0, "Sequence number": 12, "Fwd thread id": 1, "Ev Idx": 3,
                "Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "1"],
                "Input Strides": [[3, 1], []],
            },
        ),
        x("aten::t", 2, 1, **{"External id": 8, "Record function id": 5}),
    )  # fmt: skip
    spans = plain(parts["spans"])
    assert spans["external_id"] == [7, 8]
    assert spans["record_function"] == [0, 5]
    assert spans["event_index"] == [3, -1]
    assert spans["sequence"] == [12, -1]
    assert spans["forward_number"] == [1, -1]
    assert spans["shapes"] == [0, -1]
    assert parts["shapes"] == {
        "dims": ["[[2,3],[]]"], "types": ['["float","Scalar"]'], "concrete": ['["","1"]'], "strides": ["[[3,1],[]]"],
    }  # fmt: skip
    assert "arguments" not in spans


def test_a_kernel_has_its_launch_configuration():
    parts = read(
        x("call", 0, 1, "cuda_runtime", correlation=5, cbid=211),
        x(
            "k", 5, 2, "kernel", 0, 7,
            **{
                "External id": 7, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": 5, "graph id": 3,
                "graph node id": 4, "registers per thread": 90, "shared memory": 49152, "blocks per SM": 0.5,
                "warps per SM": 2.25, "grid": [64, 1, 1], "block": [128, 2, 1], "est. achieved occupancy %": 4,
            },
        ),
        x("m", 8, 2, "gpu_memcpy", 0, 7, bytes=50, device=0, stream=7, **{"memory bandwidth (GB/s)": 0.03}),
    )  # fmt: skip
    assert plain(parts["kernels"]) == {
        "span": [1], "grid_x": [64], "grid_y": [1], "grid_z": [1], "block_x": [128], "block_y": [2], "block_z": [1],
        "registers": [90], "shared_bytes": [49152], "blocks_per_sm": [0.5], "warps_per_sm": [2.25],
        "occupancy_percent": [4.0], "context": [1], "graph": [3], "graph_node": [4],
    }  # fmt: skip
    assert plain(parts["copies"]) == {"span": [2], "bytes": [50]}
    spans = plain(parts["spans"])
    assert spans["correlation"] == [5, 5, -1]
    threads = plain(parts["threads"])
    assert threads["device_index"] == [-1, 0]
    assert threads["first_row"] == [0, 1, 3]
    assert [parts["categories"][row] for row in threads["first_category"]] == ["cuda_runtime", "kernel"]
    assert parts["arguments"]["json"] == ['{"cbid":211}']
    assert spans["arguments"] == [0, -1, -1]


def test_an_unknown_category_with_a_stream_is_device_work():
    parts = read(x("dma", 0, 1, "npu_task", 0, 3, stream=3), x("mark", 0, 1, "whatever"))
    assert plain(parts["spans"])["kind"] == [ANNOTATION, KERNEL]
    assert [parts["categories"][row] for row in parts["spans"]["category"].tolist()] == [
        "whatever",
        "npu_task",
    ]


def test_what_no_column_takes_stays_as_json_each_text_once():
    extra = {"Collective name": "allreduce", "nested": {"a": [1, "x y", None]}, "device": "cuda:0"}
    parts = read(x("a", 0, 1, **extra), x("b", 1, 1, **extra), x("c", 2, 1, correlation="none"))
    assert [json.loads(text) for text in parts["arguments"]["json"]] == [extra, {"correlation": "none"}]
    assert plain(parts["spans"])["arguments"] == [0, 0, 1]


def test_python_calls_become_stacks_and_modules():
    parts = read(
        x("train.py(3): <module>", 0, 100, "python_function"),
        x("nn.Module: Linear_0", 10, 50, "python_function", **{"Python module id": 0}),
        x("model.py(7): forward", 11, 40, "python_function"),
        x("aten::linear", 12, 5),
        x("aten::add", 90, 5),
        x("aten::elsewhere", 12, 5, tid=2),
    )
    spans, strings = plain(parts["spans"]), parts["strings"]
    assert plain(parts["stacks"])["parent"] == [-1, 0]
    assert [strings[name] for name in plain(parts["stacks"])["name"]] == [
        "train.py(3): <module>",
        "model.py(7): forward",
    ]
    assert dict(zip(names(parts), spans["own_stack"], strict=True)) == {
        "train.py(3): <module>": 0, "nn.Module: Linear_0": 0, "model.py(7): forward": 1, "aten::linear": 1,
        "aten::add": 0, "aten::elsewhere": -1,
    }  # fmt: skip
    assert dict(zip(names(parts), spans["own_module"], strict=True))["aten::linear"] == 0
    assert plain(parts["modules"])["caller"] == [-1]
    assert spans["kind"].count(MODULE) == 1


def test_memory_events_become_allocations():
    def memory(ts: float, size: int, **args: Any) -> dict[str, Any]:
        return {
            "ph": "i",
            "s": "t",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "args": {"Bytes": size, **args},
        }

    address = {
        "Addr": 2**63 + 5,
        "Device Type": 1,
        "Device Id": 0,
        "Total Allocated": 8,
        "Total Reserved": 64,
    }
    parts = read(memory(5, -8, **address), memory(2, 8, **address), memory(9, 4))
    assert plain(parts["allocations"]) == {
        "time_ns": [0, 3000, 7000], "thread": [0, 0, 0], "address": [2**63 + 5, 2**63 + 5, 0], "bytes": [8, 0, 4],
        "freed_bytes": [0, 8, 0], "device_type": [1, 1, 0], "device_index": [0, 0, -1],
        "allocated_bytes": [8, 8, -1], "reserved_bytes": [64, 64, -1],
    }  # fmt: skip


def test_begin_and_end_asynchronous_and_instant_events():
    base = {"pid": 1, "tid": 1}
    parts = read(
        {"ph": "B", "name": "outer", "ts": 0, **base},
        {"ph": "B", "name": "inner", "ts": 1, **base},
        {"ph": "E", "ts": 3, **base},
        {"ph": "E", "ts": 9, **base},
        {"ph": "E", "ts": 10, **base},
        {"ph": "b", "cat": "request", "id": "0x1", "name": "r", "ts": 2, **base},
        {"ph": "b", "cat": "request", "id": "0x2", "name": "s", "ts": 3, **base},
        {"ph": "e", "cat": "request", "id": "0x1", "name": "r", "ts": 8, **base},
        {"ph": "i", "name": "mark", "ts": 4, "s": "t", **base},
    )
    spans = plain(parts["spans"])
    found = dict(
        zip(
            names(parts),
            zip(spans["start_ns"], spans["duration_ns"], spans["flags"], strict=True),
            strict=True,
        )
    )
    assert found == {
        "outer": (0, 9000, 0), "inner": (1000, 2000, 0), "r": (2000, 6000, ASYNC),
        "s": (3000, 7000, ASYNC | UNFINISHED), "mark": (4000, 0, INSTANT),
    }  # fmt: skip
    assert lost(parts) == {"unmatched_ends": 1, "unfinished_begins": 1}


def ended(parts: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """The spans as name, start, duration and flags."""
    spans = plain(parts["spans"])
    return list(zip(names(parts), spans["start_ns"], spans["duration_ns"], spans["flags"], strict=True))


def begin(name: str, ts: float, **more: Any) -> dict[str, Any]:
    """The begin of a span on the only thread."""
    return {"ph": "B", "name": name, "ts": ts, "pid": 1, "tid": 1} | more


def end(ts: float, **more: Any) -> dict[str, Any]:
    """The end of a span on the only thread."""
    return {"ph": "E", "ts": ts, "pid": 1, "tid": 1} | more


def test_begins_and_ends_match_in_the_order_of_time_however_the_file_has_them():
    events = [
        begin("outer", 0), begin("inner", 1), end(3, name="inner"), end(9, name="outer"), begin("next", 10),
        end(12, name="next"),
    ]  # fmt: skip
    for order in itertools.permutations(events):
        parts = read(*order)
        assert ended(parts) == [("outer", 0, 9000, 0), ("inner", 1000, 2000, 0), ("next", 10000, 2000, 0)]
        assert lost(parts) == {}


def test_all_begins_may_stand_before_all_ends():
    parts = read(begin("a", 0), begin("b", 50), end(10), end(60))
    assert ended(parts) == [("a", 0, 10_000, 0), ("b", 50_000, 10_000, 0)]
    assert lost(parts) == {}
    backwards = read(end(12), begin("next", 10), end(9), end(3), begin("inner", 1), begin("outer", 0))
    assert ended(backwards) == [("outer", 0, 9000, 0), ("inner", 1000, 2000, 0), ("next", 10000, 2000, 0)]
    # Without names, a pair that stands alone in the file belongs together.
    alone = read(begin("a", 0), end(5), begin("b", 3), end(8))
    assert ended(alone) == [("a", 0, 5000, 0), ("b", 3000, 5000, 0)]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=40), st.randoms(use_true_random=False))
def test_shuffled_begins_and_ends_are_what_they_are_in_order(steps: list[tuple[bool, int]], random: Any):
    events, open_names, now = [], [], 0
    for deeper, pause in steps:
        now += pause
        if deeper or not open_names:
            open_names.append(f"s{now}")
            events.append(begin(open_names[-1], now))
        else:
            events.append(end(now, name=open_names.pop()))
    expected = read(*events)
    random.shuffle(events)
    found = read(*events)
    assert ended(found) == ended(expected)
    assert lost(found) == lost(expected)


def test_what_ended_in_order_ends_there_too_when_later_events_show_that_the_file_has_none():
    # Enough that most of them are packed when the last event shows it.
    pairs = [
        event
        for at in range(0, 4000, 4)
        for event in (
            begin(f"a{at % 3}", at),
            begin("b", at + 1),
            end(at + 2) if at % 8 else end(at + 2, name="b"),
            end(at + 3),
        )
    ]
    before = [begin("first", -9), end(-5, name="first")]
    found, expected = read(*pairs, *before), read(*before, *pairs)
    assert ended(found) == ended(expected)
    assert ended(found)[:3] == [("first", 0, 4000, 0), ("a0", 9000, 3000, 0), ("b", 10_000, 1000, 0)]
    assert len(ended(found)) == 2001
    assert lost(found) == lost(expected) == {}


def test_spans_that_follow_each_other_do_not_overlap_in_a_file_without_order():
    first, first_end, second = begin("f", 0), end(5, name="f"), begin("f", 5)
    rest = [end(9, name="f"), begin("g", 9), end(9, name="g")]
    expected = [("f", 0, 5000, 0), ("f", 5000, 4000, 0), ("g", 9000, 0, 0)]
    for order in itertools.permutations([first, second, *rest]):
        # The first end stands before what it ends, which shows that the file has no order.
        parts = read(first_end, *order)
        assert ended(parts) == expected
        assert lost(parts) == {}


def test_an_end_with_a_name_ends_the_span_of_that_name():
    parts = read(begin("a", 0), begin("b", 5), end(8, name="a"), end(20, name="b"))
    assert ended(parts) == [("a", 0, 8000, 0), ("b", 5000, 15_000, 0)]
    never_ended = read(begin("a", 0), begin("lost", 5), end(8, name="a"))
    assert ended(never_ended) == [("a", 0, 8000, 0), ("lost", 5000, 3000, UNFINISHED)]
    unknown = read(begin("a", 0), end(8, name="other"))
    assert ended(unknown) == [("a", 0, 8000, UNFINISHED)]
    assert lost(unknown) == {"unmatched_ends": 1, "unfinished_begins": 1}


def test_asynchronous_spans_of_one_operation_end_by_name_and_in_the_order_of_time():
    def event(phase: str, name: str, ts: float, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "name": name, "ts": ts, "cat": "c", "id": 1, "pid": 1, "tid": 1} | more

    overlapping = read(event("b", "a", 0), event("b", "b", 5), event("e", "a", 8), event("e", "b", 20))
    assert ended(overlapping) == [("a", 0, 8000, ASYNC), ("b", 5000, 15_000, ASYNC)]
    reversed_file = read(
        event("e", "a", 8), event("e", "z", 5, id=2), event("b", "a", 0), event("b", "z", 1, id=2)
    )
    assert ended(reversed_file) == [("a", 0, 8000, ASYNC), ("z", 1000, 4000, ASYNC)]
    assert lost(reversed_file) == {}


def test_device_work_may_begin_and_end_in_two_events():
    kernel = {"cat": "kernel", "pid": 0, "tid": 7}
    parts = read(begin("k", 2, **kernel), end(5, **kernel), x("op", 0, 1))
    assert ended(parts) == [("op", 0, 1000, 0), ("k", 2000, 3000, 0)]
    assert plain(parts["threads"])["on_device"] == [0, 1]
    assert lost(parts) == {}


def test_threads_and_processes_with_numbers_beyond_64_bits_stay_apart():
    most = 2**64 - 1
    parts = read(
        x("a", 0, 1, pid=most, tid=most), x("b", 0, 1, pid=most, tid=most - 1), x("c", 0, 1, pid=1.5, tid=1)
    )
    assert len(parts["threads"]["process"]) == 3
    assert set(parts["threads"]["process_text"]) == {str(most), "1.5"}


def test_names_of_threads_that_are_texts_with_a_number_are_found():
    label = {"ph": "M", "name": "thread_name", "args": {"name": "main"}}
    for pid, tid in (("Device 0", "stream 7"), (2**64 - 1, 2**63), (1, "five")):
        parts = read(x("a", 0, 1, pid=pid, tid=tid), label | {"pid": pid, "tid": tid})
        (_, process, thread, _, process_text, thread_text), threads = (
            parts["metadata"][0],
            plain(parts["threads"]),
        )
        assert (process, thread) == (threads["process"][0], threads["number"][0])
        assert (process_text, thread_text) == (threads["process_text"][0], threads["number_text"][0])


def test_one_empty_object_behind_the_last_event_is_no_loss():
    assert lost(read(x("a", 0, 1), {})) == {}
    assert lost(read(x("a", 0, 1), {}, {}, {})) == {"bad_events": 2}


def test_arrows_are_kept_unless_correlations_say_them():
    call = x("call", 0, 1, "cuda_runtime", correlation=5)
    arrow = {"pid": 1, "tid": 1, "ts": 0, "cat": "ac2g", "name": "ac2g"}
    forward = {"pid": 1, "tid": 1, "cat": "fwdbwd", "name": "fwdbwd", "id": 9}
    parts = read(
        call,
        {"ph": "s", "id": 5, **arrow},
        {"ph": "s", "ts": 2, **forward},
        {"ph": "f", "bp": "e", "ts": 4, **forward},
    )
    assert parts["flows_implied"] == 1
    flows = plain(parts["flows"])
    assert (flows["phase"], flows["id"], flows["time_ns"]) == ([0, 2], [9, 9], [2000, 4000])
    assert [parts["strings"][row] for row in flows["category"]] == ["fwdbwd", "fwdbwd"]


def test_an_arrow_into_a_device_ends_on_its_track():
    parts = read(
        x("call", 0, 1, "cuda_runtime", correlation=8),
        x("k", 5, 1, "kernel", 9, 408, stream=408),
        {"ph": "f", "id": 8, "pid": 9, "tid": 408, "ts": 5, "cat": "ac2g", "name": "ac2g"},
    )
    assert plain(parts["flows"])["thread"] == [plain(parts["threads"])["on_device"].index(1)]


def arguments_by_span(parts: dict[str, Any]) -> list[Any]:
    """The arguments of each span in the order of the spans, None without."""
    texts = [json.loads(text) for text in parts["arguments"]["json"]]
    return [texts[row] if row >= 0 else None for row in parts["spans"]["arguments"].tolist()]


def test_arguments_that_hardly_ever_repeat_belong_to_their_spans():
    # More than the reader looks at before it only keeps them. Some of the first repeat, then, and much later.
    wanted = [
        {"often": at % 7} if at % 10 == 0 else {"id": f"request {at}"} if at % 3 else None
        for at in range(160_000)
    ]
    wanted += wanted[:1000]
    parts = read(*(x("s", at, 1, **(args or {})) for at, args in enumerate(wanted)))
    assert arguments_by_span(parts) == wanted
    assert parts["rows"]["arguments"] == len(parts["arguments"]["json"])
    # Those that repeat often have one row each.
    assert [text for text in parts["arguments"]["json"] if "often" in text] == [
        f'{{"often":{at}}}' for at in (0, 3, 6, 2, 5, 1, 4)
    ]
    assert lost(parts) == {}


def test_arguments_that_repeat_have_one_row_however_many_there_are():
    wanted = [{"id": at} for at in range(90_000) for _ in range(2)]
    parts = read(*(x("s", at, 1, **args) for at, args in enumerate(wanted)))
    assert arguments_by_span(parts) == wanted
    assert len(parts["arguments"]["json"]) == 90_000


def test_arguments_that_repeat_after_very_many_others_do_not_get_a_row_each_time():
    # As in steps of a program that has as many different operators.
    wanted = [{"id": at} for at in range(100_000)]
    step = ",".join(json.dumps(x("s", at, 1, **args)) for at, args in enumerate(wanted))
    parts = read_text(f"[{','.join([step] * 5)}]".encode())
    # Of spans with the same time, those that come first in the file are first in the trace.
    assert arguments_by_span(parts) == [args for args in wanted for _ in range(5)]
    assert len(parts["arguments"]["json"]) < 200_000


def test_arguments_that_are_no_json_are_text_also_among_many():
    events = [x("s", at, 1, id=at) for at in range(70_000)]
    text = json.dumps({"traceEvents": events}).replace('"id": 66000}', '"id": 66000, "v": 0x1}')
    text = text.replace('"id": 3}', '"id": 3, "v": 0x1}')
    parts = read_text(text.encode())
    found = arguments_by_span(parts)
    assert [at for at, args in enumerate(found) if args != {"id": at}] == [3, 66_000]
    assert [found[at] for at in (3, 66_000)] == [
        {"unreadable": f'{{"id":{at},"v":0x1}}'} for at in (3, 66_000)
    ]
    assert lost(parts) == {"bad_arguments": 2}


def test_values_of_counters_are_what_the_text_says_to_the_last_bit():
    texts = ["0", "5", "-7", "0.1", "99.95", "1e300", "12345678.123456789", "9007199254740993", "1e-9", "-0.001"]  # fmt: skip
    texts *= 40
    events = ",".join(
        f'{{"ph":"C","name":"c","pid":1,"ts":{at},"args":{{"v":{text}}}}}' for at, text in enumerate(texts)
    )
    values = plain(read_text(f"[{events}]".encode())["counters"]["value"])
    assert [value.hex() for value in values] == [float(text).hex() for text in texts]


def test_counters_have_one_row_for_each_series():
    event = {"ph": "C", "pid": 1, "ts": 1}
    parts = read(
        {**event, "name": "power", "args": {"W": 3.5}}, {**event, "name": "mem", "args": {"a": 1, "b": 2}}
    )
    counters = plain(parts["counters"])
    assert [parts["strings"][row] for row in counters["name"]] == ["power", "mem: a", "mem: b"]
    assert counters["value"] == [3.5, 1.0, 2.0]


def test_metadata_is_kept_once_and_the_header_as_it_stands():
    label = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "ts": 3, "args": {"name": "main"}}
    parts = read(
        label, {**label, "ts": 7}, {**label, "tid": "five"}, schemaVersion=1, distributedInfo={"rank": 3}
    )
    assert parts["metadata"] == [
        ("thread_name", 1, 5, '{"name":"main"}', "", ""),
        ("thread_name", 1, -1, '{"name":"main"}', "", "five"),
    ]
    assert parts["header"] == [("schemaVersion", "1"), ("distributedInfo", '{"rank":3}')]


def test_an_id_that_is_neither_number_nor_text_names_nothing():
    label = {"ph": "M", "name": "process_name", "pid": None, "tid": None, "args": {"name": "main"}}
    assert read(label)["metadata"] == [("process_name", -1, -1, '{"name":"main"}', "", "")]


def test_kinetos_own_window_is_no_span():
    parts = read(
        x("PyTorch Profiler (0)", 10, 90, "Trace", "Spans", "PyTorch Profiler"),
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 100},
        x("op", 20, 1),
    )
    assert names(parts) == ["op"]
    assert parts["windows"] == [("PyTorch Profiler (0)", 0, 90000, -1), ("Record Window End", 90000, 0, -1)]


def test_columns_can_be_made_later():
    memory = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 0, "args": {"Bytes": 8, "Addr": 5}}
    counter = {"ph": "C", "name": "c", "pid": 1, "args": {"v": 2}}
    flow = {"ph": "s", "name": "f", "cat": "f", "id": 9, "pid": 1, "tid": 0}
    events = json.dumps([
        x("b", 7, 1), x("a", 5, 1, tid=0, correlation=3, more=1), x("k2", 8, 1, "kernel", 0, 7, stream=7, grid=[2, 1, 1]),
        x("k1", 6, 1, "kernel", 0, 7, stream=7, grid=[1, 1, 1]), x("c", 7, 1, "gpu_memcpy", 0, 7, stream=7, bytes=4),
        memory | {"ts": 9}, memory | {"ts": 8, "tid": 1}, counter | {"ts": 7}, counter | {"ts": 5}, flow | {"ts": 7}, flow | {"ts": 6},
    ]).encode()  # fmt: skip
    tables = ("spans", "kernels", "copies", "allocations", "counters", "flows", "arguments")
    kinds = {"kernel": 6, "gpu_memcpy": 7}
    made = []
    for later in (True, False):
        reader = _core.ChromeReader(list(kinds), list(kinds.values()), [True, True], 0)
        reader.feed(events)
        parts = reader.finish(later=later)
        columns = {name: parts[name] for name in tables}
        if later:
            columns = {table: {name: make() for name, make in own.items()} for table, own in columns.items()}
        made.append(plain(columns))
        assert parts["rows"] == {table: len(next(iter(own.values()))) for table, own in made[-1].items()}
    assert made[0] == made[1]
    assert made[0]["spans"]["correlation"] == [3, -1, -1, -1, -1]
    assert (made[0]["kernels"]["span"], made[0]["kernels"]["grid_x"]) == ([2, 4], [1, 2])
    assert made[0]["copies"]["span"] == [3]
    assert made[0]["counters"]["time_ns"] == [0, 2000]
    assert parts["last_ns"] == 4000


@given(st.integers(1, 60), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_it_does_not_matter_how_the_text_is_cut_or_spaced(block: int, indent: Any, ascii_only: bool):
    events = [
        x('op "é" \\', 1.5, 2.25, **{"Input Dims": [[1, 2], []], "other": {"a b": "c, d"}}),
        x("k", 3, 1, "kernel", 0, 7, grid=[1, 2, 3], stream=7),
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
        {"ph": "C", "name": "c", "ts": 1, "pid": 1, "args": {"v": 1}},
    ]
    text = json.dumps(
        {"a": [1, {"b": "}"}], "traceEvents": events, "z": 1.5}, indent=indent, ensure_ascii=ascii_only
    )
    whole = read(*events, a=[1, {"b": "}"}])
    whole["header"].append(("z", "1.5"))
    cut = read_text(b"\xef\xbb\xbf" + text.encode() + b"\r\n", block=block)
    assert plain(cut) == plain(whole)


@pytest.mark.parametrize("name", ['a"b', '"', '["loss"]', 'a" b" ', '"pid', 'say "hi"'])
@pytest.mark.parametrize("block", [1 << 20, 1, 7])
def test_quotes_in_names_that_kineto_does_not_escape_are_kept(name, block):
    rows = (
        f'{{"ph": "X", "cat": "cpu_op", "name": "{text}", "pid": 1, "tid": 1,\n "ts": {ts}, "dur": 1}}'
        for ts, text in ((1, "before"), (3, name), (5, "after"))
    )
    text = f'{{"traceEvents": [{", ".join(rows)}]}}'
    parts = read_text(text.encode(), block=block)
    assert names(parts) == ["before", name, "after"]
    assert parts["spans"]["start_ns"].tolist() == [0, 2000, 4000]
    assert lost(parts) == {}


def test_a_name_whose_end_cannot_be_found_costs_its_own_event_only():
    bad = '{"ph": "X", "cat": "cpu_op", "name": "a"b", "tid": 1, "ts": 3, "dur": 1}'
    good = '{"ph": "X", "cat": "cpu_op", "name": "after", "pid": 1, "tid": 1, "ts": 5, "dur": 1}'
    parts = read_text(f'{{"traceEvents": [{bad}, {good}]}}'.encode())
    assert names(parts) == ["after"]
    assert lost(parts) == {"bad_events": 1}
