"""A report of a small trace with what the server answers about it, which the page's own answers are tested with.

`python -m tests.support.report_vectors` writes the file anew.
"""

import json
import re
from pathlib import Path
from random import Random

from kinetoscope.model.schema import SpanKind
from kinetoscope.viewer.report import report_page
from kinetoscope.viewer.server.requests import Limited
from kinetoscope.viewer.server.routes import answer
from kinetoscope.viewer.timeline.tracks import counters_of, timeline
from tests.support.trace_builder import TraceBuilder

PATH = Path(__file__).parents[1] / "golden" / "viewer_report.json"
MOST_CUT = 60


def everything():
    """A trace with something of everything that the timeline shows."""
    random, builder = Random(7), TraceBuilder()
    other = builder.thread("main") + 1
    builder.thread("wörker <b>")
    net = builder.module("Net")
    layers = [builder.module("Linear", name=name, parent=net) for name in ("fc", "out")]
    stacks = [builder.stack(("a.py", 1, "main"), ("b.py", line, "go")) for line in (2, 3)]
    shapes = [builder.shapes([[2, size]], ["float"]) for size in (3, 4)]
    stream = builder.stream(7)
    at = 5
    for step in range(6):
        builder.step(step, at, 900)
        builder.span("loop", at + 1, 880, kind=SpanKind.PYTHON)
        for number, layer in enumerate(layers):
            begin, correlation = at + 10 + 200 * number, 10 * step + number
            where = {"module": layer, "stack": stacks[number], "shapes": shapes[number]}
            builder.span("forward", begin, 150, kind=SpanKind.PYTHON)
            builder.span("aten::linear", begin + 2, 100 + random.randrange(20), sequence=correlation, **where)
            builder.span("aten::addmm", begin + 5, 60, overload="out" if number else "", **where)
            builder.runtime("cudaLaunchKernel", begin + 10, 8, correlation=correlation)
            launched = begin + 30 + random.randrange(9)
            builder.kernel(
                f"gemm_{number}", launched, 100, stream=stream, correlation=correlation,
                grid=(2, 1, 1), block=(128, 1, 1), launch={"registers": 32 + number},
            )  # fmt: skip
            builder.backward(
                "AddmmBackward0", at + 450 + 100 * number, 50, sequence=correlation, thread=other
            )
        builder.runtime("cudaMemcpyAsync", at + 700, 20, correlation=10 * step + 5)
        builder.copy(
            "Memcpy HtoD (Pageable -> Device)", at + 705, 10 + step, stream=stream, size_bytes=4096,
            correlation=10 * step + 5,
        )  # fmt: skip
        builder.span("aten::add", at + 690, 300, thread=other, is_async=True, arguments={"why": "<test>"})
        builder.span("aten::empty", at + 720, 0)
        builder.allocate(at + 20, 4096 + step, 1000)
        builder.counter("cpu_percent", at, 12.5 + step)
        at += 1000 + random.randrange(50)
    return builder.build()


def asked_of(trace, until):
    """Questions whose answers a report must have itself, up to a moment."""
    ids = [track.id for track in timeline(trace).tracks]
    stretches = [
        (0, until, 40),
        (0, until, 1600),
        (0.3 * until, 0.31 * until, 33),
        (-5.5, 1200.25, 7),
        (until / 2, until, 3),
    ]
    for start, end, width in stretches:
        window = {"start": repr(start), "end": repr(end)}
        for tracks in (None, ",".join(map(str, ids[1::2]))):
            some = {} if tracks is None else {"tracks": tracks}
            yield "window", window | some | {"width": str(width)}
            yield "range", window | some
            yield "arrows", window | some
        yield from (
            ("counter", window | {"width": str(width), "track": str(counter.id)})
            for counter in counters_of(trace)
        )


def whole_questions(trace):
    """Questions about all of a trace."""
    for text in ("add", "LINEAR", "net", "", "no such"):
        yield "search", {"text": text}
    yield "search", {"text": "a", "limit": "3", "from": "2000"}
    for name, kind in (
        ("aten::addmm", "operator"),
        ("gemm_1", "kernel"),
        ("ProfilerStep*", "step"),
        ("forward", None),
    ):
        query = {"name": name} | ({} if kind is None else {"kind": kind})
        yield "instances", query
        yield "instances", query | {"limit": "2", "from_ns": "60"}
        yield "histogram", query
    yield "histogram", {"name": "no such"}


def plain(found):
    """An answer as JSON: the columns of a table, and how many rows there are."""
    total = None
    if isinstance(found, Limited):
        found, total = found.table, found.total
    if hasattr(found, "to_pydict"):
        return {"columns": found.to_pydict(), "total": found.num_rows if total is None else total}
    return {"json": found}


def parts_of(page):
    """What stands in the page of a report: its directory and its blocks."""
    found = dict(
        re.findall(r'<script type="application/[\w-]+" id="kinetoscope-(\w+)">([^<]*)</script>', page)
    )
    directory = json.loads(found.pop("report"))
    return directory, [found[str(number)] for number in range(len(found))]


def vectors():
    """Reports of a whole and of a cut trace with questions and answers."""
    trace, made = everything(), []
    for most in (1_000_000, MOST_CUT):
        directory, blocks = parts_of(report_page(trace, "golden", most))
        # Answers of the server are carried as they are; only what the page makes itself is compared.
        told = directory["timeline"]
        first = told["rows"]["block"]
        moved = {
            part: {**told[part], "block": told[part]["block"] - first}
            for part in ("rows", "facts", "counters")
        }
        timeline_only = {**directory, "version": "", "answers": {}, "timeline": {**told, **moved}}
        cut = directory["cut"]
        until = trace.duration_ns if cut is None else cut["before_ns"]
        asked = list(asked_of(trace, until))
        if cut is None:
            asked += whole_questions(trace)
        asked += [(f"span/{row}", {}) for row in range(0, MOST_CUT - 20, 1 if cut is None else 7)]
        if cut is not None:
            # A range in which something ends that is not carried would be another one.
            asked = [(path, query) for path, query in asked if path in ("window", "counter")]
        made.append({
            "report": timeline_only,
            "blocks": blocks[first:],
            "asked": [
                {"path": path, "query": query, **plain(answer(trace, path, query))} for path, query in asked
            ],
        })  # fmt: skip
    return made


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), separators=(",", ":")) + "\n", encoding="utf-8")
