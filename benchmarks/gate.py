"""The gate of `kinetoscope ab`: how often it finds +1 % of a step in one module, and how often it accuses a program of what it is not.

Three programs: a small GPT, a convolutional network, and a recommender. In each, the module `gate` does a little more than before: a wider layer,
another operator, the same 0.3 % of a step large, or the same operators with a more expensive power (`power`), which no count shows. How large the planted
work is, is measured: the fastest of many calls of the module with and without it, in processor time, as a part of the fastest step.

Each recording is of a fork of its own, as processes differ. The variants take turns in random order. A pair is some rounds of these, drawn at random: the
base with a variant, or with a second recording of itself (A/A).
"""

import os
import pickle
import random
import tempfile
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

import kinetoscope
from benchmarks.harness import Result, beside, run
from kinetoscope.comparison.measures import Run, run_of
from kinetoscope.comparison.result import FASTER, SLOWER, Comparison, Margins
from kinetoscope.comparison.runs import compare_runs

FOUND_PERCENT, PLACED_PERCENT, ALARMS_PERCENT = 95.0, 90.0, 0.5
WARM_UP = 4  # steps before a recording

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
"""
GATE = """

class Gate(nn.Module):
    def __init__(self, layer, width):
        super().__init__()
        self.mix = layer(width, width + {wider})
        self.register_buffer("scale", torch.rand({elements}) + 1)
        self.width = width

    def forward(self, x):
        y = self.mix(x)
        z = self.scale.pow({power}).mean(){more}
        return y.narrow({axis}, 0, self.width) + z
"""
TRAINER = """

class Trainer:
    def __init__(self):
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch, self.labels = make()

    def step(self):
        self.optimizer.zero_grad()
        self.model.loss(self.batch, self.labels).backward()
        self.optimizer.step()
"""
GPT = """

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width, index):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 4)
        self.mlp = MLP(width, 4 * width)
        self.gate = Gate(nn.Linear, width) if index == 2 else None

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x if self.gate is None else self.gate(x)


class Model(nn.Module):
    def __init__(self, width=96, layers=4):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, index) for index in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def loss(self, batch, labels):
        return F.cross_entropy(self(batch).flatten(0, 1), labels.flatten())


def make():
    return torch.randint(0, 256, (4, 48)), torch.randint(0, 256, (4, 48))
"""
CNN = """

