"""Real traces of accelerators: what the tables say of devices equals what a plain sweep over their JSON says."""

from functools import lru_cache

import numpy as np
import pytest

import kinetoscope
from kinetoscope.tables.breakdown import PARTS
from tests.support.plain_chrome import plain_trace
from tests.support.plain_devices import PlainDevices
from tests.support.shared_traces import FOLDER, needs_shared_traces, shared_trace, shared_traces

pytestmark = needs_shared_traces
FILES = [pytest.param(path, id=str(path.relative_to(FOLDER))) for path in shared_traces()]
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
def plain(path):
    return PlainDevices(plain_trace(path))


def rows(path, name, **options):
    return ours(path).table(name, **options).to_pylist()


def test_kernels_have_their_counts_and_times(path):
    found = {
        row["name"]: (row["count"], row["total_ns"], row["min_ns"], row["max_ns"])
        for row in rows(path, "kernels")
    }
    assert found == plain(path).kernels()
    each = rows(path, "kernels", by="span")
    assert sum(row["total_ns"] for row in each) == sum(row[1] for row in found.values())


def test_copies_have_their_counts_times_and_bytes(path):
    found = {}
    for row in rows(path, "copies"):
        count, time_ns, size = found.get(row["name"], (0, 0, 0))
        found[row["name"]] = count + 1, time_ns + row["duration_ns"], size + (row["bytes"] or 0)
        if row["kind"] == "memcpy" and row["name"].startswith("Memcpy"):
            assert row["direction"] == row["name"][7:11]
    wanted = plain(path).copies()
    assert {name: found[name] for name in wanted} == wanted


def test_streams_and_devices_are_busy_as_long_as_anything_runs(path):
    streams = {
        (row["device_index"], row["number"]): (
            row["kernels"] + row["copies"], row["busy_ns"], row["first_ns"], row["last_ns"]
        )
        for row in rows(path, "streams")
        if row["kernels"] + row["copies"]
    }  # fmt: skip
    assert streams == plain(path).streams()
    devices = {row["device_index"]: row["busy_ns"] for row in rows(path, "devices")}
    assert devices == plain(path).devices()


def test_each_moment_of_a_step_counts_for_one_part(path):
    found = rows(path, "breakdown")
    assert found
    for row in found[:8]:
        end_ns = row["start_ns"] + row["duration_ns"]
        index = int(row["device"].partition(":")[2])
        wanted = plain(path).parts(index, row["start_ns"], end_ns, in_step=row["step"] is not None)
        assert {name: row[name] for name in PARTS} == {f"{part}_ns": time for part, time in wanted.items()}


def test_device_time_counts_once_for_what_launched_it(path):
    trace = ours(path)
    spans, launches = trace.columns("spans"), trace.columns("launches")
    assert spans["device_self_ns"].sum() == spans["duration_ns"][launches["device"]].sum()
    assert len(np.unique(launches["device"])) == len(launches)
    by_kind = {row["kind"] for row in rows(path, "ops") if row["device_self_ns"]}
    assert by_kind <= {"operator", "backward", "user_annotation", "step"}


@pytest.mark.parametrize("name", WITH_OPERATORS)
def test_operators_have_the_time_of_what_carries_their_number(name):
    path, found = shared_trace(name), {}
    for row in rows(path, "ops"):
        if row["device_self_ns"]:
            found[row["name"]] = found.get(row["name"], 0) + row["device_self_ns"]
    wanted = plain(path).launched_by()
    assert found == {name: time for name, time in wanted.items() if time}
    events = ours(path).key_averages()
    shown = {
        event.key: event.self_device_time_total
        for event in events
        if event.key in wanted and not int(event.device_type)
    }
    assert shown == {name: pytest.approx(time / 1000) for name, time in wanted.items()}


def test_the_table_of_events_sums_up_all_work_of_devices(path):
    trace = ours(path)
    work_ns = sum(row["work_ns"] for row in rows(path, "devices"))
    text = trace.key_averages().table(row_limit=1, time_unit="us")
    assert f"time total: {work_ns / 1000:.3f}us" in text.splitlines()[-1]
