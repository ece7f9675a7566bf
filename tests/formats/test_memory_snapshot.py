"""Memory snapshots of torch: pickles and JSON with the documented structure."""

import gzip
import io
import json
import os
import pickle

import pytest
from click.testing import CliRunner

import kinetoscope
from kinetoscope.analyses.description import describe
from kinetoscope.analyses.health import health
from kinetoscope.cli import main
from kinetoscope.viewer.server.routes import respond

FORWARD = [
    {"filename": "model.py", "line": 9, "name": "forward"},
    {"filename": "train.py", "line": 3, "name": "<module>"},
]
LOSS = [{"filename": "train.py", "line": 5, "name": "<module>"}]
MIB = 1 << 20


def block(address, size, state="active_allocated", frames=()):
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": list(frames)}


def segment(address, *blocks, device=0):
    return {
        "device": device, "address": address, "total_size": sum(each["size"] for each in blocks), "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "allocated_size": 0, "active_size": 0, "blocks": list(blocks),
    }  # fmt: skip


def event(action, address, size, time_us, frames=()):
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "frames": list(frames),
    }


def snapshot():
    """A weight from before the history; two activations, of which one was freed; the loss."""
    history = [
        event("segment_alloc", 0x2000_0000, 8 * MIB, 1_000_000_010),
        event("alloc", 0x2000_0000, 4 * MIB, 1_000_000_020, FORWARD),
        event("alloc", 0x2040_0000, 2 * MIB, 1_000_000_030, FORWARD),
        event("free_requested", 0x2000_0000, 4 * MIB, 1_000_000_040),
        event("free_completed", 0x2000_0000, 4 * MIB, 1_000_000_041),
        event("alloc", 0x2000_0000, 1 * MIB, 1_000_000_050, LOSS),
        event("snapshot", 0, 0, 1_000_000_060),
    ]
    segments = [
        segment(0x1000_0000, block(0x1000_0000, 3 * MIB), block(0x1030_0000, MIB, "inactive")),
        segment(
            0x2000_0000, block(0x2000_0000, MIB, frames=LOSS), block(0x2010_0000, 3 * MIB, "inactive"),
            block(0x2040_0000, 2 * MIB, frames=FORWARD), block(0x2060_0000, 2 * MIB, "inactive"),
        ),
    ]  # fmt: skip
    return {
        "segments": segments,
        "device_traces": [history],
        "allocator_settings": {"expandable_segments": False},
    }


def out_of_memory():
    """The same, in which 8 GiB did not fit, within a step of the optimizer."""
    content = snapshot()
    failure = event("oom", 0, 8 << 30, 1_000_000_045, LOSS) | {"device_free": 1 << 30}
    del failure["addr"]
    content["device_traces"][0].insert(5, failure)
    content["external_annotations"] = [
        {"stage": "START", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": 1_000_000_042},
        {"stage": "END", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": 1_000_000_055},
    ]
    return content


def opened(content, tmp_path, protocol=4):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content, protocol))
    return kinetoscope.open(path)


@pytest.fixture(params=["pickle", "json", "gzip", "bytes"])
def trace(request, tmp_path):
    """The same snapshot in each form."""
    found = snapshot()
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(json.dumps(found).encode() if request.param == "json" else pickle.dumps(found))
    if request.param == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes()))
    with kinetoscope.open(io.BytesIO(path.read_bytes()) if request.param == "bytes" else path) as opened:
        yield opened


def test_the_history_and_what_was_there_before_become_allocations(trace):
    stored = trace.columns("allocations")
    rows = zip(*(stored[name].tolist() for name in ("time_ns", "bytes", "freed_bytes")), strict=True)
    assert list(rows) == [
        (-1, 3 * MIB, 0),
        (10_000, 4 * MIB, 0),
        (20_000, 2 * MIB, 0),
        (31_000, 0, 4 * MIB),
        (40_000, MIB, 0),
    ]
    assert trace.column("allocations", "allocated_bytes").tolist() == [
        3 * MIB,
        7 * MIB,
        9 * MIB,
        5 * MIB,
        6 * MIB,
    ]
    assert trace.column("allocations", "reserved_bytes").tolist() == [
        4 * MIB,
        12 * MIB,
        12 * MIB,
        12 * MIB,
        12 * MIB,
    ]
    assert trace.info["start_realtime_ns"] == 1_000_000_010_000
    assert trace.info["allocator_settings"] == {"expandable_segments": False}


