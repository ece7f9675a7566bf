"""The names of the marks of requests, as native code composes them while a program records."""

from kinetoscope.model.marks import PREFIX, SUBMITTED, begin_text, end_text


def begin_mark(number: int, name: str, arguments: str) -> str:
    """Return the name of the first stretch of a request; `arguments` is JSON text of an object, or empty."""
    return f"{PREFIX}{number}{begin_text(name, arguments)}"


def run_mark(number: int) -> str:
    """Return the name of each further stretch."""
    return f"{PREFIX}{number}"


def submit_mark(number: int) -> str:
    """Return the name of the moment at which work is handed to a pool of threads."""
    return f"{PREFIX}{number}{SUBMITTED}"


def end_mark(number: int, status: str, arguments: str) -> str:
    """Return the name of the end of a request."""
    return f"{PREFIX}{number}{end_text(status, arguments)}"
