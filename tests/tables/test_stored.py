"""The tables people see."""

import pyarrow as pa
import pytest

from kinetoscope.model.dictionary import table_definition
from kinetoscope.trace import Trace
from kinetoscope.trace.tables import TABLES
from tests.support.trace_builder import TraceBuilder


def rows(trace, name, *columns):
    table = trace.table(name)
    return table.select(list(columns)).to_pylist() if columns else table.to_pylist()


def full():
    builder = TraceBuilder()
    main = builder.thread("main", os_tid=70)
    net = builder.module("Net")
    fc = builder.module("Linear", name="fc", parent=net)
    stack = builder.stack(("train.py", 3, "main"), ("net.py", 8, "Net.forward"))
    shapes = builder.shapes([[2, 3], []], ["float", "Scalar"], ["", "1"])
    builder.step(4, 0, 100, thread=main)
    builder.span("aten::add", 10, 30, overload="Tensor", module=fc, stack=stack, shapes=shapes, sequence=9)
    builder.span("aten::sleep", 60, 90, is_async=True, unfinished=True)
    builder.allocate(12, 0x40, 256, stack=stack)
    builder.free(35, 0x40)
    builder.free(36, 0x50)
    builder.allocate(300, 0x60, 8)
    return builder.know("distributedInfo", {"rank": 3}).build()


def test_spans_show_words_instead_of_ids():
    assert rows(full(), "spans")[1] == {
        "id": 1, "name": "aten::add", "overload": "Tensor", "kind": "operator", "start_ns": 10, "duration_ns": 30,
        "self_ns": 30, "depth": 1, "parent": 0, "caller": None, "lane": 0, "process": 4242, "thread": 0, "os_tid": 70, "thread_name": "main", "rank": 3,
        "step": 4, "cycle": 0, "phase": "forward", "recompute": False, "module": "fc", "module_class": "Linear",
        "stack": "train.py(3): main;net.py(8): Net.forward", "shapes": "[[2, 3], []]", "types": '["float", "Scalar"]',
        "inputs": '["", "1"]', "sequence": 9, "forward": None, "origin": None, "flops": 6, "bytes_moved": 48, "bytes": 0, "self_bytes": 0,
        "device_bytes": 0, "device_self_bytes": 0, "device_ns": 0, "device_self_ns": 0, "is_async": False,
        "unfinished": False, "category": None, "arguments": None, "stream": None, "correlation": None,
        "external_id": None,
    }  # fmt: skip


def test_what_is_not_known_is_null():
    first, _, last = rows(
        full(),
        "spans",
        "parent",
        "module",
        "stack",
        "shapes",
        "overload",
        "sequence",
        "is_async",
        "unfinished",
    )
    assert first == {
        "parent": None, "module": None, "stack": None, "shapes": None, "overload": None, "sequence": None,
        "is_async": False, "unfinished": False,
    }  # fmt: skip
    assert last["is_async"]
    assert last["unfinished"]
    assert rows(TraceBuilder().span("aten::add", 0, 1).build(), "spans", "bytes", "rank", "step") == [
        {"bytes": None, "rank": None, "step": None}
    ]


def test_memory_that_was_watched_and_quiet_is_zero():
    trace = TraceBuilder().span("aten::add", 0, 1).know("profile_memory", 1).build()
    assert rows(trace, "spans", "bytes") == [{"bytes": 0}]


def test_names_are_dictionary_encoded_without_unused_entries():
    table = full().table("spans")
    for name in ("name", "kind", "module", "stack", "thread_name"):
        assert pa.types.is_dictionary(table.schema.field(name).type), name
    assert table.column("name").chunk(0).dictionary.to_pylist() == [
        "ProfilerStep#4",
        "aten::add",
        "aten::sleep",
    ]


def test_the_meaning_of_a_column_travels_with_the_table():
    field = full().table("spans").schema.field("self_ns")
    assert field.metadata[b"unit"] == b"ns"
    assert b"minus that of the spans directly inside" in field.metadata[b"meaning"]


def test_allocations_show_sizes_lives_and_places():
    found = rows(
        full(), "allocations", "bytes", "lifetime_ns", "match", "operator", "module", "stack", "total_bytes"
    )
    assert [row["bytes"] for row in found] == [256, -256, 0, 8]
    assert [row["lifetime_ns"] for row in found] == [23, None, None, None]
    assert [row["match"] for row in found] == [1, 0, None, None]
    assert [row["operator"] for row in found] == ["aten::add", "aten::add", "aten::add", None]
    assert found[0]["module"] == "fc"
    assert found[0]["stack"] == "train.py(3): main;net.py(8): Net.forward"
    assert [row["total_bytes"] for row in found] == [256, 0, 0, 8]


