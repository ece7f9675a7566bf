"""`export_chrome_trace` of 1,000,000 operators, as uncompressed JSON."""

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from benchmarks.harness import Result, run, timed
from benchmarks.workloads import record_operators, recorder

FACTOR = 3


def export_seconds(theirs: bool, operators: int, folder: Path) -> tuple[float, int]:
    """Record operators, and return the time of the export in seconds and the size of the file in bytes."""
    session = recorder(theirs)()
    record_operators(session, operators)
    session.stop()
    target = folder / f"{'torch' if theirs else 'ours'}.json"
    seconds, _ = timed(lambda: session.export_chrome_trace(str(target)))
    size_bytes = target.stat().st_size
    target.unlink()
    return seconds, size_bytes


def options_of(parser: ArgumentParser) -> None:
    """Add the option for the size, for machines with little memory."""
    parser.add_argument("--ops", type=int, default=1_000_000, help="number of operators that both record")


def measure(options: Namespace) -> list[Result]:
    """Measure each once; ours includes reading the recording and nesting, which torch does in stop()."""
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
