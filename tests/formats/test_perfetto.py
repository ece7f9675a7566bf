"""Perfetto files of hand-made traces, parsed with Perfetto's protocol buffers."""

import json
from collections import Counter

import pytest

from kinetoscope.trace import Trace
from tests.support.perfetto_file import BOOTTIME, REALTIME, PerfettoFile, written
from tests.support.perfetto_traces import columns, training
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder


@pytest.fixture
def file(tmp_path) -> PerfettoFile:
    return written(training().build(), tmp_path)


# ---------------------------------------------------------------------------------------------------- what it holds


def test_an_operator_has_everything_that_is_known_of_it(file):
    (linear,) = file.named("aten::linear")
    assert (linear.category, linear.start_ns, linear.duration_ns) == ("cpu_op", 1_234, 4_321)
    assert linear.args == {
        "Sequence number": 1,
        "Overload": "out",
        "Concrete Inputs": '["", "1.5"]',
        "Input type": '["float", "float"]',
        "Input Dims": "[[2, 4], [4]]",
        "Module": "fc",
        "Module class": "Linear",
        "Call stack": "model.py(7): GPT.forward;train.py(3): <module>",
    }
    assert linear.location == ("model.py", "GPT.forward", 7)


def test_a_kernel_shows_how_it_was_launched_and_what_its_source_said(file):
    (kernel,) = file.named("sgemm")
    assert (kernel.category, kernel.duration_ns) == ("kernel", 3_000)
    assert kernel.args == {
        "correlation": 8,
        "device": 0,
        "stream": 7,
        "grid": "[80,1,1]",
        "block": "[128,2,1]",
        "registers per thread": 64,
        "shared memory": 1024,
        "est. achieved occupancy %": 37.5,
        "graph id": 5,
        "cbid": 211,
        "of": '[1, {"a": 2}]',
        "text": "x\ty",
        "half": 0.5,
        "huge": 2**64 - 1,
    }


def test_what_a_source_said_of_an_operator_is_shown(file):
    (addmm,) = file.named("aten::addmm")
    assert addmm.args == {
        "External id": 17, "Module": "fc", "Module class": "Linear", "fast": True, "why": "null",
    }  # fmt: skip


def test_copies_show_their_bytes_and_ranges_of_a_device_their_category(file):
    (copy,) = file.named("Memcpy HtoD (Pageable -> Device)")
    assert copy.args == {"device": 0, "stream": 7, "bytes": 4096}
    assert copy.category == "gpu_memcpy"
    assert file.named("forward")[0].category == "gpu_user_annotation"


def test_a_collective_shows_what_torch_knew_of_it(file):
    (collective,) = file.named("nccl:all_reduce")
    assert collective.args["Collective name"] == "allreduce"
    assert collective.args["Group size"] == 8


def test_accumulated_gradients_name_their_parameter(file):
    assert file.named("AddmmBackward0")[0].args["Parameter"] == "fc.weight"


def test_arrows_lead_from_launch_to_kernel_and_from_forward_to_backward(file):
    assert Counter((source.name, target.name) for source, target in file.arrows()) == {
        ("cudaLaunchKernel", "sgemm"): 1,
        ("aten::linear", "AddmmBackward0"): 1,
    }


def test_tracks_are_threads_of_the_process_and_streams_of_devices(file):
    paths = {one.name: file.path(one.track) for one in file.slices}
    assert paths["aten::linear"] == ("python", "python")
    assert paths["AddmmBackward0"] == ("python", "autograd")
    assert paths["sgemm"] == ("GPU 0", "stream 7")
    process, thread = (
        next(track for track in file.tracks.values() if track.HasField(kind))
        for kind in ("process", "thread")
    )
    assert process.process.pid == 4242
    assert (thread.thread.pid, thread.thread.tid) == (4242, 4242)


def test_memory_is_moments_and_counters(file):
    blocks = [(one.start_ns, one.args["Bytes"], one.args["Addr"]) for one in file.named("[memory]")]
    assert sorted(blocks) == [(1_350, 64, 0xF00), (1_360, 4096, 2**64 - 16), (6_500, -64, 0xF00)]
    assert all(one.instant and one.category == "cpu_instant_event" for one in file.named("[memory]"))
    assert file.named("[memory]")[1].args == {
        "Bytes": 4096, "Addr": 2**64 - 16, "Device Type": 1, "Device Id": 0, "Total Allocated": 4096,
    }  # fmt: skip
    counters = {file.path(track): values for track, values in file.samples.items()}
    assert counters == {
        ("python", "CPU memory in use"): [(1_350, 64), (6_500, 0)],
        ("GPU 0", "memory in use"): [(1_360, 4096)],
        ("python", "GPU power (W)"): [(50, 10.0), (100, 250.5)],
        ("python", "queue"): [(70, 3.0)],
    }


def test_the_run_is_described(file):
    assert file.metadata["note"] == 'say "hi"'
    assert file.metadata["process"] == "4242"
    assert "losses" not in file.metadata


def test_losses_are_told_where_a_person_looks(tmp_path):
    file = written(training().lose("dropped_spans", 7).build(), tmp_path)
    (loss,) = json.loads(file.metadata["losses"])
    assert loss["count"] == 7
    (process,) = (track for track in file.tracks.values() if track.HasField("process"))
    assert process.description.startswith("Incomplete: spans not written (7): ")


def test_clocks_lead_to_the_wall(file, tmp_path):
    assert file.clocks == {BOOTTIME: 0, REALTIME: START_REALTIME_NS}
    unknown = Trace.from_columns({}, strings=[""])
    assert written(unknown, tmp_path).clocks == {BOOTTIME: 0}


