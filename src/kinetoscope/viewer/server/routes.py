"""Routes of the local server: a pure function from a request to its response, which tests call without a socket."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import IO, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope.combine.cut import TracePart, cut_with_rows
from kinetoscope.model import units
from kinetoscope.model.arrow import number_array
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows
from kinetoscope.trace import Trace
from kinetoscope.viewer import pages
from kinetoscope.viewer.open_traces import Offer
from kinetoscope.viewer.pages import compare, ranks
from kinetoscope.viewer.requests import MOST_ROWS, Answer, Limited, MadeFile, Query
from kinetoscope.viewer.timeline import counters, search, span, tracks, window
from kinetoscope.viewer.timeline.range import within

ARROW = "application/vnd.apache.arrow.stream"


# Forbids everything that a response does not need, whatever the browser takes it for.
INERT = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox"}


@dataclass(frozen=True)
class Response:
    """Status, headers and body of a response.

    Attributes:
        file: A file that is sent instead of the body, and closed then.
    """

    status: int
    body: bytes
    type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=lambda: INERT)
    file: IO[bytes] | None = None


def respond(
    traces: Sequence[Offer | tuple[str, Trace]],
    path: str,
    query: Mapping[str, str],
    answer_of: Callable[[Trace, str, Query], Answer] | None = None,
    opened: Callable[[str], int] | None = None,
) -> Response:
    """Respond to a request of the viewer.

    Args:
        traces: The open traces, each with its name.
        path: The path of the request after the token, without a leading slash.
        query: Its options.
        answer_of: Responds to a request about a trace; `answer` if None.
        opened: Opens a trace of a job, and returns its number; None if that is not possible.

    Returns:
        The page for an empty path, the answer of `api/N/...`, or an error as JSON with one sentence in `error`.
    """
    offers = [Offer(*offered) for offered in traces]
    if path == "":
        return _page()
    if path == "api/traces":
        return _json(
            [
                {
                    "name": offer.name,
                    "live": offer.live,
                    "version": offer.version,
                    "readable": offer.trace is not None or offer.job is not None,
                    "problem": offer.problem,
                    **({} if offer.job is None else {"job": True}),
                }
                for offer in offers
            ]
        )
    match = re.fullmatch(r"api/([0-9]{1,6})/(.+)", path)
    if match is None or int(match[1]) >= len(offers):
        return error_response(404, "There is nothing at this address.")
    trace, problem, _, _, job = offers[int(match[1])][1:]
    page = match[2].partition("/")[0]
    of_two, of_job = page == "compare", job is not None and page == "ranks"
    if trace is None and not of_two and not of_job:
        nothing = "There is no such trace." if job is None else "Summaries are shown by the page Ranks only."
        return error_response(409, problem or nothing)
    try:
        if job is not None and of_job:
            return encoded(ranks.answer(job, match[2], query, opened))
        if of_two or trace is None:
            # The page of two traces does not belong to one of them.
            return encoded(compare.answer(offers, match[2], query))
        return encoded((answer_of or answer)(trace, match[2], query))
    except LookupError as error:
        if isinstance(error, KeyError | IndexError):
            raise  # a mistake of ours
        return error_response(404, "This version of the viewer has no such route.")
    except ArgumentError as error:
        return error_response(400, str(error))
    except KinetoscopeError as error:
        return error_response(409, str(error))
    except OSError as error:
        return error_response(500, f"{error.filename or 'a file'}: {error.strerror or error}")


# Pages of a step or time range: responses are computed from a part of the trace, but refer to rows and times of the whole.

PARTIAL = frozenset((
    "chosen", "table/copies", "flame", "flame_choices", "flame_operators", "histogram", "instances", "table/kernels", "memory",
    "memory/at", "memory/blocks", "memory/curve", "memory/live", "memory/stacks",
    "table/module_operators", "table/modules", "operators",
))  # fmt: skip
"""The paths that can be asked about a part of the trace."""

MOST_STEPS = 2000


def _steps(trace: Trace, query: Query) -> list[list[int]]:
    columns = trace.columns("steps")
    numbers, row_of_number = np.unique(columns["number"], return_inverse=True)
    steps = Groups(row_of_number, len(numbers))
    start, end = steps.minima(columns["start_ns"]), steps.maxima(columns["start_ns"] + columns["duration_ns"])
    extents: list[list[int]] = np.stack([numbers, start, end], axis=1)[:MOST_STEPS].tolist()
    return extents


def _answer_part(trace: Trace, path: str, query: Query) -> Answer:
    """Answer a request about one part of the trace, selected by the option `part`: start and end in nanoseconds, such as `1000-2000`.

    Rows of `spans` and start times refer to the whole trace; other times count from the start of the part.
    """
    text = query["part"]
    if path not in PARTIAL:
        raise ArgumentError(f"{path} always covers the whole trace: part={text[:50]!r} has no effect")
    window, rows, start_ns = _window(trace, text)
    response = answer(window, path, {name: value for name, value in query.items() if name != "part"})
    if isinstance(response, Limited):
        return Limited(_of_whole(response.table, rows, start_ns), response.total)
    if isinstance(response, dict | list | MadeFile):
        return response
    return _of_whole(response, rows, start_ns)


def _window(trace: Trace, text: str) -> tuple[Trace, Rows, int]:
    """Cut out a part: the trace, each span's row in the whole trace, and the start in nanoseconds. The last one is cached."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last) < 2**62):
        raise ArgumentError(
            f"part={text[:50]!r} is not valid: use two times in nanoseconds, such as 1000-2000"
        )
    start, end = int(first), int(last)
    last_part: dict[tuple[int, int], tuple[Trace, Rows, int]] = trace.cached("viewer: part", dict)
    if (start, end) not in last_part:
        if start >= trace.duration_ns:
            raise ArgumentError(
                f"part={text!r} is not valid: the trace ends after {units.duration(trace.duration_ns)}"
            )
        part = TracePart.of_window(trace, start, end, by_launch=True)
        last_part.clear()
        last_part[start, end] = (*cut_with_rows(trace, part), start)
    return last_part[start, end]


