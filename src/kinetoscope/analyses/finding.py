"""A finding, and a rule that could not decide."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kinetoscope.analyses.loop import SourceLine
from kinetoscope.display.sentence import Sentence
from kinetoscope.model.rows import Rows
from kinetoscope.model.time_spent import Cause
from kinetoscope.tables.intervals import Intervals


@dataclass(frozen=True, eq=False)
class NotNeeded:
    """Operators that the program can leave out, with all that they run: they are no part of the floor of a step.

    Attributes:
        rows: Their rows of `spans`, those of backward included.
        part: Which part of their work, from 0 to 1.
        calls: Whether what issues them goes, too; otherwise they are only made cheaper.
        cause: What the account calls their time.
    """

    rows: Rows
    part: float = 1.0
    calls: bool = True
    cause: Cause = Cause.NONE


@dataclass(frozen=True)
class Finding:
    """One thing that makes a run slow.

    Attributes:
        code: Its stable name.
        finding: What was found.
        advice: What to change.
        share_percent: The share of step time that it concerns.
        gain_ns: A ceiling of what can be gained in all steps; None where it cannot be computed.
        place: The line to change.
        module: The path of the module; empty outside all.
        spans: Rows of `spans` that show it.
        rank: The rank that it is about; -1 for none. What one rank does is no cause of what another one does.
        is_predicted: Whether the gain is a prediction rather than a ceiling: the time of all steps above what is needed.
        not_needed: The operators that the change leaves out, where it does; None where it changes other time.
        time: When its rows run, in which all lies that is to gain; None where it may be any time of the steps.
    """

    code: str
    finding: Sentence
    advice: str
    share_percent: float
    gain_ns: int | None
    place: SourceLine = field(default_factory=SourceLine)
    module: str = ""
    spans: tuple[int, ...] = ()
    rank: int = -1
    is_predicted: bool = False
    not_needed: NotNeeded | None = field(default=None, compare=False, repr=False)
    time: Intervals | None = field(default=None, compare=False, repr=False)


class Signal(Enum):
    """What a rule may need that is not always recorded: the option of `kinetoscope.profile`, and that of `kinetoscope run` where it is not the default."""

    GARBAGE_COLLECTION = ("garbage_collection=True", "")
    MEMORY = ("profile_memory=True", "--memory")
    SHAPES = ("record_shapes=True", "")
    STACKS = ("with_stack=True", "--stack")
    ALL_RANKS = ("", "")
    """The traces of all ranks of a job, merged: no option records them."""

    @property
    def how(self) -> str:
        """How to record it, in words."""
        option, flag = self.value
        if not option:
            return "all ranks, put together by kinetoscope merge"
        return f"{option}, or kinetoscope run {flag}".rstrip()


@dataclass(frozen=True)
class CannotTell:
    """A rule that needs what was not recorded.

    Attributes:
        code: The finding that it looks for.
        signal: What it needs.
    """

    code: str
    signal: Signal
