"""Summaries of many ranks: how fast traces are reduced on each engine, and what a thousand summaries cost.

The traces repeat the events of a real one, as many ranks of different lengths; the thousand summaries are of a job that `tools.synthesize_ranks` makes of eight real
ranks.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.big_traces import FOLDER, pattern, write_trace
from benchmarks.harness import Result, run
from kinetoscope.summaries.engines import outcomes
from kinetoscope.summaries.summary import file_name, file_of, summarized
from tools.synthesize_ranks import Delay, Plan, SyntheticJob

EVENTS, TRACES, RANKS, STEPS = 400_000, 8, 1_000, 20
REAL_RANKS = sorted(FOLDER.glob("dlrm_8rank/*.json.gz"))
WORKERS = 2
# Traces that one process summarizes.
ALONE = 4
ROUNDS = 3
SPEED, MOST_BYTES = 1_000_000, 500_000_000
EFFICIENCY = 0.8
MERGED_S, MERGED_BYTES = 10.0, 2_000_000_000

# In a process of its own, whose peak is that of this work; `ru_maxrss` would be that of the process that started it, if that is higher.
_PEAK = """
def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
"""
_ALONE = (
    _PEAK
    + """
import json, sys, time
before = time.process_time()
from kinetoscope.summaries.summary import summarized
for path in sys.argv[1:]:
    summarized(path)
print(json.dumps([time.process_time() - before, peak_bytes()]))
"""
)
_MERGED = (
    _PEAK
    + """
import json, sys, time
import kinetoscope
from kinetoscope.cli.ranks import TABLES
before = time.perf_counter()
job = kinetoscope.Job.open(sys.argv[1])
rows = [getattr(job, name)().num_rows for name in TABLES]
print(json.dumps([time.perf_counter() - before, peak_bytes(), rows]))
"""
)


def measure(options: Namespace) -> list[Result]:
    """Measure one process, the engines, and the thousand."""
    events, traces, ranks = (5_000, 2, 20) if options.quick else (EVENTS, TRACES, RANKS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = []
        for rank in range(traces):
            files.append(folder / f"{rank}.json")
            write_trace(pattern(), events, files[-1])
        return [
            *alone(files, events),
            *engines(files, events),
            *merged(folder, ranks),
        ]


def alone(files: list[Path], events: int) -> list[Result]:
    """One process that summarizes one trace after the other, as a worker does; its imports count."""
    some = files[:ALONE]
    seconds, peak_bytes = _run(_ALONE, *some)
    speed = len(some) * events / seconds
    return [
        Result(
            "events that one processor summarizes", f">= {SPEED:,} / s", f"{speed:,.0f} / s", speed >= SPEED
        ),
        Result(
            "memory of a process that summarizes",
            f"<= {MOST_BYTES / 1e6:.0f} MB",
            f"{peak_bytes / 1e6:.0f} MB",
            peak_bytes <= MOST_BYTES,
            [f"{len(some)} traces of {events:,} events"],
        ),
    ]


def engines(files: list[Path], events: int) -> list[Result]:
    """Clusters of two processes of this machine against a pool of two plain processes, all of which run already, and turn by turn."""
    import ray
    from distributed import LocalCluster

    names = [*map(str, files)]
    seconds: dict[str, list[float]] = {}
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    with (
        LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster,
        ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool,
    ):
        address = {"dask": cluster.scheduler_address, "ray": None}
        contenders: dict[str, Callable[[], object]] = {"plain": lambda: list(pool.map(summarized, names))}
        for engine, where in address.items():
            contenders[engine] = partial(_on_engine, engine, names, where)
        # In the first round workers import what they need.
        for _ in range(1 + ROUNDS):
            for name, work in contenders.items():
                before = time.perf_counter()
                work()
                seconds.setdefault(name, []).append(time.perf_counter() - before)
    ray.shutdown()
    before = time.perf_counter()
    _on_engine("processes", names, None)
    started = time.perf_counter() - before
    usual = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    return [
        Result(
            f"efficiency on {engine}",
            f">= {EFFICIENCY} of plain processes",
            f"{usual['plain'] / usual[engine]:.2f}",
            usual["plain"] / usual[engine] >= EFFICIENCY,
            [
                f"{usual[engine]:.1f} s, plain processes {usual['plain']:.1f} s, both running already, for {len(files)} traces of {events:,} events",
                f"the engine `processes`, which starts its own: {started:.1f} s",
            ],
        )
        for engine in address
    ]


def _on_engine(engine: str, names: list[str], address: str | None) -> None:
    """Summarize traces on an engine; all must succeed."""
    done = outcomes(engine, summarized, names, workers=WORKERS, address=address)
    assert all(isinstance(each, dict) for _, each in done)


def merged(folder: Path, ranks: int) -> list[Result]:
    """All tables of the summaries of many ranks, one of which is late; none without the real ranks that they are made of."""
    if not REAL_RANKS:
        print(f"{FOLDER / 'dlrm_8rank'} is not there: no summaries of {ranks:,} ranks are merged.")
        return []
    place = folder / "merged"
    place.mkdir()
    job = SyntheticJob(REAL_RANKS, Plan(ranks, STEPS, delays=(Delay(ranks // 2, "compute", 5),)))
    for rank, summary in enumerate(job.summaries()):
        (place / file_name(rank)).write_bytes(file_of(summary))
    seconds, peak_bytes, rows = _run(_MERGED, place)
    return [
        Result(
            f"opening {ranks:,} summaries, and all their tables",
            f"<= {MERGED_S:g} s",
            f"{seconds:.1f} s",
            seconds <= MERGED_S,
            [f"rows of the tables: {', '.join(f'{one:,}' for one in rows)}"],
        ),
        Result(
            "memory for that",
            f"<= {MERGED_BYTES / 1e9:g} GB",
            f"{peak_bytes / 1e9:.2f} GB",
            peak_bytes <= MERGED_BYTES,
        ),
    ]


def _run(program: str, *arguments: Path) -> list[float]:
    """What a program prints as JSON."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    found: list[float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


if __name__ == "__main__":
    run(measure)
