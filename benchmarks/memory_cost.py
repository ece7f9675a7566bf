"""Resident memory while recording: bytes an operator without shapes, and whether a ring of fixed size stays flat.

Each number comes from a process of its own: resident memory is read half way and at the end of the run, so what a session
needs once, whatever it records, is not counted as part of an operator.
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
    """The resident memory of this process, file-backed pages included."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not say how much memory a process holds: the benchmark needs Linux")


def ring_bytes(operators: int) -> int:
    """The size of a ring that so many operators go round at least twice before half way."""
    return max(1 << 20, 12 * operators)


def growth(kind: str, operators: int) -> tuple[int, int, int]:
    """Records so many operators; returns them and the resident growth until half way and until the end, in bytes."""
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
    """Runs `growth` in a fork of this process, which itself runs nothing: there nothing was recorded before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(growth, kind, operators).result()


def options_of(parser: ArgumentParser) -> None:
    """How much is recorded."""
    parser.add_argument("--ops", type=int, default=1_000_000, help="how many operators are recorded")


def measure(options: Namespace) -> list[Result]:
    """Measures ours without and with shapes, the ring, and torch.profiler."""
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
            f"<= {LIMIT_BYTES} bytes an operator",
            f"{each['ours']:.1f} bytes",
            each["ours"] <= LIMIT_BYTES,
            [
                f"with shapes {each['shapes']:.1f} bytes, torch.profiler {each['torch']:.0f} bytes an operator",
                f"and once a session: ours {fixed['ours'] / 1e6:.1f} MB, torch.profiler {fixed['torch'] / 1e6:.1f} MB",
            ],
        ),
        Result(
            f"memory with a ring of {ring_bytes(2 * operators) / 1e6:.0f} MB, second half of {2 * operators:,} operators",
            "flat",
            f"{(ring_after - ring_middle) / 1e6:+.2f} MB",
            ring_after - ring_middle <= FLAT_BYTES,
            [f"{ring_after / 1e6:.1f} MB in all; up to {FLAT_BYTES >> 20} MiB counts as flat"],
        ),
    ]


if __name__ == "__main__":
    run(measure, options_of)
