"""Names of folders and files with variables in braces, such as `{run_name}/rank{rank}.{batch}.json`."""

from __future__ import annotations

import os
import string
import sys
from dataclasses import dataclass, replace
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.integrations.composer._timestamp import Timestamp, values_of

_SAMPLE_RUN_NAME = "run"


@dataclass(frozen=True)
class Ranks:
    """Which of the processes of a job this is.

    Attributes:
        rank: Its number in the job.
        local_rank: Its number on its machine.
        world_size: How many processes the job has.
        local_world_size: How many of them are on its machine.
        node_rank: The number of its machine.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node_rank: int = 0

    @classmethod
    def of_this_process(cls) -> Ranks:
        """What the process group says of this process and, before there is one, what its launcher set."""
        rank, world_size = _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)
        torch = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        return cls(
            rank=rank,
            local_rank=_from_environment("LOCAL_RANK", 0),
            world_size=world_size,
            local_world_size=_from_environment("LOCAL_WORLD_SIZE", 1),
            # torchrun says GROUP_RANK, Composer's launcher NODE_RANK.
            node_rank=_from_environment("NODE_RANK", _from_environment("GROUP_RANK", 0)),
        )

    def other(self, rank: int) -> Ranks:
        """The same of another process; machines have equally many processes, with numbers that follow each other."""
        if self.local_world_size < 2:
            return replace(self, rank=rank)
        node_rank, local_rank = divmod(rank, self.local_world_size)
        return replace(self, rank=rank, local_rank=local_rank, node_rank=node_rank)

    def of_this_machine(self) -> range:
        """The ranks of this one's machine; all of the job where no launcher said which these are."""
        if self.local_world_size < 2 and not os.environ.get("LOCAL_WORLD_SIZE"):
            return range(self.world_size)
        first = self.rank - self.local_rank
        return range(first, first + self.local_world_size)


FOLDER_VARIABLES = ("run_name", *vars(Ranks()))
FILE_VARIABLES = (*FOLDER_VARIABLES, *values_of(Timestamp()))


class NameTemplate:
    """A name with variables in braces that was checked when it was made.

    Args:
        what: The argument it was given as, for messages.
        text: The name, as for `str.format`; formats such as `{batch:06d}` can be used.
        variables: The variables it may have.

    Raises:
        ArgumentError: It has a variable that is not known, and the message lists those that are; or its braces or
            formats are not right.
    """

    def __init__(self, what: str, text: str, variables: tuple[str, ...]) -> None:
        self.text = text
        self.what = what
        given: object = text
        if not isinstance(given, str) or not given:
            raise ArgumentError(f"{what}={text!r} is not valid: give a text that is not empty.")
        try:
            self.used = frozenset(_variables_in(text))
        except ValueError as error:
            raise ArgumentError(
                f"{what}={text!r}: its braces are not right ({error}); write {{{{ and }}}} for braces that shall stay."
            ) from error
        unknown = sorted(self.used.difference(variables))
        if unknown:
            named = ", ".join(f"{{{name}}}" for name in unknown)
            raise ArgumentError(
                f"{what}={text!r}: unknown variable {named}; known are: {', '.join(variables)}. "
                "Write {{ and }} for braces that shall stay."
            )
        try:
            self.filled_in(_SAMPLE_RUN_NAME, Ranks(), Timestamp())
        except (ValueError, TypeError) as error:
            raise ArgumentError(
                f"{what}={text!r}: the format of a variable is not right ({error})."
            ) from error

    def filled_in(self, run_name: str, ranks: Ranks, timestamp: Any = None) -> str:
        """The name with its variables filled in; a folder's needs no timestamp."""
        values: dict[str, Any] = {"run_name": run_name, **vars(ranks)}
        if timestamp is not None:
            values |= values_of(timestamp)
        return self.text.format(**values)


def _variables_in(text: str) -> set[str]:
    """The names in the braces of a text, also of those inside a format; ValueError where a brace is alone."""
    found: set[str] = set()
    for _, name, format_of_it, _ in string.Formatter().parse(text):
        if name is not None:
            found.add(name)
            found |= _variables_in(format_of_it or "")
    return found


def _from_environment(name: str, default: int) -> int:
    """A whole number that the launcher set."""
    told = os.environ.get(name, "")
    return int(told) if told.isascii() and told.isdecimal() else default