def _of_whole(table: pa.Table, rows: Rows, start_ns: int) -> pa.Table:
    for index, column in enumerate(table.schema):
        if (column.metadata or {}).get(b"unit") == b"row of spans":
            of_trace = pc.take(number_array(rows), table[column.name].cast(pa.int64())).cast(column.type)
            table = table.set_column(index, column, of_trace)
        elif column.name == "start_ns":
            table = table.set_column(index, column, pc.add(table["start_ns"], start_ns).cast(column.type))
    return table


def answer(trace: Trace, path: str, query: Query) -> Answer:
    """Respond to one request.

    Args:
        trace: The trace that is requested.
        path: The path, such as `table/ops`.
        query: The options of the request, by name.

    Returns:
        A table, its first rows, a file, or a JSON value.

    Raises:
        LookupError: There is no such path.
        ArgumentError: An option has a value that cannot be used.
    """
    if "part" in query:
        return _answer_part(trace, path, query)
    if path in ROUTES and not path.endswith("/"):
        return ROUTES[path](trace, query)
    kind, slash, rest = path.partition("/")
    if slash and kind + slash in ROUTES:
        return ROUTES[kind + slash](trace, query, rest)
    raise LookupError(path)


def table(trace: Trace, query: Query, name: str) -> Limited:
    """Return the first rows of a table of the trace, with the options of that table.

    Raises:
        ArgumentError: There is no such table, or it does not have an option.
    """
    options: dict[str, Any] = {
        option: int(text) if text.isdecimal() else text for option, text in query.items()
    }
    rows = trace.table(name, **options)
    return Limited(rows.slice(0, _MORE_ROWS.get(name, MOST_ROWS)), rows.num_rows)


# The page Modules needs all that ran in the module that is chosen.
_MORE_ROWS = {"module_operators": 200_000}

ROUTES: dict[str, Callable[..., Answer]] = {
    "arrows": span.arrows,
    "counter": counters.counter,
    "range": within,
    "search": search.search,
    "span/": span.span,
    "steps": _steps,
    "table/": table,
    "tracks": tracks.tracks,
    "window": window.window,
}
"""The function `(trace, query)` of each path; of one that ends in `/`, `(trace, query, rest)` of all paths that begin with it."""
for _page_module in iter_modules(pages.__path__, f"{pages.__name__}."):
    ROUTES |= getattr(import_module(_page_module.name), "ROUTES", {})


def encoded(answer: Answer) -> Response:
    """Serialize a response: tables as Arrow streams, files as they are, everything else as JSON."""
    if isinstance(answer, MadeFile):
        headers = {"Content-Disposition": disposition(answer.name)}
        return Response(200, b"", answer.type, INERT | headers, answer.file)
    if isinstance(answer, Limited):
        headers = {"X-Total-Rows": str(answer.total)}
        return Response(200, _arrow(answer.table), ARROW, INERT | headers)
    if isinstance(answer, dict | list):
        return _json(answer)
    return Response(200, _arrow(answer), ARROW)


def disposition(name: str) -> str:
    """Return the Content-Disposition header to save a response under a name, which may have any characters."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".") or "trace"
    whole = quote(name.encode("utf-8", "replace"), safe="")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{whole}"


def _arrow(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks().unify_dictionaries())
    return sink.getvalue()


def _json(value: object) -> Response:
    """Serialize a value as JSON; a number that is not finite is a bug."""
    return Response(200, json.dumps(value, allow_nan=False, separators=(",", ":")).encode())


def error_response(status: int, message: str) -> Response:
    """Respond with an error: one sentence, as JSON."""
    return Response(status, json.dumps({"error": message}).encode())


@cache
def page_text() -> str:
    """Read the built web app, a single HTML page."""
    # Not by importlib.resources, which imports on first use, see `_import_aside`.
    return (Path(__file__).parents[1] / "static" / "index.html").read_text(encoding="utf-8")


def content_policy(page: str, connect: str) -> str:
    """Return the content security policy of a page: only its own script and style, by checksum, and `connect`."""
    scripts = " ".join(
        _checksum(text) for text in re.findall(r"<script type=\"module\">(.*?)</script>", page, re.DOTALL)
    )
    styles = " ".join(_checksum(text) for text in re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data: blob:; {connect}"
        "base-uri 'none'; form-action 'none'"
    )


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _page() -> Response:
    page = page_text()
    policy = content_policy(page, "connect-src 'self'; ") + "; frame-ancestors 'none'"
    headers = {
        "Content-Security-Policy": policy,
        # Other pages that open this one get no reference to it.
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    return Response(200, page.encode(), "text/html; charset=utf-8", headers)
