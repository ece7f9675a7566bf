"""Kineto's own files: what we read, and what the tables say of devices, equals what `json.loads` and plain loops say, file by file.

They are the small recordings in `tests/golden` and, where they lie beside the repository, real traces of accelerators.
"""

from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import kinetoscope
from kinetoscope.ledger.parts import PARTS
from kinetoscope.model.schema import SpanKind
from tests.support.plain_chrome import (
    COPIES,
    DEVICE_WORK,
    KERNELS,
    OPERATORS,
    RUNTIME,
    plain_trace,
)
from tests.support.plain_devices import PlainDevices
from tests.support.real_traces import real_traces, trace_name

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.json.gz"))
FILES = [
    *(pytest.param(path, id=path.name) for path in GOLDEN),
    *(pytest.param(path, id=trace_name(path)) for path in real_traces()),
]


# In these the `External id` of a kernel is that of the operator; in others it is the kernel's own correlation.
WITH_OPERATORS = (
    "h100_owlv2_stack_mem",
    "mi300_resnet_stack_rccl_rank0of8",
    "v100_resnet50_mem",
    "vllm_graph_capture_stack",
)


@pytest.fixture(scope="module", params=FILES)
def path(request):
    """One file after the other, so that each is read once for all tests."""
    return request.param


@lru_cache(maxsize=1)
def ours(path):
    return kinetoscope.open(path)


@lru_cache(maxsize=1)
def plain_devices(path):
    return PlainDevices(plain_trace(path))


def rows(path, name, **options):
    return ours(path).table(name, **options).to_pylist()


def texts(trace, column):
    strings = trace.strings
    return [strings[row] for row in trace.column("spans", column).tolist()]


def in_categories(trace, categories):
    named = [row for row, text in enumerate(trace.strings) if text in categories]
    return np.isin(trace.column("spans", "category"), named)


def test_every_name_has_its_count_and_its_time(path):
    trace, found = ours(path), {}
    spans = zip(
        texts(trace, "category"),
        texts(trace, "name"),
        trace.column("spans", "duration_ns").tolist(),
        trace.column("spans", "start_ns").tolist(),
        strict=True,
    )
    for category, name, duration_ns, start_ns in spans:
        count, sum_ns, starts_ns = found.get((category, name), (0, 0, 0))
        found[category, name] = count + 1, sum_ns + duration_ns, starts_ns + start_ns
    assert found == plain_trace(path).sums()
    assert trace.complete


def test_kinds_follow_from_categories(path):
    trace, plain = ours(path), plain_trace(path)
    kind = trace.column("spans", "kind")
    assert np.count_nonzero(in_categories(trace, OPERATORS)) == plain.count(OPERATORS)
    assert np.isin(kind, (SpanKind.RUNTIME, SpanKind.DRIVER)).sum() == plain.count(RUNTIME)
    assert np.isin(kind, (SpanKind.MEMCPY, SpanKind.MEMSET, SpanKind.KERNEL)).sum() == plain.count(
        DEVICE_WORK
    )
    if not plain.count(("mtia_ccp_events",)):
        assert (kind == SpanKind.KERNEL).sum() == plain.count(KERNELS)
        assert np.isin(kind, (SpanKind.MEMCPY, SpanKind.MEMSET)).sum() == plain.count(COPIES)


def test_steps_are_those_marked(path):
    trace, marked = ours(path), plain_trace(path).steps()
    steps = trace.columns("steps")
    found = list(zip(*(steps[name].tolist() for name in ("number", "start_ns", "duration_ns")), strict=True))
    if marked:
        assert found == marked
    assert steps["source"].tolist() == [0 if marked else 1] * len(steps)


def test_each_launch_has_a_correlation(path):
    trace = ours(path)
    names, start_ns = texts(trace, "name"), trace.column("spans", "start_ns").tolist()
    launches = trace.columns("launches")
    kind = trace.column("spans", "kind")
    correlation = trace.column("spans", "correlation")
    host, device = launches["host"], launches["device"]
    by_number = (correlation[host] == correlation[device]) & (correlation[device] > 0)
    found = {
        (names[call], start_ns[call], names[work], start_ns[work])
        for call, work in zip(host[by_number].tolist(), device[by_number].tolist(), strict=True)
    }
    assert found == plain_trace(path).launches()
    assert len(set(device.tolist())) == len(device), "nothing is launched twice"
    assert np.isin(
        kind[device], (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET, SpanKind.COLLECTIVE)
    ).all()


def test_memory_is_taken_and_given_back_as_marked(path):
    blocks, found = ours(path).columns("allocations"), {}
    for kind, index, taken, freed in zip(
        *(blocks[name].tolist() for name in ("device_type", "device_index", "bytes", "freed_bytes")),
        strict=True,
    ):
        count, sum_taken, sum_freed = found.get((kind, index), (0, 0, 0))
        found[kind, index] = count + 1, sum_taken + taken, sum_freed + freed
    assert found == plain_trace(path).memory()


