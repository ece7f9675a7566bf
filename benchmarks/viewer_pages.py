"""Loading times in a browser with 1,000,000 spans: the pages of the server, and a report opened as a file."""

import re
import statistics
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from benchmarks.harness import Result, run
from benchmarks.viewing import big_trace
from kinetoscope.trace import Trace
from kinetoscope.trace import open as open_trace
from kinetoscope.viewer.server.report import report
from kinetoscope.viewer.server.routes import page_text
from kinetoscope.viewer.server.serve import Server
from tests.support.browser import Chromium, what_is_missing

REPORT_MB, BUNDLE_KB = 12.0, 400.0
OVERVIEW_S, TIMELINE_S, REPORT_S, MOVE_MS = 1.5, 2.0, 3.0, 150.0
ROUNDS = 48
# Whether the canvas of the timeline has been drawn.
DRAWN = """() => [...document.querySelectorAll('main canvas')].some((canvas) => {
    const { width, height } = canvas;
    if (width * height === 0) return false;
    const pixels = canvas.getContext('2d').getImageData(0, 0, width, Math.min(height, 400)).data;
    const colors = new Set();
    for (let at = 0; at < pixels.length; at += 4 * 997) colors.add(`${pixels[at]},${pixels[at + 1]},${pixels[at + 2]}`);
    return colors.size > 4;
})"""

# Counts pending requests of the timeline.
COUNT_OPEN = """{
    const fetch = window.fetch;
    window.pendingRequests = 0;
    window.fetch = async (...request) => {
        if (!['/window?', '/counter?'].some((path) => String(request[0]).includes(path))) return fetch(...request);
        window.pendingRequests += 1;
        try {
            const response = await fetch(...request);
            const content = await response.arrayBuffer();
            return new Response(content, { status: response.status, headers: response.headers });
        } finally {
            window.pendingRequests -= 1;
        }
    };
}"""
# Zooms and pans with wheel events at pseudorandom positions, and measures each until drawn.
MOVE = """async (rounds) => {
    const area = document.querySelector('.tl-area');
    const box = area.getBoundingClientRect();
    const frame = () => new Promise(requestAnimationFrame);
    let chance = 1;
    const next = () => (chance = (chance * 48271) % 2147483647) / 2147483647;
    const settle = async () => {
        const began = performance.now();
        let last = began;
        // Counters are requested after boxes, so wait for three frames without pending requests.
        for (let quiet = 0; quiet < 3; ) {
            await frame();
            if (quiet === 0 || window.pendingRequests) last = performance.now();
            quiet = window.pendingRequests ? 0 : quiet + 1;
        }
        return last - began;
    };
    await settle();
    const took = [];
    for (let round = 0; round < rounds; round += 1) {
        const turn = round % 8;
        const how = turn < 4 ? { ctrlKey: true, deltaY: -240 } : turn < 7 ? { deltaX: 400 } : { ctrlKey: true, deltaY: 800 };
        const at = { clientX: box.left + next() * box.width, clientY: box.top + 40 };
        area.dispatchEvent(new WheelEvent('wheel', { bubbles: true, cancelable: true, ...at, ...how }));
        took.push(await settle());
    }
    return took;
}"""


def seconds_until(address: str, shown: str, rounds: int) -> float:
    """Return the median time from opening an address until a condition is true on the page, in seconds."""
    browser, times = Chromium(), []
    try:
        for _ in range(rounds):
            visit = browser.visit()
            began = time.perf_counter()
            visit.page.goto(address, wait_until="commit")
            visit.page.wait_for_function(shown)
            times.append(time.perf_counter() - began)
            visit.close()
    finally:
        browser.close()
    return statistics.median(times)


def move_ms(address: str, rounds: int) -> list[float]:
    """Return the times from a wheel event until everything visible has been loaded and drawn."""
    browser = Chromium()
    try:
        visit = browser.visit()
        visit.page.add_init_script(COUNT_OPEN)
        visit.page.goto(address)
        visit.page.wait_for_function(DRAWN)
        return visit.page.evaluate(MOVE, rounds)
    finally:
        browser.close()


def served(path: Path, rounds: int) -> list[Result]:
    """Measure pages of the server; the trace is opened anew, so that nothing is cached."""
    results = []
    for page, shown, target in (
        (
            "overview",
            "() => document.querySelector('main h1') && !document.querySelector('.waiting')",
            OVERVIEW_S,
        ),
        ("timeline", DRAWN, TIMELINE_S),
    ):
        began = time.perf_counter()
        with open_trace(path) as trace:
            server = Server(lambda trace=trace: [("big", trace)], 0)
            thread = threading.Thread(target=server.run)
            thread.start()
            try:
                opening = time.perf_counter() - began
                took = opening + seconds_until(f"{server.address}#/{page}", shown, 1)
                results.append(
                    Result(
                        f"{page} of a newly opened trace",
                        f"< {target} s",
                        f"{took:.2f} s",
                        took < target,
                    )
                )
                if page == "timeline":
                    times = sorted(move_ms(f"{server.address}#/{page}", rounds))
                    worst = times[int(0.95 * (len(times) - 1))]
                    results.append(
                        Result(
                            "zooming and panning, 95th percentile",
                            f"< {MOVE_MS:.0f} ms",
                            f"{worst:.0f} ms (median {statistics.median(times):.0f})",
                            worst < MOVE_MS,
                        )
                    )
            finally:
                server.shutdown()
                thread.join()
    return results  # fmt: skip


def reported(trace: Trace, folder: Path, rounds: int) -> list[Result]:
    """Measure the size of a report, and the time to draw it."""
    spans = len(trace.columns("spans"))
    began = time.perf_counter()
    path = report(trace, folder / "report.html")
    writing = time.perf_counter() - began
    size = path.stat().st_size / 1e6
    page = page_text()
    (script,) = re.findall(r"<script type=\"module\">(.*?)</script>", page, re.DOTALL)
    bundle = len(script.encode()) / 1e3
    results = [
        Result(
            f"report of {spans:,} spans", f"<= {REPORT_MB:.0f} MB", f"{size:.2f} MB", size <= REPORT_MB,
            [f"written in {writing:.1f} s"],
        ),
        Result(
            "the app's script, minified", f"<= {BUNDLE_KB:.0f} kB", f"{bundle:.0f} kB", bundle <= BUNDLE_KB,
            [f"{len(page.encode()) / 1e3:.0f} kB with styles and HTML, without data"],
        ),
    ]  # fmt: skip
    if what_is_missing() is None:
        took = seconds_until(f"{path.as_uri()}#/timeline", DRAWN, rounds)
        results.append(
            Result("opening and drawing that report", f"< {REPORT_S} s", f"{took:.2f} s", took < REPORT_S)
        )
    return results


def options_of(parser: ArgumentParser) -> None:
    """Add the option for the size."""
    parser.add_argument("--spans", type=int, default=1_000_000)


def measure(options: Namespace) -> list[Result]:
    """Measure the report, then the pages of the server."""
    spans, rounds = (20_000, 1) if options.quick else (options.spans, 3)
    with tempfile.TemporaryDirectory() as folder:
        trace = big_trace(spans, with_stacks=True)
        results = reported(trace, Path(folder), rounds)
        if missing := what_is_missing():
            print(f"Pages not measured: {missing}")
            return results
        path = Path(folder) / "big.ktrace"
        trace.save(path)
        return results + served(path, 8 if options.quick else ROUNDS)


if __name__ == "__main__":
    run(measure, options_of)
