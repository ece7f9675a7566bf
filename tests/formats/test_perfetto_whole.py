"""Perfetto files of random traces have all facts unchanged; and atomic writing."""

import gzip
import json
import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinetoscope.formats.perfetto import perfetto_writer, write_perfetto
from kinetoscope.trace import Trace
from tests.support.effort import examples
from tests.support.hostile import hostile_text
from tests.support.perfetto_expected import expected_slices
from tests.support.perfetto_file import REALTIME, PerfettoFile, read_perfetto, written
from tests.support.perfetto_traces import HOSTILE, columns, hostile, mended, training
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder


def assert_same(trace: Trace, file: PerfettoFile) -> None:
    """Check that the file has exactly the slices of the trace, with all annotations, nested on their tracks."""
    found = Counter(
        (one.name, one.category, one.start_ns, one.duration_ns, json.dumps(one.args, sort_keys=True))
        for one in file.slices
        if one.name != "[memory]"
    )
    assert found == Counter(
        (name, category, start_ns, duration_ns, json.dumps(args, sort_keys=True))
        for name, category, start_ns, duration_ns, args in expected_slices(trace)
    )
    assert len(file.named("[memory]")) == len(trace.columns("allocations"))


@pytest.mark.parametrize("make", [training], ids=["training"])
def test_every_slice_is_there_with_everything(tmp_path, make):
    trace = make().build()
    assert_same(trace, written(trace, tmp_path))


@st.composite
def traces(draw) -> Trace:
    """Generate random spans on three threads and two streams, with any facts."""
    made = TraceBuilder()
    for _ in range(3):
        made.thread()
    streams = [made.stream(7), made.stream(8, device=1)]
    modules = [made.module(draw(hostile_text.filter(bool)), name="m", parent=-1) for _ in range(2)]
    stacks = [made.stack(("a.py", 1, "f")), made.stack(("a.py", 1, "f"), ("b.py", 0, draw(hostile_text))), -1]
    shapes = [made.shapes([[draw(st.integers(0, 9))]], ["float"], ["1"]), -1]
    times = st.tuples(st.integers(-50, 300), st.integers(0, 300))
    names = st.sampled_from(["op", "x", "ProfilerStep#1", "nccl:all_reduce"])
    for start_ns, duration_ns in draw(st.lists(times, max_size=25)):
        if draw(st.booleans()):
            made.kernel(
                draw(names), start_ns, duration_ns, stream=draw(st.sampled_from(streams)),
                correlation=draw(st.integers(-1, 5)), grid=(draw(st.integers(1, 3)), 1, 1),
                launch={"registers": draw(st.integers(-1, 2)), "blocks_per_sm": draw(st.floats(0, 10))},
            )  # fmt: skip
            continue
        made.span(
            draw(names), start_ns, duration_ns, thread=draw(st.integers(0, 2)), scope=draw(st.sampled_from([0, 1, 7])),
            sequence=draw(st.integers(-1, 3)), module=draw(st.sampled_from([*modules, -1])),
            stack=draw(st.sampled_from(stacks)), shapes=draw(st.sampled_from(shapes)),
            correlation=draw(st.integers(-1, 5)), unfinished=draw(st.booleans()),
            arguments=draw(st.sampled_from([None, {"a": 1}, {"b": [1, "\u00e9"], "c": "\u00e9", "d": -0.5}])),
        )  # fmt: skip
    for time_ns in draw(st.lists(st.integers(0, 300), max_size=5)):
        made.allocate(
            time_ns, 64 * draw(st.integers(1, 3)), draw(st.integers(0, 9)), thread=draw(st.integers(0, 2))
        )
    return made.build()


@settings(max_examples=examples(150), deadline=None)
@given(traces(), st.sampled_from([1, 50, 4 << 20]))
def test_any_trace_comes_back_whole(trace, block_bytes):
    whole = b"".join(perfetto_writer(trace, block_bytes))
    assert whole == b"".join(perfetto_writer(trace))
    file = read_perfetto(whole)
    assert_same(trace, shifted(file, trace))
    assert Counter((one.start_ns, two.start_ns) for one, two in file.arrows()) == expected_arrows(trace, file)


def shifted(file: PerfettoFile, trace: Trace) -> PerfettoFile:
    """Return the file with the times of the trace, which may begin below 0."""
    by = START_REALTIME_NS - file.clocks[REALTIME]
    for one in file.slices:
        one.start_ns -= by
        one.end_ns -= by
    return file


