"""Time and memory of reading a Kineto JSON file, against HolisticTraceAnalysis and `orjson.loads` alone.

Each reader runs in a new process on one core. Processor times are compared, because they depend less on other load; on an
idle machine they are equal to wall times.
"""

import gzip
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from benchmarks.big_traces import Pattern, pattern, write_trace
from benchmarks.dense_traces import KINDS, write_dense_trace
from benchmarks.harness import Result, run

EVENTS_PER_SECOND = 1_000_000
TIMES_HTA, TIMES_ORJSON = 20, 3
MEMORY_SHARE = 0.15
DENSE_MEMORY_SHARE = 0.2
TURNS = 3
# Bytes of memory per byte of text that other readers need, about, because they create dictionaries.
OTHERS_BYTES_A_BYTE = 8


@dataclass(frozen=True)
class Reading:
    """The time and memory of one reader for one file."""

    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int


def read(reader: str, path: Path) -> Reading:
    """Read the file with one reader in a new process."""
    command = [sys.executable, "-m", "benchmarks.one_reading", reader, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{reader} failed to read {path}:\n{done.stderr}")
    return Reading(**json.loads(done.stdout.splitlines()[-1]))


def available_bytes() -> int:
    """Return the available memory of the machine."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def why_not(reader: str, module: str, path: Path) -> str | None:
    """Return the reason for not running a reader, if there is one."""
    if importlib.util.find_spec(module) is None:
        return f"{reader} is not installed: not compared"
    if available_bytes() < OTHERS_BYTES_A_BYTE * path.stat().st_size:
        return f"{reader} needs more memory than is available: not compared"
    return None


def options_of(parser: ArgumentParser) -> None:
    """Add the options for sizes and the folder."""
    parser.add_argument(
        "--events",
        type=int,
        nargs="+",
        default=[1_000_000, 10_000_000],
        help="numbers of events in the files",
    )
    parser.add_argument("--folder", type=Path, help="folder for the files (default: a temporary one)")


def results_of(repeated: Pattern, wanted: int, folder: Path) -> list[Result]:
    """Write one file and read it with all readers."""
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
                f"{best.cpu_seconds:.2f} s processor time, {best.wall_seconds:.2f} s wall time",
            ],
        ),
        Result(
            f"{what}: peak memory",
            f"<= {MEMORY_SHARE:.0%} of the size of the text",
            f"{peak_bytes / size:.1%}",
            peak_bytes <= MEMORY_SHARE * size,
            [f"{peak_bytes / 1e6:.0f} MB, including the trace"],
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
                f"{what}: against {reader}",
                f">= {times} x faster",
                f"{ratio:.1f} x",
                ratio >= times,
                [f"{other.cpu_seconds:.2f} s, {other.peak_bytes / 1e6:.0f} MB"],
            )
        )
    path.unlink()
    return results


def dense_result(kind: str, events: int, folder: Path) -> Result:
    """Read a file with little text for each event, plain and compressed."""
    path = folder / "dense.json"
    write_dense_trace(kind, events, path)
    size = path.stat().st_size
    packed = path.with_suffix(".json.gz")
    with path.open("rb") as text, gzip.open(packed, "wb", compresslevel=1) as file:
        shutil.copyfileobj(text, file)
    plain_bytes, packed_bytes = (read("ours", file).peak_bytes for file in (path, packed))
    path.unlink()
    packed.unlink()
    return Result(
        f"read {events:,} events of {size / events:.0f} bytes, {kind}: peak memory",
        f"<= {DENSE_MEMORY_SHARE:.0%} of the size of the text",
        f"{plain_bytes / size:.1%}; {packed_bytes / size:.1%} with gzip",
        max(plain_bytes, packed_bytes) <= DENSE_MEMORY_SHARE * size,
        [f"{plain_bytes / events:.1f} bytes per event, including the trace"],
    )


def measure(options: Namespace) -> list[Result]:
    """Measure one file after the other; each is deleted afterwards."""
    repeated = pattern()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = [
            result
            for events in ([20_000] if options.quick else options.events)
            for result in results_of(repeated, events, Path(folder))
        ]
        dense = 20_000 if options.quick else min(options.events)
        return results + [dense_result(kind, dense, Path(folder)) for kind in KINDS]


if __name__ == "__main__":
    run(measure, options_of)
