"""Findings of programs that were written without reading the rules: the place, the cause, the gain and the floor, against mended twins.

Each program and its twin are recorded in a process of their own, with shapes and memory, and with what `kinetoscope run` records by default. What is
promised is compared with the median step of the twin, both by the clock of `undisturbed`. A finding of a twin is none of a fault that was planted, and
can still be true: they are listed.

With `--device`, programs of a CUDA device are judged in place of those of the host. Their clock is that of the device: a step is as long as one of many
that run without a profiler, until the device is done.
"""

import os
import re
import sys
import tempfile
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import kinetoscope
from benchmarks.blind_sources import PROGRAMS, BlindProgram
from benchmarks.device_sources import DEVICE_PROGRAMS
from benchmarks.harness import Result, run
from benchmarks.judgements import finding_line, share_of
from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.findings import Report, examine, gain_percent
from kinetoscope.display.sentence import plain
from tests.support.undisturbed import undisturbed

Side = Literal["slow", "mended"]

OPTIONS: dict[str, dict[str, Any]] = {
    "with shapes and memory": {"record_shapes": True, "profile_memory": True, "with_stack": True},
    "with default options": {"with_stack": True, "garbage_collection": True, "deep_steps": True},
}
FULL = "with shapes and memory"
# Memory of a device needs torch's collector, whose stacks have no lines.
DEVICE_OPTIONS: dict[str, dict[str, Any]] = {
    "with shapes": {"record_shapes": True, "with_stack": True},
    "with default options": {"with_stack": True},
}
WARM_UP, FEWEST, MOST, RECORDED_S = 4, 12, 30, 1.5
PLACE_PERCENT, CAUSE_PERCENT, FIRST_PERCENT, FALSE_PERCENT = 95.0, 85.0, 80.0, 5.0
NEAR, NEAR_PERCENT = 0.3, 80.0
FLOOR, FLOOR_PERCENT = 1.3, 70.0
LEAST_PERCENT = 5.0
# What other programs on this machine cause.
_OF_THE_MACHINE = ("processor-wait",)


def options_of(parser: ArgumentParser) -> None:
    """Add which programs, and where their traces are kept."""
    parser.add_argument("--only", default="", help="programs with this in their name")
    parser.add_argument("--device", action="store_true", help="programs of a CUDA device")
    parser.add_argument(
        "--traces", type=Path, help="keep the traces in this folder, and use those that are there"
    )


def recorded(program: BlindProgram, side: Side, options: str, folder: Path) -> Path:
    """The trace of a program or its twin, recorded in a process of its own unless it is there."""
    words = options.replace(" ", "_")
    saved, source = (folder / f"{program.name}_{side}{rest}" for rest in (f".{words}.ktrace", ".py"))
    if saved.exists():
        return saved
    source.write_text(program.source(side), encoding="utf-8")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            of_device = program in DEVICE_PROGRAMS
            _record(source, (DEVICE_OPTIONS if of_device else OPTIONS)[options], saved)
            os._exit(0)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError(f"{source} did not run to its end")
    return saved


def _record(source: Path, options: dict[str, Any], saved: Path) -> None:
    """Run a program and save a trace of some of its steps."""
    torch.set_num_threads(1)
    names: dict[str, Any] = {"__name__": "blind"}
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), names)
    step: Callable[[int], object] = names["step"]
    for number in range(WARM_UP):
        before = time.perf_counter()
        step(number)
    each_s = time.perf_counter() - before
    if "device" in names:
        each_s = _alone_s(step)
        _alone(saved).write_text(str(each_s * 1e9), encoding="utf-8")
    count = min(max(int(RECORDED_S / each_s), FEWEST), MOST)
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=count, repeat=1)
    with kinetoscope.profile(schedule=schedule, **options) as prof:
        for number in range(count + 1):
            step(WARM_UP + number)
            prof.step()
    prof.trace.save(saved)


