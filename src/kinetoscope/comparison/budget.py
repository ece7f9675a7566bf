"""A budget that a run has to keep to: counts, exactly, and the time of a step against a stored baseline.

A budget is a TOML file::

    [counts]                      # of a step; peak_bytes, recompiles and graph_breaks of the run
    operators = 477
    peak_bytes = 1656152

    [modules."encoder.layer"]     # the same of a module, with those in it
    allocations = 12

    [operators."aten::copy_"]     # and of an operator
    operators = 12

    [margins]                     # in percent of the number; 0 where nothing is said
    allocated_bytes = 1.0

    [time]                        # written by --update of several recordings
    percent = 3.0                 # conditions of a difference, as in `kinetoscope compare`
    least = "10us"
    confidence = 0.99
    machine = "..."
    steps_us = [[1593.2, 1601.7], [1590.0, 1604.4]]
    step_kinds = [[477, 120], [477, 120]]  # where steps are of several kinds: how many operators a step of the kind of each has
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np

from kinetoscope._errors import ArgumentError, FormatError
from kinetoscope.comparison import kinds as step_kinds
from kinetoscope.comparison.matching import nearest
from kinetoscope.comparison.measures import BYTE_COUNTS, COUNTS, RUN_COUNTS, Numbers, Run, Scope, counts_of
from kinetoscope.comparison.result import FASTER, SLOWER, Margins, step_difference
from kinetoscope.comparison.statistics import MOST_CLASSES, Bootstrap, Series
from kinetoscope.comparison.verdict import Where, lines_of_places
from kinetoscope.display.blocks import BlockColumn, Heading, TableBlock, as_markdown
from kinetoscope.display.lines import folded
from kinetoscope.display.sentence import printable
from kinetoscope.display.terminal import UNLIMITED
from kinetoscope.model import units
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows

HELD, BROKEN, WON, CANNOT_TELL = "held", "broken", "better", "cannot tell"
EXIT_CODES = {HELD: 0, WON: 0, BROKEN: 1, CANNOT_TELL: 2}

SCOPED = ("operators", "kernels", "allocations", "allocated_bytes", "flops")
"""The counts that a module or an operator can have a budget of."""

_STEP_TIME = "step time"
_MOST_STEPS = 200
# Whole numbers are exact below this, and times of steps far shorter.
_LARGEST = 2**53


@dataclass(frozen=True)
class Limit:
    """One number of a budget.

    Attributes:
        count: What is counted, one of `COUNTS`.
        allowed: The number.
        margin: By how much a run may differ, in percent of the number.
        scope: The module or operator; None for the run.
    """

    count: str
    allowed: float
    margin: float = 0.0
    scope: Scope | None = None

    @property
    def name(self) -> str:
        """What the limit is of, as in the budget: `operators`, `modules.fc.allocations`."""
        return self.count if self.scope is None else f"{self.scope[0]}.{self.scope[1]}.{self.count}"


@dataclass(frozen=True, eq=False)
class Baseline:
    """The times of a step that a run is compared with.

    Attributes:
        steps: The steps of each recording, in nanoseconds.
        machine: What they were measured on.
        margins: When a difference counts.
        kinds: For each step how many operators a step of its kind has; empty where all steps are of one kind.
    """

    steps: list[Numbers]
    machine: str
    margins: Margins
    kinds: list[Rows] = field(default_factory=list)


@dataclass(frozen=True)
class Budget:
    """What a run has to keep to.

    Attributes:
        limits: The counts.
        time: The time of a step; None where the budget has none.
        places: How much of each count there was at each place, by `stored_places`; empty where the budget does not say.
    """

    limits: tuple[Limit, ...]
    time: Baseline | None = None
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def scopes(self) -> list[Scope]:
        """The modules and operators that have limits."""
        return list(dict.fromkeys(limit.scope for limit in self.limits if limit.scope is not None))


@dataclass(frozen=True)
class Checked:
    """One limit and what came of it.

    Attributes:
        name: The limit, as in the budget.
        verdict: `held`, `broken`, `better` (by more than the margin), or `cannot tell`.
        allowed: The number in the budget; of times the time of a step of the baseline, in nanoseconds.
        measured: What was measured; None where it was not recorded.
        message: The outcome in one sentence.
        where: The places that contributed most, for a broken limit.
    """

    name: str
    verdict: str
    allowed: float
    measured: float | None
    message: str
    where: list[Where] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What came of a budget.

    Attributes:
        checked: Each limit.
        strict: Whether a run that is better than its budget by more than the margin is a failure, too.
    """

    checked: list[Checked]
    strict: bool = False

    @property
    def verdict(self) -> str:
        """`broken` if any limit is, else `cannot tell` if that is so of any, else `held`."""
        if any(map(self.fails, self.checked)):
            return BROKEN
        return CANNOT_TELL if any(check.verdict == CANNOT_TELL for check in self.checked) else HELD

    @property
    def exit_code(self) -> int:
        """0: held. 1: broken. 2: cannot tell."""
        return EXIT_CODES[self.verdict]

    def fails(self, check: Checked) -> bool:
        """Whether a limit fails the build."""
        return check.verdict == BROKEN or (self.strict and check.verdict == WON)

    # As a person, or a service that builds, reads it.

    def to_text(self, width: int = UNLIMITED) -> str:
        """Plain text of a width: what is not held first, with the places; then a line for what is."""
        lines = []
        for check in self.checked:
            if check.verdict != HELD:
                lines += folded(f"{check.verdict}: {check.message}", width)
                lines += lines_of_places(check.where, ("in all", "operator"), width)
        held = sum(check.verdict == HELD for check in self.checked)
        return "\n".join(
            [*lines, f"{held} of {units.count(len(self.checked), 'limit')} held: {self.verdict}"]
        )

    def to_json(self) -> str:
        """JSON with stable keys."""
        return json.dumps(
            {
                "verdict": self.verdict,
                "strict": self.strict,
                "limits": [asdict(check) for check in self.checked],
            },
            ensure_ascii=False,
        )

    def to_markdown(self) -> str:
        """A table for the summary page of a build."""
        rows = tuple(
            (
                f"`{check.name}`",
                _shown(check.name, check.allowed),
                "not recorded" if check.measured is None else _shown(check.name, check.measured),
                check.verdict,
            )
            for check in sorted(self.checked, key=lambda check: not self.fails(check))
        )
        columns = (
            BlockColumn("limit", is_text=True),
            BlockColumn("allowed"),
            BlockColumn("measured"),
            BlockColumn("verdict", is_text=True),
        )
        return as_markdown([Heading(f"Kinetoscope: budget {self.verdict}"), TableBlock(columns, rows)]) + "\n"

    def annotations(self) -> list[str]:
        """A line for each limit that fails, which GitHub shows at the line of the program that contributed most."""
        lines = []
        for check in self.checked:
            if self.fails(check):
                line = next((where for where in check.where if where.file), None)
                location = f" file={_property(line.file)},line={line.number}" if line is not None else ""
                lines.append(f"::error{location}::{_data(check.message)}")
        return lines

    def to_junit(self) -> str:
        """A JUnit report with a case for each limit."""
        failed = sum(self.fails(check) for check in self.checked)
        unknown = sum(check.verdict == CANNOT_TELL for check in self.checked)
        suite = Xml.Element(
            "testsuite",
            name="kinetoscope budget",
            tests=str(len(self.checked)),
            failures=str(failed),
            skipped=str(unknown),
            errors="0",
        )
        for check in self.checked:
            case = Xml.SubElement(
                suite, "testcase", classname="kinetoscope.budget", name=printable(check.name)
            )
            if self.fails(check):
                Xml.SubElement(case, "failure", message=printable(check.message))
            elif check.verdict == CANNOT_TELL:
                Xml.SubElement(case, "skipped", message=printable(check.message))
        return Xml.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _property(text: str) -> str:
    """A value in a workflow command, as GitHub wants it escaped."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _data(text: str) -> str:
    """The message of a workflow command, as GitHub wants it escaped."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _shown(name: str, value: float) -> str:
    """A number of a limit; an exact one, because it is what to write into the budget."""
    if name == _STEP_TIME:
        return units.duration(value)
    return f"{value:,.10g}"


