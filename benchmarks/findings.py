"""Findings and the account: how long they take on 1,000,000 spans, how often they name planted faults, and faults where there are none.

The planted faults are those of the tests: programs that run here, and traces of a simulated device. Clean runs are the same without
the fault, and this package's examples. What a `hot-line` promises is compared with the steps of the same program without the fault.
"""

import contextlib
import io
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import kinetoscope
from benchmarks.big_traces import pattern, write_trace
from benchmarks.harness import Result, run
from kinetoscope.analyses.findings import examine
from kinetoscope.examples import train_convnet, train_gpt
from kinetoscope.ledger.avoidable_work.repeats import repeats_of
from kinetoscope.trace import Trace
from tests.analyses import planted, planted_devices
from tests.support.undisturbed import undisturbed

LIMIT_S, REPEATS_S = 1.5, 1.0
# What a step of the program below has, about.
SPANS_OF_STEP = 750
SPANS = 1_000_000
RECALL_PERCENT, FIRST_PERCENT, FALSE_PERCENT = 90.0, 80.0, 5.0
NEAR, NEAR_PERCENT = 0.3, 80.0
# The repeated trace has 1.27 events for each span.
EVENTS = 1_270_000
TURNS = 3
_TURN = 4


def options_of(parser: ArgumentParser) -> None:
    """Add the number of runs of each program."""
    parser.add_argument("--runs", type=int, default=3, help="runs of each program (%(default)s)")


def speed(events: int, folder: Path) -> list[Result]:
    """Time all rules, and the account alone, on a saved trace, with the columns that they need and a file does not have."""
    written = folder / "long.json"
    repeated = pattern()
    write_trace(repeated, events, written)
    saved = folder / "long.ktrace"
    with kinetoscope.open(written) as trace:
        trace.save(saved)
    seconds, accounts, spans, found = [], [], 0, 0
    for _ in range(TURNS):
        with kinetoscope.open(saved) as trace:
            before = time.process_time()
            trace.account()
            accounts.append(time.process_time() - before)
        with kinetoscope.open(saved) as trace:
            spans = len(trace.columns("spans"))
            before = time.process_time()
            found = len(examine(trace).findings)
            seconds.append(time.process_time() - before)
    notes = [f"processor time, {found} findings, {repeated.source}"]
    return [
        Result(
            f"{what} of {spans:,} spans",
            f"<= {LIMIT_S:g} s",
            f"{min(times):.2f} s",
            min(times) <= LIMIT_S,
            notes,
        )
        for what, times in (("findings", seconds), ("account", accounts))
    ]


