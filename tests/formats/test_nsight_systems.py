"""Exports of Nsight Systems, made by Python's sqlite3 with the documented schema."""

import io
import sqlite3
from contextlib import closing

import pytest

import kinetoscope
from tests.support.nsight_file import START_REALTIME_NS, NsightFile


def training(pid=4242, device=0, file=None):
    """One step of a process: a copy to the device, two kernels on two streams, one wait."""
    file = file or NsightFile(pid)
    file.range("step 0", 1_000, 90_000, pid=pid)
    file.call("cudaMemcpyAsync_v3020", 2_000, 4_000, 1, pid=pid)
    file.copy(10_000, 20_000, 1, 4096, device=device, pid=pid)
    file.call("cudaLaunchKernel_v7000", 5_000, 6_000, 2, pid=pid)
    file.kernel("gemm<float>", 20_000, 50_000, 2, device=device, pid=pid)
    file.call("cuLaunchKernelEx", 7_000, 8_000, 3, pid=pid)
    file.kernel("void relu<float>(float*)", 30_000, 45_000, 3, stream=8, device=device, pid=pid)
    file.call("cudaStreamSynchronize_v3020", 9_000, 51_000, 4, pid=pid)
    return file


def opened(file, tmp_path):
    return kinetoscope.open(file.write(tmp_path / "export.sqlite"))


def rows_of(trace, table="spans", **where):
    return trace.table(table, where=where or None).to_pylist()


def test_kernels_copies_and_calls_are_there_with_their_launches(tmp_path):
    trace = opened(training(), tmp_path)
    kinds = {row["name"]: row["kind"] for row in rows_of(trace)}
    assert kinds == {
        "step 0": "user_annotation",
        "cudaMemcpyAsync": "runtime",
        "Memcpy HtoD (Pageable -> Device)": "memcpy",
        "cudaLaunchKernel": "runtime",
        "gemm<float>": "kernel",
        "cuLaunchKernelEx": "driver",
        "void relu<float>(float*)": "kernel",
        "cudaStreamSynchronize": "runtime",
    }
    spans = trace.columns("spans")
    names = [trace.strings[name] for name in spans["name"].tolist()]
    launches = trace.columns("launches")
    pairs = {
        (names[host], names[device])
        for host, device in zip(launches["host"].tolist(), launches["device"].tolist(), strict=True)
    }
    assert pairs == {
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)"),
        ("cudaLaunchKernel", "gemm<float>"),
        ("cuLaunchKernelEx", "void relu<float>(float*)"),
    }


def test_times_begin_with_the_first_event_and_have_a_date(tmp_path):
    trace = opened(training(), tmp_path)
    (gemm,) = rows_of(trace, name=["gemm<float>"])
    assert (gemm["start_ns"], gemm["duration_ns"]) == (19_000, 30_000)
    assert trace.info["start_realtime_ns"] == START_REALTIME_NS + 1_000
    assert trace.duration_ns == 89_000