def test_the_small_tables():
    trace = full()
    assert rows(trace, "threads", "id", "os_tid", "name") == [{"id": 0, "os_tid": 70, "name": "main"}]
    assert rows(trace, "frames")[1] == {"id": 1, "function": "Net.forward", "file": "net.py", "line": 8}
    assert rows(trace, "shapes", "dims") == [{"dims": "[[2, 3], []]"}]
    assert rows(trace, "strings")[0] == {"id": 0, "text": ""}
    known = {row["key"]: row["value"] for row in rows(trace, "info")}
    assert known["process"] == "4242"
    assert known["distributedInfo"] == '{"rank": 3}'
    assert rows(trace, "losses", "code", "what") == [{"code": "unfinished_spans", "what": "unfinished spans"}]
    for name in ("streams", "launches", "counters", "collectives"):
        assert rows(trace, name) == []


def test_counters_show_what_a_source_delivers():
    trace = Trace.from_columns(
        {
            "counters": {"time_ns": [5], "name": [1], "value": [0.5]},
        },
        strings=["", "power"],
    )
    assert rows(trace, "counters") == [
        {"time_ns": 5, "name": "power", "value": 0.5, "process": None, "rank": None}
    ]


def test_a_rank_that_is_no_number_is_no_rank():
    trace = TraceBuilder().span("aten::add", 0, 1).know("distributedInfo", ["odd"]).build()
    assert rows(trace, "spans", "rank") == [{"rank": None}]


def test_a_rank_no_column_can_hold_is_no_rank():
    trace = TraceBuilder().span("aten::add", 0, 1).know("distributedInfo", {"rank": 10**12}).build()
    assert rows(trace, "spans", "rank") == [{"rank": None}]


def test_threads_of_other_processes_and_ranks_say_so():
    trace = Trace.from_columns(
        {
            "threads": {"name": ["a", "b"], "process": [-1, 8], "rank": [-1, 5]},
            "spans": {"thread": [0, 1], "start_ns": [0, 0], "duration_ns": [1, 1]},
        },
        strings=[""],
        info={"process": 7, "distributedInfo": {"rank": 4}},
    )
    expected = [{"process": 7, "rank": 4}, {"process": 8, "rank": 5}]
    assert rows(trace, "spans", "process", "rank") == expected
    assert rows(trace, "threads", "process", "rank") == expected


def test_a_thread_is_a_row_of_threads_and_its_system_number_is_beside_it():
    builder = TraceBuilder()
    builder.thread("main", os_tid=70)
    builder.thread("worker", os_tid=71)
    builder.span("aten::add", 0, 10, thread=1)
    builder.allocate(2, 0x40, 256, thread=1)
    trace = builder.build()
    for table in ("spans", "allocations"):
        assert trace.column(table, "thread").tolist() == [1]
        assert rows(trace, table, "thread", "os_tid") == [{"thread": 1, "os_tid": 71}]
    assert rows(trace, "threads", "id", "os_tid")[1] == {"id": 1, "os_tid": 71}


@pytest.mark.parametrize("name", TABLES)
def test_numbers_of_threads_mean_the_same_in_every_table(name):
    meant = {"thread": ("int32", "row of threads"), "os_tid": ("int64", ""), "torch_tid": ("int64", "")}
    for column in table_definition(name).columns:
        if column.name in meant:
            assert (column.type, column.unit) == meant[column.name]


def test_what_a_source_says_of_a_span_is_shown():
    trace = Trace.from_columns(
        {
            "threads": {"name": [""]},
            "arguments": {"json": ['{"cbid":211}']},
            "spans": {"category": [1], "arguments": [0], "correlation": [3], "external_id": [4]},
        },
        strings=["", "cuda_runtime"],
    )
    assert rows(trace, "spans", "category", "arguments", "correlation", "external_id") == [
        {"category": "cuda_runtime", "arguments": '{"cbid":211}', "correlation": 3, "external_id": 4}
    ]


def test_a_free_of_a_block_from_before_shows_the_size_its_source_says():
    trace = Trace.from_columns(
        {
            "threads": {"name": [""]},
            "allocations": {
                "time_ns": [0, 1], "address": [5, 6], "bytes": [0, 0], "freed_bytes": [64, 0],
                "allocated_bytes": [100, -1], "reserved_bytes": [200, -1],
            }
        },
        strings=[""],
    )  # fmt: skip
    assert rows(trace, "allocations", "bytes", "allocated_bytes", "reserved_bytes", "total_bytes") == [
        {"bytes": -64, "allocated_bytes": 100, "reserved_bytes": 200, "total_bytes": 0},
        {"bytes": 0, "allocated_bytes": None, "reserved_bytes": None, "total_bytes": 0},
    ]
