"""The names of what time is spent on, and of the causes: one list for every table, sentence and page.

A quantity has the same name everywhere: the column `data_wait_ns` is time spent "waiting for data" in every table.
"""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path
from typing import Self

PARTS: dict[str, str] = json.loads(Path(__file__).with_name("time_parts.json").read_text("utf-8"))
"""The display names of the parts of steps, requests and devices, by column name without `_ns`. The page reads the same file."""


def part_words(column: str) -> str:
    """The display name of a time column such as `data_wait_ns`."""
    return PARTS[column.removesuffix("_ns")]


# For each cause by name: the advice, and what a line with this cause does.
_OF_CAUSES: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("causes.json").read_text("utf-8"))


class Entry(IntEnum):
    """What time was spent on."""

    label: str
    words: str

    def __new__(cls, label: str, words: str = "") -> Self:
        """An entry by its name in tables, and its display name without a cause."""
        member = int.__new__(cls, len(cls.__members__))
        member._value_ = int(member)
        member.label, member.words = label, words or label
        return member

    NEEDED = "needed"
    SLOW = "slow", "slow operators"
    NOT_NEEDED = "not needed"
    PYTHON = "python", PARTS["python"]
    WAITING = "waiting"
    COMPILING = "compiling"
    GARBAGE_COLLECTION = PARTS["garbage"]
    PROFILER = "profiler"
    UNKNOWN = "unknown"


ENTRIES = tuple(entry.label for entry in Entry)
"""The entries as the table `account` names them."""


class Cause(IntEnum):
    """Why time was spent on an entry, if known."""

    words: str
    advice: str
    does: str

    def __new__(cls, words: str) -> Self:
        """A cause by what it is called."""
        member = int.__new__(cls, len(cls.__members__))
        member._value_ = int(member)
        texts = _OF_CAUSES.get(words, {})
        member.words, member.advice, member.does = words, texts.get("advice", ""), texts.get("does", "")
        return member

    NONE = ""
    ZERO_GRADIENT = "gradient that is almost all zeros"
    DISCARDED = "result is mostly discarded"
    CONSTANT = "constant is made again"
    LENGTH = "awkward length"
    TYPE = "type conversion"
    LAYOUT = "copies to another layout"
    REPEATED = "same work again in the step"
    FRESH_MEMORY = "fresh memory"
    CALL = "fixed cost of a call"
    AUTOGRAD = "autograd engine"
    LAUNCH = "device waits for the host"
    DATA = PARTS["data_wait"]
    COLLECTIVE = "waiting for a collective"
    COPY = "waiting for a copy"
    DEVICE = PARTS["device_wait"]
    BLOCKED = PARTS["blocked"]
    PROCESSOR = PARTS["processor_wait"]
    NO_INPUTS = "inputs were not recorded"
    RECOMPUTED = "result existed already in the step"
    UNCHANGED = "inputs unchanged since the step before"
    OVERWRITTEN = "overwritten before it is read"
    # What a blocked thread waits for, in the order of `SampleWait` from 1.
    LOCK = "waiting for a lock"
    SLEEP = "sleeping"
    FILE = "waiting for a file"
    PIPE = "waiting for a pipe"
    SOCKET = "waiting for a socket"
    PROCESS = "waiting for a process"
    EVENTS = "waiting for events"
    MEMORY = "waiting for a page of memory"
    TERMINAL = "waiting for the terminal"
    SYSTEM_CALL = "waiting for another system call"
    # What a suspended request waits for.
    EXECUTOR = PARTS["executor"]
    OTHERS = PARTS["others"]
    AWAITED = PARTS["waiting"]
    SORTED = "sort of which few elements are used"
    EXPANDED = "large intermediate that is reduced at once"
    ORDER = "product in an expensive order"
    ONE_HOT = "product with one-hot rows"
    INVERSE = "inverse in place of a solution"
    FULL_FACTORS = "square factors of which few columns are needed"
    UNUSED_GRADIENT = "gradient that nothing uses"
    SHUFFLED = "permutation of which few elements are used"
    GROWN = "tensor that is copied to grow"
    PARAMETRIZED = "parametrized weight again"
    SHIFTED = "buffer that is shifted by a copy"
    COPIED_ROWS = "work on copies of the same rows"
    UNUSED_RESULT = "result that nothing uses"
    PADDING = "work on padding"
    # What findings say that a program can leave out.
    EVALUATION = "evaluation in each step"
    OUTPUT = "output"
    SAME_GRAPH = "backward through the same graph again"
    RUN_AGAIN = "activation checkpointing"
    NAN_CHECKS = "anomaly detection"
    ZERO_FILL = "gradients filled with zeros"
    READ = "values read one by one"
    DOUBLE = "double precision"


CAUSES = tuple(cause.words for cause in Cause)
"""The names of the causes."""
FLOOR_WAITS = (Cause.COLLECTIVE, Cause.COPY)
"""Waits that are part of the floor because the step cannot avoid them."""


def words_of(entry: str, cause: str | None) -> str:
    """The display name of an entry with a cause; the cause may be empty or None."""
    return cause or [*Entry][ENTRIES.index(entry)].words
