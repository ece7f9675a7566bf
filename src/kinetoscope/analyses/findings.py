"""Findings: what makes a run slow, in words, with how much could be gained at most, what to change, and the evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from kinetoscope.analyses.account import Account, account_of
from kinetoscope.analyses.dominant_lines import DOMINANT_LINE, dominant_lines
from kinetoscope.analyses.finding import CannotTell, Finding
from kinetoscope.analyses.hot_lines import hot_lines
from kinetoscope.analyses.rule_findings import findings_with_gains, rule_findings, tried
from kinetoscope.analyses.rules.cpu_cores import processor_wait
from kinetoscope.analyses.sample import sample_of
from kinetoscope.analyses.slow_lines import slow_lines
from kinetoscope.analyses.waterfall import (
    as_mapping,
    floor_sentence,
    floor_with_parts,
    no_problem,
    parts_of_step,
)
from kinetoscope.display import blocks
from kinetoscope.display.blocks import Block
from kinetoscope.display.sentence import Sentence, plain, printable
from kinetoscope.model.arrow import ArrowTable, rows_to_arrow
from kinetoscope.model.processes import process_and_rank
from kinetoscope.model.trace_data import TraceData, derived
from kinetoscope.tables.host.units_of_work import Unit

MOST_FINDINGS = 7
"""More findings than this are more than a person acts on."""


@dataclass(frozen=True)
class Report:
    """What all rules say of a trace.

    Attributes:
        findings: What was found, the largest possible gain first.
        cannot_tell: Rules that need what was not recorded.
        unit: What counts: steps, in a trace without any requests, or without both all that was recorded as one.
        count: How many of these.
        duration_ns: The step time, or the time of all requests, or without both all recorded time.
        whole_ns: What shares are of: the same or, on a busy machine, what of it had a processor.
        process: The process whose steps these are, by name and rank, where several have steps; empty otherwise.
        account: What the time of steps was spent on; None of a trace without time.
        sample: What part of a large trace this is of, such as `1,600 of 12,000 steps`; empty for all of it.
    """

    findings: tuple[Finding, ...]
    cannot_tell: tuple[CannotTell, ...]
    unit: Unit
    count: int
    duration_ns: int
    whole_ns: int
    process: str = ""
    account: Account | None = None
    sample: str = ""

    @property
    def of_machine(self) -> tuple[Finding, ...]:
        """The findings on what other programs of the machine did to this one."""
        return tuple(finding for finding in self.findings if finding.code == processor_wait.code)

    @property
    def of_program(self) -> tuple[Finding, ...]:
        """The findings on the program itself."""
        return tuple(finding for finding in self.findings if finding.code != processor_wait.code)

    def headlines(self, most: int) -> list[Sentence]:
        """The first findings of the program, a sentence each."""
        return [headline(finding, self.whole_ns) for finding in self.of_program[:most]]

    @cached_property
    def above_floor(self) -> str:
        """How far a step is from its floor, and by what, in a sentence; empty where the floor is unknown."""
        return floor_with_parts(self.account)

    @property
    def no_problem(self) -> str:
        """What is said where nothing was found: how far a step is from its floor, and what takes most of it."""
        return no_problem(self.account) if self.account is not None else "No problem found."


NOTE_PERCENT = 5.0
"""Less than this share of step time is a note."""
# JSON for programs stays short: that many rows of spans of each finding.
_MOST_SPANS = 5


@derived
def examine(trace: TraceData) -> Report:
    """Apply all rules to a trace, once.

    Args:
        trace: The trace.

    Returns:
        The findings, ordered by what can be gained at most, and the rules that could not decide.
    """
    sample = sample_of(trace)
    if sample.trace is not trace:
        report = _examine(sample.trace)
        of_whole = [
            replace(
                finding,
                spans=tuple(sample.rows[list(finding.spans)].tolist()),
                gain_ns=None if finding.gain_ns is None else round(sample.times * finding.gain_ns),
            )
            for finding in report.findings
        ]
        duration_ns = round(sample.times * report.duration_ns) if report.unit.repeats else trace.duration_ns
        return replace(
            report,
            findings=tuple(of_whole),
            sample=sample.text,
            count=round(sample.times * report.count) if report.unit.repeats else report.count,
            duration_ns=duration_ns,
            whole_ns=round(duration_ns * report.whole_ns / max(report.duration_ns, 1)),
        )
    return _examine(trace)


@derived
def _examine(trace: TraceData) -> Report:
    """Apply all rules to all of a trace, however large it is."""
    by_rules = rule_findings(trace)
    loop, findings = by_rules.loop, by_rules.found
    if loop.whole_ns > 0:
        findings = findings_with_gains(
            [*findings, *(tried(hot_lines, loop) or ())], loop.moments, loop.whole_ns
        )
        slow = tried(slow_lines, loop, findings) or ()
        findings = findings_with_gains([*findings, *slow], loop.moments, loop.whole_ns)
        dominant = tried(dominant_lines, loop, findings) or ()
        comes_first = all(_is_minor(finding, loop.whole_ns) for finding in findings)
        findings = (*dominant, *findings) if comes_first else (*findings, *dominant)
    several = len(np.unique(trace.column("steps", "process_row"))) > 1
    process = printable(process_and_rank(trace, loop.process)) if several and loop.process >= 0 else ""
    account = account_of(trace) if loop.whole_ns > 0 and not trace.run_info.is_snapshot else None
    return Report(
        findings,
        by_rules.unknown,
        loop.unit,
        len(loop.work),
        loop.duration_ns,
        loop.whole_ns,
        process,
        account,
    )


def _is_minor(finding: Finding, whole_ns: int) -> bool:
    """Whether a finding gains little, or is not about the program."""
    gain = gain_percent(finding, whole_ns)
    return (gain is not None and gain < NOTE_PERCENT) or finding.code == processor_wait.code


def findings(trace: TraceData) -> ArrowTable:
    """Return the `findings` table.

    Args:
        trace: The trace.

    Returns:
        A row for each finding, the largest possible gain first; `docs/tables.md` describes its columns.
    """
    return table_of(examine(trace))


def table_of(report: Report) -> ArrowTable:
    """Return a report as the `findings` table."""
    rows = [
        {
            "code": finding.code,
            "severity": severity(finding),
            "finding": plain(finding.finding),
            "share_percent": finding.share_percent,
            "gain_ns": -1 if finding.gain_ns is None else finding.gain_ns,
            "gain_percent": gain_percent(finding, report.whole_ns),
            "advice": finding.advice,
            "file": finding.place.file or None,
            "line": finding.place.line if finding.place else -1,
            "last_line": max(finding.place.line, finding.place.until) if finding.place else -1,
            "function": finding.place.function or None,
            "module": finding.module or None,
            "spans": json.dumps(finding.spans),
        }
        for finding in report.findings
    ]
    return rows_to_arrow("findings", rows)


def as_dict(report: Report, most: int = MOST_FINDINGS) -> dict[str, Any]:
    """Return a report for programs.

    Args:
        report: What `examine` found.
        most: At most this many findings; 0 for all.

    Returns:
        `steps`, `requests` (where these count as steps), `step_ns` (their mean), `process` (whose steps, where several processes have steps), `sample` (what part of a large trace it is of), `findings` (`code`, `severity`, `finding`, `share_percent`, `gain_percent`, `gain_bound` (`about` or `at most`), `gain_ns`, `advice`,
        `file`, `line`, `last_line`, `function`, `module`, `spans`; null where unknown), `more` (how many are left out), and `cannot_tell` (`code`,
        `record`). These keys are stable.
    """
    rows = table_of(report).slice(0, most or None).to_pylist()
    return {
        **{f"{unit.noun}s": report.count if unit is report.unit else 0 for unit in (Unit.STEP, Unit.REQUEST)},
        "step_ns": round(report.duration_ns / max(1, report.count)),
        "process": report.process or None,
        "sample": report.sample or None,
        "findings": [
            row
            | {name: row[name] and round(row[name], 1) for name in ("share_percent", "gain_percent")}
            | {"gain_bound": gain_bound(finding), "spans": list(finding.spans[:_MOST_SPANS])}
            for finding, row in zip(report.findings, rows, strict=False)
        ],
        "account": None if report.account is None else as_mapping(report.account),
        "more": len(report.findings) - len(rows),
        "cannot_tell": [
            {"code": unknown.code, "record": unknown.signal.how} for unknown in report.cannot_tell
        ],
    }


def for_page(report: Report) -> dict[str, Any]:
    """Return a report for a page: as for programs, with what is said where nothing was found, of what could not be told, and whose steps these are."""
    nothing = report.whole_ns > 0 and not report.findings
    return {
        **as_dict(report),
        "summary": report.no_problem if nothing else "",
        "unknown": unknown_lines(report),
        "whose": whose_line(report),
    }


def finding_blocks(report: Report, most: int = MOST_FINDINGS) -> list[Block]:
    """What a report says to people: what to change, the way from the floor of a step to the step, and what could not be told.

    Args:
        report: What `examine` found.
        most: At most this many findings; 0 for all.
    """
    findings = report.of_program[: most or None]
    entries: list[Block] = [blocks.Paragraph(whose_line(report), tone=blocks.FAINT)] if report.process else []
    for finding in report.of_machine:
        entries += [blocks.Paragraph(finding.finding, tone=blocks.WARNING), blocks.Paragraph(finding.advice)]
    for number, finding in enumerate(findings, 1):
        tone = blocks.WARNING if severity(finding) == "warning" else blocks.STRONG
        head = blocks.Paragraph(headline(finding, report.whole_ns), f"{number}.", tone)
        entries += [head, blocks.Paragraph(finding.advice, "")]
    if not findings:
        entries.append(blocks.Paragraph(report.no_problem))
    if report.sample:
        entries.append(blocks.Paragraph(f"This is of {report.sample}, chosen evenly.", tone=blocks.FAINT))
    if more := len(report.of_program) - len(findings):
        entries.append(blocks.Paragraph(f"{more} more: --max 0 prints all.", tone=blocks.FAINT))
    return [
        *entries,
        *waterfall_blocks(report),
        *(blocks.Paragraph(text, tone=blocks.FAINT) for text in unknown_lines(report)),
    ]


def columns(texts: str, numbers: Mapping[str, str]) -> tuple[blocks.BlockColumn, ...]:
    """A column of texts with its heading, and columns of numbers, each with its heading and unit."""
    return (
        blocks.BlockColumn(texts, is_text=True),
        *(blocks.BlockColumn(name, unit) for name, unit in numbers.items()),
    )


def waterfall_blocks(report: Report) -> list[Block]:
    """The way from the floor of a step to the step, a row for each part; empty where it is unknown."""
    if report.account is None or not report.account.kinds:
        return []
    account, kind = report.account, report.account.kinds[0]
    head = floor_sentence(account, kind)
    if kind.floor_ns is not None and not account.calibrated:
        head += " (kinetoscope calibrate measures those of the machine)"
    waterfall: list[Block] = [blocks.GAP, blocks.Paragraph(head[0].upper() + head[1:], tone=blocks.STRONG)]
    if kind.floor_ns is None:
        return waterfall
    parts, step_ns = parts_of_step(account, kind), kind.duration_ns / max(kind.steps, 1)
    lengths = [part.time_ns / step_ns if step_ns else 0.0 for part in parts]
    table = blocks.TableBlock(
        columns("", {"": "ns"}),
        tuple((part.what, part.time_ns) for part in parts),
        bars=tuple(zip((0.0, *accumulate(lengths)), lengths, strict=False)),
    )
    return [*waterfall, table]


def whose_line(report: Report) -> str:
    """Whose steps the findings are of, in a sentence; empty where only one process has steps."""
    if not report.process:
        return ""
    return f"Several processes have steps. These are of {report.process}, whose steps took longest."


def headline(finding: Finding, whole_ns: int) -> Sentence:
    """A finding in one sentence, with its code and what can be gained; `whole_ns` is the step time."""
    gain = gain_percent(finding, whole_ns)
    text, values = finding.finding["text"], finding.finding["values"]
    if gain is None:
        return {"text": f"{text} [{finding.code}]", "values": values}
    return {
        "text": f"{text} [{finding.code}, {gain_bound(finding)} {{}} to gain]",
        "values": [*values, (gain, "%")],
    }


def gain_bound(finding: Finding) -> str:
    """Whether its gain is predicted or a ceiling, in the words that stand before it."""
    return "about" if finding.is_predicted else "at most"


def unknown_lines(report: Report) -> list[str]:
    """The rules that could not decide, in a sentence for each way to record what they need."""
    lacking: dict[str, list[str]] = {}
    for unknown in report.cannot_tell:
        lacking.setdefault(unknown.signal.how, []).append(unknown.code)
    return [
        f"Cannot tell about {', '.join(codes)}: record with {record}." for record, codes in lacking.items()
    ]


def severity(finding: Finding) -> str:
    """`warning`, or `note` where little of the step time is concerned."""
    is_note = finding.share_percent < NOTE_PERCENT or finding.code == DOMINANT_LINE.code
    return "note" if is_note else "warning"


def gain_percent(finding: Finding, whole_ns: int) -> float | None:
    """The ceiling of the gain as a share of step time; None where it cannot be computed."""
    if finding.gain_ns is None or whole_ns <= 0:
        return None
    return min(100.0, 100.0 * finding.gain_ns / whole_ns)
