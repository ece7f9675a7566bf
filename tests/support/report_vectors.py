"""A report of a small trace with what the server answers about it, which the page's own answers are tested with.

`python -m tests.support.report_vectors` writes the file anew.
"""

import json
import re
from pathlib import Path
from random import Random

import numpy as np

from kinetoscope.model.schema import SpanKind
from kinetoscope.viewer.server.report import report_page
from kinetoscope.viewer.server.routes import answer
from kinetoscope.viewer.timeline.tracks import timeline
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


def windows_of(trace, until):
    """Windows up to a moment: wide and narrow ones, of all tracks and of every second one."""
    ids = [track.id for track in timeline(trace)]
    for start, end, width in [
        (0, until, 40),
        (0, until, 1600),
        (0.3 * until, 0.31 * until, 33),
        (-5.5, 1200.25, 7),
        (until / 2, until, 3),
    ]:
        for tracks in (ids, ids[1::2]):
            yield {"start": start, "end": end, "width": width, "tracks": tracks}


def parts_of(page):
    """What stands in the page of a report: its directory and its blocks."""
    found = dict(
        re.findall(r'<script type="application/[\w-]+" id="kinetoscope-(\w+)">([^<]*)</script>', page)
    )
    directory = json.loads(found.pop("report"))
    return directory, [found[str(number)] for number in range(len(found))]


def vectors():
    """Reports of a whole and of a cut trace, with windows and details of spans as the server has them."""
    trace, made = everything(), []
    count = len(trace.columns("spans"))
    for most in (1_000_000, MOST_CUT):
        directory, blocks = parts_of(report_page(trace, "golden", most, ["timeline"]))
        cut = directory["cut"]
        until = trace.duration_ns if cut is None else cut["before_ns"]
        windows = [
            {
                "query": query,
                "columns": answer(
                    trace, "window", {name: repr(query[name]) for name in ("start", "end", "width")}
                    | {"tracks": ",".join(map(str, query["tracks"]))},
                ).to_pydict(),
            }
            for query in windows_of(trace, until)
        ]  # fmt: skip
        included = np.flatnonzero(trace.column("spans", "start_ns") < until).tolist()
        spans = [answer(trace, f"span/{row}", {}) for row in included[:: 1 if cut is None else 7]]
        if cut is not None:
            for span in spans:
                span["links"] = [link for link in span["links"] if link["span"] in included]
        left_out = next((row for row in range(count) if row not in included), count)
        made.append({
            "report": {**directory, "version": ""},
            "blocks": blocks,
            "windows": windows,
            "spans": spans,
            "lacking": left_out,
        })  # fmt: skip
    return made


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), separators=(",", ":")) + "\n", encoding="utf-8")
