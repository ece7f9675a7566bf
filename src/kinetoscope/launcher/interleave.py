"""Records two programs in turn, in random order, for `kinetoscope ab` to compare."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kinetoscope._errors import ArgumentError, StateError
from kinetoscope.comparison.measures import Run
from kinetoscope.comparison.result import Comparison, Margins
from kinetoscope.comparison.runs import compare_runs
from kinetoscope.launcher.program import Program
from kinetoscope.launcher.run import launch
from kinetoscope.model import units
from kinetoscope.trace.opening import measure_runs

_PYTHON = re.compile(r"python[\d.]*(\.exe)?$")
_LAST_LINES = 5
# With so many CPU cores, the first one is left to the system, which handles most interrupts there.
_PROCESSORS_TO_SPARE = 4
MOST_SEEDS = 1 << 16


def parse_command(words: Sequence[str]) -> Program:
    """Read a command line, with or without `python` in front.

    Raises:
        ArgumentError: It names no program.
    """
    rest = list(words)
    if rest and _PYTHON.match(os.path.basename(rest[0])):
        rest = rest[1:]
    is_module = rest[:1] == ["-m"]
    rest = rest[is_module:]
    if not rest or rest[0].startswith("-"):
        raise ArgumentError(
            f"{' '.join(words) or 'the command'!r} names no program: write a script, or -m and a module, and its arguments"
        )
    return Program(rest[0], tuple(rest[1:]), is_module)


@dataclass
class Interleaved:
    """Both programs, run in rounds: in each round both run once, in random order.

    Attributes:
        contenders: The programs `base` and `new`, each with its working directory. Two equal ones show which differences this
            machine can detect.
        folder: Where recordings and logs are written.
        order: Random numbers that choose which one runs first.
        margins: When a difference counts.
        warm_up: How many of the first steps of each recording to leave out; see `compare`.
        runs: What the recordings of each program did.
        spent_s: How long the rounds have taken, recordings read.
    """

    contenders: Mapping[str, tuple[Program, Path]]
    folder: Path
    order: random.Random
    margins: Margins
    warm_up: int | None = None
    spent_s: float = 0.0
    runs: dict[str, list[Run]] = field(default_factory=lambda: {"base": [], "new": []})

    @property
    def rounds(self) -> int:
        """How many rounds have run."""
        return len(self.runs["new"])

    def run_round(self) -> Iterator[str]:
        """Run both once, and yield `base` or `new` before each.

        Raises:
            StateError: A program failed, or recorded nothing.
        """
        number, run_of_side, began_s = self.rounds + 1, {}, time.monotonic()
        for side in self.order.sample(("base", "new"), 2):
            yield side
            run_of_side[side] = self._record(side, number)
        for side, run in run_of_side.items():
            self.runs[side].append(run)
        self.spent_s += time.monotonic() - began_s

    def _record(self, side: str, number: int) -> Run:
        (program, folder), log = self.contenders[side], self.folder / f"{side}-{number:03}.log"
        result = launch(
            program.target,
            *program.arguments,
            module=program.is_module,
            output=self.folder / f"{side}-{number:03}.ktrace",
            cwd=folder,
            log=log,
        )
        if result.exit_code != 0 or result.path is None:
            failure = "never imported torch, so there is no trace"
            if result.exit_code:
                failure = f"ended with exit code {result.exit_code}"
            printed = log.read_text("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
            raise StateError(
                f"{' '.join(program.command_line)} {failure}; it printed last: {' | '.join(printed) or 'nothing'}"
            )
        return measure_runs([result.path], warm_up=self.warm_up)[0]

    def compare(self) -> Comparison:
        """Compare what has run so far."""
        return compare_runs(self.runs["base"], self.runs["new"], self.margins)


def visible_percent(comparison: Comparison) -> float:
    """The smallest step time difference that the comparison could detect, in percent of a step; infinite after one round."""
    step = comparison.whole
    return 100 * max(step.high_ns - step.change_ns, step.change_ns - step.low_ns) / max(step.base_ns, 1.0)


@contextmanager
def pinned(processors: str | None = None) -> Iterator[list[int]]:
    """Pin this process, and those that it starts, to some CPU cores, if the system supports it.

    Args:
        processors: Such as `2-5,7`; None for all that this process may use, without the first one of four or more.

    Yields:
        The cores; empty if the system cannot pin.

    Raises:
        ArgumentError: This is not a list of cores that this process may use.
    """
    if not hasattr(os, "sched_setaffinity"):
        if processors is not None:
            raise ArgumentError(f"--processors {processors}: this system cannot pin a program to processors")
        yield []
        return
    allowed = os.sched_getaffinity(0)
    ours = sorted(allowed)
    chosen = ours[1:] if len(ours) >= _PROCESSORS_TO_SPARE else ours
    if processors is not None:
        chosen = units.parse_numbers("--processors", processors)
        if not set(chosen) <= allowed:
            raise ArgumentError(
                f"--processors {processors}: this process may use {', '.join(map(str, ours))}"
            )
    os.sched_setaffinity(0, chosen)
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def checked_out(revision: str, target: Path, folder: Path) -> Iterator[Path]:
    """Check out a revision of the git repository around `folder` while the context is open.

    Args:
        revision: A commit, branch or tag.
        target: The folder to check out into, which must not exist.
        folder: A folder in the repository.

    Yields:
        The same folder in the checked-out revision.

    Raises:
        ArgumentError: This is not in a git repository, or there is no such revision.
    """
    top = Path(_git(folder, "rev-parse", "--show-toplevel"))
    commit = _git(folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    _git(folder, "worktree", "add", "--detach", str(target), commit)
    try:
        inside = target / folder.resolve().relative_to(top.resolve())
        if not inside.is_dir():
            raise ArgumentError(
                f"--rev {revision}: there is no folder {inside.relative_to(target)} in this revision"
            )
        yield inside
    finally:
        _git(folder, "worktree", "remove", "--force", str(target))


def edited_code(folder: Path, revision: str) -> frozenset[str]:
    """The qualified names of the Python classes and functions that the working tree changes of a revision, such as `Gate` and `Gate.forward`.

    Raises:
        ArgumentError: The folder is not in a git repository, or there is no such revision.
    """
    top, names = Path(_git(folder, "rev-parse", "--show-toplevel")), set[str]()
    changed = _git(top, "diff", "--name-only", "--no-renames", "--diff-filter=AM", revision, "--", "*.py")
    for file in changed.splitlines():
        old = ""
        with suppress(ArgumentError):  # The file is new.
            old = _git(top, "show", f"{revision}:{file}")
        before, after = map(_definitions, (old, (top / file).read_text("utf-8", "replace")))
        names |= {name for name, code in after.items() if before.get(name) != code}
    return frozenset(names)


def _definitions(text: str) -> dict[str, str]:
    """The code of each class and function of a program, without its comments; empty if it is not Python."""
    code_of, nodes = dict[str, str](), list[tuple[ast.AST, str]]()
    with suppress(SyntaxError, ValueError):
        nodes.append((ast.parse(text), ""))
    while nodes:
        node, inside = nodes.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            code_of[inside + node.name] = ast.dump(node)
            inside += f"{node.name}."
        nodes += ((child, inside) for child in ast.iter_child_nodes(node))
    return code_of


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=False)  # noqa: S603, S607
    except FileNotFoundError as error:
        raise ArgumentError("--rev needs git, which is not installed") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it says nothing"]
        raise ArgumentError(f"git {words[0]} failed in {folder}: {lines[-1]}")
    return done.stdout.strip()