def read_budget(text: str, source: str = "the budget") -> Budget:
    """Read a budget.

    Args:
        text: The TOML text.
        source: What to call it in messages.

    Returns:
        The budget.

    Raises:
        FormatError: The text is not TOML, or something in it is not part of a budget.
    """
    if _FIRST_LINE in text and _LAST_LINE not in text.splitlines():
        raise FormatError(
            f"{source}: the file is not complete: its last line, {_LAST_LINE!r}, is missing; restore the file, or delete it and write "
            "it again with --update"
        )
    try:
        sections = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FormatError(f"{source}: not a TOML file: {error}") from error
    _known(source, sections, ("counts", "modules", "operators", "margins", "places", "time"), "section")
    for section, content in sections.items():
        if not isinstance(content, dict):
            raise FormatError(f"{source}: {section} = {content!r} must be a section: write [{section}]")
    margins = _numbers(source, "margins", sections.get("margins", {}), COUNTS)
    limits = [*_limits(source, sections.get("counts", {}), margins, None)]
    for kind in ("modules", "operators"):
        for name, content in sections.get(kind, {}).items():
            if not isinstance(content, dict):
                raise FormatError(f'{source}: {kind}.{name} must be a section: write [{kind}."{name}"]')
            limits += _limits(source, content, margins, (kind, name))
    if not limits and "time" not in sections:
        raise FormatError(f"{source}: it has no limit: write some with `kinetoscope check --update`")
    baseline = _baseline(source, sections["time"]) if "time" in sections else None
    return Budget(tuple(limits), baseline, _read_places(source, sections.get("places", {})))


