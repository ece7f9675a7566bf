"""Threads, streams, processes and devices of tracks."""

import pytest

import kinetoscope
from tests.support.chrome_text import x
from tests.support.kineto_text import PID, kernel, kinds, launches, named, op, opened, spans


def test_threads_have_the_names_of_their_metadata_and_devices_are_none_of_the_processes():
    trace = opened(
        named("process_name", PID, 0, "python3"),
        named("thread_name", PID, PID, f"thread {PID} (python3)"),
        named("thread_name", PID, 8, "thread 8 (python3)"),
        named("thread_name", PID, 8, "thread 8 (pt_autograd_0)"),
        named("thread_name", PID, 9, "a worker"),
        named("thread_name", 0, 7, "stream 7 "),
        [op("a", 0, 1, tid=tid) for tid in (PID, 8, 9, 10)],
        kernel("k", 0, 1),
    )
    rows = trace.table("threads").to_pylist()
    assert {row["os_tid"]: row["name"] for row in rows} == {
        PID: "python3", 8: "pt_autograd_0", 9: "a worker", 10: "", 7: "stream 7 of device 0",
    }  # fmt: skip
    assert {row["process"] for row in rows} == {PID}
    assert trace.info["process"] == PID
    assert trace.info["process_name"] == "python3"
    assert trace.table("streams").select(["device_type", "device_index", "number", "name"]).to_pylist() == [
        {"device_type": 1, "device_index": 0, "number": 7, "name": "stream 7"}
    ]


def test_a_thread_written_as_a_number_and_as_text_is_one():
    trace = opened(op("a", 0, 5, tid="25"), op("b", 1, 1, tid=25))
    assert spans(trace, "thread", "depth") == [("a", 0, 0), ("b", 0, 1)]


def test_work_belongs_to_the_process_that_launched_it():
    trace = opened(
        named("process_name", 5, 0, "loader"),
        [x("a", at, 1, "cpu_op", 4, 4) for at in range(3)],
        x("b", 0, 1, "cpu_op", 5, 5, **{"External id": 3}),
        x("c", 0, 1, "cpu_op", "by name", 1),
        kernel("k", 2, 1, **{"External id": 3}),
    )
    found = {row["name"]: row["process"] for row in trace.table("spans").to_pylist()}
    assert found["a"] == 4
    assert found["b"] == found["k"] == 5
    assert found["c"] > 2**32
    assert trace.table("processes")["name"].to_pylist() == ["by name", "python", "loader"]


@pytest.mark.parametrize(
    ("runtime", "label", "device_type"),
    [
        ("cuda_runtime", "GPU 0", 1),
        ("xpu_runtime", "GPU 0", 12),
        ("privateuse1_runtime", "GPU 0", 20),
        ("mtia_runtime", "MTIA 0", 19),
        ("other", "XPU 0", 12),
        ("other", "HPU 0", 15),
        ("other", "", 1),
    ],
)
def test_the_runtime_of_a_file_or_the_label_of_a_device_says_its_type(runtime, label, device_type):
    trace = opened(
        named("process_labels", 0, 0, label),
        op("launch", 0, 1, cat=runtime, correlation=1),
        kernel("k", 3, 1, 1),
    )
    assert trace.column("streams", "device_type").tolist() == [device_type]


def test_devices_of_mtia_have_kernels_and_copies():
    trace = opened(
        x("add-dtype_Float", 5, 3, "mtia_ccp_events", 9, 4, correlation=1, stream=1),
        x("dma_request", 9, 3, "mtia_ccp_events", 9, 4, direction="HOST_TO_DEVICE", size=64),
        op("runFunction", 0, 2, cat="mtia_runtime", correlation=1),
        named("thread_name", 9, 4, "Stream 1 FW"),
    )
    assert kinds(trace) == {"runFunction": "runtime", "add-dtype_Float": "kernel", "dma_request": "memcpy"}
    assert launches(trace) == [("runFunction", "add-dtype_Float")]
    assert trace.table("streams").select(["device_type", "device_index", "number", "name"]).to_pylist() == [
        {"device_type": 19, "device_index": 9, "number": 4, "name": "Stream 1 FW"}
    ]


def test_a_wait_of_mtia_is_no_kernel():
    trace = opened(
        op("runFunction", 0, 2, cat="mtia_runtime", correlation=1),
        x("add-dtype_Float", 5, 3, "mtia_ccp_events", 9, 4, correlation=1, stream=1),
        x("event_wait", 9, 300, "mtia_ccp_events", 9, 4, stream=1),
    )
    assert trace.table("kernels")["name"].to_pylist() == ["add-dtype_Float"]
    assert trace.table("devices")["compute_ns"].to_pylist() == [3_000]
    kind = {row["name"]: row["kind"] for row in trace.table("spans").to_pylist()}
    assert kind["event_wait"] == "sync"


def test_lanes_of_an_ascend_device_are_said_not_to_be_understood(tmp_path):
    trace = opened(
        named("process_name", PID, 0, "Python"),
        named("process_name", 77, 0, "Ascend Hardware"),
        op("aten::mm", 0, 5),
        [
            {
                "ph": "X",
                "name": "MatMulV2",
                "pid": 77,
                "tid": 3,
                "ts": at,
                "dur": 2,
                "args": {"Task Type": "AI_CORE"},
            }
            for at in (5, 9)
        ],
    )
    (loss,) = trace.losses
    assert (loss["code"], loss["count"]) == ("ascend_spans", 2)
    assert "torch_npu" in loss["why"]
    trace.save(tmp_path / "x.json")
    assert [loss["count"] for loss in kinetoscope.open(tmp_path / "x.json").losses] == [2]
