"""What `kinetoscope.leave_on(budget="1%")` adds to the steps of twenty programs, and whether the interval that it prints has that.

Each program runs in a process of its own. Once its budget has settled, blocks of steps with the recorder and without it take turns, in random
order within each pair, and each pair is a comparison, by time and by the processor time of the process, both as a share of the time; on a machine that does
other work, trust the latter.
Without it means that nothing is recorded and `step` is not called; its threads are there. With `--wrong 3` or `--wrong 0.33`, the recorder first believes
that recording costs so many times what it measured, and has to notice. `--programs tiny,gpt` chooses, `--seconds` is the time for each.
"""

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

import torch

import kinetoscope
from benchmarks.demo_overhead import gpt_step
from benchmarks.harness import Result, run
from benchmarks.processor_time import BATCH, interval
from benchmarks.workloads import tiny_training_step
from kinetoscope.flight import flight
from kinetoscope.flight.budget import FEWEST, level_for
from kinetoscope.flight.flight import FlightRecorder

BUDGET_PERCENT, MOST_PERCENT, COVERED_PERCENT = 1.0, 1.2, 90
# Of the time for a program, what its budget has to settle.
SETTLING = 0.4
BLOCK_S = 0.1

Pair = tuple[float, float]
Step = Callable[[], object]


def _training(model: torch.nn.Module, inputs: torch.Tensor, *, inner: int = 1) -> Step:
    """A training step of a model, with its forward and backward several times."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(inner):
            out = model(inputs)
            (out[0] if isinstance(out, tuple) else out).square().mean().backward()
        optimizer.step()

    return step


def _mlp(width: int, layers: int, batch: int) -> Step:
    blocks = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return _training(torch.nn.Sequential(*blocks), torch.randn(batch, width))


def _cnn() -> Step:
    parts: list[torch.nn.Module] = []
    for channels in (3, 16, 16, 16):
        parts += [torch.nn.Conv2d(channels, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()]
    return _training(torch.nn.Sequential(*parts), torch.randn(8, 3, 32, 32))


def _gan() -> Step:
    generator = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    judge = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizers = [torch.optim.Adam(one.parameters()) for one in (generator, judge)]

    def step() -> None:
        made = generator(torch.randn(64, 16))
        optimizers[1].zero_grad()
        (judge(made.detach()).mean() - judge(torch.randn(64, 32)).mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        (-judge(made).mean()).backward()
        optimizers[0].step()

    return step


def _turns() -> Step:
    """As in reinforcement learning: three steps of many small inferences, then one of training."""
    policy = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    train = _training(policy, torch.randn(256, 8), inner=4)
    seen = 0

    def step() -> None:
        nonlocal seen
        seen += 1
        if seen % 4 == 0:
            train()
            return
        with torch.no_grad():
            for _ in range(40):
                policy(torch.randn(1, 8)).argmax()

    return step


def _inference() -> Step:
    model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    inputs = torch.randn(4, 32, 64)

    def step() -> None:
        with torch.inference_mode():
            model(inputs)

    return step


def _loader() -> Step:
    """Each step waits for its input, made by another thread, longer than it computes."""
    work = _mlp(64, 2, 32)

    def step() -> None:
        time.sleep(0.01)
        work()

    return step


def _python() -> Step:
    """Python code, and few operators."""
    values = torch.randn(64)

    def step() -> None:
        total = 0
        for number in range(40_000):
            total += number * number
        values.add(total % 3).sum()

    return step


def _beside(threads: int, work: Step, beside: Callable[[], object]) -> Step:
    """A program with other threads of Python that are busy."""
    for _ in range(threads):

        def loop() -> None:
            while True:
                beside()

        threading.Thread(target=loop, daemon=True).start()
    return work


def _compiled() -> Step:
    model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.Linear(128, 128))
    return _training(torch.compile(model), torch.randn(64, 128))  # type: ignore[arg-type]


def _periodic() -> Step:
    """Every 50th step does ten times as much."""
    work, seen = _mlp(128, 4, 32), 0

    def step() -> None:
        nonlocal seen
        seen += 1
        for _ in range(10 if seen % 50 == 0 else 1):
            work()

    return step


def _ddp() -> Step:
    """The first of two processes; `_main` starts the second."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Linear(128, 8))
    )
    return _training(model, torch.randn(32, 128))


def _on_device(width: int) -> Step:
    """A training step of a CUDA device, whose loss is read as for a log."""
    blocks = [part for _ in range(8) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*blocks).to("cuda")
    work, inputs = torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(512, width, device="cuda")

    def step() -> None:
        work.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        work.step()
        loss.item()

    return step