def test_numbers_of_events_are_kept(path):
    trace, plain = ours(path), plain_trace(path)
    categories = texts(trace, "category")
    for column, spellings in {
        "correlation": ("correlation",),
        "external_id": ("External id", "external id"),
        "sequence": ("Sequence number",),
    }.items():
        found = Counter()
        for category, value in zip(categories, trace.column("spans", column).tolist(), strict=True):
            if value != -1:
                found[category] += value
        wanted = plain.numbers(*spellings)
        assert +found == +wanted, column


def test_kernels_and_copies_say_what_they_did(path):
    trace, plain = ours(path), plain_trace(path)
    kernels = trace.columns("kernels")
    with_grid = kernels["grid_x"] >= 0
    blocks = [kernels[f"grid_{axis}"][with_grid].astype(np.int64) for axis in "xyz"]
    assert (blocks[0] * blocks[1] * blocks[2]).sum() == plain.blocks_of_grids()
    moved = trace.columns("copies")["bytes"]
    assert moved[moved >= 0].sum() == plain.moved_bytes()


def test_kernels_have_their_counts_and_times(path):
    found = {
        row["name"]: (row["count"], row["total_ns"], row["min_ns"], row["max_ns"])
        for row in rows(path, "kernels")
    }
    assert found == plain_devices(path).kernels()
    each = rows(path, "kernels", by="span")
    assert sum(row["total_ns"] for row in each) == sum(row[1] for row in found.values())


def test_copies_have_their_counts_times_and_bytes(path):
    found = {}
    for row in rows(path, "copies"):
        count, time_ns, size = found.get(row["name"], (0, 0, 0))
        found[row["name"]] = count + 1, time_ns + row["duration_ns"], size + (row["bytes"] or 0)
        if row["kind"] == "memcpy" and row["name"].startswith("Memcpy"):
            assert row["direction"] == row["name"][7:11]
    wanted = plain_devices(path).copies()
    assert {name: found[name] for name in wanted} == wanted


def test_streams_and_devices_are_busy_as_long_as_anything_runs(path):
    streams = {
        (row["device_index"], row["number"]): (
            row["kernels"] + row["copies"], row["busy_ns"], row["first_ns"], row["last_ns"]
        )
        for row in rows(path, "streams")
        if row["kernels"] + row["copies"]
    }  # fmt: skip
    assert streams == plain_devices(path).streams()
    devices = {row["device_index"]: row["busy_ns"] for row in rows(path, "devices")}
    assert devices == plain_devices(path).devices()


def test_each_moment_of_a_step_counts_for_one_part(path):
    found = [row for row in rows(path, "breakdown") if row["device"] != "cpu"]
    assert bool(found) == bool(plain_devices(path).work)
    for row in found[:8]:
        end_ns = row["start_ns"] + row["duration_ns"]
        index = int(row["device"].partition(":")[2])
        wanted = plain_devices(path).parts(index, row["start_ns"], end_ns, in_step=row["step"] is not None)
        # Without samples and collections of garbage, these parts of a device have no time.
        expected = dict.fromkeys(PARTS, 0) | {f"{part}_ns": time for part, time in wanted.items()}
        assert {name: row[name] for name in PARTS} == expected


def test_device_time_counts_once_for_what_launched_it(path):
    trace = ours(path)
    spans, launches = trace.columns("spans"), trace.columns("launches")
    assert spans["device_self_ns"].sum() == spans["duration_ns"][launches["device"]].sum()
    assert len(np.unique(launches["device"])) == len(launches)
    by_kind = {row["kind"] for row in rows(path, "ops") if row["device_self_ns"]}
    assert by_kind <= {"operator", "backward", "user_annotation", "step"}
    if path.name.partition(".")[0] in WITH_OPERATORS:
        check_operators(path)


def check_operators(path):
    """Operators have the time of what carries their number."""
    found = {}
    for row in rows(path, "ops"):
        if row["device_self_ns"]:
            found[row["name"]] = found.get(row["name"], 0) + row["device_self_ns"]
    wanted = plain_devices(path).launched_by()
    assert found == {name: time for name, time in wanted.items() if time}
    shown = {
        event.key: event.self_device_time_total
        for event in ours(path).key_averages()
        if event.key in wanted and not int(event.device_type)
    }
    assert shown == {name: pytest.approx(time / 1000) for name, time in wanted.items()}


def test_the_table_of_events_sums_up_all_work_of_devices(path):
    trace = ours(path)
    work_ns = sum(row["work_ns"] for row in rows(path, "devices"))
    text = trace.key_averages().table(row_limit=1, time_unit="us")
    if work_ns:
        assert f"time total: {work_ns / 1000:.3f}us" in text.splitlines()[-1]
    else:
        assert "device" not in text.splitlines()[-1].lower()


def test_there_are_recordings_of_our_own():
    assert {path.name.partition(".")[0] for path in GOLDEN} == {
        "ddp_rank0", "ddp_rank1", "names", "operators", "training",
    }  # fmt: skip
