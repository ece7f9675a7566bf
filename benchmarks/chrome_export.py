"""`export_chrome_trace` of 1,000,000 operators, plain JSON, to a file on disk."""

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from benchmarks.harness import Result, run, timed
from benchmarks.workloads import record_operators, recorder

FACTOR = 3


def export_seconds(theirs: bool, operators: int, folder: Path) -> tuple[float, int]:
    """Records so many operators, stops, and returns the time of the export in seconds and the file's size in bytes."""
    session = recorder(theirs)()
    record_operators(session, operators)
    session.stop()
    target = folder / f"{'torch' if theirs else 'ours'}.json"
    seconds, _ = timed(lambda: session.export_chrome_trace(str(target)))
    size_bytes = target.stat().st_size
    target.unlink()
    return seconds, size_bytes


def options_of(parser: ArgumentParser) -> None:
    """The size, for machines with little memory: both profilers record the same number."""
    parser.add_argument("--ops", type=int, default=1_000_000, help="how many operators both record")


def measure(options: Namespace) -> list[Result]:
    """Measures each once; ours includes reading the recording and computing the nesting, torch did that in stop()."""
    operators = 20_000 if options.quick else options.ops
    with tempfile.TemporaryDirectory() as folder:
        ours, ours_bytes = export_seconds(theirs=False, operators=operators, folder=Path(folder))
        theirs, theirs_bytes = export_seconds(theirs=True, operators=operators, folder=Path(folder))
    notes = [
        (
            f"kinetoscope {ours:.2f} s, {ours_bytes / 1e6:.0f} MB (with stacks and modules); "
            f"torch.profiler {theirs:.2f} s, {theirs_bytes / 1e6:.0f} MB (without)"
        )
    ]
    return [
        Result(
            f"export_chrome_trace, {operators:,} operators",
            f">= {FACTOR} x faster than torch.profiler",
            f"{theirs / ours:.1f} x",
            theirs / ours >= FACTOR,
            notes,
        )
    ]


if __name__ == "__main__":
    run(measure, options_of)
