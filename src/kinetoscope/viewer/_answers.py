"""Questions of the viewer's pages about a trace: which there are, and what answers each.

A question is a path such as `table/ops` and a query of texts. An answer is a JSON value or an Arrow table. The local
server answers them one by one; a report carries the answers to those of its pages with it. To add one, write its
function and name it here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeAlias

from kinetoscope._errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import IO

    import pyarrow

    from kinetoscope.trace import Trace

    Query: TypeAlias = Mapping[str, str]
    Answer: TypeAlias = "pyarrow.Table | Limited | MadeFile | dict[str, Any] | list[Any]"


# Path -> function (Trace, query) -> answer. A path that ends in `/` stands for all that begin with it: the rest is
# the function's third argument.
ANSWERS: dict[str, str] = {
    "arrows": "kinetoscope.viewer._arrows:arrows",
    "chosen": "kinetoscope.viewer._chosen:chosen",
    "copies": "kinetoscope.viewer._kernels:copies",
    "counter": "kinetoscope.viewer._counters:counter",
    "flame": "kinetoscope.viewer._stacks:flame",
    "flame_choices": "kinetoscope.viewer._stacks:flame_choices",
    "flame_operators": "kinetoscope.viewer._stacks:flame_operators",
    "health": "kinetoscope.viewer._health:health",
    "export/": "kinetoscope.viewer._export:export",
    "export/about": "kinetoscope.viewer._export:about",
    "histogram": "kinetoscope.viewer._instances:histogram",
    "instances": "kinetoscope.viewer._instances:instances",
    "kernels": "kinetoscope.viewer._kernels:kernels",
    "load": "kinetoscope.viewer._load:load",
    "memory": "kinetoscope.viewer._memory:memory",
    "memory/at": "kinetoscope.viewer._memory_curve:at",
    "memory/blocks": "kinetoscope.viewer._memory:blocks",
    "memory/curve": "kinetoscope.viewer._memory_curve:curve",
    "memory/live": "kinetoscope.viewer._memory:live",
    "memory/stacks": "kinetoscope.viewer._memory:stacks",
    "module_operators": "kinetoscope.viewer._modules:module_operators",
    "modules": "kinetoscope.viewer._modules:modules",
    "operators": "kinetoscope.viewer._operators:operators",
    "overview": "kinetoscope.viewer._overview:overview",
    "overview/": "kinetoscope.viewer._overview:part",
    "range": "kinetoscope.viewer._range:within",
    "search": "kinetoscope.viewer._search:search",
    "span/": "kinetoscope.viewer._span:span",
    "sql": "kinetoscope.viewer._sql:rows",
    "sql/about": "kinetoscope.viewer._sql:about",
    "sql/csv": "kinetoscope.viewer._sql:csv",
    "sql/stop": "kinetoscope.viewer._sql:stop",
    "table/": "kinetoscope.viewer._tables:table",
    "top/": "kinetoscope.viewer._top:top",
    "tracks": "kinetoscope.viewer._timeline:tracks",
    "window": "kinetoscope.viewer._window:window",
}


MOST_ASKED = 1_000_000


class Limited:
    """The first rows of a table, and how many there are."""

    def __init__(self, table: pyarrow.Table, total: int) -> None:
        """Keep both."""
        self.table = table
        self.total = total


class MadeFile:
    """A file that was made for the person at the page."""

    def __init__(self, file: IO[bytes], name: str, type: str) -> None:  # noqa: A002  (as HTTP calls it)
        """Keep the open file, the name to save it under, and what kind of file it is."""
        self.file = file
        self.name = name
        self.type = type


def answer(trace: Trace, path: str, query: Query) -> Answer:
    """Answer one question.

    Args:
        trace: The trace it is about.
        path: What is asked, such as `table/ops`.
        query: The options of the question, as they stand in its address.

    Returns:
        A table, a part of one, or what can be written as JSON.

    Raises:
        LookupError: There is no such question.
        ArgumentError: An option has a value that cannot be used.
    """
    if path in ANSWERS and not path.endswith("/"):
        return _function(path)(trace, query)
    kind, slash, rest = path.partition("/")
    if slash and kind + slash in ANSWERS:
        return _function(kind + slash)(trace, query, rest)
    raise LookupError(path)


def number(query: Query, name: str, default: float | None = None) -> float:
    """Return an option that is a number.

    Raises:
        ArgumentError: It is missing and has no default, or is no finite number.
    """
    text = query.get(name)
    if text is None:
        if default is None:
            raise ArgumentError(f"the question needs the option {name!r}")
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ArgumentError(f"the option {name!r} must be a number, not {text[:50]!r}")
    return value


def whole_number(query: Query, name: str, default: int) -> int:
    """Return an option that says how many rows are wanted.

    Raises:
        ArgumentError: It is no whole number from 1 to a million.
    """
    value = number(query, name, default)
    if not (1 <= value <= MOST_ASKED and value == int(value)):
        raise ArgumentError(
            f"the option {name!r} must be a whole number from 1 to {MOST_ASKED:,}, not {value:g}"
        )
    return int(value)


def _function(key: str) -> Callable[..., Answer]:
    """The function that answers, imported when it is first asked for."""
    module, _, name = ANSWERS[key].partition(":")
    found: Callable[..., Answer] = getattr(importlib.import_module(module), name)
    return found
