"""Exporting 1,000,000 operators as a Perfetto file and as Chrome JSON: bytes and time per span."""

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from benchmarks.harness import Result, run, timed
from benchmarks.workloads import EVERYTHING, record_operators, recorder
from kinetoscope import Trace

SMALLER, SUFFIXES, ROUNDS = 3, (".pftrace", ".json"), 3


def recorded(operators: int, everything: bool) -> Trace:
    """Record operators, with or without shapes, stacks and memory."""
    session = recorder(theirs=False, **(EVERYTHING if everything else {}))()
    record_operators(session, operators)
    session.stop()
    trace: Trace = session.trace
    return trace


def measured(trace: Trace, folder: Path) -> dict[str, tuple[float, int]]:
    """Return the minimum time in seconds and the size in bytes of each format; derived columns are computed before."""
    found: dict[str, tuple[float, int]] = {}
    for _ in range(ROUNDS):
        for suffix in SUFFIXES:
            target = folder / f"trace{suffix}"
            seconds, _ = timed(lambda path=target: trace.save(path))
            found[suffix] = (min(seconds, found.get(suffix, (seconds, 0))[0]), target.stat().st_size)
            target.unlink()
    return found


def result_of(operators: int, everything: bool) -> Result:
    """Return one result: with everything on, or operators only."""
    trace = recorded(operators, everything)
    spans, blocks = len(trace.columns("spans")), len(trace.columns("allocations"))
    with tempfile.TemporaryDirectory() as folder:
        times = measured(trace, Path(folder))
    (ours, ours_bytes), (json, json_bytes) = (times[suffix] for suffix in SUFFIXES)
    note = (
        f"{spans:,} spans and {blocks:,} allocations: Perfetto {ours_bytes / spans:.0f} bytes and {ours / spans * 1e9:.0f} ms "
        f"a million spans, JSON {json_bytes / spans:.0f} bytes and {json / spans * 1e9:.0f} ms; {json / ours:.1f} x the speed"
    )
    return Result(
        f"a Perfetto file of {'shapes, stacks and memory' if everything else 'operators only'}",
        f"<= 1/{SMALLER} of the bytes of the JSON, no slower",
        f"1/{json_bytes / ours_bytes:.1f} of the bytes, {ours / json:.2f} x the time",
        json_bytes >= SMALLER * ours_bytes and ours <= json,
        [note],
    )


def options_of(parser: ArgumentParser) -> None:
    """Add the option for the size, for machines with little memory."""
    parser.add_argument("--ops", type=int, default=1_000_000, help="number of operators")


def measure(options: Namespace) -> list[Result]:
    """Measure a recording of operators only, and one with everything on."""
    operators = 20_000 if options.quick else options.ops
    return [result_of(operators, everything) for everything in (False, True)]


if __name__ == "__main__":
    run(measure, options_of)
