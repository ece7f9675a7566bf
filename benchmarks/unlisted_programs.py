"""What is said of whole programs with faults of kinds that no list has, against twins without the faults.

Each file of `benchmarks/unlisted/` holds a program and its mended twin, with two characters before each line:

    "- "  only the slow program
    "! "  only the slow program, and a line that a person should be led to
    "* "  both, and a line that a person should be led to
    "+ "  only the mended twin
    "  "  both

A digit in the second column says which of several faults the line belongs to. Lines with `#:` at the start describe the program: `kind` and `cause` once
for each fault, which `fault: 2` separates, and `same`: how the results of both may differ. The author had read no rule.

Both sides are recorded with `kinetoscope run`, as a user would; a gain is compared with the difference of the whole recorded times of both traces.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import kinetoscope
from benchmarks.harness import Result, run
from benchmarks.judgements import finding_line, share_of
from kinetoscope.analyses.finding import Finding
from kinetoscope.analyses.findings import Report, examine, gain_percent
from kinetoscope.analyses.line_tree import line_tree
from kinetoscope.display.sentence import plain

Side = Literal["slow", "mended"]

FOLDER = Path(__file__).parent / "unlisted"
SUFFIX = ".py.diff"
FIRST_LINES = 5
NEAR, LEAST_PERCENT = 0.3, 5.0
PLACE_PERCENT, CAUSE_PERCENT, FIRST_PERCENT, NEAR_PERCENT, FALSE_PERCENT = 90.0, 75.0, 80.0, 75.0, 5.0
COST = 1.15
ROUNDS = 5
FULL_OPTIONS = ("--shapes", "--memory")
# A program of this name is run with --quick.
QUICK = "click_ranking"
# What other programs on this machine cause.
_OF_THE_MACHINE = ("processor-wait",)


@dataclass(frozen=True)
class Fault:
    """A fault of a program.

    Attributes:
        kind: What is slow.
        cause: A regular expression of the words that name the cause, in any case.
        places: The lines of the slow program that a person should be led to, from 1 on.
    """

    kind: str
    cause: str
    places: frozenset[int]


@dataclass(frozen=True)
class UnlistedProgram:
    """A slow program and its twin.

    Attributes:
        name: The name of the file.
        faults: What is slow.
        same: Whether both print the "equal" result, a "close" one, or one of the same "kind".
        slow: The source of the slow program.
        mended: The source of the twin.
    """

    name: str
    faults: tuple[Fault, ...]
    same: Literal["equal", "close", "kind"]
    slow: str
    mended: str

    def source(self, side: Side) -> str:
        """The source of one side."""
        return self.slow if side == "slow" else self.mended


def read_program(path: Path) -> UnlistedProgram:
    """Read a file of `benchmarks/unlisted/`.

    Raises:
        ValueError: A line begins with other characters than those that this module lists, or the head is not complete.
    """
    heads: list[dict[str, str]] = [{}]
    sides: dict[str, list[str]] = {"slow": [], "mended": []}
    places: dict[str, set[int]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("#: "):
            key, _, value = line.removeprefix("#: ").partition(": ")
            if key == "fault":
                heads.append({})
            heads[-1][key] = value
            continue
        mark, fault, text = line[:1].strip(), line[1:2].strip(), line[2:]
        if mark not in ("", "-", "!", "*", "+") or fault not in ("", "1", "2"):
            raise ValueError(f"{path.name}:{number}: {line[:2]!r} does not say which program has the line")
        if mark != "+":
            sides["slow"].append(text)
        if mark in ("", "*", "+"):
            sides["mended"].append(text)
        if mark in ("!", "*"):
            places.setdefault(fault, set()).add(len(sides["slow"]))
    everywhere = places.pop("", set())
    faults = tuple(
        Fault(head["kind"], head["cause"], frozenset(everywhere | places.get(str(number), set())))
        for number, head in enumerate(heads, start=1)
        if "kind" in head and "cause" in head
    )
    same = heads[-1].get("same") or heads[0].get("same")
    if len(faults) != len(heads) or same not in ("equal", "close", "kind"):
        raise ValueError(
            f"{path.name}: each fault needs a kind and a cause, and the program needs `#: same:`"
        )
    if not all(fault.places for fault in faults):
        raise ValueError(f"{path.name}: a fault has no line that a person should be led to")
    slow, mended = ("\n".join(sides[side]) + "\n" for side in ("slow", "mended"))
    return UnlistedProgram(path.name.removesuffix(SUFFIX), faults, same, slow, mended)


def programs() -> list[UnlistedProgram]:
    """All programs, by name."""
    return [read_program(path) for path in sorted(FOLDER.glob(f"*{SUFFIX}"))]


def options_of(parser: ArgumentParser) -> None:
    """Add which programs, how they are recorded, and where their traces are kept."""
    parser.add_argument("--only", default="", help="programs with this in their name")
    parser.add_argument("--full", action="store_true", help=f"record with {' '.join(FULL_OPTIONS)}")
    parser.add_argument(
        "--time", action="store_true", help="also measure run and answer against the plain program"
    )
    parser.add_argument(
        "--traces", type=Path, help="keep the traces in this folder, and use those that are there"
    )


def written(program: UnlistedProgram, side: Side, folder: Path) -> Path:
    """The file of one side of a program, in a folder."""
    source = folder / f"{program.name}_{side}.py"
    source.write_text(program.source(side), encoding="utf-8")
    return source


def _run(words: list[str | Path], folder: Path) -> float:
    """Run a command to its end with one thread; return how many seconds it took."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return seconds