class Stage(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([Stage(3, 16), Stage(16, 24), Stage(24, 32)])
        self.gate = Gate(lambda *sizes: nn.Conv2d(*sizes, 1), 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        for stage in self.stages:
            x = F.max_pool2d(stage(x), 2)
        return self.head(self.gate(x).mean((2, 3)))

    def loss(self, batch, labels):
        return F.cross_entropy(self(batch), labels)


def make():
    return torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
"""
RECOMMENDER = """

class Model(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(2000, 32, mode="sum") for _ in range(6))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32))
        self.top = nn.Sequential(nn.Linear(7 * 32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.gate = Gate(nn.Linear, width)
        self.head = nn.Linear(width, 1)

    def forward(self, batch):
        dense, sparse = batch
        parts = [self.bottom(dense)]
        for index, table in enumerate(self.tables):
            parts.append(table(sparse[:, index]))
        return self.head(self.gate(self.top(torch.cat(parts, 1))))

    def loss(self, batch, labels):
        return F.binary_cross_entropy_with_logits(self(batch).squeeze(1), labels)


def make():
    return (torch.randn(192, 13), torch.randint(0, 2000, (192, 6, 4))), torch.rand(192).round()
"""


class Planted:
    """One program and what may be planted in its gate."""

    def __init__(
        self, text: str, axis: int, small: int, wider: int, more: str, elements: int, gate: str
    ) -> None:
        self.text, self.gate = text, gate
        plain = {"wider": 0, "elements": elements, "power": "2.0", "more": "", "axis": axis}
        self.variants = {
            "base": plain,
            "again": plain,
            "wider layer": plain | {"wider": wider},
            "another operator": plain | {"more": more},
            "0.3 %": plain | {"wider": small},
            "power": plain | {"power": "2.5"},
        }

    def written(self, variant: str, folder: Path) -> Path:
        """Write a variant as a file of the same name in a folder of its own."""
        file = folder / variant.replace(" ", "_") / "program.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HEAD + GATE.format(**self.variants[variant]) + self.text + TRAINER)
        return file


PROGRAMS = {
    "gpt": Planted(GPT, 2, 40, 128, " + self.mix(x).mean()", 64_000, "blocks.2.gate"),
    "cnn": Planted(CNN, 1, 32, 112, " + y.abs().mean() + y.mean()", 24_000, "gate"),
    "recommender": Planted(RECOMMENDER, 1, 8, 32, " + y.abs().mean()", 26_000, "gate"),
}
PLACES = ("y = self.mix(x)", "z = self.scale.pow(", "return y.narrow(")


def loaded(file: Path) -> ModuleType:
    """Run a program's file as a module; its lines are those of the file."""
    module = ModuleType("program")
    exec(compile(file.read_text(), file, "exec"), module.__dict__)
    return module


def in_fork(work: Callable[[], object]) -> object:
    """What some work returns in a fork of this process, which has not computed anything yet."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            with open(write_end, "wb") as pipe:
                pickle.dump(work(), pipe)
            os._exit(0)
        except BaseException:  # noqa: BLE001  (the child must never go on as the parent)
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise RuntimeError("a recording failed")
    return pickle.loads(content)


def recorded(file: Path, steps: int, threads: int) -> tuple[Run, float]:
    """Record some steps of a program as `kinetoscope ab` does; what ran, and how many seconds it took."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    trainer = loaded(file).Trainer()
    for _ in range(WARM_UP):
        trainer.step()
    with kinetoscope.profile(with_stack=True, with_modules=True, deep_steps=True, samples=True) as prof:
        began_s = time.perf_counter()
        for _ in range(steps):
            trainer.step()
            prof.step()
        took_s = time.perf_counter() - began_s
    with prof.trace as trace:
        return run_of(trace, str(file), with_account=True), took_s


def fastest_ns(work: Callable[[], object], times: int = 100) -> int:
    """The least processor time of some work."""
    least = []
    for _ in range(times):
        began_ns = time.thread_time_ns()
        work()
        least.append(time.thread_time_ns() - began_ns)
    return min(least)


def sizes(planted: Planted, folder: Path) -> dict[str, float]:
    """How much of a step each variant adds in its module, in percent."""
    torch.set_num_threads(1)
    shapes = {2: (4, 48, 96), 1: (192, 128)}
    gates = {}
    for variant in planted.variants:
        trainer = loaded(planted.written(variant, folder)).Trainer()
        gate = trainer.model.get_submodule(planted.gate)
        convolves = isinstance(gate.mix, torch.nn.Conv2d)
        inputs = torch.randn(
            (8, 32, 4, 4) if convolves else shapes[planted.variants[variant]["axis"]]
        ).requires_grad_()
        gates[variant] = fastest_ns(lambda gate=gate, inputs=inputs: gate(inputs).sum().backward())
        if variant == "base":
            step_ns = fastest_ns(trainer.step)
    return {variant: 100 * (gate_ns - gates["base"]) / step_ns for variant, gate_ns in gates.items()}


Rounds = dict[str, list[Run]]


def pool(planted: Planted, rounds: int, steps: int, threads: int, folder: Path) -> tuple[Rounds, float]:
    """Record all variants in turn; the recordings of each by round, and the mean seconds of one."""
    order, runs, took_s = random.Random(0), {variant: [] for variant in planted.variants}, []
    for _ in range(rounds):
        for variant in order.sample(list(runs), len(runs)):
            file = planted.written(variant, folder)
            ran, seconds = in_fork(lambda file=file: recorded(file, steps, threads))
            runs[variant].append(ran)
            took_s.append(seconds)
    return runs, sum(took_s) / len(took_s)


def is_alarm(comparison: Comparison) -> bool:
    """Whether a comparison says that anything changed."""
    return (
        comparison.exit_code == 1
        or comparison.verdict == FASTER
        or bool(comparison.changed or comparison.changed_counts)
    )


def is_placed(comparison: Comparison, gate: str) -> bool:
    """Whether the module and the line that changed most are those of the gate."""
    first = {row.kind: row for row in reversed(comparison.changed) if row.verdict == SLOWER}
    module, line = (first.get(kind) for kind in ("module", "line"))
    return (
        module is not None
        and module.name.startswith(gate)
        and line is not None
        and line.detail.startswith(PLACES)
    )


def judged(
    name: str, runs: Rounds, each: int, pairs: int, pair_s: float, where: str
) -> tuple[Counter[str], list[Result]]:
    """Compare pairs of some rounds: how many of each variant were found, and how many of a program with itself were alarms."""
    chance, results, total = random.Random(1), [], Counter()
    gate = PROGRAMS[name].gate
    for variant in list(runs)[1:]:
        found, placed, notes = 0, 0, []
        for _ in range(pairs):
            rounds = sorted(chance.sample(range(len(runs["base"])), each))
            sides = [[runs[side][round_] for round_ in rounds] for side in ("base", variant)]
            chance.shuffle(sides) if variant == "again" else None
            comparison = compare_runs(
                *sides, Margins(edited=frozenset({"Gate", "Gate.forward", "Gate.__init__"}))
            )
            found += is_alarm(comparison) if variant == "again" else comparison.exit_code == 1
            placed += is_placed(comparison, gate)
            notes.append(f"{comparison!r}"[:200])
        total[f"{variant}: pairs"] += pairs
        total[f"{variant}: found"] += found
        total[f"{variant}: placed"] += placed
        what = f"{name} {where}, {variant}, {pairs} pairs of {each} recordings a side, {pair_s:.1f} s a side"
        if variant == "again":
            measured = f"{found} of {pairs} accused"
            results.append(
                Result(
                    what,
                    f"<= {ALARMS_PERCENT:g} %",
                    measured,
                    found <= ALARMS_PERCENT / 100 * pairs,
                    notes[:3],
                )
            )
            continue
        measured = f"found {found}, module and line first {placed}"
        good = found >= FOUND_PERCENT / 100 * pairs and placed >= PLACED_PERCENT / 100 * pairs
        target = f">= {FOUND_PERCENT:g} %, {PLACED_PERCENT:g} %"
        results.append(Result(what, target, measured, good if variant != "power" else None, notes[:3]))
    return total, results


def options_of(parser: ArgumentParser) -> None:
    """Add how much to record and compare."""
    parser.add_argument("--rounds", type=int, default=10, help="recordings of each variant (%(default)s)")
    parser.add_argument("--each", type=int, default=6, help="recordings a side of a comparison (%(default)s)")
    parser.add_argument(
        "--pairs", type=int, default=67, help="pairs of each program and variant (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=60, help="steps of a recording (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (%(default)s)")
    parser.add_argument(
        "--beside", type=int, default=0, help="processes that compute beside the programs (%(default)s)"
    )
    parser.add_argument("--only", choices=PROGRAMS, help="measure one program only")


def measure(options: Namespace) -> list[Result]:
    """Measure all of it."""
    results, total = [], Counter()
    rounds, steps = (3, 12) if options.quick else (options.rounds, options.steps)
    each, pairs = (2, 2) if options.quick else (options.each, options.pairs)
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.only] if options.only else PROGRAMS:
            planted = PROGRAMS[name]
            with beside(options.beside):
                runs, recording_s = pool(planted, rounds, steps, options.threads, Path(folder) / name)
            where = f"of {options.threads} thread(s) beside {options.beside} others, load {os.getloadavg()[0]:.1f}"
            measured = in_fork(lambda planted=planted, name=name: sizes(planted, Path(folder) / name))
            planted_sizes = ", ".join(f"{variant} {percent:+.2f} %" for variant, percent in measured.items())
            found, rows = judged(name, runs, each, pairs, each * recording_s, where)
            rows[0].notes.insert(0, f"planted: {planted_sizes} of a step")
            total += found
            results += rows
            print(f"{name}: planted {planted_sizes} of a step", flush=True)
            for row in rows:
                print(f"  {row.what}: {row.measured}", flush=True)
    summary = ", ".join(f"{what} {count}" for what, count in total.items())
    return [*results, Result("all programs", "", summary, None)]


if __name__ == "__main__":
    run(measure, options_of)
