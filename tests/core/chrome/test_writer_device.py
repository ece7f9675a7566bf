"""The output of ChromeWriter for devices, calls, counters and arguments of the source file."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chrome_columns import CALL, COPY, KERNEL, MODULE, OPERATOR, RANGE, columns, events


def test_a_kernel_with_everything():
    facts = {
        "span": 1, "grid_x": 56, "grid_y": 2, "grid_z": 1, "block_x": 384, "block_y": 1, "block_z": 1, "registers": 168,
        "shared_bytes": 2**40, "blocks_per_sm": 0.848485, "warps_per_sm": 10.181818, "occupancy_percent": 19.0,
        "context": 1, "graph": 12, "graph_node": 2**62,
    }  # fmt: skip
    spans = [{"stream": 0}, {"stream": 0, "correlation": 5, "external_id": 6, "arguments": 0}]
    bare, kernel = events(spans, kernels=columns([facts], KERNEL), tables={"arguments": ['{"queued": 0}']})
    assert (kernel["cat"], kernel["pid"]) == ("kernel", 9)
    assert kernel["args"] == {
        "External id": 6, "device": 3, "stream": 7, "correlation": 5, "context": 1, "registers per thread": 168,
        "shared memory": 2**40, "blocks per SM": 0.848485, "warps per SM": 10.181818, "grid": [56, 2, 1],
        "block": [384, 1, 1], "est. achieved occupancy %": 19, "graph id": 12, "graph node id": 2**62, "queued": 0,
    }  # fmt: skip
    assert bare["args"] == {"device": 3, "stream": 7}


def test_a_copy_says_how_fast_it_was():
    spans = [{"stream": 0, "duration_ns": 2_000}, {"stream": 0}, {"stream": 0, "duration_ns": 1}]
    facts = [{"span": 0, "bytes": 3_000, "context": 1}, {"span": 1, "bytes": 5}, {"span": 2, "graph": 4}]
    written = events(spans, copies=columns(facts, COPY))
    place = {"device": 3, "stream": 7}
    assert [event["args"] for event in written] == [
        place | {"context": 1, "bytes": 3_000, "memory bandwidth (GB/s)": 1.5},
        place | {"bytes": 5},
        place | {"graph id": 4},
    ]


def test_facts_that_are_no_numbers_of_json_are_left_out():
    facts = [{"span": 0, "blocks_per_sm": np.nan, "warps_per_sm": np.inf, "occupancy_percent": 1e300}]
    (event,) = events([{"stream": 0}], kernels=columns(facts, KERNEL))
    assert event["args"] == {"device": 3, "stream": 7, "est. achieved occupancy %": 1e300}


def test_facts_of_spans_on_the_host_are_left_out():
    (event,) = events([{"external_id": -1}], copies=columns([{"span": 0, "bytes": 5}], COPY))
    assert event["args"] == {}


def test_where_the_source_numbers_streams_itself_only_its_number_counts():
    tables = {"stream_number": np.array([-(2**63)], np.int64), "arguments": ['{"stream": 4294967295}']}
    own, none = events([{"stream": 0, "arguments": 0}, {"stream": 0}], tables=tables)
    assert (own["args"], none["args"]) == ({"device": 3, "stream": 2**32 - 1}, {"device": 3})


def test_a_range_on_a_device_has_no_stream():
    (event,) = events([{"stream": 0, "kind": RANGE}])
    assert (event["cat"], event["args"]) == ("gpu_user_annotation", {})


def test_the_sources_category_counts():
    written = events([{"stream": 0, "category": 6}, {"category": 6}, {"category": 0}, {"category": 99}])
    assert [event["cat"] for event in written] == ["mtia_ccp_events", "mtia_ccp_events", "cpu_op", ""]


def test_calls_know_the_call_around_them():
    spans = [
        {"kind": CALL, "duration_ns": 100},
        {"kind": MODULE, "start_ns": 10, "duration_ns": 50, "module": 1},
        {"kind": OPERATOR, "start_ns": 11, "duration_ns": 2},
        {"kind": CALL, "start_ns": 60, "duration_ns": 40},
        {"kind": CALL, "start_ns": 70, "duration_ns": 90, "lane": 1},
        {"kind": CALL, "start_ns": 80, "duration_ns": 1},
        {"kind": CALL, "start_ns": 5, "thread": 1},
    ]
    tables = {"module_number": np.array([-1, 4], np.int64)}
    calls = [event["args"] for event in events(spans, tables=tables) if event["cat"] == "python_function"]
    assert [(call["Python id"], call["Python parent id"]) for call in calls] == [
        (1, None), (2, 1), (4, 1), (5, 4), (6, 4), (7, None),
    ]  # fmt: skip
    assert calls[1]["Python module id"] == 4
    assert not any("External id" in call for call in calls)


def test_calls_have_the_numbers_that_they_are_given():
    spans = [
        {"kind": CALL, "duration_ns": 100, "call_number": 7},
        {"kind": CALL, "start_ns": 10, "duration_ns": 50, "call_number": 9},
    ]
    assert [event["args"] for event in events(spans)] == [
        {"Python parent id": None, "Python id": 7},
        {"Python parent id": 7, "Python id": 9},
    ]


def test_modules_without_a_number_have_none():
    spans = [{"kind": MODULE, "module": module} for module in (0, 1)]
    for tables in ({}, {"module_number": np.array([-1, -1], np.int64)}):
        assert not any("Python module id" in event["args"] for event in events(spans, tables=tables))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "b": {"c": [1, "}"]}, "d\\u0065": "x"}', {"a": 1, "b": {"c": [1, "}"]}, "de": "x"}),
        ('{"correlation": 1, "stream": "s", "b": 2}', {"stream": "s", "b": 2}),
        ('{"corr\\u0065lation": 1, "b": 2}', {"b": 2}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"": 1, "{": [], "\\"": {}}', {"": 1, "{": [], '"': {}}),
        ("{}", {}),
        ("[1]", {}),
        ('{"a": NaN}', {}),
        ("", {}),
    ],
)  # fmt: skip
def test_arguments_of_the_source_stand_beside_the_columns(text, expected):
    (event,) = events([{"arguments": 0, "correlation": 5}], tables={"arguments": [text]})
    assert event["args"] == {"External id": 1, "correlation": 5} | expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.text(max_size=8) | st.sampled_from(["stream", "bytes", "External id"]), json_values, max_size=5
    ),
    st.booleans(),
)
def test_any_arguments_survive(arguments, spaced):
    text = json.dumps(arguments, indent=1 if spaced else None, ensure_ascii=spaced)
    (event,) = events([{"arguments": 0, "external_id": 7}], tables={"arguments": [text]})
    assert event["args"] == arguments | {"External id": 7}


def test_samples_of_counters():
    samples = {
        "time_ns": np.array([1_500, 2_000, 3_000, 4_000], np.int64),
        "counter": np.array([0, 1, 0, 9], np.int32),
        "value": np.array([0.25, 1e20, np.nan, 1.0]),
    }
    of = {"counter_name": ['a "b"', "c: d"], "counter_pid": np.array([7, 8], np.int64)}
    written = events([], counters=samples, base_ns=1, tables=of)
    assert written == [
        {"ph": "C", "name": 'a "b"', "args": {"value": 0.25}, "pid": 7, "tid": 0, "ts": 1.501},
        {"ph": "C", "name": "c: d", "args": {"value": 1e20}, "pid": 8, "tid": 0, "ts": 2.001},
    ]
