"""Traces written as Chrome JSON and read again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kinetoscope
from kinetoscope.formats.chrome.read import read_chrome_trace
from kinetoscope.formats.chrome.write import write_chrome_trace
from kinetoscope.model.names import stack_texts
from kinetoscope.model.schema import STORED, SpanKind
from kinetoscope.trace import Trace
from tests.support.any_trace import any_traces
from tests.support.chrome_file import partly_overlapping, read_strictly
from tests.support.effort import examples
from tests.support.real_traces import different_traces
from tests.support.trace_builder import TraceBuilder


def again(trace: Trace, folder: Path, name: str = "trace.json") -> Trace:
    """Write a trace to a file and read it again."""
    trace.save(folder / name)
    return kinetoscope.open(folder / name)


def launched(trace: Trace, table: str) -> dict[int, dict[str, Any]]:
    """Return the rows of a table about spans, by span."""
    columns = trace.columns(table)
    return {
        int(row): {name: columns[name][place].item() for name in columns if name != "span"}
        for place, row in enumerate(columns["span"].tolist())
    }


def told(trace: Trace) -> Counter[str]:
    """Return all facts about each span, with strings instead of ids."""
    spans, strings = trace.columns("spans"), trace.strings
    threads, streams, shapes = (trace.columns(name) for name in ("threads", "streams", "shapes"))
    paths = trace.columns("modules")["path"]
    arguments = trace.columns("arguments")["json"]
    kernels, copies = launched(trace, "kernels"), launched(trace, "copies")
    stacks = stack_texts(trace)
    own = []
    for row in range(len(spans)):
        stream, shape = int(spans["stream"][row]), int(spans["shapes"][row])
        thread = int(spans["thread"][row])
        own.append({
            "where": [int(streams[name][stream]) for name in ("device_type", "device_index", "number")]
            if stream >= 0
            else [int(threads["os_tid"][thread]), threads["name"][thread]],
            "name": strings[spans["name"][row]],
            "kind": SpanKind(int(spans["kind"][row])).name,
            "shapes": [json.loads(shapes[part][shape]) for part in ("dims", "types", "concrete")] if shape >= 0 else None,
            "module": paths[spans["module"][row]] if spans["module"][row] >= 0 else None,
            "stack": stacks[spans["stack"][row]] if spans["stack"][row] >= 0 else None,
            "arguments": json.loads(arguments[spans["arguments"][row]]) if spans["arguments"][row] >= 0 else None,
            "kernel": kernels.get(row),
            "copy": copies.get(row),
        } | {name: int(spans[name][row]) for name in ("start_ns", "duration_ns", "flags", "sequence", "lane")})  # fmt: skip
    names = [json.dumps(entry, sort_keys=True) for entry in own]
    names.append("none")
    hosts: dict[int, list[str]] = {}
    for host, device in zip(
        *(trace.column("launches", end).tolist() for end in ("host", "device")), strict=True
    ):
        hosts.setdefault(device, []).append(names[host])
    return Counter(
        json.dumps(
            [
                names[row],
                names[spans["parent"][row]],
                names[spans["forward"][row]],
                sorted(hosts.get(row, [])),
            ]
        )
        for row in range(len(spans))
    )


NAMES = st.sampled_from(
    ["aten::add", "aten::mm", "cudaLaunchKernel", 'quote " \\ \x01', "\U0001f600 日本語 \ud800"]
)


@st.composite
def device_traces(draw) -> Trace:
    """Generate operators, backward functions, launches with work on several devices, nested or overlapping, and memory."""
    made = TraceBuilder()
    main, engine = made.thread("python", os_tid=4242), made.thread("autograd", os_tid=0)
    model = made.module("GPT")
    modules = [-1, model, made.module("Linear", name="fc", parent=model), made.module("GPT")]
    streams = [
        made.stream(0, device=2),
        made.stream(2, device=2, name="compute"),
        made.stream(7, device_type=19),
    ]
    times, lengths = st.integers(0, 300), st.integers(0, 200)
    for number in range(draw(st.integers(0, 12))):
        where = {"thread": draw(st.sampled_from([main, engine])), "module": draw(st.sampled_from(modules))}
        start, duration, sequence = draw(times), draw(lengths), 10 + number
        shapes = draw(st.sampled_from([-1, made.shapes([[2, 3], []], ["float", "Scalar"], ["", "1"])]))
        made.span(draw(NAMES), start, duration, sequence=sequence, shapes=shapes, is_async=draw(st.booleans()),
                  unfinished=draw(st.booleans()), **where)  # fmt: skip
        if draw(st.booleans()):
            made.backward("MmBackward0", 600 + draw(times), 50, sequence=sequence, forward_thread=where["thread"],
                          thread=engine)  # fmt: skip
        if draw(st.booleans()):
            made.runtime(
                "cudaLaunchKernel",
                start,
                1,
                correlation=number + 1,
                arguments={"cbid": 211, "kind": "x"},
                **where,
            )
            for _ in range(draw(st.integers(0, 2))):
                made.kernel("gemm<1>", draw(times), draw(lengths), stream=draw(st.sampled_from(streams)),
                            correlation=number + 1, grid=(4, 2, 1), block=(128, 1, 1),
                            launch={"registers": 32, "blocks_per_sm": 0.25, "context": 1})  # fmt: skip
            made.copy("Memcpy HtoD", draw(times), draw(lengths), stream=draw(st.sampled_from(streams)), size_bytes=4096,
                      correlation=number + 1)  # fmt: skip
    if draw(st.booleans()):
        made.device_annotation("step", 0, 700, stream=0)
    for time_ns in draw(st.lists(times, max_size=4, unique=True)):
        made.counter("GPU: power", time_ns, draw(st.floats(-1e9, 1e9)))
    for number, time_ns in enumerate(sorted(draw(st.lists(times, max_size=4, unique=True)))):
        made.allocate(time_ns, 0x1000, 0 if number % 2 else 64, thread=main, device=(1, 2))
    return made.build()


def nests_by_order_alone(trace: Trace) -> bool:
    """Whether a runtime call and an operator of a thread have the same times: a reader then puts the operator around the call."""
    spans = trace.columns("spans")
    names = ("thread", "start_ns", "duration_ns")
    times = list(zip(*(spans[name].tolist() for name in names), strict=True))
    runtime = (spans["kind"] == SpanKind.RUNTIME).tolist()
    calls = {one for one, is_call in zip(times, runtime, strict=True) if is_call}
    return any(one in calls for one, is_call in zip(times, runtime, strict=True) if not is_call)


@settings(max_examples=examples(100))
@given(device_traces())
def test_what_is_said_of_spans_survives(tmp_path_factory, trace) -> None:
    assume(not nests_by_order_alone(trace))
    folder = tmp_path_factory.mktemp("trace")
    back = again(trace, folder)
    assert told(back) == told(trace)
    assert partly_overlapping(read_strictly(folder / "trace.json")) == []
    for column in ("time_ns", "value"):
        assert back.column("counters", column).tolist() == trace.column("counters", column).tolist()
    for column in ("time_ns", "bytes", "address", "device_index", "match", "total_bytes"):
        assert back.column("allocations", column).tolist() == trace.column("allocations", column).tolist(), (
            column
        )


@settings(max_examples=examples(60))
@given(any_traces())
def test_any_trace_comes_back_with_the_same_times(tmp_path_factory, trace) -> None:
    back = again(trace, tmp_path_factory.mktemp("trace"), "trace.json.gz")

    def times(one: Trace) -> list[tuple[int, ...]]:
        columns = [
            one.column("spans", name).tolist() for name in ("start_ns", "duration_ns", "flags", "correlation")
        ]
        return sorted(zip(*columns, strict=True))

    # Rebuilt calls would be read as recorded calls; these traces have none.
    assert times(back) == times(trace)
    assert back.info["start_realtime_ns"] == trace.info["start_realtime_ns"]
    assert back.info["stop_ns"] >= trace.info["stop_ns"]
    assert len(back.columns("allocations")) == len(trace.columns("allocations"))


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.zst"])
def test_stacks_modules_and_cycles_come_back(tmp_path: Path, name: str) -> None:
    made = TraceBuilder()
    twins = [made.module("Net"), made.module("Net")]
    layers = [made.module("Linear", name="fc", parent=net) for net in twins]
    outer, inner = made.stack(("a.py", 1, "f")), made.stack(("a.py", 1, "f"), ("b.py", 2, "g"))
    made.span("aten::linear", 10, 50, module=layers[0], stack=outer)
    made.span("aten::addmm", 20, 10, module=layers[0], stack=outer)
    made.span("aten::relu", 100, 10, module=layers[1], stack=inner, is_async=True, unfinished=True)
    trace = made.build()
    back = again(trace, tmp_path, name)
    assert told(back) == told(trace)
    assert back.column("spans", "module").tolist() == trace.column("spans", "module").tolist()
    for table in ("modules", "cycles"):
        for column in STORED[table].column_names:
            if column != "address":
                texts = [
                    [one.strings[row] for row in one.column(table, column).tolist()]
                    if column in ("name", "class")
                    else list(one.column(table, column))
                    for one in (trace, back)
                ]
                assert texts[0] == texts[1], (table, column)


def test_calls_of_functions_and_modules_come_back_under_kinetos_names(tmp_path: Path) -> None:
    made = TraceBuilder()
    net = made.module("Net")
    stack = made.stack(("a.py", 1, "f"))
    made.span("f", 0, 100, scope=100, stack=stack).span("Net", 10, 50, scope=101, module=net, stack=stack)
    made.span("built-in", 20, 5, scope=100).span("aten::mm", 21, 2, module=net, stack=stack)
    back = again(made.build(), tmp_path)
    assert [back.strings[name] for name in back.column("spans", "name").tolist()] == [
        "a.py(1): f", "nn.Module: Net_0", "built-in", "aten::mm",
    ]  # fmt: skip
    assert back.column("spans", "kind").tolist() == [
        SpanKind.PYTHON, SpanKind.MODULE, SpanKind.PYTHON, SpanKind.OPERATOR,
    ]  # fmt: skip
    assert back.column("spans", "caller").tolist() == [-1, 0, 1, 2]


@pytest.mark.parametrize(
    "own",
    [
        3, {}, {"modules": 3}, {"modules": {"path": ["a"], "name": [1], "class": ["A"], "parent": [-1], "caller": [-1]}},
        {"modules": {"path": ["a"], "name": ["a"], "class": ["A"], "parent": [7], "caller": [-1]}},
        {"cycles": {"number": [0]}}, {"cycles": {"number": [0], "start_ns": [1, 2], "duration_ns": [2**70]}},
    ],
)  # fmt: skip
def test_a_damaged_head_of_ours_only_costs_what_it_says(tmp_path: Path, own: Any) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 5, "dur": 1,
             "args": {"Module": ["a"], "Module row": 9, "Unfinished": True, "x": 1}}  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps({"kinetoscope": own, "traceEvents": [event]}))
    trace = read_chrome_trace(tmp_path / "a.json")
    assert len(trace.columns("spans")) == 1
    assert trace.column("spans", "module").tolist() == [-1]
    assert "kinetoscope" not in trace.info


DIFFERENT = {
    # Stack texts lack forwarding frames and the folders of packages.
    "frames": {"function", "file", "line"},
    "stacks": {"parent", "frame"},
    # Renumbered in order of appearance.
    "arguments": {"json"},
    "shapes": {"dims", "types", "concrete", "strides"},
    "spans": {"arguments", "shapes", "own_stack", "stack", "own_module", "category"},
    # Computed if the source lacks them.
    "allocations": {"allocated_bytes", "reserved_bytes"},
}


@pytest.mark.parametrize("path", different_traces(), ids=lambda path: path.name.split(".")[0])
def test_real_traces_come_back_with_equal_columns(path: Path, tmp_path: Path) -> None:
    trace = kinetoscope.open(path)
    write_chrome_trace(trace, tmp_path / "trace.json")
    back = kinetoscope.open(tmp_path / "trace.json")
    strings = [np.array(one.strings, object) for one in (trace, back)]
    for name, table in STORED.items():
        if name in ("frames", "stacks", "losses"):
            continue
        assert len(back.columns(name)) == len(trace.columns(name)), name
        for column in table.columns:
            if column.name in DIFFERENT.get(name, ()):
                continue
            one, other = trace.column(name, column.name), back.column(name, column.name)
            if column.unit == "row of strings":
                one, other = strings[0][one], strings[1][other]
            equal = one == other if isinstance(one, list) else np.array_equal(one, other)
            assert equal, (name, column.name)
    for table, columns in (("shapes", DIFFERENT["shapes"]), ("arguments", {"json"})):
        for column in sorted(columns):
            texts = [
                np.append(np.array(one.column(table, column), object), "")[one.column("spans", table)]
                for one in (trace, back)
            ]
            if table == "arguments":
                texts = [np.array([json.loads(text or "null") for text in part], object) for part in texts]
            assert texts[0].tolist() == texts[1].tolist(), (table, column)
