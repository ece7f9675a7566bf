"""From the end of a run of 1,000,000 operators to the printed table: `stop()` and `key_averages().table()`."""

from argparse import ArgumentParser, Namespace

from benchmarks.harness import Result, run, timed
from benchmarks.workloads import record_operators, recorder

FACTOR = 300


def table_seconds(theirs: bool, operators: int) -> float:
    """Records so many operators and returns the time until the table is a string, in seconds."""
    session = recorder(theirs)()
    record_operators(session, operators)

    def finish() -> str:
        session.stop()
        return session.key_averages().table(sort_by="self_cpu_time_total")

    return timed(finish)[0]


def options_of(parser: ArgumentParser) -> None:
    """torch.profiler needs minutes and gigabytes for a million; a smaller run may be scaled up, which is then said."""
    parser.add_argument("--torch-ops", type=int, help="record only so many operators with torch.profiler")
    parser.add_argument(
        "--scaled", action="store_true", help="allow --torch-ops and scale its time in proportion"
    )


def measure(options: Namespace) -> list[Result]:
    """Measures ours three times and torch.profiler once."""
    operators = 20_000 if options.quick else 1_000_000
    theirs_operators = options.torch_ops or operators
    if theirs_operators != operators and not options.scaled:
        raise SystemExit(
            "--torch-ops compares different sizes: say --scaled as well to accept a scaled number"
        )
    ours = min(table_seconds(theirs=False, operators=operators) for _ in range(2 if options.quick else 3))
    theirs = table_seconds(theirs=True, operators=theirs_operators) * operators / theirs_operators
    notes = [f"kinetoscope {ours * 1e3:.0f} ms (best of its runs), torch.profiler {theirs:.1f} s"]
    if theirs_operators != operators:
        notes.append(
            f"torch.profiler was measured at {theirs_operators:,} operators and SCALED in proportion"
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
