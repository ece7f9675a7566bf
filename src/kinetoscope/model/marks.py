"""How requests, and the iterations of an engine, are marked in a recording: as ranges with names of these forms, which every engine and every format keeps.

`kinetoscope.request #3: generate {"tokens": 8}` is the first stretch in which a request runs, `kinetoscope.request #3` each further one, on the thread
on which it runs. `kinetoscope.request #3 submitted` is the moment at which it hands work to a pool of threads, and
`kinetoscope.request #3 ended finished {"status_code": 200}` its end. The number is used again when a request has ended, so that a recording
that goes on for weeks has few names.

`kinetoscope.step prefill {"requests": 4, "tokens": 512}`, a range in a step, says what kind of step it is, with its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kinetoscope.model.strings import parsed_json

PREFIX = "kinetoscope.request #"
SUBMITTED = " submitted"
"""What follows the number in the name of the moment at which work is handed to a pool of threads."""
STATUSES = ("finished", "error", "canceled")
"""How a request can end."""

_MARK = re.compile(re.escape(PREFIX) + r"(\d+)(?:: (.*)| (submitted|ended .*))?", re.DOTALL)
_ENDED = re.compile(rf"ended ({'|'.join(STATUSES)})(?: (\{{.*))?", re.DOTALL)


class RequestMark(NamedTuple):
    """What one range says of a request.

    Attributes:
        number: The number of the request, which no other has at that time.
        what: `begin`, `run`, `submit` or `end`.
        name: The name of the request, at its begin.
        status: One of `STATUSES`, at its end.
        arguments: What else is known of it, as JSON text of an object; empty for nothing.
    """

    number: int
    what: str
    name: str = ""
    status: str = ""
    arguments: str = ""


def begin_text(name: str, arguments: str) -> str:
    """Return what follows the number in the name of the first stretch of a request; `arguments` is JSON text of an object, or empty."""
    return f": {name.strip() or '-'} {arguments}".rstrip()


def end_text(status: str, arguments: str) -> str:
    """Return what follows the number in the name of the end of a request."""
    return f" ended {status} {arguments}".rstrip()


def parse_mark(text: str) -> RequestMark | None:
    """Return what the name of a range says of a request; None if it is not about one."""
    match = _MARK.fullmatch(text)
    if match is None:
        return None
    number, begun, moment = int(match[1]), match[2], match[3]
    if begun is not None:
        brace = begun.find(" {")
        while brace >= 0 and not _is_object(begun[brace + 1 :]):
            brace = begun.find(" {", brace + 1)
        name, arguments = (begun, "") if brace < 0 else (begun[:brace], begun[brace + 1 :])
        return RequestMark(number, "begin", name, arguments=arguments)
    if moment is None:
        return RequestMark(number, "run")
    if moment == "submitted":
        return RequestMark(number, "submit")
    ended = _ENDED.fullmatch(moment)
    if ended is None or (ended[2] and not _is_object(ended[2])):
        return None
    return RequestMark(number, "end", status=ended[1], arguments=ended[2] or "")


def request_names_in(strings: Sequence[str]) -> list[int]:
    """Return which of the strings of a trace are the names of ranges that mark requests."""
    return [row for row, text in enumerate(strings) if text.startswith(PREFIX)]


def _is_object(text: str) -> bool:
    return isinstance(parsed_json(text), dict)


STEP_PREFIX = "kinetoscope.step "


class StepMark(NamedTuple):
    """What a range says of the step that it is in.

    Attributes:
        name: The kind of the step, such as `prefill`.
        arguments: The arguments of the step, as the JSON text of an object; empty without arguments.
    """

    name: str
    arguments: str = ""


def step_mark(name: str, arguments: str) -> str:
    """Return the name of the range; `arguments` is JSON text of an object, or empty."""
    return f"{STEP_PREFIX}{name} {arguments}".rstrip()


def parse_step_mark(text: str) -> StepMark | None:
    """Return what the name of a range says of its step; None if it says nothing of it."""
    if not text.startswith(STEP_PREFIX):
        return None
    name, brace, rest = text.removeprefix(STEP_PREFIX).partition(" {")
    arguments = brace.strip() + rest
    return StepMark(name, arguments) if name and (not brace or _is_object(arguments)) else None
