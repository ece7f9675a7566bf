"""Traces to write as Perfetto files: with everything in them, with hostile texts, with spans that overlap."""

from __future__ import annotations

from kinetoscope.trace import Trace
from tests.support.hostile import HOSTILE_NAMES
from tests.support.strict_json import paired
from tests.support.trace_builder import TraceBuilder

HOSTILE = [*HOSTILE_NAMES, "", "n" * 1_500_000]


def training() -> TraceBuilder:
    """Two threads and a device, forward and backward, a module, stacks, shapes, memory, counters and steps."""
    made = TraceBuilder()
    main, engine = made.thread("python", os_tid=4242), made.thread("autograd", os_tid=4243)
    made.stream(7)
    model = made.module("GPT")
    layer = made.module("Linear", name="fc", parent=model)
    weight = made.parameter(layer, "weight")
    stack = made.stack(("train.py", 3, "<module>"), ("model.py", 7, "GPT.forward"))
    shapes = made.shapes([[2, 4], [4]], ["float", "float"], ["", "1.5"])
    made.step(3, 0, 10_000)
    made.span(
        "aten::linear", 1_234, 4_321, module=layer, stack=stack, sequence=1, shapes=shapes, overload="out"
    )
    made.span(
        "aten::addmm",
        1_300,
        4_000,
        module=layer,
        stack=stack,
        external_id=17,
        arguments={"fast": True, "why": None},
    )
    made.runtime("cudaLaunchKernel", 1_400, 50, correlation=8, external_id=17)
    made.kernel(
        "sgemm", 2_000, 3_000, correlation=8, grid=(80, 1, 1), block=(128, 2, 1),
        launch={"registers": 64, "shared_bytes": 1024, "occupancy_percent": 37.5, "graph": 5},
        arguments={"cbid": 211, "of": [1, {"a": 2}], "text": "x\ty", "half": 0.5, "huge": 2**64 - 1},
    )  # fmt: skip
    made.copy("Memcpy HtoD (Pageable -> Device)", 5_500, 20, size_bytes=4096)
    made.device_annotation("forward", 1_900, 4_000)
    made.backward(
        "AddmmBackward0", 6_000, 1_000, sequence=1, forward_thread=main, thread=engine, parameter=weight
    )
    made.annotation(
        "nccl:all_reduce",
        7_500,
        100,
        thread=engine,
        arguments={"Collective name": "allreduce", "Group size": 8},
    )
    made.allocate(1_350, 0xF00, 64, thread=main)
    made.allocate(1_360, 2**64 - 16, 4096, thread=main, device=(1, 0))
    made.free(6_500, 0xF00, thread=engine)
    made.counter("GPU power (W)", 100, 250.5).counter("GPU power (W)", 50, 10.0).counter("queue", 70, 3.0)
    return made.know("note", 'say "hi"')


def hostile() -> TraceBuilder:
    """Every hostile text everywhere a text can be."""
    made = TraceBuilder()
    for place, text in enumerate(HOSTILE):
        thread = made.thread(text)
        module = made.module(text, name=text, parent=made.module(text))
        stack = made.stack((text, place, text), (text, 1, text))
        made.span(
            text, place, 10, thread=thread, module=module, stack=stack, overload=text,
            shapes=made.shapes([text], [text], [text]), arguments={text: text},
        )  # fmt: skip
        made.counter(text, place, float(place))
        made.know(text, text)
    return made


def mended(text: str) -> str:
    """What can be written of a text: its pairs of surrogates paired, and what is left of these replaced."""
    return "".join("\ufffd" if 0xD800 <= ord(letter) < 0xE000 else letter for letter in paired(text))


def many_lanes() -> TraceBuilder:
    """Ranges that all partly overlap, moments of memory between them, and ids that meet."""
    made = TraceBuilder()
    for thread in range(3):
        made.thread(f"worker {thread}", os_tid=5)
        for row in range(200):
            made.annotation(f"range {row % 7}", row * 10, 35 + row % 50, thread=thread)
            made.allocate(row * 10 + 5, 64 * row + 64, 64, thread=thread)
    return made


def columns(spans: dict, **tables: dict) -> Trace:
    """A trace of spans given by their unusual columns."""
    count = len(spans["start_ns"])
    usual = {"thread": [0] * count, "name": [1] * count, "duration_ns": [1] * count}
    threads = {"index": [0, 1], "os_tid": [10, 11], "torch_tid": [1, 2], "name": ["a", "b"]}
    return Trace.from_columns(
        {"spans": usual | spans, "threads": threads, **tables},
        strings=["", "op", "Source's own"],
        info={"process": 10},
    )