def _recording(source: Path, prefix: Path, options: tuple[str, ...]) -> list[str | Path]:
    """The command that records a program."""
    return [sys.executable, "-m", "kinetoscope", "run", *options, "-o", prefix, source]


def recorded(program: UnlistedProgram, side: Side, options: tuple[str, ...], folder: Path) -> Path:
    """The trace of a program or its twin, recorded in a process of its own unless it is there."""
    source = written(program, side, folder)
    prefix = folder / f"{source.stem}_{'full' if options else 'default'}"
    saved = folder / f"{prefix.name}.ktrace"
    if not saved.exists():
        _run(_recording(source, prefix, options), folder)
    return saved


@dataclass(frozen=True)
class Answer:
    """What is said of a program and its twin.

    Attributes:
        program: The program.
        source: The file of the slow program.
        report: The findings of the slow program.
        first_lines: The lines of the slow program's file among the first of the line tree.
        recorded_ns: The whole recorded time of the slow program.
        twin: The findings of the twin.
        twin_recorded_ns: The whole recorded time of the twin.
    """

    program: UnlistedProgram
    source: str
    report: Report
    first_lines: frozenset[int]
    recorded_ns: int
    twin: Report
    twin_recorded_ns: int

    @property
    def findings(self) -> list[Finding]:
        """The findings about the program, without what other programs on the machine cause."""
        return [finding for finding in self.report.findings if finding.code not in _OF_THE_MACHINE]

    def is_place(self, finding: Finding, fault: Fault) -> bool:
        """Whether a finding leads to a line of a fault: it is its place, or a line that it names."""
        lines = {*range(finding.place.line, max(finding.place.until, finding.place.line) + 1)}
        named = re.findall(rf"{re.escape(Path(self.source).name)}:(\d+)(?:-(\d+))?", plain(finding.finding))
        for first, last in named if finding.place.file == self.source else ():
            lines |= {*range(int(first), int(last or first) + 1)}
        return finding.place.file == self.source and not fault.places.isdisjoint(lines)

    def is_cause(self, finding: Finding, fault: Fault) -> bool:
        """Whether a finding that leads to a fault has the words of its cause, in what it says or advises."""
        # The name of the file is that of the program, and may name the fault.
        text = f"{plain(finding.finding)} {finding.advice} {finding.code}".replace(Path(self.source).stem, "")
        return self.is_place(finding, fault) and re.search(fault.cause, text, re.IGNORECASE) is not None

    def is_among_first_lines(self, fault: Fault) -> bool:
        """Whether a line of a fault is among the first lines of the line tree."""
        return not fault.places.isdisjoint(self.first_lines)

    @property
    def promised_ns(self) -> int | None:
        """What the first finding at each fault promises for the whole run; None where no fault has one."""
        at_faults = [
            next((finding for finding in self.findings if self.is_place(finding, fault)), None)
            for fault in self.program.faults
        ]
        # A finding that leads to two faults is promised once.
        promises = {id(finding): finding.gain_ns or 0 for finding in at_faults if finding is not None}
        return sum(promises.values()) if promises else None

    @property
    def gained_ns(self) -> int:
        """How much less the twin takes."""
        return self.recorded_ns - self.twin_recorded_ns

    @property
    def is_near(self) -> bool:
        """Whether the promise is near what the twin gains."""
        return self.promised_ns is not None and abs(self.promised_ns / max(self.gained_ns, 1) - 1) <= NEAR

    def lines(self) -> list[str]:
        """What is said of it, for people."""
        shown = []
        for number, fault in enumerate(self.program.faults, start=1):
            first = self.findings[:1]
            right = [name for name, holds in (
                ("place", any(self.is_place(finding, fault) for finding in self.findings)),
                ("cause", any(self.is_cause(finding, fault) for finding in self.findings)),
                ("place first", any(self.is_place(finding, fault) for finding in first)),
                ("cause first", any(self.is_cause(finding, fault) for finding in first)),
                ("line", self.is_among_first_lines(fault)),
            ) if holds]  # fmt: skip
            shown.append(f"fault {number}: {', '.join(right) or 'nothing'}")
        promised = "-" if self.promised_ns is None else f"{self.promised_ns / 1e9:.2f} s"
        head = (
            f"{self.program.name}: {'; '.join(shown)}; recorded {self.recorded_ns / 1e9:.2f} s, twin {self.twin_recorded_ns / 1e9:.2f} s, "
            f"promised {promised}{', near' if self.is_near else ''}"
        )
        return [head, *(f"    {finding_line(finding, self.report)}" for finding in self.findings[:4])]