def _alone(saved: Path) -> Path:
    """The file that says how many nanoseconds a step of a device takes without a profiler, beside a trace."""
    return saved.with_suffix(".step_ns.txt")


def _alone_s(step: Callable[[int], object]) -> float:
    """How long a step takes without a profiler: the median of some rounds, each until the device is done."""
    rounds = []
    for _ in range(7):
        torch.cuda.synchronize()
        before = time.perf_counter()
        for number in range(10):
            step(number)
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - before) / 10)
    return float(np.median(rounds))


@dataclass(frozen=True)
class Told:
    """What is told of a program.

    Attributes:
        program: The program.
        report: Its findings.
        source: Its file.
        step_ns: Its median step.
        floor_ns: What the account says that a step needs; None where that is unknown.
        twin_ns: The median step of the twin.
        twin: What is found in the twin.
        twin_floor_ns: What the account says that a step of the twin needs; None where that is unknown.
    """

    program: BlindProgram
    report: Report
    source: str
    step_ns: float
    floor_ns: float | None
    twin_ns: float
    twin: Report
    twin_floor_ns: float | None

    @property
    def findings(self) -> list[Finding]:
        """The findings about the program, without what other programs on the machine cause."""
        return [one for one in self.report.findings if one.code not in _OF_THE_MACHINE]

    def is_place(self, one: Finding) -> bool:
        """Whether a finding leads to the line or the module of the fault."""
        lines = range(one.place.line, max(one.place.until, one.place.line) + 1)
        at_line = one.place.file == self.source and not self.program.places.isdisjoint(lines)
        named = bool(self.program.modules) and (
            bool(one.module) and re.fullmatch(self.program.modules, one.module.rpartition("/")[2]) is not None
        )
        return at_line or named

    def is_cause(self, one: Finding) -> bool:
        """Whether a finding that leads there has the words of the cause, in what it says or advises."""
        # The name of the file is that of the program, and may name the fault.
        text = f"{plain(one.finding)} {one.advice} {one.code}".replace(Path(self.source).stem, "")
        return self.is_place(one) and re.search(self.program.cause, text, re.IGNORECASE) is not None

    @property
    def promised_ns(self) -> float | None:
        """What the first finding that leads to the fault promises for a step; None without."""
        right = next((one for one in self.findings if self.is_place(one)), None)
        return None if right is None else (right.gain_ns or 0) / max(self.report.count, 1)

    @property
    def is_near(self) -> bool:
        """Whether the promise is near what the twin gains."""
        gained = self.step_ns - self.twin_ns
        return self.promised_ns is not None and abs(self.promised_ns / max(gained, 1.0) - 1) <= NEAR

    def lines(self) -> list[str]:
        """What is said of it, for people."""
        first = self.findings[:1]
        right = [name for name, found in (
            ("place", any(map(self.is_place, self.findings))), ("cause", any(map(self.is_cause, self.findings))),
            ("place first", any(map(self.is_place, first))), ("cause first", any(map(self.is_cause, first))), ("gain", self.is_near),
        ) if found]  # fmt: skip
        promised = "-" if self.promised_ns is None else f"{self.promised_ns / 1e6:.2f} ms"
        floor = "unknown" if self.floor_ns is None else f"{self.floor_ns / 1e6:.2f} ms"
        own = "unknown" if self.twin_floor_ns is None else f"{self.twin_floor_ns / 1e6:.2f} ms"
        head = f"{self.program.name}: {', '.join(right) or 'nothing'}; step {self.step_ns / 1e6:.2f} ms, twin {self.twin_ns / 1e6:.2f} ms, promised {promised}, floor {floor}, of the twin {own}"
        return [head, *(f"    {finding_line(one, self.report)}" for one in self.findings[:4])]


