"""The time from the end of a run of 1,000,000 operators to the table: `stop()` and `key_averages().table()`."""

from argparse import ArgumentParser, Namespace

from benchmarks.harness import Result, run, timed
from benchmarks.workloads import record_operators, recorder

FACTOR = 300


def table_seconds(theirs: bool, operators: int) -> float:
    """Record operators, and return the time until the table is a string, in seconds."""
    session = recorder(theirs)()
    record_operators(session, operators)

    def finish() -> str:
        session.stop()
        return session.key_averages().table(sort_by="self_cpu_time_total")

    return timed(finish)[0]


def options_of(parser: ArgumentParser) -> None:
    """Add options to record fewer operators with torch.profiler, which needs minutes and gigabytes for a million."""
    parser.add_argument("--torch-ops", type=int, help="number of operators for torch.profiler")
    parser.add_argument(
        "--scaled", action="store_true", help="scale the time of torch.profiler in proportion to --torch-ops"
    )


def measure(options: Namespace) -> list[Result]:
    """Measure ours three times and torch.profiler once."""
    operators = 20_000 if options.quick else 1_000_000
    theirs_operators = options.torch_ops or operators
    if theirs_operators != operators and not options.scaled:
        raise SystemExit("--torch-ops compares different sizes: also pass --scaled to accept a scaled result")
    ours = min(table_seconds(theirs=False, operators=operators) for _ in range(2 if options.quick else 3))
    theirs = table_seconds(theirs=True, operators=theirs_operators) * operators / theirs_operators
    notes = [f"kinetoscope {ours * 1e3:.0f} ms (best run), torch.profiler {theirs:.1f} s"]
    if theirs_operators != operators:
        notes.append(
            f"torch.profiler was measured with {theirs_operators:,} operators and SCALED in proportion"
        )
    factor = theirs / ours
    return [
        Result(
            f"stop() and key_averages().table(), {operators:,} operators",
            f"<= 1/{FACTOR} of torch.profiler",
            f"1/{factor:.0f}",
            factor >= FACTOR,
            notes,
        )
    ]


if __name__ == "__main__":
    run(measure, options_of)
