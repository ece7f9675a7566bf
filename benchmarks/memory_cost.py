"""Resident memory while recording: bytes per operator without shapes, and whether memory stays constant with a ring.

Each number is from a separate process. Resident memory is read in the middle and at the end of the run, so that the fixed
cost of a session does not count as part of an operator.
"""

import multiprocessing
from argparse import ArgumentParser, Namespace
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.harness import Result, run
from benchmarks.workloads import operators_of, recorder, tiny_training_step

LIMIT_BYTES = 64
FLAT_BYTES = 2 << 20


def resident_bytes() -> int:
    """Return the resident memory of this process, including file-backed pages."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this benchmark needs Linux, to read the memory of a process from /proc")


def ring_bytes(operators: int) -> int:
    """Return the size of a ring that wraps around at least twice in the first half of the run."""
    return max(1 << 20, 12 * operators)


def growth(kind: str, operators: int) -> tuple[int, int, int]:
    """Record operators; return their number and the growth of memory until the middle and the end, in bytes."""
    step = tiny_training_step()
    for _ in range(20):
        step()
    a_step = operators_of(step)
    options = {"ring": {"ring_bytes": ring_bytes(operators)}, "shapes": {"record_shapes": True}}
    session = recorder(kind == "torch", **options.get(kind, {}))()
    half = max(1, operators // a_step // 2)
    before = resident_bytes()
    session.start()
    for _ in range(half):
        step()
    middle = resident_bytes()
    for _ in range(half):
        step()
    after = resident_bytes()
    session.stop()
    return 2 * half * a_step, middle - before, after - before


def in_a_process_of_its_own(kind: str, operators: int) -> tuple[int, int, int]:
    """Run `growth` in a fork of this process, in which nothing was recorded before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(growth, kind, operators).result()


def options_of(parser: ArgumentParser) -> None:
    """Add the option for the size."""
    parser.add_argument("--ops", type=int, default=1_000_000, help="number of operators")


def measure(options: Namespace) -> list[Result]:
    """Measure ours without and with shapes, the ring, and torch.profiler."""
    operators = 10_000 if options.quick else options.ops
    each, fixed = {}, {}
    for kind, count in (("ours", operators), ("shapes", operators), ("torch", min(operators, 400_000))):
        recorded, middle, after = in_a_process_of_its_own(kind, count)
        each[kind] = (after - middle) / (recorded / 2)
        fixed[kind] = after - each[kind] * recorded
    _, ring_middle, ring_after = in_a_process_of_its_own("ring", 2 * operators)
    return [
        Result(
            f"memory while recording, {operators:,} operators",
            f"<= {LIMIT_BYTES} bytes per operator",
            f"{each['ours']:.1f} bytes",
            each["ours"] <= LIMIT_BYTES,
            [
                f"with shapes {each['shapes']:.1f} bytes, torch.profiler {each['torch']:.0f} bytes per operator",
                f"fixed cost of a session: kinetoscope {fixed['ours'] / 1e6:.1f} MB, torch.profiler {fixed['torch'] / 1e6:.1f} MB",
            ],
        ),
        Result(
            f"memory with a ring of {ring_bytes(2 * operators) / 1e6:.0f} MB, second half of {2 * operators:,} operators",
            "flat",
            f"{(ring_after - ring_middle) / 1e6:+.2f} MB",
            ring_after - ring_middle <= FLAT_BYTES,
            [f"{ring_after / 1e6:.1f} MB in total; up to {FLAT_BYTES >> 20} MiB counts as constant"],
        ),
    ]


if __name__ == "__main__":
    run(measure, options_of)
