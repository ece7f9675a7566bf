"""What the local server says to a request, as a pure function: tested without a socket."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError, KinetoscopeError
from kinetoscope.viewer._answers import Limited, answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow

    from kinetoscope.trace import Trace
    from kinetoscope.viewer._answers import Answer

ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Response:
    """A status, the headers and the body of an answer."""

    status: int
    body: bytes
    type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


def respond(traces: Sequence[tuple[str, Trace]], path: str, query: Mapping[str, str]) -> Response:
    """Answer a request of the viewer.

    Args:
        traces: The traces that may be looked at, each with its name. Nothing else can be reached.
        path: The path of the request behind the token, without a slash in front.
        query: Its options.

    Returns:
        The page for an empty path, the answer of `api/N/...`, or an error as JSON with one sentence in `error`.
    """
    if path == "":
        return _page()
    if path == "api/traces":
        return _json([{"name": name, "live": not trace.info.get("complete", True)} for name, trace in traces])
    match = re.fullmatch(r"api/(\d{1,6})/(.+)", path)
    if match is None or int(match[1]) >= len(traces):
        return _error(404, "There is nothing at this address.")
    try:
        return encoded(answer(traces[int(match[1])][1], match[2], query))
    except LookupError:
        return _error(404, "The viewer of this version does not know this question.")
    except ArgumentError as error:
        return _error(400, str(error))
    except KinetoscopeError as error:
        return _error(409, str(error))


def encoded(found: Answer) -> Response:
    """Write an answer as bytes: tables as a stream of Arrow's, everything else as JSON."""
    if isinstance(found, Limited):
        headers = {"X-Total-Rows": str(found.total)}
        return Response(200, _arrow(found.table), ARROW, headers)
    if isinstance(found, dict | list):
        return _json(found)
    return Response(200, _arrow(found), ARROW)


def _arrow(table: pyarrow.Table) -> bytes:
    """A table as an Arrow stream, each dictionary once."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks().unify_dictionaries())
    return sink.getvalue()


def _json(value: object) -> Response:
    """A value as JSON; a number that JSON cannot hold is an error of ours."""
    return Response(200, json.dumps(value, allow_nan=False, separators=(",", ":")).encode())


def _error(status: int, message: str) -> Response:
    """One sentence for the person at the page."""
    return Response(status, json.dumps({"error": message}).encode())


@cache
def page_text() -> str:
    """The built web app, which is one page."""
    return (resources.files("kinetoscope.viewer") / "static" / "index.html").read_text(encoding="utf-8")


def content_policy(page: str, connect: str) -> str:
    """The content security policy of a page: its own script and style by their checksums, and `connect`, no more."""
    scripts = " ".join(
        _checksum(text) for text in re.findall(r"<script type=\"module\">(.*?)</script>", page, re.DOTALL)
    )
    styles = " ".join(_checksum(text) for text in re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data: blob:; {connect}"
        "base-uri 'none'; form-action 'none'"
    )


def _checksum(text: str) -> str:
    """A script or style as a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _page() -> Response:
    """The app, allowed to ask its own server and nobody else."""
    page = page_text()
    policy = content_policy(page, "connect-src 'self'; ") + "; frame-ancestors 'none'"
    return Response(200, page.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": policy})
