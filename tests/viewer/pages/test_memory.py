"""The memory page: its numbers are those of the tables, and no peak is lost where the curve is thinned out."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinetoscope
from kinetoscope.combine.processes import merge_processes
from kinetoscope.tables.memory import memories
from kinetoscope.tables.memory.categories import CATEGORY_NAMES
from kinetoscope.tables.memory.memories import memory_pools
from kinetoscope.viewer.pages import memory as memory_module
from kinetoscope.viewer.server.routes import answer, respond
from tests.support.effort import examples
from tests.support.real_traces import real_trace
from tests.support.trace_builder import TraceBuilder

CUDA = (1, 0)


def training():
    builder = TraceBuilder()
    model = builder.module("GPT")
    first, second = (builder.module("Linear", name=name, parent=model) for name in ("up", "down"))
    stack = builder.stack(("train.py", 3, "<module>"), ("net.py", 9, "GPT.forward"))
    builder.hold("parameter", 0x100, 1000, module=first)
    builder.hold("parameter", 0x200, 4000, module=second, device=("cuda", 0))
    builder.span("aten::linear", 0, 100, module=first, stack=stack)
    builder.span("aten::empty", 10, 20, module=first, stack=stack)
    builder.span("aten::gelu", 50, 40, module=second)
    builder.allocate(15, 0x10, 300, stack=stack)
    builder.allocate(16, 0x10, 70, device=CUDA)
    builder.allocate(60, 0x20, 700, device=CUDA)
    builder.free(200, 0x20, device=CUDA)
    builder.allocate(300, 0x30, 50, device=CUDA)
    builder.free(400, 0x10)
    return builder.build()


def table(trace, path, **query):
    found = answer(trace, path, {name: str(value) for name, value in query.items()})
    return found if hasattr(found, "num_rows") else found.table


def curve(trace, **query):
    """The rows of a curve, the parts by their labels."""
    found = table(trace, "memory/curve", **query)
    labels = {
        field.name: field.metadata[b"meaning"].decode()
        for field in found.schema
        if field.name.startswith("part")
    }
    return [
        {
            "time": row["time_ns"],
            "total": row["total"],
            "parts": {label: row[name] for name, label in labels.items()},
            "allocated": row["allocated"],
            "reserved": row["reserved"],
        }
        for row in found.to_pylist()
    ]


def states(trace, device):
    """Time, total and parts after every event, as the table `memory_timeline` has them."""
    held, found = Counter(), []
    for row in trace.table("memory_timeline", device=device).to_pylist():
        held[row["category"]] = row["bytes"]
        found.append((max(row["time_ns"] or 0, 0), row["total_bytes"], dict(held)))
    return found


def without_zeros(parts):
    return {label: size for label, size in parts.items() if size}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_short_curve_has_every_event_of_the_timeline(device):
    trace = training()
    rows = curve(trace, device=device)
    found = [(row["time"], row["total"], without_zeros(row["parts"])) for row in rows]
    expected = [(time, total, without_zeros(held)) for time, total, held in states(trace, device)]
    assert found == [(0, 0, {}), *expected, (trace.duration_ns, *expected[-1][1:])]


def test_devices_have_their_peaks():
    told = answer(training(), "memory", {})
    assert (told["recorded"], told["highest"]) == (True, "cuda:0")
    assert [
        (one["key"], one["peak_bytes"], one["peak_ns"], one["blocks"], one["never_freed"], one["end_bytes"])
        for one in told["devices"]
    ] == [("cpu", 1300, 15, 2, 0, 1000), ("cuda:0", 4770, 60, 4, 2, 4120)]
    assert told["devices"][0]["allocated_bytes"] is None


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_what_was_live_at_the_peak_is_what_the_table_says(device):
    same_as_table(training(), device)


def same_as_table(trace, device):
    rows = trace.table("memory_peak", device=device).to_pylist()
    keys = ("bytes", "blocks", "category", "module", "operator", "line")
    found = table(trace, "memory/live", device=device).to_pylist()
    assert [[row[key] for key in keys] for row in found] == [[row[key] for key in keys] for row in rows]
    assert [row["percent"] for row in found] == pytest.approx([row["peak_percent"] for row in rows])
    for by in ("category", "module", "operator", "line"):
        sums = Counter()
        for row in rows:
            sums[row[by]] += row["bytes"]
        grouped = table(trace, "memory/live", device=device, by=by).to_pylist()
        assert {row[by]: row["bytes"] for row in grouped} == sums
        of_table = trace.table("memory_peak", device=device, by=by).to_pylist()
        assert [(row[by], row["bytes"]) for row in of_table] == [(row[by], row["bytes"]) for row in grouped]
        assert sum(row["percent"] for row in grouped) == pytest.approx(100 if rows else 0)


@pytest.mark.parametrize(
    ("time", "sizes"), [(0, [4000]), (15, [4000]), (16, [4000, 70]), (199, [4000, 700, 70]), (250.5, [4000, 70]), (9999, [4000, 70, 50])]
)  # fmt: skip
def test_what_was_live_at_any_time(time, sizes):
    trace = training()
    found = table(trace, "memory/live", device="cuda:0", time=time, by="all").to_pylist()
    assert [row["bytes"] for row in found] == sizes
    (row,) = table(trace, "memory/at", device="cuda:0", time=time).to_pylist()
    assert (row["time_ns"], row["total"]) == (time, sum(sizes))
    of_table = trace.table("memory_peak", device="cuda:0", at_ns=int(time)).to_pylist()
    assert [row["bytes"] for row in of_table] == sizes
    assert [row["peak_percent"] for row in of_table] == pytest.approx([row["percent"] for row in found])


def test_the_values_at_the_peak_are_those_of_the_peak():
    (row,) = table(training(), "memory/at", device="cuda:0", by="module").to_pylist()
    assert (row["time_ns"], row["total"]) == (60, 4770)
    assert sum(size for name, size in row.items() if name.startswith("part")) == 4770


def test_nothing_was_live_before_the_first_block():
    builder = TraceBuilder()
    builder.allocate(20, 1, 8)
    trace = builder.build()
    assert table(trace, "memory/live", time=10).num_rows == 0
    assert table(trace, "memory/at", time=10).to_pylist()[0]["total"] == 0


def test_modules_are_opened_as_long_as_there_is_room(monkeypatch):
    builder = TraceBuilder()
    model = builder.module("GPT")
    names = ("a", "b", "c")
    layers = [builder.module("Linear", name=name, parent=model) for name in names]
    builder.hold("parameter", 0x1, 10, module=model)
    for layer, (name, size) in zip(layers, zip(names, (300, 200, 5), strict=True), strict=True):
        builder.span(f"aten::{name}", 10 * size, 5, module=layer)
        builder.allocate(10 * size + 1, size, size)
    builder.allocate(9000, 0x99, 40)
    trace = builder.build()

    def held(trace):
        return curve(trace, by="module")[-1]["parts"]

    # The smallest layer is not worth a color, and stays with the model.
    assert held(trace) == {"a": 300, "b": 200, "GPT (rest)": 15, "no module": 40}
    assert sum(held(trace).values()) == curve(trace)[-1]["total"]
    monkeypatch.setattr("kinetoscope.tables.memory.memories.MOST_MODULES", 2)
    assert held(builder.build()) == {"GPT": 515, "no module": 40}


EVENTS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 6), st.integers(0, 5), st.integers(0, 1)),
    min_size=1,
    max_size=150,
)


@settings(max_examples=examples(40), deadline=None)
@given(EVENTS, st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9)), max_size=3), st.integers(0, 200))
def test_a_thinned_curve_keeps_every_peak_and_shows_only_what_was(events, older, start):
    builder = TraceBuilder().span("aten::add", 30, 90)
    for address, size in older:
        builder.hold("parameter", address, size)
    for time, address, size, kind in events:
        builder.allocate(time, address + 1, size, device=(kind, 0 if kind else -1))
    trace = builder.build()
    end = 400.0
    for pool in memory_pools(trace):
        true = states(trace, pool.device)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(memories, "MOST_POINTS", 40)
            rows = curve(trace, device=pool.key, start=start, end=end)
        assert len(rows) <= 40
        assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
        known = {(time, total, tuple(sorted(without_zeros(held).items()))) for time, total, held in true}
        for row in rows[1:-1]:
            assert (row["time"], row["total"], tuple(sorted(without_zeros(row["parts"]).items()))) in known
        before = [(total, held) for time, total, held in true if time < start]
        assert rows[0]["total"] == (before[-1][0] if before else 0)
        assert rows[-1]["total"] == true[-1][1]
        inside = [(time, total, held) for time, total, held in true if start <= time <= end]
        assert max(row["total"] for row in rows) == max(
            [rows[0]["total"], *(total for _, total, _ in inside)]
        )
        for label in rows[0]["parts"]:
            most = [rows[0]["parts"][label], *(held.get(label, 0) for _, _, held in inside)]
            assert max(row["parts"][label] for row in rows) == max(most)
        if len(inside) > 38:
            parts = len(rows[0]["parts"])
            edges = np.linspace(start, end, (40 - 2 - parts) // 3 + 1)
            of_column = np.searchsorted(edges, [time for time, _, _ in inside], side="right")
            for column in np.unique(of_column):
                totals = [total for (_, total, _), at in zip(inside, of_column, strict=True) if at == column]
                times = {time for (time, _, _), at in zip(inside, of_column, strict=True) if at == column}
                shown = [row["total"] for row in rows[1:-1] if row["time"] in times]
                assert (min(shown), max(shown)) == (min(totals), max(totals))


def test_a_long_curve_has_few_points_and_the_highest_of_what_the_allocator_counted():
    builder = TraceBuilder()
    for number in range(3000):
        builder.allocate(10 * number, 0x10, 8 + number % 7, device=CUDA)
        builder.free(10 * number + 5, 0x10, device=CUDA)
    plain = builder.build()
    events = plain.columns("allocations")
    rng = np.random.default_rng(3)
    counts = {
        "allocated_bytes": rng.integers(0, 10**6, len(events)),
        "reserved_bytes": rng.integers(10**6, 10**7, len(events)),
    }
    given_columns = {name: events[name] for name in events.given} | counts
    tables = {
        name: {column: plain.columns(name)[column] for column in plain.columns(name).given}
        for name in ("threads", "spans")
    }
    trace = kinetoscope.Trace.from_columns(
        tables | {"allocations": given_columns}, strings=plain.strings, info=plain.info
    )
    rows = curve(trace)
    assert 300 < len(rows) <= memories.MOST_POINTS
    for name, values in counts.items():
        short = name.removesuffix("_bytes")
        assert max(row[short] for row in rows if row[short] is not None) == values.max()
    told = answer(trace, "memory", {})["devices"][0]
    assert (told["allocated_bytes"], told["reserved_bytes"]) == tuple(
        int(values.max()) for values in counts.values()
    )


def test_blocks_by_size_by_lifetime_and_those_that_were_never_freed(monkeypatch):
    trace = training()
    keys = ("time_ns", "bytes", "lifetime_ns", "freed_ns", "category", "module", "operator")
    rows = table(trace, "memory/blocks", device="cuda:0").to_pylist()
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (None, 4000, None, None, "parameter", "down", None),
        (60, 700, 140, 200, "activation", "down", "aten::gelu"),
        (16, 70, None, None, "activation", "up", "aten::linear"),
        (300, 50, None, None, "unknown", None, None),
    ]
    longest = table(trace, "memory/blocks", device="cuda:0", order="longest").to_pylist()
    assert [row["lifetime_ns"] for row in longest] == [140]
    never = table(trace, "memory/blocks", device="cuda:0", order="never freed").to_pylist()
    assert [row["bytes"] for row in never] == [70, 50]
    monkeypatch.setattr(memories, "MOST_BLOCKS", 2)
    found = answer(trace, "memory/blocks", {"device": "cuda:0"})
    assert (found.table.column("bytes").to_pylist(), found.total) == ([4000, 700], 4)


def test_the_stack_of_a_block_leads_to_the_root():
    trace = training()
    (row,) = [row for row in table(trace, "memory/blocks", device="cpu").to_pylist() if row["time_ns"] == 15]
    frames = {row["id"]: row for row in table(trace, "memory/stacks", device="cpu").to_pylist()}
    found, at = [], row["stack"]
    while at is not None:
        found.append(frames[at]["frame"])
        at = frames[at]["parent"]
    assert found == ["net.py(9): GPT.forward", "train.py(3): <module>"]


def one_process(number, size):
    builder = TraceBuilder()
    builder.know("distributedInfo", {"rank": number}).know("process", 100 + number)
    layer = builder.module("Linear", name=f"layer{number}")
    # Both processes have something at the same addresses.
    builder.hold("parameter", 0x500, 10 * size, module=layer)
    builder.span("aten::empty", 0, 50)
    builder.allocate(10, 0x10, size, device=CUDA)
    builder.free(40, 0x10, device=CUDA)
    builder.allocate(45, 0x20, 3)
    return builder.build()


def test_each_process_has_its_own_memory():
    trace = merge_processes([one_process(0, 100), one_process(1, 900)], [0, 5])
    told = answer(trace, "memory", {})
    assert {one["key"]: (one["rank"], one["peak_bytes"]) for one in told["devices"]} == {
        "0/cpu": (0, 1003), "0/cuda:0": (0, 100), "1/cpu": (1, 9003), "1/cuda:0": (1, 900),
    }  # fmt: skip
    assert told["highest"] == "1/cpu"
    for key, size in (("0/cuda:0", 100), ("1/cuda:0", 900)):
        assert max(row["total"] for row in curve(trace, device=key)) == size
        assert [row["bytes"] for row in table(trace, "memory/live", device=key).to_pylist()] == [size]
    live = table(trace, "memory/live", device="1/cpu").to_pylist()
    assert [(row["bytes"], row["category"], row["module"]) for row in live] == [
        (9000, "parameter", "Linear"), (3, "unknown", None),
    ]  # fmt: skip


def test_a_trace_without_memory_says_so():
    trace = TraceBuilder().span("aten::add", 0, 5).build()
    assert answer(trace, "memory", {}) == {
        "recorded": False, "start_ns": 0, "duration_ns": 5, "highest": None, "devices": [],
    }  # fmt: skip
    assert memory_module.reported(trace) == [("memory", {})]
    told = respond([("", trace)], "api/0/memory/curve", {})
    assert (told.status, b"profile_memory=True" in told.body) == (400, True)


@pytest.mark.parametrize("name", ["v100_resnet50_mem", "h100_owlv2_stack_mem"])
def test_real_traces_of_gpus(name):
    trace = kinetoscope.open(real_trace(name))
    for path, query in memory_module.reported(trace):
        assert respond([("", trace)], f"api/0/{path}", query).status == 200
    for pool in memory_pools(trace):
        same_as_table(trace, pool.device)
        true = states(trace, pool.device)
        rows = curve(trace, device=pool.key)
        assert max(row["total"] for row in rows) == max(total for _, total, _ in true)
        for category in CATEGORY_NAMES:
            most = max(held.get(category, 0) for _, _, held in true)
            assert max(row["parts"].get(category, 0) for row in rows) == most