def answer(program: UnlistedProgram, options: tuple[str, ...], folder: Path) -> Answer:
    """Record a program and its twin, and look at what is said."""
    source = str(folder / f"{program.name}_slow.py")
    with kinetoscope.open(recorded(program, "slow", options, folder)) as trace:
        report, recorded_ns = examine(trace), trace.duration_ns
        first = line_tree(trace).lines[:FIRST_LINES]
    with kinetoscope.open(recorded(program, "mended", options, folder)) as trace:
        twin, twin_recorded_ns = examine(trace), trace.duration_ns
    first_lines = frozenset(line.line for line in first if line.file == source)
    return Answer(program, source, report, first_lines, recorded_ns, twin, twin_recorded_ns)


def judged(answers: list[Answer], options: str) -> list[Result]:
    """Count what is right."""
    faults = [(about, fault) for about in answers for fault in about.program.faults]
    of = f"{len(answers)} unlisted programs {options}:"

    def right(leads: Callable[[Answer, Finding, Fault], bool]) -> int:
        return sum(any(leads(about, finding, fault) for finding in about.findings) for about, fault in faults)

    first = sum(
        any(
            about.is_cause(finding, fault) for finding in about.findings[:1] for fault in about.program.faults
        )
        for about in answers
    )
    lines = sum(about.is_among_first_lines(fault) for about, fault in faults)
    alarms = [
        f"{about.program.name} mended: {finding_line(finding, about.twin)}"
        for about in answers
        for finding in about.twin.findings
        if finding.code not in _OF_THE_MACHINE
        and (gain_percent(finding, about.twin.whole_ns) or 0) > LEAST_PERCENT
    ]
    alarmed = len({alarm.partition(":")[0] for alarm in alarms})
    near = sum(about.is_near for about in answers)
    said = [line for about in answers for line in about.lines()]
    return [
        share_of(f"{of} place named", right(Answer.is_place), len(faults), PLACE_PERCENT, said),
        share_of(f"{of} place among the first {FIRST_LINES} lines", lines, len(faults), PLACE_PERCENT, []),
        share_of(f"{of} cause named there", right(Answer.is_cause), len(faults), CAUSE_PERCENT, []),
        share_of(f"{of} place and cause of a fault first", first, len(answers), FIRST_PERCENT, []),
        share_of(f"{of} gain within {100 * NEAR:g} % of the twin's", near, len(answers), NEAR_PERCENT, []),
        share_of(f"{of} mended twins with a finding of more than {LEAST_PERCENT:g} %", alarmed, len(answers), FALSE_PERCENT, alarms, least=False),
    ]  # fmt: skip


def cost(program: UnlistedProgram, options: tuple[str, ...], folder: Path, rounds: int) -> float:
    """How many times as long run and answer take as the plain program: the median of runs in turns."""
    source, prefix = written(program, "slow", folder), folder / f"{program.name}_timed"
    ratios = []
    for _ in range(rounds):
        plain_s = _run([sys.executable, source], folder)
        recorded_s = _run(_recording(source, prefix, options), folder)
        (folder / f"{prefix.name}.ktrace").unlink()
        ratios.append(recorded_s / plain_s)
    return statistics.median(ratios)


def _costs(chosen: list[UnlistedProgram], options: tuple[str, ...], folder: Path, rounds: int) -> Result:
    """The cost of all programs, the median of them against its bar."""
    ratios = {program.name: cost(program, options, folder, rounds) for program in chosen}
    median = statistics.median(ratios.values())
    notes = [f"{name}: {ratio:.2f} times" for name, ratio in ratios.items()]
    what = f"{len(chosen)} unlisted programs: wall time of run and answer, median"
    return Result(what, f"<= {COST:g} times the plain program", f"{median:.2f} times", median <= COST, notes)


def measure(options: Namespace) -> list[Result]:
    """Record all programs, and judge what is said of them."""
    chosen = [program for program in programs() if (QUICK if options.quick else options.only) in program.name]
    recording = FULL_OPTIONS if options.full else ()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.traces or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        answers = [answer(program, recording, folder) for program in chosen]
        results = judged(answers, "with shapes and memory" if options.full else "with default options")
        if options.time:
            results.append(_costs(chosen, recording, folder, 1 if options.quick else ROUNDS))
    return results


if __name__ == "__main__":
    run(measure, options_of)
