from kinetoscope.viewer.server.routes import answer
from tests.support.trace_builder import TraceBuilder


def trace():
    builder = TraceBuilder()
    builder.span("aten::linear", 0, 10, sequence=1).backward("AddmmBackward0", 300, 50, sequence=1)
    for number in range(5):
        builder.runtime("cudaLaunchKernel", 20 + 10 * number, 5, correlation=number)
        builder.kernel("gemm", 100 + 10 * number, 10, correlation=number)
    return builder.build()


def found(start=0, end=1000, **query):
    return answer(trace(), "arrows", {"start": str(start), "end": str(end), **query})


def test_arrows_go_from_launches_to_kernels_and_from_forward_to_backward():
    rows = found().table.to_pylist()
    launches = [row for row in rows if row["sort"] == "launch"]
    assert [(row["from_time"], row["to_time"]) for row in launches] == [
        (20.0 + 10 * number, 100.0 + 10 * number) for number in range(5)
    ]
    assert len({(row["from_track"], row["to_track"]) for row in launches}) == 1
    back = [row for row in rows if row["sort"] == "backward"]
    assert {row["from_time"] for row in back} == {0.0}
    assert {row["to_time"] for row in back} <= {299.0, 300.0}


def test_only_arrows_that_touch_the_window_and_the_tracks_come():
    assert [row["from_time"] for row in found(95, 105).table.to_pylist() if row["sort"] == "launch"] == [
        20.0, 30.0, 40.0, 50.0, 60.0,
    ]  # fmt: skip
    assert [row["from_time"] for row in found(135, 136).table.to_pylist() if row["sort"] == "launch"] == [
        60.0
    ]
    thread = answer(trace(), "tracks", {})["groups"][0]["tracks"][0]["id"]
    assert {row["sort"] for row in found(tracks=str(thread)).table.to_pylist()} == {"backward"}


def test_too_many_arrows_are_thinned_and_counted():
    limited = found(0, 250, limit="2")
    assert limited.table.num_rows == 2
    assert limited.total >= 6