def test_times_before_the_start_are_kept(tmp_path):
    made = TraceBuilder().span("early", -500, 100).span("late", 0, 10)
    file = written(made.build(), tmp_path)
    assert [(one.start_ns, one.duration_ns) for one in file.slices] == [(0, 100), (500, 10)]
    assert file.clocks[REALTIME] == START_REALTIME_NS - 500


def test_what_was_live_when_a_part_of_a_trace_begins_counts_from_its_start(tmp_path):
    made = TraceBuilder().span("before", 0, 100).span("within", 150, 10)
    made.allocate(50, 0xF00, 64)
    made.free(155, 0xF00)
    file = written(made.build().window(120, 200), tmp_path)
    assert [(one.start_ns, one.duration_ns) for one in file.named("within")] == [(30, 10)]
    assert [(one.start_ns, one.args["Bytes"]) for one in file.named("[memory]")] == [(35, -64)]
    assert list(file.samples.values()) == [[(0, 64), (35, 0)]]


def test_an_empty_trace_is_a_whole_file(tmp_path):
    file = written(TraceBuilder().build(), tmp_path)
    assert file.slices == []
    assert len(file.tracks) == 2


@pytest.mark.parametrize("flag", ["unfinished", "is_async"])
def test_states_are_shown(tmp_path, flag):
    made = TraceBuilder().span("op", 0, 10, **{flag: True}).span("other", 20, 5)
    op, other = written(made.build(), tmp_path).slices
    assert op.args == {{"unfinished": "Unfinished", "is_async": "Asynchronous"}[flag]: True}
    assert other.args == {}


def test_moments_are_no_slices(tmp_path):
    trace = columns({"start_ns": [0, 5], "duration_ns": [10, 0], "flags": [0, 8]})
    span, moment = written(trace, tmp_path).slices
    assert (span.instant, moment.instant) == (False, True)


def test_the_category_of_a_source_stays(tmp_path):
    file = written(columns({"start_ns": [0, 5], "category": [2, 0]}), tmp_path)
    assert [one.category for one in file.slices] == ["Source's own", "cpu_op"]


def test_spans_that_partly_overlap_lie_beside_each_other(tmp_path):
    made = TraceBuilder()
    made.thread("python", os_tid=77)
    made.annotation("a", 0, 100).annotation("b", 50, 100).annotation("c", 60, 200).span("op", 10, 10)
    file = written(made.build(), tmp_path)
    assert {one.name: (file.path(one.track), one.duration_ns) for one in file.slices} == {
        "a": (("python", "python"), 100),
        "op": (("python", "python"), 10),
        "b": (("python", "python", "overlapping"), 100),
        "c": (("python", "python", "overlapping"), 200),
    }
    assert len({one.track for one in file.slices}) == 3


def test_a_thread_id_used_twice_and_one_that_is_none_become_ids(tmp_path):
    made = TraceBuilder()
    for os_tid in (99, 99, 0, -5, 2**40):
        made.span("op", 0, 10, thread=made.thread("worker", os_tid=os_tid))
    file = written(made.build(), tmp_path)
    ids = [track.thread.tid for track in file.tracks.values() if track.HasField("thread")]
    assert len(set(ids)) == 5
    assert ids[0] == 99
    assert all(0 < number < 2**31 for number in ids)


def test_processes_and_ranks_of_threads_are_kept_apart(tmp_path):
    trace = Trace.from_columns(
        {
            "spans": {
                "thread": [0, 1, 2, 3], "start_ns": [0] * 4, "duration_ns": [5] * 4, "name": [1] * 4,
                "stream": [-1, -1, 0, 0], "kind": [0, 0, 6, 6],
            },
            "threads": {
                "index": [0, 1, 2, 3], "os_tid": [10, 10, 7, 7], "name": ["a", "b", "", ""],
                "process": [500, 500, -1, -1], "rank": [0, 1, 0, 1],
            },
            "streams": {"device_type": [1], "device_index": [3], "number": [7]},
        },
        strings=["", "op"],
        info={"deviceProperties": [{"id": 3, "name": "NVIDIA H100 "}]},
    )  # fmt: skip
    file = written(trace, tmp_path)
    assert [file.path(one.track) for one in file.slices] == [
        ("python, rank 0", "a"),
        ("python, rank 1", "b"),
        ("rank 0: GPU 3 (NVIDIA H100)", "stream 7"),
        ("rank 1: GPU 3 (NVIDIA H100)", "stream 7"),
    ]
    pids = {track.process.pid for track in file.tracks.values() if track.HasField("process")}
    assert len(pids) == 2
    assert 500 in pids


def test_traces_of_two_processes_have_no_track_in_common(tmp_path):
    made = TraceBuilder().span("op", 0, 10)
    one, other = made.build(), made.build()
    other.info["process"] = 1
    assert not set(written(one, tmp_path).tracks) & set(written(other, tmp_path).tracks)


def test_texts_stand_in_a_sequence_once(tmp_path):
    made = TraceBuilder()
    module = made.module("a_module_with_a_long_name")
    for row in range(1000):
        made.span("an_operator_with_a_long_name", row * 10, 10, module=module)
    written(made.build(), tmp_path, "a.pftrace")
    raw = (tmp_path / "a.pftrace").read_bytes()
    assert raw.count(b"an_operator_with_a_long_name") == 1
    assert raw.count(b"a_module_with_a_long_name") == 2  # the path and the class
    assert len(raw) < 60 * 1000