def test_memory_is_shown_by_the_line_that_holds_it(trace):
    peak = {row["line"]: row["bytes"] for row in trace.table("memory_peak", by="line").to_pylist()}
    assert peak == {"model.py:9 forward": 6 * MIB, None: 3 * MIB} or list(peak.values()) == [6 * MIB, 3 * MIB]
    (line,) = [text for text in peak if text]
    assert "model.py" in line
    at_the_end = trace.table("memory_peak", by="line", at_ns=50_000).to_pylist()
    assert sorted(row["bytes"] for row in at_the_end) == [MIB, 2 * MIB, 3 * MIB]


def native(name, file="??"):
    return {"filename": file, "line": 0, "name": name}


def held_by(frames, tmp_path):
    """The line and the stack that hold a block with these frames."""
    path = tmp_path / "snapshot.pickle"
    found = {"segments": [segment(0x1000, block(0x1000, MIB, frames=frames))], "device_traces": []}
    path.write_bytes(pickle.dumps(found))
    with kinetoscope.open(path) as opened:
        (row,) = opened.table("memory_peak").to_pylist()
    return row["line"], row["stack"]


def test_lines_of_the_program_are_shown_where_torch_wrote_frames_of_cpp_around_them(tmp_path):
    around = [
        native("torch::unwind::unwind()"),
        native("c10::cuda::malloc(unsigned long)", "CUDACachingAllocator.cpp"),
        native("at::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)"),
    ]
    started = [native("_PyEval_EvalFrameDefault"), native("main", ""), native("_start")]
    with_lines = {"filename": "/build/aten/Mul.cpp", "line": 120, "name": "at::native::mul"}
    plain = held_by(FORWARD, tmp_path)
    assert held_by([*around, with_lines, FORWARD[0], *started, FORWARD[1], *started], tmp_path) == plain
    assert plain[0] == "model.py(9): forward"


def test_threads_without_python_are_shown_by_operators_and_backward_functions(tmp_path):
    frames = [
        native("torch::unwind::unwind()"),
        native("at::_ops::mm::redispatch(c10::DispatchKeySet, at::Tensor const&)"),
        native("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)"),
        native("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)"),
        native("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"),
    ]
    line, stack = held_by(frames, tmp_path)
    assert line.endswith("aten::mm")
    assert [frame.rpartition(" ")[2] for frame in stack.split(";")] == ["MmBackward0", "aten::mm"]


def test_what_a_snapshot_lacks_is_told(trace):
    assert [row["code"] for row in trace.losses] == ["snapshot_lacks_spans"]


