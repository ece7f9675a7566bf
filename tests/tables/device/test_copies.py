import json

import pytest

from kinetoscope._errors import ArgumentError
from kinetoscope.tables.device.copies import Direction, direction_of
from tests.support.trace_builder import TraceBuilder


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy HtoD (Pageable -> Device)", Direction("HtoD", "pageable", "device")),
        ("Memcpy DtoH (Device -> Pinned)", Direction("DtoH", "device", "pinned")),
        ("Memcpy DtoD (Device -> Device)", Direction("DtoD", "device", "device")),
        ("Memcpy PtoP (Device -> Device)", Direction("PtoP", "device", "device")),
        ("Memcpy HtoD (Host -> Device)", Direction("HtoD", "host", "device")),
        ("Memcpy HtoA (Pinned -> Array)", Direction("HtoD", "pinned", "array")),
        ("Memcpy M2D(Memory->Device)", Direction("HtoD", "memory", "device")),
        ("CopyDeviceToHost", Direction("DtoH")),
        ("copy (Managed -> Device)", Direction("HtoD", "managed", "device")),
        ("something else", Direction()),
        ("", Direction()),
    ],
)  # fmt: skip
def test_names_say_from_where_to_where(name, direction):
    assert direction_of(name, "", fills=False) == direction


@pytest.mark.parametrize(
    ("arguments", "direction"),
    [
        ({"kind": "DtoH"}, "DtoH"), ({"kind": "hipMemcpyHostToDevice"}, "HtoD"), ({"direction": "DEVICE_TO_HOST"}, "DtoH"),
        ({"kind": 3}, ""), ([], ""), ({}, ""),
    ],
)  # fmt: skip
def test_other_sources_say_it_in_their_arguments(arguments, direction):
    assert direction_of("copy", json.dumps(arguments), fills=False).name == direction


def test_arguments_that_are_no_json_say_nothing():
    assert direction_of("copy", "{", fills=False) == Direction()


def test_a_filling_only_has_a_target():
    assert direction_of("Memset (Device)", "", fills=True) == Direction(target="device")
    assert direction_of("FillBuffer", '{"kind": "Device"}', fills=True) == Direction(target="device")


def copied(builder):
    return builder.build().table("copies").to_pylist()


def test_a_copy_says_what_moved_where_how_fast_and_who_asked():
    builder = TraceBuilder()
    model = builder.module("GPT")
    builder.thread()
    stream = builder.stream(20, device=1)
    builder.step(2, 0, 500).span("aten::copy_", 10, 90, module=model)
    builder.runtime("cudaMemcpyAsync", 20, 8, correlation=5)
    builder.copy("Memcpy HtoD (Pinned -> Device)", 50, 40, stream=stream, size_bytes=1000, correlation=5)
    assert copied(builder) == [
        {
            "span": 3, "name": "Memcpy HtoD (Pinned -> Device)", "kind": "memcpy", "direction": "HtoD", "source": "pinned",
            "target": "device", "bytes": 1000, "start_ns": 50, "duration_ns": 40, "gb_per_s": 25.0, "device_index": 1,
            "stream": 20, "call": "cudaMemcpyAsync", "call_ns": 8, "is_async": True, "blocked": False,
            "operator": "aten::copy_", "module": "GPT", "step": 2,
        }
    ]  # fmt: skip


def test_what_is_not_known_is_null():
    (row,) = copied(TraceBuilder().span("aten::mm", 0, 5).copy("Memset (Device)", 50, 0))
    unknown = (
        "bytes",
        "gb_per_s",
        "direction",
        "source",
        "call",
        "call_ns",
        "is_async",
        "blocked",
        "operator",
        "module",
    )
    assert {row[name] for name in unknown} == {None}
    assert (row["kind"], row["target"]) == ("memset", "device")


def asked(call, duration):
    """A copy from 50 to 90 that a call from 20 on asked for."""
    builder = TraceBuilder().span("aten::copy_", 10, 200).runtime(call, 20, duration, correlation=5)
    return builder.copy("Memcpy DtoH (Device -> Pageable)", 50, 40, correlation=5)


def test_a_call_that_returns_when_the_copy_is_done_blocks():
    assert copied(asked("cudaMemcpyAsync", 70))[0]["blocked"] is True
    assert copied(asked("cudaMemcpyAsync", 69))[0]["blocked"] is False
    (row,) = copied(asked("cudaMemcpy", 75))
    assert (row["is_async"], row["blocked"]) == (False, True)


def test_an_operator_that_waits_after_the_call_blocks():
    builder = asked("cudaMemcpyAsync", 8).runtime("cudaStreamSynchronize", 30, 65)
    assert copied(builder)[0]["blocked"] is True


def test_waits_before_the_call_or_of_others_do_not_block():
    assert copied(asked("cudaMemcpyAsync", 8).runtime("cudaStreamSynchronize", 12, 5))[0]["blocked"] is False
    elsewhere = asked("cudaMemcpyAsync", 8).runtime("cudaStreamSynchronize", 215, 5)
    assert copied(elsewhere)[0]["blocked"] is False
    in_a_range = TraceBuilder().annotation("epoch", 0, 900).runtime("cudaMemcpyAsync", 20, 8, correlation=5)
    in_a_range.copy("Memcpy HtoD", 50, 40, correlation=5).runtime("cudaDeviceSynchronize", 800, 50)
    assert copied(in_a_range)[0]["blocked"] is False


def test_a_trace_without_a_device_has_no_copies():
    assert copied(TraceBuilder().span("aten::copy_", 0, 5)) == []


def test_copies_are_added_up_by_direction_and_by_operator():
    builder = TraceBuilder()
    for number, operator in enumerate(("aten::copy_", "aten::to", "aten::to")):
        builder.span(operator, 100 * number, 90).runtime(
            "cudaMemcpyAsync", 100 * number + 5, 5, correlation=number + 1
        )
        builder.copy("Memcpy HtoD (Pinned -> Device)", 100 * number + 20, 10 + number, correlation=number + 1)
    trace = builder.build()
    (row,) = trace.table("copies", by="direction").to_pylist()
    assert (row["direction"], row["source"], row["operator"]) == ("HtoD", "pinned", None)
    assert (row["count"], row["total_ns"], row["max_ns"]) == (3, 33, 12)
    found = trace.table("copies", by="operator").to_pylist()
    assert [(row["operator"], row["count"], row["total_ns"]) for row in found] == [
        ("aten::to", 2, 23),
        ("aten::copy_", 1, 10),
    ]
    with pytest.raises(ArgumentError, match="by='stream' is not valid: use one of copy, direction, operator"):
        trace.table("copies", by="stream")
