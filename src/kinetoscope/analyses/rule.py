"""A rule for findings: the declaration of one kind of fault, and the function that selects what shows it in a trace.

A declaration has the words, the threshold with its source, and how the fault relates to others. The function returns a `Match`: the spans that
show the fault, their time, and the few numbers that the sentence needs. Everything else is computed here, once for all rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import numpy as np

from kinetoscope.analyses.called_package import CalledPackage, called_package
from kinetoscope.analyses.finding import CannotTell, Finding, NotNeeded, Signal
from kinetoscope.analyses.kinds import steps_with
from kinetoscope.analyses.loop import MOST_ROWS, Loop, SourceLine
from kinetoscope.analyses.loop_device import LoopDevice
from kinetoscope.display.sentence import Sentence, sentence
from kinetoscope.model.rows import Rows
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.host.units_of_work import Unit
from kinetoscope.tables.intervals import Intervals

SAME_AS_TIME = -1
NOWHERE = SourceLine()
"""The place of a match that is about no single line."""
_NO_ROWS = np.zeros(0, np.int64)
_PLACE = re.compile(r"\{(\w+)(?::([\w%]+))?\}")
_UNITS = ("", "ns", "bytes", "%")


@dataclass(frozen=True, eq=False)
class Match:
    """What shows a fault in a trace.

    Attributes:
        rows: The spans that show it.
        time_ns: Their time in all steps, of which the finding states the share.
        values: Numbers and words for the sentence by name; a function where they are expensive to compute.
        gain_ns: The most that can be gained in all steps: by default `time_ns`, None if it is unknown.
        place: The line to change: by default the one where `rows` take most time.
        module: The path of its module: by default that of the longest row there.
        spans: The rows to show as evidence: by default the longest ones at the line.
        share_percent: The share, where it is not that of `time_ns` in step time.
        text: Another sentence than the one of the rule.
        advice: Other advice than that of the rule.
        left_out: What the change leaves out, of rules with a `cause`: by default `rows`.
        time: When the time passes that could be gained; None if that is unknown.
        rank: The rank that it is about; -1 for none.
        kind_ns: The time in the steps of each kind, where it is not that of `rows`.
    """

    rows: Rows = field(default_factory=lambda: _NO_ROWS)
    time_ns: float = 0
    values: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)
    gain_ns: float | None = SAME_AS_TIME
    place: SourceLine | None = None
    module: str | None = None
    spans: Rows | None = None
    share_percent: float | None = None
    text: str = ""
    advice: str = ""
    left_out: NotNeeded | None = None
    time: Intervals | None = None
    rank: int = -1
    kind_ns: tuple[float, ...] = ()
    called: CalledPackage | None = None

    def as_given(self) -> Match:
        """The same with its rows, in their order, as the evidence, and in no module: what they are is not called at one place in the model."""
        return replace(self, module="", spans=self.rows)


Answer = Match | Signal | list[Match] | None
"""What a rule answers: what it found, what would have to be recorded to tell, or None."""


@dataclass(frozen=True)
class Rule:
    """The declaration of one kind of fault.

    Attributes:
        code: The stable name of the finding.
        text: The sentence: `{name}` is a word or a count of the match, `{name:ns}`, `{name:bytes}` and `{name:%}` a number with its unit,
            `{name:each}` and `{name:each_ns}` a total as that of one step, `{name:of_time}` a time as a share of `{time}`, and `{name:operator}` a total with this
            noun: "5 operators a step". Every
            sentence has `share`, `time` ("step time"), `a_step`, `in_each`, `subject` ("The loop"), `device`, `place`, `named`, `at` and `most_at`.
        advice: What to change.
        finds: What it finds, for the documentation.
        source: Where the thresholds come from.
        least: The least share of step time, in percent.
        least_gain: The least gain, in percent of step time.
        also: Further thresholds in words.
        needs: What must be recorded to tell: the answer where it was not.
        explains: Findings that this one is a cause of: each is left out where its causes explain half of it.
        cause: What the account of steps calls the time that the change leaves out; None where the change leaves nothing out.
        is_predicted: Whether the gain is a prediction rather than a ceiling.
        of_loop: Whether it is about all that a Python loop runs: what explains it gains all of it.
        of_requests: Whether it looks at requests only.
        of_kinds: Whether the sentence says in which kinds of steps it happens; not where it is about single steps.
        every: Whether each match is a finding of its own, and not only the one with the largest gain.
        select: What selects the match.
    """

    code: str
    text: str
    advice: str
    finds: str
    source: str
    least: float = 0.0
    least_gain: float = 0.0
    also: str = ""
    needs: Signal | None = None
    explains: tuple[str, ...] = ()
    cause: Cause | None = None
    is_predicted: bool = False
    of_loop: bool = False
    of_requests: bool = False
    of_kinds: bool = True
    every: bool = False
    select: Callable[[Loop], Answer] = lambda loop: None

    def selects(self, select: Callable[[Loop], Answer]) -> Rule:
        """Decorate the function that selects what shows the fault."""
        return replace(self, select=select)

    def selects_on(self, select: Callable[[Loop, LoopDevice], Answer]) -> Rule:
        """Decorate one that looks at the device that the loop works on; without one the rule finds nothing."""

        @wraps(select)
        def with_device(loop: Loop) -> Answer:
            return None if loop.device is None else select(loop, loop.device)

        return self.selects(with_device)

    def __call__(self, loop: Loop) -> list[Finding | CannotTell]:
        """Apply the rule to a loop."""
        answer = self.select(loop)
        if isinstance(answer, Signal):
            return [CannotTell(self.code, answer)]
        matches = answer if isinstance(answer, list) else [] if answer is None else [answer]
        matches = [match for match in matches if self._counts(loop, match)]
        if len(matches) > 1 and not self.every:
            matches = [max(matches, key=_gain_ns)]
        return [self.finding(loop, match) for match in matches]

    def of_job(self, match: Match | None, whole_ns: int) -> list[Finding]:
        """The finding of a match in the summaries of a job, whose steps take so long together; none without one that reaches the thresholds."""
        if match is None:
            return []
        share = _share_of(match, whole_ns)
        if share < self.least or 100.0 * _gain_ns(match) < self.least_gain * whole_ns:
            return []
        text = self._sentence(None, match, share, NOWHERE, whole_ns)
        gain_ns = None if match.gain_ns is None else int(_gain_ns(match))
        return [Finding(self.code, text, match.advice or self.advice, share, gain_ns, rank=match.rank)]

    @property
    def reported_from(self) -> str:
        """All thresholds, in words."""
        least = f"{self.least:g}%" if self.least else ""
        gain = f"{self.least_gain:g}% to gain" if self.least_gain else ""
        return ", ".join(part for part in (least, gain, self.also) if part)

    def _counts(self, loop: Loop, match: Match) -> bool:
        return (
            _share_of(match, loop.whole_ns) >= self.least and loop.share(_gain_ns(match)) >= self.least_gain
        )

    def finding(self, loop: Loop, match: Match) -> Finding:
        """The finding of a match, whatever the thresholds."""
        calls = calls_of(loop, match.rows)
        line, rows = match.place, match.rows
        if line is None and (calls >= 0).any():
            duration_ns = loop.trace.column("spans", "duration_ns")[rows]
            line, _, of_line = loop.by_place(calls[calls >= 0], duration_ns[calls >= 0])[0]
            is_there = np.isin(calls, of_line)
            rows, calls = rows[is_there], calls[is_there]
        line = line or SourceLine()
        spans = longest(loop, rows) if match.spans is None else match.spans[:MOST_ROWS]
        module = match.module
        if module is None:
            module = loop.module_of(int(calls[0])) if len(calls) and match.place is not NOWHERE else ""
        left_out = None
        if self.cause is not None:
            left_out = replace(match.left_out or NotNeeded(match.rows), cause=self.cause)
        share = _share_of(match, loop.whole_ns)
        text = self._sentence(loop, match, share, line, loop.whole_ns)
        gain_ns = None if match.gain_ns is None else int(_gain_ns(match))
        called = match.called
        if called is None and line:
            called = called_package(loop.trace, rows if len(rows) else spans)
        if called is not None:
            named = str(called).replace("{}", "{ }")
            text = sentence(f"{text['text']}; most of it in {named}", *text["values"])
            if gain_ns is None and called.saves > 0:
                gain_ns = int(called.saves * match.time_ns)
        return Finding(
            self.code,
            text,
            (called.advice if called is not None else "") or match.advice or self.advice,
            share,
            gain_ns,
            line,
            module,
            tuple(spans.tolist()),
            match.rank,
            self.is_predicted,
            left_out,
            match.time,
        )

    def _sentence(
        self, loop: Loop | None, match: Match, share: float, place: SourceLine, time_ns: int
    ) -> Sentence:
        """The sentence with its values; `time_ns` is the time of all steps."""
        unit = loop.unit if loop else Unit.STEP
        steps = steps_with(loop, match.rows, match.kind_ns) if loop and self.of_kinds else None
        on_average = "" if steps is None or steps.are_even else " on average"
        words: dict[str, Any] = {
            "share": (share, "%"),
            "time": unit.time,
            "a_step": unit.each and unit.each + on_average,
            "in_each": unit.in_each,
            "subject": unit.subject,
            "device": loop.device.name if loop and loop.device else "the device",
            "place": str(place) or "The program",
            "named": place.named,
            "at": f" at {place}" if place else "",
            "most_at": f", most at {place}" if place else "",
        }
        words |= match.values() if callable(match.values) else match.values
        values: list[tuple[float, str]] = []
        text = match.text or self.text
        if steps and steps.words:
            time_ns = max(steps.time_ns, 1)
            text = steps.words + text.replace("{time}", f"their time, {{of_all:%}} of all {unit.time}")
            words |= {
                "of_all": share,
                "share": (min(100.0, 100.0 * match.time_ns / time_ns), "%"),
            }

        def written(placeholder: re.Match[str]) -> str:
            value, kind = words[placeholder[1]], placeholder[2] or ""
            if isinstance(value, str):
                # Names may have braces, which are no places of numbers.
                return value.replace("{}", "{ }")
            if kind == "of_time":
                value, kind = min(100.0, 100.0 * value / max(time_ns, 1)), "%"
            elif loop is not None and kind.startswith("each"):
                amount = value / max(steps.count, 1) if steps else loop.per_step(value)
                value, kind = (amount, kind[5:]) if kind != "each" else (max(1, round(amount)), "")
            elif loop is not None and kind not in _UNITS:
                return loop.counted(value, kind, steps.count if steps else None)
            values.append(value if isinstance(value, tuple) else (value, kind))
            return "{}"

        return sentence(_PLACE.sub(written, text), *values)


def longest(loop: Loop, rows: Rows) -> Rows:
    """The longest of some spans, as many as a finding names."""
    duration_ns = loop.trace.column("spans", "duration_ns")[rows]
    return np.asarray(rows[np.argsort(-duration_ns, kind="stable")][:MOST_ROWS])


def calls_of(loop: Loop, rows: Rows) -> Rows:
    """The operators of some spans: of a device's work those that launched it, -1 where that is unknown."""
    if loop.device is None:
        return rows
    on_device = loop.trace.column("spans", "stream")[rows] >= 0
    return np.where(on_device, loop.device.operators(rows), rows)


def _gain_ns(match: Match) -> float:
    return match.time_ns if match.gain_ns == SAME_AS_TIME else match.gain_ns or 0


def _share_of(match: Match, whole_ns: int) -> float:
    share = 100.0 * match.time_ns / max(whole_ns, 1) if match.share_percent is None else match.share_percent
    return min(100.0, share)