def test_without_history_there_are_the_blocks_in_use(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(
        pickle.dumps(
            {"segments": [segment(0x1000, block(0x1000, 512), block(0x1200, 512, "inactive"), device=1)]}
        )
    )
    with kinetoscope.open(path) as trace:
        (row,) = trace.table("allocations").to_pylist()
        assert (row["bytes"], row["device_index"]) == (512, 1)
        codes = {row["code"] for row in trace.losses}
        assert codes == {"snapshot_lacks_spans", "snapshot_without_history", "snapshot_without_stacks"}


def test_an_old_snapshot_has_blocks_without_addresses_and_stacks_in_their_history(tmp_path):
    old = [
        {"size": 512, "state": "inactive"},
        {
            "size": 1024,
            "state": "active_allocated",
            "history": [{"addr": 0x1200, "real_size": 1000, "frames": FORWARD}],
        },
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(
        pickle.dumps(
            {
                "segments": [{"address": 0x1000, "total_size": 1536, "device": 0, "blocks": old}],
                "device_traces": [[]],
            }
        )
    )
    with kinetoscope.open(path) as trace:
        (row,) = trace.table("allocations").to_pylist()
        assert (row["address"], row["bytes"]) == (0x1200, 1024)
        (holder,) = trace.table("memory_peak", by="line").to_pylist()
        assert "model.py" in holder["line"]


class Runs:
    """What a hostile pickle does."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_no_code_of_a_pickle_runs(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({**snapshot(), "more": Runs(str(tmp_path / "made"))}))
    with pytest.raises(kinetoscope.FormatError, match="mkdir, and kinetoscope runs no code of a file"):
        kinetoscope.open(path)
    assert not (tmp_path / "made").exists()


def test_a_reference_outside_of_the_file_is_refused(tmp_path):
    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            return "elsewhere" if thing == "weights" else None

    path = tmp_path / "snapshot.pickle"
    with path.open("wb") as file:
        Pickler(file).dump({"segments": ["weights"]})
    with pytest.raises(kinetoscope.FormatError, match="an object outside of the file, 'elsewhere'"):
        kinetoscope.open(path)


@pytest.mark.parametrize(
    "found", [[1, 2], {"segments": 3}, {"a": 1}, 7], ids=["list", "number", "other", "bare"]
)
def test_other_pickles_are_refused(tmp_path, found):
    path = tmp_path / "other.pickle"
    path.write_bytes(pickle.dumps(found))
    with pytest.raises(kinetoscope.FormatError, match="not a memory snapshot"):
        kinetoscope.open(path)


def test_a_damaged_pickle_is_an_error_of_the_format(tmp_path):
    path = tmp_path / "snapshot.pickle"
    data = pickle.dumps(snapshot())
    for size in range(2, len(data), 97):
        path.write_bytes(data[:size])
        with pytest.raises(kinetoscope.FormatError, match=r"snapshot\.pickle"):
            kinetoscope.open(path)


def test_values_that_make_no_sense_are_counted_or_left_out(tmp_path):
    found = snapshot()
    found["device_traces"][0] += [
        event("alloc", -5, 10, 1),
        event("alloc", 5, "x", 1),
        3,
        {"action": ["alloc"]},
    ]
    found["segments"] += [None, {"blocks": 3}, {"device": "x", "blocks": [{"size": 1 << 70}]}]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(found))
    with kinetoscope.open(path) as trace:
        assert {row["code"]: row["count"] for row in trace.losses}["bad_memory_events"] == 3
        assert trace.table("allocations").num_rows == 5


def test_a_large_snapshot_needs_a_limit_that_allows_it(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot()))
    with pytest.raises(kinetoscope.FormatError, match="pass a larger max_memory_bytes"):
        kinetoscope.open(path, max_memory_bytes=1000)


def test_it_can_be_saved_and_judged(trace, tmp_path):
    trace.save(tmp_path / "again.ktrace")
    with kinetoscope.open(tmp_path / "again.ktrace") as again:
        assert again.table("allocations").num_rows == 5
        assert again.findings().num_rows >= 0


def test_what_did_not_fit_and_the_ranges_of_the_program_are_in_the_trace(tmp_path):
    with opened(out_of_memory(), tmp_path) as trace:
        spans = {row["name"]: row for row in trace.table("spans").to_pylist()}
        assert list(spans) == ["Optimizer.step#AdamW.step", "out of memory: 8 GiB requested"]
        step, failure = spans.values()
        assert (step["start_ns"], step["duration_ns"]) == (32_000, 13_000)
        assert (failure["start_ns"], failure["duration_ns"]) == (35_000, 0)
        assert failure["stack"] == "train.py(5): <module>"
        (fact,) = trace.info["out_of_memory"]
        assert (fact["bytes"], fact["free_bytes"], fact["device"]) == (8 << 30, 1 << 30, "cuda:0")
        assert fact["stack"] == failure["stack"]
        assert [row["code"] for row in trace.losses] == ["snapshot_lacks_spans"]
        categories = {
            row["line"]: row["category"] for row in trace.table("memory_peak", at_ns=45_000).to_pylist()
        }
        assert categories["train.py(5): <module>"] == "optimizer state"


@pytest.mark.parametrize("annotation", [{"stage": "END"}, {"stage": "START"}, {"stage": "?"}, {"name": [[]]}])
def test_ranges_without_their_other_end_are_a_loss(tmp_path, annotation):
    content = snapshot()
    content["external_annotations"] = [{"name": "a", "device": 0, "time_us": 1_000_000_020} | annotation]
    with opened(content, tmp_path) as trace:
        (code,) = {row["code"] for row in trace.losses} - {"snapshot_lacks_spans"}
        assert code == {"END": "unmatched_ends", "START": "unfinished_begins"}.get(
            annotation.get("stage"), "bad_events"
        )
        assert [row["duration_ns"] for row in trace.table("spans").to_pylist()] == (
            [30_000] if code == "unfinished_begins" else []
        )


def test_memory_that_ran_out_is_first_in_every_report(tmp_path):
    expected = "out of memory: 8 GiB requested on cuda:0, which had 1 GiB free"
    with opened(out_of_memory(), tmp_path) as trace:
        facts = {fact.label: fact.text for fact in describe(trace.overview())}
        assert facts["Incident"] == f"{expected}\nat train.py(5): <module>"
        assert facts["Memory peak"].endswith("; most by model.py(9): forward: 6 MiB")
        page = respond([("trace", trace)], "api/0/overview", {})
        shown = json.loads(page.body)
        assert shown["incident"]["title"] == expected
        assert "memory snapshot" in shown["without_times"]
        assert [tile["title"] for tile in shown["tiles"]] == ["Recorded", "Memory peak"]
    done = CliRunner().invoke(main, ["report", "--text", str(tmp_path / "snapshot.pickle")])
    text = " ".join(done.stdout.split())
    assert expected in text
    assert "most by model.py(9): forward: 6 MiB" in text
    assert "step time" not in text


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol_are_read_and_run_no_code(tmp_path, protocol):
    with opened(out_of_memory(), tmp_path, protocol) as trace:
        assert trace.table("allocations").num_rows == 5
    with pytest.raises(kinetoscope.FormatError, match="runs no code of a file"):
        opened({**snapshot(), "more": Runs(str(tmp_path / "made"))}, tmp_path, protocol)
    assert not (tmp_path / "made").exists()


def test_blocks_from_before_the_history_are_in_no_category(tmp_path):
    content = snapshot()
    content["device_traces"][0].insert(1, event("free_completed", 0x3000_0000, 7 * MIB, 1_000_000_015))
    with opened(content, tmp_path) as trace:
        rows = trace.table("memory_peak", at_ns=0).to_pylist()
        assert [(row["bytes"], row["category"]) for row in rows] == [(10 * MIB, "unknown")]


def test_lists_that_a_pickle_repeats_without_end_are_read_once(tmp_path):
    frames, blocks = FORWARD * 500, [block(0x1000 * number, 512) for number in range(500)]
    history = [event("alloc", 0x1000 * number, 512, 1_000 + number, frames) for number in range(500)]
    shared = segment(0x1000_0000, *blocks)
    content = {
        "segments": [shared] + [shared | {"address": number} for number in range(20_000)],
        "device_traces": [history] * 128,
        "external_annotations": [{"name": [[]] * 9, "stage": "START", "time_us": 5}],
    }
    with opened(content, tmp_path) as trace:
        assert trace.table("allocations").num_rows == 500
        assert {row["code"]: row["count"] for row in trace.losses}["bad_memory_events"] == 20_000 + 127


def test_advice_is_for_what_made_the_file(tmp_path):
    with opened({"segments": [segment(0x1000, block(0x1000, 512))]}, tmp_path) as trace:
        how = {row["title"]: row["how"] for row in health(trace, running=False)["recorded"]}
        assert how["Stacks"] == "torch.cuda.memory._record_memory_history()"
        assert how["Operators"] == "kinetoscope run"
        assert not [text for text in how.values() if "=True" in text or "activities" in text]
