"""Every exception that Kinetoscope raises on purpose.

::

    KinetoscopeError
    ├── ArgumentError            (also a ValueError)    a call was given a value it cannot use
    │   └── ArgumentTypeError    (also a TypeError)     the value is of a type that it cannot use
    ├── StateError               (also a RuntimeError)  a call came at a moment when it makes no sense
    ├── FormatError              (also a ValueError)    a file is not what it should be
    ├── FolderNotEmptyError      (also a FileExistsError)  a folder has files in it and new ones may not join them
    ├── RecorderError            (also a RuntimeError)  the recorder could not be built, loaded or run
    └── MissingDependencyError   (also an ImportError)  an optional package is needed and not installed

Each also derives from the built-in exception that ``torch.profiler`` or the standard library would have raised in its
place, so code written for those keeps working. Each message says what was wrong, with which value, and what to do.
"""

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "FolderNotEmptyError",
    "FormatError",
    "KinetoscopeError",
    "MissingDependencyError",
    "RecorderError",
    "StateError",
]


class KinetoscopeError(Exception):
    """The base of all of them: ``except KinetoscopeError`` catches whatever Kinetoscope raises on purpose."""


class ArgumentError(KinetoscopeError, ValueError):
    """A call was given a value it cannot use."""


class ArgumentTypeError(ArgumentError, TypeError):
    """A call was given a value of a type it cannot use."""


class StateError(KinetoscopeError, RuntimeError):
    """A call came at a moment when it makes no sense, such as an export before anything was recorded."""


class FormatError(KinetoscopeError, ValueError):
    """A file is not what its name or its reader says it is, or is damaged beyond reading."""


class FolderNotEmptyError(KinetoscopeError, FileExistsError):
    """A folder that must be empty has files in it, and the call may not write beside them."""


class RecorderError(KinetoscopeError, RuntimeError):
    """The native recorder could not be built, loaded or run."""


class MissingDependencyError(KinetoscopeError, ImportError):
    """An optional package is needed for this call and is not installed."""