def _read_places(source: str, content: dict[str, Any]) -> dict[str, dict[str, int]]:
    """How much of each count there was at each place when the budget was written."""
    _known(source, content, COUNTS, "key in [places]")
    read = {}
    for count, text in content.items():
        matches = [_PLACE.fullmatch(word) for word in text.split()] if isinstance(text, str) else [None]
        if None in matches:
            raise FormatError(
                f"{source}: places.{count} is not what --update writes: delete the section [places]"
            )
        read[count] = {match[1]: int(match[2]) for match in matches if match is not None}
    return read


def _limits(
    source: str, content: dict[str, Any], margins: dict[str, Any], scope: Scope | None
) -> list[Limit]:
    section = "counts" if scope is None else f'{scope[0]}."{scope[1]}"'
    allowed = _numbers(source, section, content, COUNTS if scope is None else SCOPED)
    return [
        Limit(name, float(value), float(margins.get(name, 0.0)), scope) for name, value in allowed.items()
    ]


def _baseline(source: str, content: dict[str, Any]) -> Baseline:
    _known(source, content, _TIME_KEYS, "key in [time]")
    steps: Any = content.get("steps_us")
    if not _is_numbers(steps, int, float) or min(map(min, steps)) == 0:
        raise FormatError(
            f"{source}: time.steps_us must be lists of times above 0, one for each recording: write them with --update"
        )
    kinds = content.get("step_kinds", [])
    if kinds != [] and not (_is_numbers(kinds, int) and list(map(len, kinds)) == list(map(len, steps))):
        raise FormatError(
            f"{source}: time.step_kinds must have a whole number for each of time.steps_us: write them with --update"
        )
    try:
        margins = Margins(
            float(content.get("percent", 3.0)),
            float(units.parse_duration(str(content.get("least", "10us")))),
            float(content.get("confidence", 0.99)),
        )
    except (ArgumentError, TypeError, ValueError) as error:
        raise FormatError(f"{source}: [time]: {error}") from error
    return Baseline(
        [1000 * np.array(run, dtype=np.float64) for run in steps],
        str(content.get("machine", "")),
        margins,
        [np.array(step_kinds, np.int64) for step_kinds in kinds],
    )


_TIME_KEYS = ("percent", "least", "confidence", "machine", "steps_us", "step_kinds")


def _is_numbers(lists: Any, *kinds: type) -> bool:
    """Whether a value is lists of numbers, each from 0 on, and there are some in all of them."""
    if not isinstance(lists, list) or not all(isinstance(numbers, list) and numbers for numbers in lists):
        return False
    values = [value for numbers in lists for value in numbers]
    return bool(values) and all(type(value) in kinds and 0 <= value < _LARGEST for value in values)