def told(program: BlindProgram, options: str, folder: Path) -> Told:
    """Record a program and its twin, and look at what is found."""
    found = []
    for side in ("slow", "mended"):
        saved = recorded(program, side, options, folder)
        with kinetoscope.open(saved) as raw:
            if _alone(saved).exists():
                found.append((examine(raw), float(_alone(saved).read_text(encoding="utf-8"))))
                continue
            with undisturbed(raw) as trace:
                found.append((examine(trace), float(np.median(trace.column("steps", "duration_ns")))))
    (report, step_ns), (twin, twin_ns) = found
    source = str(folder / f"{program.name}_slow.py")
    return Told(program, report, source, step_ns, _floor_ns(report), twin_ns, twin, _floor_ns(twin))


def _floor_ns(report: Report) -> float | None:
    """What a step of the kind with most time needs; None where that is unknown."""
    kinds = report.account.kinds if report.account is not None else ()
    return kinds[0].floor_ns / kinds[0].steps if kinds and kinds[0].floor_ns is not None else None


def judged(every: list[Told], options: str) -> list[Result]:
    """Count what is right."""
    count, of = len(every), f"{len(every)} blind programs {options}:"

    def right(of_finding: Callable[[Told, Finding], bool], most: int | None = None) -> int:
        return sum(any(of_finding(one, finding) for finding in one.findings[:most]) for one in every)

    alarms = [
        f"{one.program.name} mended: {finding_line(finding, one.twin)}"
        for one in every
        for finding in one.twin.findings
        if finding.code not in _OF_THE_MACHINE
        and (gain_percent(finding, one.twin.whole_ns) or 0) > LEAST_PERCENT
    ]
    alarmed = len({alarm.partition(":")[0] for alarm in alarms})
    sides = [(one.floor_ns, one.step_ns) for one in every] + [
        (one.twin_floor_ns, one.twin_ns) for one in every
    ]
    known = [(floor_ns, step_ns) for floor_ns, step_ns in sides if floor_ns is not None]
    above = sum(floor_ns > step_ns for floor_ns, step_ns in known)
    own = [(one.twin_floor_ns, one.twin_ns) for one in every if one.twin_floor_ns is not None]
    near_own = sum(twin_ns <= FLOOR * floor_ns for floor_ns, twin_ns in own)
    ratios = [one.floor_ns / one.twin_ns for one in every if one.floor_ns is not None]
    near, reached = (sum(least <= ratio <= FLOOR for ratio in ratios) for least in (1 / FLOOR, 0.0))
    return [
        share_of(f"{of} place named", right(Told.is_place), count, PLACE_PERCENT, [line for one in every for line in one.lines()]),
        share_of(f"{of} cause named there", right(Told.is_cause), count, CAUSE_PERCENT, []),
        share_of(f"{of} place and cause first", right(Told.is_cause, 1), count, FIRST_PERCENT, []),
        share_of(f"{of} gain within {100 * NEAR:g} % of the twin's", sum(one.is_near for one in every), count, NEAR_PERCENT, []),
        share_of(f"{of} floor above the step, those of twins, too", above, len(known), 0.0, [], least=False),
        share_of(f"{of} twin's step within {FLOOR:g} times its own floor", near_own, len(own), FLOOR_PERCENT, []),
        share_of(f"{of} floor of the slow program within {FLOOR:g} times the twin's step", near, len(ratios), FLOOR_PERCENT, []),
        share_of(f"{of} floor of the slow program at most {FLOOR:g} times the twin's step", reached, len(ratios), FLOOR_PERCENT, []),
        share_of(f"{of} mended twins with a finding of more than {LEAST_PERCENT:g} %", alarmed, count, FALSE_PERCENT, alarms, least=False),
    ]  # fmt: skip


def measure(options: Namespace) -> list[Result]:
    """Measure all programs with each set of options."""
    programs = DEVICE_PROGRAMS if options.device else PROGRAMS
    chosen = [one for one in programs if options.only in one.name][: 2 if options.quick else None]
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.traces or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in DEVICE_OPTIONS if options.device else OPTIONS:
            every = [told(one, name, folder.absolute()) for one in chosen]
            results += judged(every, name)
    return results


if __name__ == "__main__":
    run(measure, options_of)