def expected_arrows(trace: Trace, file: PerfettoFile) -> Counter:
    """Return the expected times of both ends of arrows, the earlier one first."""
    start = trace.column("spans", "start_ns")
    forward = trace.column("spans", "forward")
    back = np.flatnonzero(forward >= 0)
    launches = trace.columns("launches")
    pairs = [*zip(forward[back], back, strict=True), *zip(launches["host"], launches["device"], strict=True)]
    return Counter(tuple(sorted((int(start[one]), int(start[two])))) for one, two in pairs)


def test_hostile_texts_survive_everywhere(tmp_path):
    trace = hostile().build()
    file = written(trace, tmp_path)
    assert sorted(one.name for one in file.slices) == sorted(map(mended, HOSTILE))
    for one in file.slices:
        assert one.args["Module class"] == one.name if one.name else "Module class" not in one.args
        assert one.args[one.name] == one.name
        assert one.location[0] == one.name
    assert {mended(text)[:200] for text in HOSTILE} <= set(file.metadata)


@pytest.mark.parametrize(
    "nonsense", [7, "text", None, [None, {"id": 0}, {"id": 0, "name": 5}], {"a": float("nan")}, -1, 2**80]
)
def test_what_is_said_of_the_run_may_be_nonsense(tmp_path, nonsense):
    trace = training().build()
    for key in ("deviceProperties", "process", "start_realtime_ns", "distributedInfo", "rank", "host"):
        trace.info[key] = nonsense
    assert_same(trace, written(trace, tmp_path))


def test_deep_stacks_are_cut(tmp_path):
    made = TraceBuilder()
    made.span("op", 0, 1, stack=made.stack(*(("a.py", line, "f") for line in range(1, 1001))))
    (op,) = written(made.build(), tmp_path).slices
    frames = op.args["Call stack"].split(";")
    assert frames[0] == "a.py(1000): f"
    assert len(frames) == 257
    assert frames[-1] == "..."


def test_extreme_times_and_numbers(tmp_path):
    trace = columns(
        {
            "start_ns": [-(2**63), 0, 2**62],
            "duration_ns": [5, 2**63 - 1, 2**62],
            "sequence": [2**63 - 1, 0, -1],
        }
    )
    first, second, third = written(trace, tmp_path).slices
    assert first.args == {"Sequence number": 2**63 - 1}
    assert (first.start_ns, first.duration_ns) == (0, 5)
    assert second.end_ns == third.end_ns == 2**63 - 1


def test_counters_that_are_no_numbers_are_kept(tmp_path):
    values = [float("nan"), float("inf"), 1e300, -0.0]
    trace = columns(
        {"start_ns": [0]}, counters={"time_ns": [0, 1, 2, 3], "name": [1, 1, 1, 1], "value": values}
    )
    (samples,) = written(trace, tmp_path).samples.values()
    assert np.array_equal([value for _, value in samples], values, equal_nan=True)


# ------------------------------------------------------------------------------------------------------------ files


def test_gz_holds_the_same(tmp_path):
    trace = training().build()
    write_perfetto(trace, tmp_path / "a.pftrace")
    write_perfetto(trace, tmp_path / "a.pftrace.gz")
    assert gzip.decompress((tmp_path / "a.pftrace.gz").read_bytes()) == (tmp_path / "a.pftrace").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.pftrace", "a.pftrace.gz"]


@pytest.mark.parametrize("suffix", ["perfetto-trace", "pftrace", "perfetto-trace.gz", "pftrace.gz"])
def test_save_finds_the_writer(tmp_path, suffix):
    training().build().save(tmp_path / f"a.{suffix}")
    assert read_perfetto(tmp_path / f"a.{suffix}").named("sgemm")


def test_a_failing_export_leaves_the_old_file_and_nothing_else(tmp_path):
    trace = training().build()
    trace.column("spans", "lane")
    trace.columns("spans")._ready["start_ns"] = trace.column("spans", "start_ns")[::-1].copy()
    for name in ("a.pftrace", "a.pftrace.gz"):
        (tmp_path / name).write_text("old")
        with pytest.raises(ValueError, match="starts before the previous one"):
            write_perfetto(trace, tmp_path / name)
        assert (tmp_path / name).read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["a.pftrace", "a.pftrace.gz"]


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_perfetto(training().build(), tmp_path / "none" / "a.pftrace")


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    trace = training().build()
    (tmp_path / "real").mkdir()
    (tmp_path / "link.pftrace").symlink_to(tmp_path / "real" / "trace.pftrace")
    write_perfetto(trace, tmp_path / "link.pftrace")
    assert (tmp_path / "link.pftrace").is_symlink()
    assert read_perfetto(tmp_path / "real" / "trace.pftrace").slices
    write_perfetto(trace, os.devnull)
    assert not os.path.isfile(os.devnull)