def test_the_tables_of_devices_are_filled(tmp_path):
    file = training()
    file.fill(60_000, 61_000, 9, 256)
    file.add("TARGET_INFO_GPU", id=0, name="NVIDIA H100", totalMemory=80 << 30, smCount=132)
    file.add("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=4242)
    trace = opened(file, tmp_path)
    kernels = {row["name"]: row for row in rows_of(trace, "kernels")}
    assert kernels["gemm<float>"]["total_ns"] == 30_000
    stored = trace.columns("kernels")
    assert set(stored["grid_x"].tolist()) == {4}
    assert set(stored["shared_bytes"].tolist()) == {1536}
    copies = {row["name"]: row for row in rows_of(trace, "copies")}
    assert copies["Memcpy HtoD (Pageable -> Device)"]["bytes"] == 4096
    assert copies["Memset (Device)"]["bytes"] == 256
    (device,) = rows_of(trace, "devices")
    assert device["model"] == "NVIDIA H100"
    assert {(row["device_index"], row["number"]) for row in rows_of(trace, "streams")} == {(0, 7), (0, 8)}


def test_ranges_marks_and_those_without_an_end(tmp_path):
    file = training()
    file.add("NVTX_EVENTS", start=0, eventType=75, text="NCCL", domainId=3, globalTid=file.thread())
    file.range("async", 2_000, 80_000, event_type=60, inline=False)
    file.range("mark", 3_000, None, event_type=34)
    file.range("open", 70_000, None)
    file.range("ncclAllReduce", 10_000, 11_000, domain=3)
    spans = {row["name"]: row for row in rows_of(opened(file, tmp_path))}
    assert spans["async"]["duration_ns"] == 78_000
    assert spans["mark"]["duration_ns"] == 0
    assert spans["open"]["duration_ns"] == 20_000
    assert "NCCL" in spans["ncclAllReduce"]["arguments"]


def test_ranges_of_emit_nvtx_are_operators(tmp_path):
    file = training()
    file.range("aten::linear, seq = 5, op_id = 12", 4_500, 6_500)
    file.range("aten::addmm, op_id = 13, sizes = [[2, 3]]", 4_600, 6_400)
    file.range("AddmmBackward0, seq = 5, op_id = 20", 6_600, 8_500)
    file.range("ProfilerStep#7", 1_500, 60_000)
    trace = opened(file, tmp_path)
    kinds = {row["name"]: row["kind"] for row in rows_of(trace)}
    assert (kinds["aten::linear"], kinds["aten::addmm"]) == ("operator", "operator")
    assert kinds["AddmmBackward0"] == "backward"
    assert [row["number"] for row in rows_of(trace, "steps")] == [7]
    (operator,) = [row for row in rows_of(trace, "ops") if row["name"] == "aten::addmm"]
    assert operator["device_self_ns"] == 30_000


def test_several_processes_and_devices_share_one_axis(tmp_path):
    file = NsightFile()
    training(100, 0, file)
    training(200, 1, file)
    file.add("PROCESSES", globalPid=file.thread(0, 100), pid=100, name="/usr/bin/python3")
    trace = opened(file, tmp_path)
    processes = rows_of(trace, "processes")
    assert [row["process"] for row in processes] == [100, 200]
    assert {row["device"] for row in rows_of(trace, "devices")} == {"cuda:0", "cuda:1"}
    assert {row["code"] for row in trace.losses} == {"nsight_lacks_torch"}
    starts = {row["start_ns"] for row in rows_of(trace, name=["gemm<float>"])}
    assert starts == {19_000}
    # The same correlation ids in both processes lead to the call of the same process.
    spans, launches = trace.columns("spans"), trace.columns("launches")
    process = trace.column("threads", "process_row")[spans["thread"]]
    assert len(launches) == 6
    streams = trace.columns("streams")["process_row"][spans["stream"][launches["device"]]]
    assert (process[launches["host"]] == streams).all()


def test_a_graph_has_its_kernels_or_is_a_loss(tmp_path):
    file = training()
    file.call("cudaGraphLaunch_v10000", 52_000, 53_000, 20)
    file.kernel("a", 54_000, 55_000, 20, graphNodeId=1)
    file.kernel("b", 55_000, 56_000, 20, graphNodeId=2)
    file.call("cudaGraphLaunch_v10000", 57_000, 58_000, 21)
    file.graph(5, 59_000, 61_000, 21)
    trace = opened(file, tmp_path)
    assert trace.column("kernels", "graph_node").tolist().count(2) == 1
    assert "CUDA graph 5" in {row["name"] for row in rows_of(trace, "kernels")}
    losses = {row["code"]: row["count"] for row in trace.losses}
    assert losses["nsight_graphs"] == 1


def test_device_memory_is_in_the_allocations(tmp_path):
    file = training()
    file.memory(11_000, 1 << 40, 1 << 20, correlation=1)
    file.memory(12_000, 2 << 40, 1 << 21)
    file.memory(13_000, 1 << 40, 1 << 20, freed=True)
    file.memory(14_000, 3 << 40, 512, kind=1)
    trace = opened(file, tmp_path)
    assert trace.column("allocations", "bytes").tolist() == [1 << 20, 1 << 21, 0]
    assert trace.column("allocations", "total_bytes").tolist() == [1 << 20, 3 << 20, 2 << 20]


def test_what_these_files_lack_and_what_is_not_read_is_told(tmp_path):
    file = training()
    file.add("GPU_METRICS", timestamp=1, typeId=2, metricId=3, value=4)
    file.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=1_000, end=2_000, globalPid=file.thread(0), syncType=3
    )
    file.add("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", id=3, name="DiagnosticSeverityLevel_Warning", label="Warning")
    file.add(
        "DIAGNOSTIC_EVENT", timestamp=5, severity=3, text="Not all NVTX events might have been collected."
    )
    file.add("DIAGNOSTIC_EVENT", timestamp=6, severity=1, text="Profiling has started.")
    file.kernel("late", 1 << 62, (1 << 62) + 5, 30)
    losses = {row["code"]: row for row in opened(file, tmp_path).losses}
    assert losses.keys() == {"nsight_lacks_torch", "nsight_tables", "nsight_warnings", "bad_times"}
    assert losses["nsight_tables"]["where"] == "GPU_METRICS"
    assert "NVTX" in losses["nsight_warnings"]["why"]


