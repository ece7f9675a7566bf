"""`kinetoscope ab`: run two programs in turn, and compare them."""

from __future__ import annotations

import math
import random
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetoscope._errors import KinetoscopeError
from kinetoscope.cli.compare import comparison_options, show_comparison
from kinetoscope.cli.files import number_option
from kinetoscope.display.terminal import console, echo
from kinetoscope.model import units

if TYPE_CHECKING:
    from kinetoscope.comparison.result import Comparison
    from kinetoscope.launcher.interleave import Interleaved
    from kinetoscope.launcher.program import Program

# The spread of fewer recordings is hardly known.
LEAST_ROUNDS = 5
_SEPARATOR = "--"


@click.command("ab", context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS]")
@number_option("--rounds", least=1, default=20, help="Run each program at most N times.")
@click.option(
    "--within",
    metavar="P",
    type=float,
    default=1.0,
    help=f"Stop after {LEAST_ROUNDS} rounds or more once the difference of a step is known to within P percent of a step; 0 runs all.",
)
@click.option(
    "--time",
    "most_time",
    metavar="TIME",
    callback=lambda _context, _option, text: None if text is None else units.parse_duration(text) / 1e9,
    help="Start no round that would end later than TIME from the start, such as 5m.",
)
@click.option(
    "--changed",
    metavar="REV",
    help="Look first at modules and lines that the working tree changes of this git revision.  [default: with --rev, what differs]",
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Run one program against itself, to see what differences show on this machine.",
)
@click.option(
    "--rev",
    "revisions",
    metavar="REV",
    multiple=True,
    help="Run the program at this git revision; give it twice.",
)
@click.option(
    "--seed",
    metavar="N",
    type=int,
    help="Seed of the random order.  [default: a random one, which is printed]",
)
@click.option(
    "--processors",
    metavar="LIST",
    help="Run on these processors only, such as 2-5,7.  [default: all, but the first one of four or more]",
)
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the recordings and what the programs print in FOLDER.",
)
@comparison_options
@click.argument("words", metavar="-- COMMAND [-- COMMAND]", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    words: tuple[str, ...],
    *,
    rounds: int,
    within: float,
    most_time: float | None,
    changed: str | None,
    calibrate: bool,
    revisions: tuple[str, ...],
    seed: int | None,
    processors: str | None,
    output: Path | None,
    warm_up: int | None,
    rows: int,
    as_json: bool,
    html_file: Path | None,
    **conditions: Any,
) -> int:
    """Run two programs in turn, in random order, and compare them like `kinetoscope compare`.

    Each COMMAND is a script, or -m and a module, with its arguments; it runs in the Python that runs kinetoscope. The first one is the
    base. With --rev given twice, or --calibrate, there is one COMMAND. With --rev, it runs in a checkout of each revision, in the same
    folder as here.

    The interval decides when to stop, never a difference of times: stopping at the first one would find more than there are.

    The exit code is 0 if a step is proven to take no longer, 1 if it takes longer, 2 if neither is proven or records were lost, and 3 for an
    error. With --calibrate it is 0 unless records were lost.
    """
    import tempfile

    from kinetoscope.comparison.result import Margins
    from kinetoscope.launcher.interleave import MOST_SEEDS, Interleaved, edited_code, pinned

    commands = _split(words)
    _check(len(commands), revisions, calibrate=calibrate)
    seed = random.randrange(MOST_SEEDS) if seed is None else seed  # noqa: S311  (an order of runs is no secret)
    show = partial(show_comparison, rows=rows, html_file=html_file, as_json=as_json)
    with ExitStack() as opened:
        temporary = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="kinetoscope-ab-")))
        folder = (output or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        contenders = _contenders(commands, revisions, temporary, opened)
        on = opened.enter_context(pinned(processors))
        order = random.Random(seed)  # noqa: S311  (an order of runs is no secret)
        compared = changed or next(iter(revisions), "")
        edited = edited_code(contenders["new"][1], compared) if compared else frozenset()
        turns = Interleaved(contenders, folder, order, Margins(**conditions, edited=edited), warm_up)
        where = f"pinned to processors {', '.join(map(str, on))}" if on else "not pinned to processors"
        echo(f"seed {seed}, {where}", err=True)
        try:
            comparison = _run(turns, rounds, within, most_time or math.inf)
        except (KeyboardInterrupt, KinetoscopeError, OSError):
            # What has run so far is not lost; the error follows.
            if turns.rounds:
                show(turns.compare())
            raise
        show(comparison)
    if calibrate:
        echo(_calibrated(comparison, turns.rounds), err=as_json)
        return 2 if comparison.losses else 0
    return comparison.exit_code


def _split(words: tuple[str, ...]) -> list[list[str]]:
    if _SEPARATOR not in words:
        return [list(words)]
    end = words.index(_SEPARATOR)
    return [list(words[:end]), list(words[end + 1 :])]


def _check(commands: int, revisions: tuple[str, ...], *, calibrate: bool) -> None:
    if revisions and (calibrate or len(revisions) != 2):
        raise click.UsageError(
            "give --rev twice, for the base and for the revision to compare with it, and without --calibrate"
        )
    wanted = 1 if revisions or calibrate else 2
    if commands != wanted:
        example = "kinetoscope ab -- old.py -- new.py" if wanted == 2 else "one command after --"
        raise click.UsageError(
            f"there {'is 1 command' if commands == 1 else f'are {commands} commands'}, not {wanted}: {example}"
        )


def _contenders(
    commands: list[list[str]], revisions: tuple[str, ...], temporary: Path, opened: ExitStack
) -> dict[str, tuple[Program, Path]]:
    from kinetoscope.launcher.interleave import checked_out, parse_command

    programs = [parse_command(command) for command in commands]
    here = Path.cwd()
    folders = [
        opened.enter_context(checked_out(revision, temporary / name, here))
        for name, revision in zip(("base", "new"), revisions, strict=False)
    ] or [here, here]
    return {"base": (programs[0], folders[0]), "new": (programs[-1], folders[1])}


def _run(turns: Interleaved, rounds: int, within: float, most_s: float) -> Comparison:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kinetoscope.launcher.interleave import visible_percent

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    printer = console(stderr=True)
    with Progress(*columns, console=printer, transient=True, disable=not printer.is_terminal) as bar:
        task = bar.add_task("", total=2 * rounds)
        precision = ""
        while True:
            for side in turns.run_round():
                bar.update(task, description=f"round {turns.rounds + 1}: {side}{precision}")
                bar.advance(task)
            comparison = turns.compare()
            close = visible_percent(comparison)
            precision = f", known to within {close:.2g} % of a step" if math.isfinite(close) else ""
            if not printer.is_terminal:
                echo(f"round {turns.rounds} of at most {rounds}: {_so_far(comparison)}{precision}", err=True)
            is_known = close <= within or comparison.net_of_rows_ns is not None
            if turns.rounds >= min(LEAST_ROUNDS, rounds) and is_known:
                return comparison
            plan, factor = "", (close / within) ** 2 if within else math.inf
            if turns.rounds > 1 and math.isfinite(factor):
                needed = units.count(math.ceil(factor * turns.rounds), "round")
                plan = f"; {within:g} % needs about {needed}, {units.duration(factor * turns.spent_s * 1e9)} in all"
            if turns.rounds >= rounds or turns.spent_s * (1 + 1 / turns.rounds) > most_s:
                echo(f"a step is known to within {close:.2g} %{plan}", err=True)
                return comparison
            precision += plan


def _so_far(comparison: Comparison) -> str:
    step = comparison.whole
    change = units.change_percent(100 * step.change_ns / max(step.base_ns, 1.0))
    return f"a step takes {units.duration(step.base_ns)} in base, {units.duration(step.base_ns + step.change_ns)} in new ({change})"


def _calibrated(comparison: Comparison, rounds: int) -> str:
    from kinetoscope.comparison.result import FASTER, SLOWER
    from kinetoscope.launcher.interleave import visible_percent

    if not comparison.confirmed:
        return "One round does not show what differences this machine shows: run more of them."
    text = (
        f"This machine shows differences of a step from {visible_percent(comparison):.2g} % on, with {units.count(rounds, 'round')} of this "
        f"program and {100 * comparison.margins.confidence:g} % confidence."
    )
    if comparison.verdict in (FASTER, SLOWER) or comparison.changed:
        text += " This comparison of the program with itself found a difference: a false alarm, or the program changes from run to run."
    return text