def repeats(spans: int) -> Result:
    """Time what repeats earlier work in a training program of small layers, with the versions of its tensors."""
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    least = float("inf")
    with kinetoscope.profile(tensor_versions=True) as prof:
        for _ in range(spans // SPANS_OF_STEP):
            optimizer.zero_grad()
            model(torch.randn(16, 32)).sum().backward()
            optimizer.step()
            prof.step()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "versions.ktrace"
        prof.trace.save(saved)
        for _ in range(TURNS):
            with kinetoscope.open(saved) as trace:
                spans = len(trace.columns("spans"))
                calls = len(trace.columns("tensor_versions"))
                before = time.process_time()
                repeats_of(trace)
                least = min(least, time.process_time() - before)
    what = f"repeated work of {spans:,} spans with {calls:,} tensors"
    return Result(what, f"<= {REPEATS_S:g} s", f"{least:.2f} s", least <= REPEATS_S, ["processor time"])


def gains(runs: int) -> Result:
    """Compare what `hot-line` promises with what a step of the same program without the fault takes less, on a quiet machine."""
    near, said, notes = 0, 0, []
    for name, program in planted.PLANTED.items():
        for _ in range(runs if name.startswith("hot-line:") else 0):
            with (
                program.record(True) as one,
                program.record(False) as other,
                undisturbed(one) as faulty,
                undisturbed(other) as mended,
            ):
                step_ns = [_usual_ns(trace.column("steps", "duration_ns")) for trace in (faulty, mended)]
                report = examine(faulty)
            promised = next((one.gain_ns or 0 for one in report.findings if one.code == "hot-line"), 0)
            ratio = promised / max(report.count, 1) / max(step_ns[0] - step_ns[1], 1.0)
            said, near = said + 1, near + (abs(ratio - 1) <= NEAR)
            notes.append(f"{name}: promised {ratio:.2f} times the gain")
    percent = 100 * near / max(said, 1)
    what = f"gains of {said} hot lines within {100 * NEAR:g} % of the mended step"
    return Result(what, f">= {NEAR_PERCENT:g} %", f"{percent:.0f} %", percent >= NEAR_PERCENT, notes)


def _usual_ns(durations_ns: NDArray[np.int64]) -> float:
    """What a step usually takes: of programs that do something else in every fourth one, the average of four."""
    whole = len(durations_ns) // _TURN * _TURN
    return float(np.median(durations_ns[:whole].reshape(-1, _TURN).sum(axis=1))) / _TURN


def programs() -> Iterator[tuple[str, Callable[[bool], Trace]]]:
    """Every planted fault by its code and name, with what records or builds its trace."""
    for name, program in planted.PLANTED.items():
        yield name, program.record
    yield from planted_devices.PLANTED.items()


def example(main: Callable[[list[str]], object]) -> Trace:
    """The trace of an example of this package."""
    with contextlib.redirect_stdout(io.StringIO()), kinetoscope.profile(profile_memory=True) as prof:
        main(["--steps", "12"])
    return prof.trace


def codes(trace: Trace) -> list[str]:
    """The codes of what is found, the first one first, without what other programs on this machine cause."""
    with trace:
        return [one.code for one in examine(trace).findings if one.code != "processor-wait"]


def quality(runs: int, most: int | None) -> list[Result]:
    """Run each program with and without its fault, and count what is found."""
    chosen = list(programs())[:most]
    missed, late, alarms, notes = 0, 0, 0, []
    clean: list[tuple[str, Callable[[], Trace]]] = [(name, partial(make, False)) for name, make in chosen]
    if most is None:
        clean += [("example:train_gpt", partial(example, train_gpt.main))]
        clean += [("example:train_convnet", partial(example, train_convnet.main))]
    for name, make in chosen:
        for _ in range(runs):
            found, wanted = codes(make(True)), name.partition(":")[0]
            missed += wanted not in found
            late += wanted not in found[:1]
            if wanted not in found[:1]:
                notes.append(f"{name}: found {', '.join(found) or 'nothing'}")
    for name, record in clean:
        for _ in range(runs):
            if found := codes(record()):
                alarms += 1
                notes.append(f"{name} without its fault: found {', '.join(found)}")
    faulty, healthy = runs * len(chosen), runs * len(clean)
    recall, first = 100 * (1 - missed / faulty), 100 * (1 - late / faulty)
    false = 100 * alarms / healthy
    what = f"{len(chosen)} planted faults, {runs} runs of each"
    return [
        Result(
            f"{what}: found", f">= {RECALL_PERCENT:g} %", f"{recall:.1f} %", recall >= RECALL_PERCENT, notes
        ),
        Result(
            f"{what}: named first", f">= {FIRST_PERCENT:g} %", f"{first:.1f} %", first >= FIRST_PERCENT, []
        ),
        Result(
            f"{healthy} clean runs: with a finding",
            f"<= {FALSE_PERCENT:g} %",
            f"{false:.1f} %",
            false <= FALSE_PERCENT,
            [],
        ),
    ]


def measure(options: Namespace) -> list[Result]:
    """Measure all of it."""
    with tempfile.TemporaryDirectory() as folder:
        took = speed(20_000 if options.quick else EVENTS, Path(folder))
    runs = 1 if options.quick else options.runs
    took.append(repeats(20_000 if options.quick else SPANS))
    return [*took, *quality(runs, 3 if options.quick else None), gains(runs)]


if __name__ == "__main__":
    run(measure, options_of)
