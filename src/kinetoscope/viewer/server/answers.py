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
    "arrows": "kinetoscope.viewer.timeline.links:arrows",
    "chosen": "kinetoscope.viewer.pages.chosen:chosen",
    "copies": "kinetoscope.viewer.pages.kernels:copies",
    "counter": "kinetoscope.viewer.timeline.counters:counter",
    "flame": "kinetoscope.viewer.pages.stacks:flame",
    "flame_choices": "kinetoscope.viewer.pages.stacks:flame_choices",
    "flame_operators": "kinetoscope.viewer.pages.stacks:flame_operators",
    "health": "kinetoscope.viewer.pages.health:health",
    "export/": "kinetoscope.viewer.pages.export:export",
    "export/about": "kinetoscope.viewer.pages.export:about",
    "histogram": "kinetoscope.viewer.timeline.instances:histogram",
    "instances": "kinetoscope.viewer.timeline.instances:instances",
    "kernels": "kinetoscope.viewer.pages.kernels:kernels",
    "load": "kinetoscope.viewer.pages.utilization:load",
    "memory": "kinetoscope.viewer.pages.memory:memory",
    "memory/at": "kinetoscope.viewer.pages.memory:at",
    "memory/blocks": "kinetoscope.viewer.pages.memory:blocks",
    "memory/curve": "kinetoscope.viewer.pages.memory:curve",
    "memory/live": "kinetoscope.viewer.pages.memory:live",
    "memory/stacks": "kinetoscope.viewer.pages.memory:stacks",
    "module_operators": "kinetoscope.viewer.pages.modules:module_operators",
    "modules": "kinetoscope.viewer.pages.modules:modules",
    "operators": "kinetoscope.viewer.pages.operators:operators",
    "overview": "kinetoscope.viewer.pages.overview:overview",
    "overview/": "kinetoscope.viewer.pages.overview:part",
    "range": "kinetoscope.viewer.timeline.range:within",
    "search": "kinetoscope.viewer.timeline.search:search",
    "span/": "kinetoscope.viewer.timeline.span:span",
    "sql": "kinetoscope.viewer.sql.queries:rows",
    "sql/about": "kinetoscope.viewer.sql.queries:about",
    "sql/csv": "kinetoscope.viewer.sql.queries:csv",
    "sql/stop": "kinetoscope.viewer.sql.queries:stop",
    "table/": "kinetoscope.viewer.pages.tables:table",
    "top/": "kinetoscope.viewer.pages.top:top",
    "tracks": "kinetoscope.viewer.timeline.tracks:tracks",
    "window": "kinetoscope.viewer.timeline.window:window",
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


MOST_PIXELS = 16_384
# Times of a trace are integers below this.
_LARGEST = float(2**62)


def window_of(query: Query) -> tuple[float, float, int]:
    """The options `start`, `end` and `width`.

    Raises:
        ArgumentError: One is missing, or they are no window.
    """
    start, end = span_of_time(query)
    width = number(query, "width")
    if not 1 <= width <= MOST_PIXELS:
        raise ArgumentError(f"width={width:g} is not valid: need 1 to {MOST_PIXELS:,} pixels")
    return start, end, int(width)


def span_of_time(query: Query) -> tuple[float, float]:
    """The options `start` and `end`, in nanoseconds from the start of the trace.

    Raises:
        ArgumentError: One is missing, or the end is not after the start.
    """
    start, end = number(query, "start"), number(query, "end")
    if not -_LARGEST < start < end < _LARGEST:
        raise ArgumentError(
            f"start={start:.17g}, end={end:.17g} is no window: the end must come after the start"
        )
    return start, end
