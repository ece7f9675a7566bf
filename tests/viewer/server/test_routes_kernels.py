import pytest

from kinetoscope._errors import ArgumentError
from kinetoscope.viewer.server.report import requests_of
from kinetoscope.viewer.server.routes import answer
from tests.support.trace_builder import TraceBuilder


def copying():
    builder = TraceBuilder()
    builder.thread("main")
    stream = builder.stream(7)
    builder.span("aten::copy_", 0, 50).runtime("cudaMemcpyAsync", 5, 40, correlation=1)
    builder.span("aten::to", 60, 50).runtime("cudaMemcpyAsync", 65, 10, correlation=2)
    host = "Memcpy HtoD (Pageable -> Device)"
    builder.copy(host, 10, 20, stream=stream, correlation=1, size_bytes=4000)
    builder.copy(host, 70, 20, stream=stream, correlation=2, size_bytes=1000)
    builder.copy("Memcpy DtoH (Device -> Pinned)", 100, 10, stream=stream)
    builder.copy("Memset (Device)", 120, 5, stream=stream, size_bytes=64)
    builder.kernel("ampere_sgemm_128x64_nn", 200, 30, stream=stream, grid=(4, 1, 1))
    builder.kernel("ampere_sgemm_128x64_nn", 240, 30, stream=stream, grid=(8, 1, 1))
    return builder.build()


def test_copies_are_grouped_by_direction():
    rows = answer(copying(), "table/copies", {"by": "direction"}).table.to_pylist()
    assert [(row["direction"], row["kind"], row["count"], row["total_ns"], row["bytes"]) for row in rows] == [
        ("HtoD", "memcpy", 2, 40, 5000),
        ("DtoH", "memcpy", 1, 10, None),
        (None, "memset", 1, 5, 64),
    ]
    first = rows[0]
    assert (first["source"], first["target"]) == ("pageable", "device")
    assert (first["gb_per_s"], first["min_gb_per_s"], first["max_gb_per_s"]) == (125, 50, 200)
    assert (first["blocked"], first["blocked_ns"]) == (1, 20)
    assert rows[1]["gb_per_s"] is None


def test_copies_can_be_told_apart_by_operator_and_add_up():
    trace = copying()
    rows = answer(trace, "table/copies", {"by": "operator"}).table.to_pylist()
    assert [row["operator"] for row in rows] == ["aten::copy_", "aten::to", None, None]
    whole = trace.table("copies")
    assert sum(row["count"] for row in rows) == whole.num_rows
    assert sum(row["total_ns"] for row in rows) == sum(whole["duration_ns"].to_pylist())


def test_without_a_device_there_is_nothing():
    trace = TraceBuilder().span("aten::add", 0, 5).build()
    assert [answer(trace, path, {}).total for path in ("table/kernels", "table/copies")] == [0, 0]


def test_an_unknown_grouping_is_refused():
    with pytest.raises(ArgumentError, match="name, launch"):
        answer(copying(), "table/kernels", {"by": "color"})


def test_every_request_of_a_report_has_a_response():
    trace = copying()
    for path, query in requests_of(trace, ["kernels"]):
        answer(trace, path, query)