def _heavy_autograd() -> Step:
    weights = [torch.randn(16, 16, requires_grad=True) for _ in range(60)]

    def step() -> None:
        value = torch.randn(16, 16)
        for weight in weights:
            value = torch.tanh(value @ weight)
        value.sum().backward()

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    "tiny": lambda: tiny_training_step(layers=1),
    "tiny 4 layers": lambda: tiny_training_step(layers=4),
    "1 ms": lambda: _mlp(64, 2, 32),
    "10 ms": lambda: _mlp(512, 6, 64),
    "200 ms": lambda: _mlp(1024, 8, 256),
    "gpt": lambda: gpt_step("--batch", BATCH),
    "cnn": _cnn,
    "lstm": lambda: _training(torch.nn.LSTM(32, 64, batch_first=True), torch.randn(8, 16, 32)),
    "gan": _gan,
    "turns": _turns,
    "inference": _inference,
    "embedding": lambda: _training(
        torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 64)),
        torch.randint(1000, (64, 16)),
    ),
    "loader": _loader,
    "python": _python,
    "gil": lambda: _beside(2, _mlp(64, 4, 32), lambda: sum(range(2000))),
    "threads": lambda: _beside(16, _mlp(64, 4, 32), lambda: time.sleep(0.05)),
    "compiled": _compiled,
    "periodic": _periodic,
    "autograd": _heavy_autograd,
    "ddp": _ddp,
}
if torch.cuda.is_available():
    PROGRAMS |= {"device 2 ms": lambda: _on_device(256), "device large": lambda: _on_device(4096)}


def clocks_ns() -> Pair:
    """Return the time, and the processor time of the process."""
    return time.perf_counter_ns(), time.process_time_ns()


def block(recorder: FlightRecorder, step: Step, steps: int, *, left_on: bool) -> Pair:
    """Run some steps, with the recorder or without it; return what they took by both clocks."""
    session = recorder._session
    if session is None:
        raise RuntimeError(str(recorder.status()))
    if not left_on:
        recorder._switch(session, record=False)
    # The time between blocks is no step.
    recorder._count.began_ns = 0
    recorder._count.take()
    began = clocks_ns()
    for _ in range(steps):
        if left_on:
            recorder.step()
        step()
    ended = clocks_ns()
    if not left_on:
        # The recorder must not believe that it had this time, too, to look at its steps.
        recorder._looked_ns += ended[0] - began[0]
    return ended[0] - began[0], ended[1] - began[1]


def believe(recorder: FlightRecorder, factor: float) -> None:
    """Let the recorder believe that recording costs so many times what it measured, and act on that."""
    budget = recorder._budget
    budget._differences.extend([factor * one for one in [*budget._differences]][-256:])
    budget.share = min(budget.share / factor, 1.0)
    recorder._plan.level = level_for(budget.share)
    recorder._look_at_next()


