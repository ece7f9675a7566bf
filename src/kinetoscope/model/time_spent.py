"""What time is spent on, and why: one list of names for every table, sentence and page.

A quantity that several tables have has one name: the column `data_wait_ns` is time spent "waiting for data" wherever it stands.
"""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path
from typing import Self

PARTS: dict[str, str] = json.loads(Path(__file__).with_name("time_parts.json").read_text("utf-8"))
"""What the parts of steps, requests and devices are called; each is a column with `_ns` behind its name. The page reads the same file."""


def part_words(column: str) -> str:
    """What a column of times such as `data_wait_ns` is called."""
    return PARTS[column.removesuffix("_ns")]


class Entry(IntEnum):
    """What a part of a step was spent on."""

    label: str
    words: str

    def __new__(cls, label: str, words: str = "") -> Self:
        """An entry by its name in tables, and what people read where it has no cause."""
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
    """Why time was spent so, where that shows."""

    words: str
    advice: str
    does: str

    def __new__(cls, words: str, advice: str = "", does: str = "") -> Self:
        """A cause by what it is called, what to change about it, and what a line with it does."""
        member = int.__new__(cls, len(cls.__members__))
        member._value_ = int(member)
        member.words, member.advice, member.does = words, advice, does
        return member

    NONE = ""
    ZERO_GRADIENT = (
        "gradient that is almost all zeros",
        (
            "Use nn.Embedding(..., sparse=True) with an optimizer for sparse gradients (SGD, Adagrad, SparseAdam): it then updates the rows "
            "that were looked up, and no others."
        ),
    )
    DISCARDED = (
        "result is mostly discarded",
        "Take the part first, and compute with it alone: layer(x[rows]) instead of layer(x)[rows].",
        "computes a result of which a small part is used",
    )
    CONSTANT = (
        "constant is made again",
        "Make it once before the loop, as a buffer of the module (register_buffer) or one for each size.",
    )
    LENGTH = "awkward length"
    TYPE = "type conversion"
    LAYOUT = "copies to another layout"
    REPEATED = (
        "same work again in the step",
        "If the indices are the same each time, do it once a step, or once before the loop, and pass the result on.",
        "computes the same from constants and indices more than once in a step",
    )
    FRESH_MEMORY = (
        "fresh memory",
        (
            "Start the program with THP_MEM_ALLOC_ENABLE=1 (torch then asks Linux for pages of 2 MiB), make the buffer once and write into it (out=, "
            "copy_), or work on smaller parts: blocks of 32 MiB and more go back to the system when they are freed, which hands out every page anew."
        ),
    )
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
    RECOMPUTED = (
        "result existed already in the step",
        "Compute it once, and pass the result on to where it is needed again.",
    )
    UNCHANGED = (
        "inputs unchanged since the step before",
        "Compute it once before the loop, or only when what it is made of changes, and keep the result.",
        "computes the same as in the step before: what it is made of has not changed",
    )
    OVERWRITTEN = (
        "overwritten before it is read",
        "Make it with torch.empty or empty_like, or write the result into place with out=.",
    )
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
    SORTED = (
        "sort of which few elements are used",
        "Use torch.topk for the largest or smallest ones, torch.kthvalue or median for one of them, or amax and amin.",
        "sorts all elements, and uses few of them",
    )
    EXPANDED = (
        "large intermediate that is reduced at once",
        "Do not make all pairs: torch.cdist, a product of matrices (|a - b|^2 = |a|^2 + |b|^2 - 2 a b) or torch.einsum reduce while they compute; or work on blocks.",
        "makes a large intermediate result of all pairs that is reduced at once",
    )
    ORDER = (
        "product in an expensive order",
        "Multiply in the other order, by parentheses: a @ (b @ x) for few columns x. torch.linalg.multi_dot chooses the cheapest order.",
        "multiplies a chain of matrices in an expensive order",
    )
    ONE_HOT = (
        "product with one-hot rows",
        "Look the rows up instead: weight[index], or torch.nn.functional.embedding(index, weight).",
        "multiplies one-hot rows with a matrix, which looks up its rows",
    )
    INVERSE = (
        "inverse in place of a solution",
        (
            "Factor the matrix once and solve with the factors: torch.linalg.cholesky with cholesky_solve or solve_triangular, or torch.linalg.solve; the "
            "determinant is the product of the diagonal of the factor."
        ),
        "computes an inverse to multiply with it",
    )
    FULL_FACTORS = (
        "square factors of which few columns are needed",
        'Pass full_matrices=False to torch.linalg.svd, mode="reduced" to torch.linalg.qr; torch.linalg.svdvals where only the values are needed.',
        "computes square factors of a matrix, of which most columns are not needed (full_matrices=True)",
    )
    UNUSED_GRADIENT = (
        "gradient that nothing uses",
        "Run that part under torch.no_grad(), detach() what comes out of it, or call requires_grad_(False) on its parameters.",
        "has its gradients computed by backward, and nothing uses them: no optimizer updates these parameters",
    )
    SHUFFLED = (
        "permutation of which few elements are used",
        "Draw only as many as are used, with torch.randint or torch.multinomial, or make one torch.randperm for a whole epoch and take its parts in turn.",
        "makes a random permutation of all elements, and uses few of them",
    )
    GROWN = (
        "tensor that is copied to grow",
        "Collect the parts in a list and put them together once after the loop with torch.cat or torch.stack, or write into a tensor that was made before with torch.empty.",
        "puts a growing tensor together with a new part again and again, which copies all of it each time",
    )
    PARAMETRIZED = (
        "parametrized weight again",
        "Compute it once for all reads: `with torch.nn.utils.parametrize.cached():` around forward.",
        "computes a parametrized weight again each time that it is read",
    )
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
"""The causes as tables and people name them."""
FLOOR_WAITS = (Cause.COLLECTIVE, Cause.COPY)
"""Waits that are part of the floor: the step needs what they wait for."""


def words_of(entry: str, cause: str | None) -> str:
    """What the time of an entry with a cause, empty or None without, is called."""
    return cause or [*Entry][ENTRIES.index(entry)].words
