"""Reading a Kineto JSON file: beside HolisticTraceAnalysis and beside `orjson.loads` alone, and the memory it takes.

Each reader has a fresh process and one core. Times are those of the processor, so that other work on the machine counts
for less; where the machine is idle, the wall says the same.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from benchmarks.big_traces import Pattern, pattern, write_trace
from benchmarks.harness import Result, run

EVENTS_PER_SECOND = 1_000_000
TIMES_HTA, TIMES_ORJSON = 20, 3
MEMORY_SHARE = 0.15
TURNS = 3
# Others make dictionaries of everything, about so many bytes for each byte of text.
OTHERS_BYTES_A_BYTE = 8


@dataclass(frozen=True)
class Reading:
    """What one reader took for one file."""

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int


def read(reader: str, path: Path) -> Reading:
    """Has one reader read the file in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.one_reading", reader, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{reader} did not read {path}:\n{done.stderr}")
    return Reading(**json.loads(done.stdout.splitlines()[-1]))


def available_bytes() -> int:
    """The memory that the machine can give now."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def why_not(reader: str, module: str, path: Path) -> str | None:
    """Why a reader cannot be asked."""
    if importlib.util.find_spec(module) is None:
        return f"{reader} is not installed: not compared"
    if available_bytes() < OTHERS_BYTES_A_BYTE * path.stat().st_size:
        return f"{reader} would need more memory than there is: not compared"
    return None


def options_of(parser: ArgumentParser) -> None:
    """Sizes, and where the files go."""
    parser.add_argument(
        "--events", type=int, nargs="+", default=[1_000_000, 10_000_000], help="how long the files are"
    )
    parser.add_argument("--folder", type=Path, help="where to put them (default: a temporary folder)")


def results_of(repeated: Pattern, wanted: int, folder: Path) -> list[Result]:
    """Writes one file and has all read it."""
    path = folder / f"{wanted}.json"
    events = write_trace(repeated, wanted, path)
    size = path.stat().st_size
    readings = [read("ours", path) for _ in range(TURNS)]
    best = min(readings, key=lambda reading: reading.cpu_seconds)
    peak_bytes = max(reading.peak_bytes for reading in readings)
    speed = events / best.cpu_seconds
    what = f"read a Kineto JSON of {events:,} events"
    results = [
        Result(
            what,
            f">= {EVENTS_PER_SECOND / 1e6:.1f} M events/s on one core",
            f"{speed / 1e6:.2f} M events/s",
            speed >= EVENTS_PER_SECOND,
            [
                f"{size / 1e6:.0f} MB of text, {repeated.source}",
                f"{best.cpu_seconds:.2f} s of the processor, {best.wall_seconds:.2f} s by the wall",
            ],
        ),
        Result(
            f"{what}: peak memory",
            f"<= {MEMORY_SHARE:.0%} of the text",
            f"{peak_bytes / size:.1%}",
            peak_bytes <= MEMORY_SHARE * size,
            [f"{peak_bytes / 1e6:.0f} MB, of which the trace stays"],
        ),
    ]
    for reader, module, times in (
        ("HolisticTraceAnalysis", "hta", TIMES_HTA),
        ("orjson", "orjson", TIMES_ORJSON),
    ):
        if (reason := why_not(reader, module, path)) is not None:
            results[0].notes.append(reason)
            continue
        other = read(reader, path)
        ratio = other.cpu_seconds / best.cpu_seconds
        results.append(
            Result(
                f"{what}: beside {reader}",
                f">= {times} x faster",
                f"{ratio:.1f} x",
                ratio >= times,
                [f"{other.cpu_seconds:.2f} s, {other.peak_bytes / 1e6:.0f} MB"],
            )
        )
    path.unlink()
    return results


def measure(options: Namespace) -> list[Result]:
    """One file after the other, of which none stays."""
    repeated = pattern()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        return [
            result
            for events in ([20_000] if options.quick else options.events)
            for result in results_of(repeated, events, Path(folder))
        ]


if __name__ == "__main__":
    run(measure, options_of)
