"""The exceptions of Kinetoscope.

::

    KinetoscopeError
    ├── ArgumentError            (also a ValueError)    an argument has an invalid value
    │   └── ArgumentTypeError    (also a TypeError)     an argument has an invalid type
    ├── StateError               (also a RuntimeError)  a call is not possible in the current state
    │   └── NotRecordedError     (also an AssertionError)  nothing was started or recorded yet
    ├── FormatError              (also a ValueError)    a file has the wrong format or is damaged
    ├── FolderNotEmptyError      (also a FileExistsError)  a folder must be empty but is not
    ├── RecorderError            (also a RuntimeError)  the recorder could not be built, loaded or run
    └── MissingDependencyError   (also an ImportError)  a required optional package is not installed

Each also derives from the built-in exception that ``torch.profiler`` or the standard library would raise in its place, so
that code written for those keeps working. Each message says what was wrong, with which value, and what to do.
"""

import operator
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Keeps the names in it alive, see `_import_aside`.
_CODE = sys._getframe().f_code

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "FolderNotEmptyError",
    "FormatError",
    "KinetoscopeError",
    "MissingDependencyError",
    "NotRecordedError",
    "RecorderError",
    "StateError",
]


class KinetoscopeError(Exception):
    """The base class: ``except KinetoscopeError`` catches every exception that Kinetoscope raises deliberately."""


class ArgumentError(KinetoscopeError, ValueError):
    """An argument has an invalid value."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has an invalid type."""


class StateError(KinetoscopeError, RuntimeError):
    """A call is not possible in the current state, such as an export before anything was recorded."""


class NotRecordedError(StateError, AssertionError):
    """Nothing was recorded yet; also an AssertionError, which `torch.profiler` raises there."""


class FormatError(KinetoscopeError, ValueError):
    """A file has the wrong format, or is too damaged to read."""


class FolderNotEmptyError(KinetoscopeError, FileExistsError):
    """A folder that must be empty contains files."""


class RecorderError(KinetoscopeError, RuntimeError):
    """The native recorder could not be built, loaded or run."""


class MissingDependencyError(KinetoscopeError, ImportError):
    """A call needs an optional package that is not installed."""


def missing_torch(name: str) -> MissingDependencyError:
    """Return the error of a public name of the package that needs PyTorch where that is not installed."""
    return MissingDependencyError(
        f"kinetoscope.{name} needs PyTorch, which is not installed: install it with `pip install torch`. "
        "(Reading traces works without it.)"
    )


@contextmanager
def needed(message: str) -> Iterator[None]:
    """Say what to install if an import of this block fails."""
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(message) from error


def checked_choice(option: str, value: object, values: tuple[str, ...]) -> str:
    """Check an option that is one of some texts.

    Raises:
        ArgumentError: It is another one.
    """
    if value not in values:
        text = repr(value[:50] if isinstance(value, str) else value)
        raise ArgumentError(f"{option}={text} is not valid: use one of {', '.join(values)}")
    return str(value)


def checked_switch(option: str, value: object) -> bool:
    """Check an option that is True or False, as a bool, 0, 1 or None; a value that is only truthy, such as the string "False", is none.

    Raises:
        ArgumentError: It is something else.
    """
    if value is None or isinstance(value, bool):
        return bool(value)
    try:
        number = float(value) if not isinstance(value, (str, bytes)) else -1.0  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = -1.0
    if number not in (0, 1):
        raise ArgumentTypeError(f"{option}={value!r} is not valid: choose True or False.")
    return bool(number)


def checked_whole(option: str, value: object, least: int | None, instead: str = "") -> int:
    """Check an option that is a whole number, also one of numpy, from `least` on if that is given; `instead` says what else it can be.

    Raises:
        ArgumentError: It is something else.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        kind = ArgumentTypeError if number is None else ArgumentError
        need = "a whole number" if least is None else f"a whole number >= {least}"
        raise kind(f"{option}={value!r} is not valid: need {need}{instead}.")
    return number


def checked_seconds(option: str, value: object, *, or_zero: str = "") -> float:
    """Check an option that is a number of seconds above 0; `or_zero` says what 0 does where that is allowed, too.

    Raises:
        ArgumentError: It is something else.
    """
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else -1.0
    if not 0.0 < number < float("inf") and not (or_zero and number == 0.0):
        needed = f", 0 {or_zero}" if or_zero else " above 0"
        raise ArgumentError(f"{option}={value!r} is not valid: need a number of seconds{needed}.")
    return number