def _known(source: str, entries: dict[str, Any], names: Sequence[str] | dict[str, str], what: str) -> None:
    """Refuse what a budget does not have.

    Raises:
        FormatError: A name is unknown.
    """
    for name in entries:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose from: {', '.join(names)}"
            raise FormatError(f"{source}: there is no {what} called {name!r}; {hint}")


def _numbers(
    source: str, section: str, content: dict[str, Any], counts: Sequence[str] | dict[str, str]
) -> dict[str, float]:
    """The numbers of a section.

    Raises:
        FormatError: One is of none of the counts, or is no number from 0 on.
    """
    _known(source, content, counts, f"count in [{section}]")
    for name, value in content.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
            raise FormatError(
                f"{source}: {section}.{name} = {value!r} is not valid: write a number, 0 or more"
            )
    return content


_PLACE = re.compile(r"([0-9a-f]{8}\.[0-9a-f]{8}):([0-9]{1,18})")
_LAST_LINE = "# The end of the budget."
_FIRST_LINE = f'# A budget for `kinetoscope check`; its last line is "{_LAST_LINE}".'
_SECTION = re.compile(r"\s*\[(?!\[)(.+)\]\s*(?:#.*)?$")
# What [time] has of a run; lists may go on for many lines.
_TIMES = re.compile(
    r"^[ \t]*(steps_us|step_kinds|machine)[ \t]*=[ \t]*(?:\[\s*\[.*?\]\s*,?\s*\])?.*?(?:\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
_ENTRY = re.compile(r"(\s*)([A-Za-z_]+)(\s*=\s*)([^#\n]*?)(\s*(?:#.*)?)$")


def updated_budget(
    text: str,
    runs: Sequence[Run],
    source: str = "the budget",
    *,
    times: bool = False,
    places: Mapping[str, Mapping[str, int]] | None = None,
) -> str:
    """Write what was measured into a budget: its limits, comments and order stay.

    Args:
        text: The budget; an empty text makes a new one with all counts that were recorded.
        runs: What the recordings did, with the scopes of the budget.
        source: What to call it in messages.
        times: Also write the times of steps where the budget has none; those that it has are always updated.
        places: How much there is at each place, from `stored_places`, for a new budget or one that has places.

    Returns:
        The new text.

    Raises:
        FormatError: The text is not a budget.
        ArgumentError: A count was not recorded, or times are to be written of one recording only.
    """
    if times and len(runs) == 1:
        raise ArgumentError(
            f"{source}: one recording does not show how much recordings differ: pass several to write times, or leave out --times"
        )
    written = text.splitlines() if text.strip() else _new_budget(runs, places=bool(places), times=times)
    budget = read_budget("\n".join(written), source)
    if times and budget.time is None:
        written += _NEW_TIMES
    values = {(limit.scope, limit.count): limit for limit in budget.limits}
    measured_times = {
        "steps_us": "\n".join(_step_lines(runs)) + "\n",
        "step_kinds": "",
        "machine": f"machine = {json.dumps(runs[0].machine, ensure_ascii=False)}\n",
    }
    lines, scope, in_limits, section = [], None, False, ""
    for line in _TIMES.sub(lambda match: measured_times[match[1]], "\n".join(written)).splitlines():
        if match := _SECTION.match(line):
            section, scope = _section(match[1])
            in_limits = section in ("counts", "modules", "operators")
            if section == "places" and places is not None:
                lines.append(line)
                for count, amounts in places.items():
                    words = " ".join(f"{key}:{amount}" for key, amount in amounts.items())
                    lines.append(f'{count} = "{words}"')
                continue
        elif (match := _ENTRY.match(line)) and in_limits and (scope, match[2]) in values:
            measured = counts_of(runs, match[2], scope)
            if measured is None:
                raise ArgumentError(
                    f"{source}: {values[scope, match[2]].name} was not recorded: {_how(match[2], runs)}"
                )
            line = f"{match[1]}{match[2]}{match[3]}{_written(float(np.max(measured)))}{match[5]}"
        elif match and section == "places" and places is not None:
            # Those that were measured now stand below the heading.
            continue
        lines.append(line)
    return _complete(lines)


def _complete(lines: list[str]) -> str:
    """Lines whose last one marks the end: a file cut at the end of a line would still be TOML."""
    inner = [line for line in lines if line != _LAST_LINE]
    first = [] if any(_FIRST_LINE in line for line in inner) else [_FIRST_LINE]
    return "\n".join([*first, *inner, _LAST_LINE]) + "\n"


def _section(text: str) -> tuple[str, Scope | None]:
    """The section that a heading begins, and the module or operator that it is of."""
    content: Any = tomllib.loads(f"[{text}]")
    path = []
    while isinstance(content, dict) and content:
        name, content = next(iter(content.items()))
        path.append(name)
    return path[0], (path[0], path[1]) if len(path) == 2 else None


def _new_budget(runs: Sequence[Run], *, places: bool, times: bool) -> list[str]:
    """The lines of a budget of all counts that were recorded, to be updated."""
    lines = [
        "# Counts are of a step; peak_bytes, recompiles and graph_breaks of the run. --update writes what was measured;",
        '# [modules."path"] and [operators."name"] limit one module or operator, [margins] allows a percentage.',
        "",
        "[counts]",
        *(f"{name} = 0" for name in COUNTS if counts_of(runs, name) is not None),
    ]
    if places:
        lines += ["", "[places]  # of what is counted, in short, so that what is added can be named"]
    return lines if times else [*lines, *_NO_TIMES]


_NO_TIMES = (
    "",
    "# Times are not checked. `kinetoscope check --update --times` of several recordings, made on a quiet machine, adds them.",
)
_NEW_TIMES = ("", "[time]", "percent = 3.0", 'least = "10us"', "confidence = 0.99", "machine =", "steps_us =")


def _step_lines(runs: Sequence[Run]) -> list[str]:
    """The times of the last steps of each recording and, where they are of several kinds, the number of operators of the kind of each."""
    times_us = [
        [round(time_ns / 1000, 1) for time_ns in run.with_core_ns[run.counted][-_MOST_STEPS:].tolist()]
        for run in runs
    ]
    lines = [f"steps_us = {json.dumps(times_us)}"]
    examples, members = step_kinds.kinds_of_runs(runs)
    kinds = step_kinds.places_of_steps(runs, members)
    if len(np.unique(kinds)) > 1:
        ends = np.cumsum([len(run.counted) for run in runs])
        operators = np.array([*map(step_kinds.typical_operators, examples)])[kinds]
        last = [of_recording[-_MOST_STEPS:].tolist() for of_recording in np.split(operators, ends[:-1])]
        lines.append(f"step_kinds = {json.dumps(last)}")
    return lines


def _written(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def check(
    budget: Budget,
    runs: Sequence[Run],
    *,
    strict: bool = False,
    where: Callable[[Limit], list[Where]] | None = None,
) -> Outcome:
    """Check a run.

    Args:
        budget: What it has to keep to.
        runs: What its recordings did, with the scopes of the budget.
        strict: Whether better than the budget by more than the margin fails, too.
        where: Finds the places that contributed most to what broke.

    Returns:
        The outcome of each limit.
    """
    checked = [_check(limit, runs, where) for limit in budget.limits]
    if budget.time is not None:
        checked.append(_check_time(budget.time, runs))
    return Outcome(checked, strict)


def _check(limit: Limit, runs: Sequence[Run], where: Callable[[Limit], list[Where]] | None) -> Checked:
    """Check one count: of steps that differ, the one with most."""
    noun = _noun(limit)
    per = "" if limit.count in RUN_COUNTS else " a step"
    measured = counts_of(runs, limit.count, limit.scope)
    if measured is None:
        how = _how(limit.count, runs)
        return Checked(
            limit.name, CANNOT_TELL, limit.allowed, None, f"{limit.name}: {noun} are not known: {how}"
        )
    most = float(measured.max())
    slack = limit.margin / 100 * limit.allowed
    lost = next((run.doubt for run in runs if run.doubt), "")
    message = f"{limit.name}: {_amount(limit, most)} {noun}{per}, {_amount(limit, limit.allowed)} allowed"
    verdict = HELD
    if most > limit.allowed + slack:
        verdict, message = BROKEN, f"{message}, {_amount(limit, most - limit.allowed)} too many"
    elif lost:
        verdict, message = CANNOT_TELL, f"{message}, but {lost}"
    elif most < limit.allowed - slack:
        verdict = WON
        message += f": {_amount(limit, limit.allowed - most)} fewer; lower the budget with --update"
    wheres = where(limit) if verdict == BROKEN and where is not None else []
    return Checked(limit.name, verdict, limit.allowed, most, message, wheres)


def _noun(limit: Limit) -> str:
    noun = COUNTS[limit.count]
    if limit.scope is None:
        return noun
    kind, name = limit.scope
    return f"calls of {name}" if (kind, limit.count) == ("operators", "operators") else f"{noun} in {name}"


def _amount(limit: Limit, value: float) -> str:
    """A count as a person reads it, bytes with their exact number."""
    exact = f"{value:,.10g}"
    return f"{units.size(value)} ({exact})" if limit.count in BYTE_COUNTS else exact


def _how(count: str, runs: Sequence[Run]) -> str:
    reason = next((run.reasons[count] for run in runs if count in run.reasons), "")
    return reason or "this run has none of them to count"


def _check_time(time: Baseline, runs: Sequence[Run]) -> Checked:
    base, new = _like_with_like(time, runs)
    step, width = step_difference(Bootstrap(base, new), time.margins, 1 - time.margins.confidence)
    old, now, least = step.base_ns, step.new_ns, time.margins.of_step(step.base_ns)
    verdict = CANNOT_TELL
    message = f"{_STEP_TIME}: {units.duration(now)}, {units.duration(old)} in the baseline ({units.change_percent(100 * (now - old) / old)})"
    if time.machine and any(run.machine != time.machine for run in runs):
        other = next(run.machine for run in runs if run.machine != time.machine)
        message += (
            f", which was measured on another machine ({time.machine}; here {other}): update the budget here"
        )
    elif step.verdict == SLOWER:
        verdict = BROKEN
    elif doubt := next((run.doubt for run in runs if run.doubt), ""):
        message += f", but {doubt}"
    elif step.verdict == FASTER:
        verdict, message = WON, f"{message}; lower the budget with --update"
    # That it may be faster does not matter here: only that it is not slower.
    elif step.high_ns <= least:
        verdict = HELD
    elif not np.isfinite(width):
        message += (
            ": one recording does not show how much recordings of one program differ; pass several, and write several into the budget "
            "with --update, or delete its section [time]"
        )
    else:
        message += f": {units.duration(step.high_ns - step.change_ns)} more or less, more than the margin of {units.duration(least)}; record more, or longer"
    return Checked(_STEP_TIME, verdict, old, now, message)


def _like_with_like(time: Baseline, runs: Sequence[Run]) -> tuple[Series, Series]:
    """The steps of the baseline and of a run: those of each kind are compared with each other, and have the weight that they have in the baseline.

    Where the kinds do not match, all steps count alike if they differ by design.
    """
    measured = [run.with_core_ns[run.counted] for run in runs]
    examples, members = step_kinds.kinds_of_runs(runs)
    kinds = step_kinds.places_of_steps(runs, members)
    baseline_operators = np.concatenate(time.kinds) if time.kinds else np.zeros(0, np.int64)
    before, after = np.unique(baseline_operators).tolist(), np.unique(kinds).tolist()
    sizes = [step_kinds.typical_operators(examples[kind]) for kind in after]
    pairs = nearest(before, sizes, step_kinds.similar_sizes, step_kinds.ALIKE)
    if 1 < len(before) <= MOST_CLASSES and len(pairs) == len(before) == len(after):
        base_kind = np.array([before.index(operators) for operators in baseline_operators.tolist()])
        share = Groups(base_kind, len(before)).sizes() / len(base_kind)
        of_new = {after[new_index]: base_index for base_index, new_index in pairs}
        new_kind = np.array([of_new[kind] for kind in kinds.tolist()])
        return Series.of(time.steps, base_kind, share), Series.of(measured, new_kind, share)
    mixed = any(len(np.unique(run.step_counts["operators"][run.counted])) > 1 for run in runs)
    # Each step is of a class of its own, or all are of one.
    base, new = (
        Series.of(steps, np.arange(sum(map(len, steps))) * mixed) for steps in (time.steps, measured)
    )
    return base, new