def shared_count(steps: int) -> int:
    """The same number on all ranks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        number = torch.tensor(steps)
        torch.distributed.broadcast(number, 0)
        return int(number)
    return steps


def measure_one(name: str, seconds: float, wrong: float) -> dict[str, object]:
    """Leave a program on until its budget has settled, and compare; the result as JSON values, in percent."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    generator = random.Random(1)
    step = PROGRAMS[name]()
    for _ in range(3):
        step()
    began = time.perf_counter()
    count = 0
    # All ranks do the same number of steps.
    while count < 5 or (name != "ddp" and time.perf_counter() - began < 0.5 and count < 500):
        step()
        count += 1
    step_s = (time.perf_counter() - began) / count
    steps = shared_count(max(int(BLOCK_S / step_s), 2))
    settling = shared_count(max(int(SETTLING * seconds / step_s), 20))
    pairs = shared_count(max(int((1 - SETTLING) * seconds / (2 * steps * step_s)), 6))
    added: list[Pair] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        kinetoscope.leave_on(f"{BUDGET_PERCENT}%", folder=folder, keep="32MiB", on=("hang",)) as recorder,
    ):
        if wrong != 1:
            block(recorder, step, settling // 2, left_on=True)
            believe(recorder, wrong)
        block(recorder, step, settling, left_on=True)
        gc.collect()
        gc.freeze()
        # By the clock, for half of the time is without the recorder.
        flight._LOOK_EVERY_NS *= 2
        for _ in range(pairs):
            order = [True, False]
            generator.shuffle(order)
            took = {left_on: block(recorder, step, steps, left_on=left_on) for left_on in order}
            (time_on, work_on), (time_off, work_off) = took[True], took[False]
            # Both are shares of the time: of a program that waits, the processor time is a small part.
            added.append((time_on / time_off - 1, (work_on - work_off) / time_off))
        gc.unfreeze()
        told = recorder._budget.overhead(recorder._plan.share)
        status = str(recorder.status())
    if name == "ddp":
        torch.distributed.destroy_process_group()
    found: dict[str, object] = {"step_ms": 1000 * step_s, "status": status, "pairs": pairs}
    for at, clock in enumerate(("time", "processor")):

        def percent(some: object, at: int = at) -> float:
            return 100 * statistics.median(added[one][at] for one in some)  # type: ignore[attr-defined]

        found[clock] = [percent(range(pairs)), *interval(percent, pairs)]
    known = told.comparisons >= FEWEST
    found["told"] = [100 * told.low, 100 * told.high] if known else None
    return found


def measured_apart(name: str, options: Namespace) -> dict[str, object]:
    """Measure a program in a process of its own, of two for DDP."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.leave_on",
        "--one",
        name,
        "--seconds",
        str(options.seconds),
        "--wrong",
        str(options.wrong),
    ]
    ranks = 2 if name == "ddp" else 1
    job = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(29_500 + os.getpid() % 1000),
        "WORLD_SIZE": str(ranks),
    }
    started = [
        subprocess.Popen(
            words,
            env={**os.environ, **(job | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {})},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    texts = [one.communicate()[0] for one in started]
    if any(one.returncode for one in started):
        return {}
    found: dict[str, object] = json.loads(texts[0].splitlines()[-1])
    return found


def results_of(found: dict[str, dict[str, object]]) -> Iterator[Result]:
    """The results of all programs: a row each, and how many of the printed intervals have what was measured."""
    covered = known = 0
    for name, one in found.items():
        if not one:
            yield Result(f"leave_on, {name}", "it runs", "it failed", meets=False)
            continue
        told = one["told"]
        for clock in ("time", "processor"):
            middle, low, high = one[clock]  # type: ignore[misc]
            notes = (
                [f"a step takes {one['step_ms']:.3f} ms; the recorder says: {one['status']}"]
                if clock == "time"
                else []
            )
            if clock == "processor" and isinstance(told, list):
                known += 1
                # An interval has what was measured if that, with its own uncertainty, is not outside.
                covered += low <= told[1] and high >= told[0]
            yield Result(
                f"leave_on, {name}, {'time' if clock == 'time' else 'processor time of the process'}",
                f"upper limit <= {MOST_PERCENT} %",
                f"{middle:+.2f} % ({low:+.2f} to {high:+.2f} %)",
                high <= MOST_PERCENT,
                notes,
            )
    share = 100 * covered / known if known else 0.0
    yield Result(
        "leave_on, printed intervals that have the measured processor time",
        f">= {COVERED_PERCENT} %",
        f"{covered} of {known} programs",
        share >= COVERED_PERCENT,
    )


def measure(options: Namespace) -> list[Result]:
    """Measure the chosen programs, with a line about each as soon as it is known."""
    names = [name.strip() for name in options.programs.split(",")] if options.programs else list(PROGRAMS)
    if unknown := [name for name in names if name not in PROGRAMS]:
        raise SystemExit(f"no program {unknown[0]!r}: choose from {', '.join(PROGRAMS)}")
    if options.quick:
        names, options.seconds = names[:2] if not options.programs else names, 1.0
    found = {}
    for place, name in enumerate(names, 1):
        began = time.perf_counter()
        found[name] = one = measured_apart(name, options)
        what = (
            "failed"
            if not one
            else "{:+.2f} % ({:+.2f} to {:+.2f}) of processor time; {}".format(
                *one["processor"], one["status"]
            )
        )  # type: ignore[misc]
        print(
            f"{place}/{len(names)} {name}, {time.perf_counter() - began:.0f} s: {what}",
            file=sys.stderr,
            flush=True,
        )
    return list(results_of(found))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--programs", default="", help="names, separated by commas (all)")
    parser.add_argument("--seconds", type=float, default=16, help="for each program (%(default)s)")
    parser.add_argument(
        "--wrong", type=float, default=1, help="a factor that the recorder first believes in (%(default)s)"
    )


if __name__ == "__main__":
    if "--one" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--one")
        _options(parser)
        chosen = parser.parse_args()
        print(json.dumps(measure_one(chosen.one, chosen.seconds, chosen.wrong)))
    else:
        run(measure, _options)
