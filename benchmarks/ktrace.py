"""The size of `.ktrace` files per event, with everything recorded, and the time to open them."""

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
# The first file is a small one; opening it loads libraries.
OPENING = """
import sys, time, kinetoscope
for path in sys.argv[1:]:
    began = time.perf_counter()
    trace = kinetoscope.open(path)
    spans = len(trace.columns("spans"))
    print(1000 * (time.perf_counter() - began), spans)
"""


def options_of(parser: ArgumentParser) -> None:
    """Add the options for the size and the folder."""
    parser.add_argument("--events", type=int, default=10_000_000, help="number of events in the trace")
    parser.add_argument("--folder", type=Path, help="folder for the files (default: a temporary one)")


def measure(options: Namespace) -> list[Result]:
    """Make a Kineto file, save it as `.ktrace`, and open that in a new process."""
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
            f".ktrace file of {events:,} Kineto events",
            f"<= {BYTES_AN_EVENT} bytes per event",
            f"{size / events:.1f} bytes",
            size <= BYTES_AN_EVENT * events,
            [
                f"{repeated.source}; {spans:,} spans; {size / 1e6:.1f} MB, {text_bytes / 1e6:.0f} MB as JSON",
                f"saved in {save_seconds:.2f} s",
            ],
        ),
        Result(
            f"opening a .ktrace file of {events:,} events",
            f"< {OPEN_MS} ms",
            f"{open_ms:.1f} ms",
            open_ms < OPEN_MS,
            [
                f"the first file in a process, an empty one, takes {first_ms:.0f} ms to load numpy and kinetoscope"
            ],
        ),
    ]


if __name__ == "__main__":
    run(measure, options_of)
