"""Our own file: bytes an event with everything in it, and how long opening it takes."""

import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

import kinetoscope
from benchmarks.big_traces import pattern, write_trace
from benchmarks.harness import Result, run, timed

BYTES_AN_EVENT = 20
OPEN_MS = 100
# The first is a small one, whose opening loads what is needed for any.
OPENING = """
import sys, time, kinetoscope
for path in sys.argv[1:]:
    began = time.perf_counter()
    trace = kinetoscope.open(path)
    spans = len(trace.columns("spans"))
    print(1000 * (time.perf_counter() - began), spans)
"""


def options_of(parser: ArgumentParser) -> None:
    """The size, and where the files go."""
    parser.add_argument("--events", type=int, default=10_000_000, help="how long the trace is")
    parser.add_argument("--folder", type=Path, help="where to put it (default: a temporary folder)")


def measure(options: Namespace) -> list[Result]:
    """Makes a Kineto file, reads it, saves it as ours, and opens that in a fresh process."""
    repeated = pattern()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        text, saved = Path(folder) / "trace.json", Path(folder) / "trace.ktrace"
        events = write_trace(repeated, 20_000 if options.quick else options.events, text)
        text_bytes = text.stat().st_size
        trace = kinetoscope.open(text)
        text.unlink()
        save_seconds, _ = timed(lambda: trace.save(saved))
        trace.close()
        size = saved.stat().st_size
        small = Path(folder) / "small.ktrace"
        kinetoscope.Trace.from_columns({}, strings=[""]).save(small)
        done = subprocess.run(
            [sys.executable, "-c", OPENING, small, saved], check=True, capture_output=True, text=True
        )
    first_ms, open_ms = (float(line.split()[0]) for line in done.stdout.splitlines())
    spans = int(done.stdout.split()[-1])
    return [
        Result(
            f"our file of {events:,} events of Kineto's",
            f"<= {BYTES_AN_EVENT} bytes an event",
            f"{size / events:.1f} bytes",
            size <= BYTES_AN_EVENT * events,
            [
                f"{repeated.source}; {spans:,} spans; {size / 1e6:.1f} MB, {text_bytes / 1e6:.0f} MB as JSON",
                f"saved in {save_seconds:.2f} s",
            ],
        ),
        Result(
            f"opening it, {events:,} events",
            f"< {OPEN_MS} ms",
            f"{open_ms:.1f} ms",
            open_ms < OPEN_MS,
            [
                f"the first file that a process opens, an empty one, takes {first_ms:.0f} ms, for loading numpy and us"
            ],
        ),
    ]


if __name__ == "__main__":
    run(measure, options_of)