def test_names_of_threads_and_libraries(tmp_path):
    file = training()
    file.add("ThreadNames", nameId=file.text("python3"), priority=0, globalTid=file.thread())
    file.add("OSRT_API", start=60_000, end=70_000, globalTid=file.thread(), nameId=file.text("poll"))
    file.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.15.1")
    trace = opened(file, tmp_path)
    (poll,) = rows_of(trace, name=["poll"])
    assert poll["category"] == "osrt"
    assert "python3" in trace.columns("threads")["name"]
    assert trace.info["export_schema_version"] == "3.15.1"


def test_it_is_opened_from_bytes_and_saved(tmp_path):
    path = training().write(tmp_path / "export.sqlite")
    with kinetoscope.open(io.BytesIO(path.read_bytes())) as trace:
        trace.save(tmp_path / "again.ktrace")
    with kinetoscope.open(tmp_path / "again.ktrace") as again:
        assert len(rows_of(again)) == 8
        assert again.findings().num_rows >= 0
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("export")] == ["export.sqlite"]


def test_rows_beyond_the_memory_limit_are_counted(tmp_path):
    path = training().write(tmp_path / "export.sqlite")
    with kinetoscope.open(path, max_memory_bytes=400 * 4) as trace:
        assert {row["code"]: row["count"] for row in trace.losses}["beyond_memory_limit"] == 4


def test_columns_and_tables_are_optional(tmp_path):
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        connection.execute("INSERT INTO StringIds VALUES (1, 'k')")
        connection.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, streamId INT, deviceId INT, shortName INT)"
        )
        connection.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 9, 7, 0, 1), (3, 'x', 7, 0, NULL)"
        )
    connection.close()
    with kinetoscope.open(path) as trace:
        assert [row["name"] for row in rows_of(trace)] == ["k"]


@pytest.mark.parametrize(
    "break_it",
    [lambda data: data[:100], lambda data: data[:40] + b"x" * 4000 + data[4040:]],
    ids=["cut", "overwritten"],
)
def test_a_damaged_file_is_an_error_of_the_format(tmp_path, break_it):
    path = training().write(tmp_path / "export.sqlite")
    path.write_bytes(break_it(path.read_bytes()))
    with pytest.raises(kinetoscope.FormatError, match=r"export\.sqlite"):
        kinetoscope.open(path)


def test_another_database_is_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    connection.close()
    with pytest.raises(kinetoscope.FormatError, match="not an export of Nsight Systems"):
        kinetoscope.open(path)


@pytest.mark.parametrize(
    ("table", "missed"),
    [
        ("NVTX_EVENTS", ""),
        ("NVTX_EVENTS_V2", ""),
        ("OSRT_API_V2", ""),
        ("MPI_P2P_EVENTS_V3", "MPI_P2P_EVENTS_V3"),
    ],
)
def test_tables_with_a_version_behind_their_name_are_read_or_a_loss(tmp_path, table, missed):
    path = training().write(tmp_path / "export.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(
            f"CREATE TABLE {table}(start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER, nameId INTEGER)"
        )
        connection.execute("INSERT INTO StringIds VALUES (900, 'forward')")
        thread = NsightFile(4242).thread()
        connection.execute(f"INSERT INTO {table} VALUES (50, 300, 59, NULL, 900, {thread}, 900)")
    trace = kinetoscope.open(path)
    assert len(rows_of(trace, name=["forward"])) == (0 if missed else 1)
    # An older version of the table is not added up with the newer one.
    lost = {loss["where"]: loss["count"] for loss in trace.losses if loss["code"] == "nsight_tables"}
    assert lost == ({missed: 1} if missed else {"NVTX_EVENTS": 1} if table == "NVTX_EVENTS_V2" else {})


def test_devices_of_exports_of_2020_have_their_names(tmp_path):
    path = training(device=1).write(tmp_path / "export.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE TARGET_INFO_CUDA_GPU(deviceId INTEGER, name TEXT, globalMemorySize INTEGER)"
        )
        connection.execute(
            "INSERT INTO TARGET_INFO_CUDA_GPU VALUES (0, 'Quadro P400', 2), (1, 'Tesla V100', 16)"
        )
    (device,) = rows_of(kinetoscope.open(path), "devices")
    assert (device["model"], device["memory_bytes"]) == ("Tesla V100", 16)
