import pytest

from kinetoscope._errors import ArgumentError
from tests.support.trace_builder import TraceBuilder


def busy_half():
    builder = TraceBuilder().span("aten::mm", 0, 100)
    builder.kernel("gemm", 10, 20).kernel("other", 20, 30, stream=builder.stream()).copy(
        "Memcpy HtoD", 75, 25
    )
    builder.counter("cpu_percent", 50, 20.0).counter("process_rss_bytes", 60, 9.0).counter("load", 70, 3.0)
    return builder.build()


def test_devices_come_first_and_stretches_add_up_to_the_trace():
    found = busy_half().table("utilization", stretches=2).to_pylist()
    assert [(row["name"], row["device"], row["unit"], row["value"]) for row in found] == [
        ("busy", "cuda:0", "%", 80.0),
        ("busy", "cuda:0", "%", 50.0),
        ("cpu_percent", None, "%", None),
        ("cpu_percent", None, "%", 20.0),
        ("process_rss_bytes", None, "bytes", None),
        ("process_rss_bytes", None, "bytes", 9.0),
        ("load", None, None, None),
        ("load", None, None, 3.0),
    ]
    assert [(row["start_ns"], row["duration_ns"]) for row in found] == [(0.0, 50.0), (50.0, 50.0)] * 4


def test_without_devices_and_counters_it_is_empty():
    assert TraceBuilder().span("aten::mm", 0, 8).build().table("utilization").num_rows == 0


def test_the_number_of_stretches_is_checked():
    with pytest.raises(ArgumentError, match="stretches=0 is not valid"):
        busy_half().table("utilization", stretches=0)
