"""torch's `_ExperimentalConfig`: which settings differ from the defaults, and how they are passed to torch's collector."""

from __future__ import annotations

import functools
import re
from typing import Any

import torch.profiler
from torch._C import _profiler

from kinetoscope._errors import ArgumentError

# torch's own class, also after `install` replaces it.
TORCHS_SESSION: Any = torch.profiler._KinetoProfile  # noqa: SLF001  (torch's own)
ALL_THREADS_SETTING = "profile_all_threads"
GARBAGE_COLLECTION_SETTING = "record_python_gc_info"
EVENT_METADATA = "expose_kineto_event_metadata"
# The native engine always does what these settings request, so they need no warning.
ALWAYS_NATIVE = frozenset(
    {
        ALL_THREADS_SETTING,
        "capture_overload_names",
        "trace_only",
        "verbose",
        GARBAGE_COLLECTION_SETTING,
    }
)
# Settings that change what is recorded or shown with any engine; they are stored in the trace's metadata.
_NOTED = ("capture_overload_names", GARBAGE_COLLECTION_SETTING)
_KEYWORD = re.compile(r"[(,] (\w+): ")
# torch's stubs lack the methods that copy a config.
_Config: Any = _profiler._ExperimentalConfig  # noqa: SLF001  (torch's own)
_OTHER_VALUES: tuple[object, ...] = (True, ["other"], "other")


def checked_config(config: Any) -> Any:
    """Return the argument `experimental_config`, or raise ArgumentError if it is not torch's settings object."""
    if not isinstance(config, _Config):
        raise ArgumentError(
            f"experimental_config={config!r} is not valid: need torch.profiler._ExperimentalConfig(...) or None. "
            f"Its settings are: {', '.join(_places())}."
        )
    return config


def changed_settings(config: Any | None) -> dict[str, Any]:
    """Return the settings that differ from their defaults, by name."""
    if config is None:
        return {}
    state, usual = config.__getstate__(), _Config().__getstate__()
    return {name: state[index] for name, index in _places().items() if state[index] != usual[index]}


def noted_settings(config: Any | None) -> dict[str, str]:
    """Return the settings that readers of the trace need, as metadata: each one that is on with the JSON text `1`."""
    changed = changed_settings(config)
    return {name: "1" for name in _NOTED if changed.get(name)}


def for_torchs_collector(config: Any | None, **ours: object) -> Any:
    """Copy the user's settings, with some of them overridden by ours."""
    # By keywords: before torch 2.11 `__setstate__` does not accept what `__getstate__` returns.
    state = (_Config() if config is None else config).__getstate__()
    values = {name: _as_given(state[index]) for name, index in _places().items()}
    # Settings that the installed torch does not have are skipped.
    return _Config(**values | {name: value for name, value in ours.items() if name in values})


def has_setting(name: str) -> bool:
    """Whether the installed torch has a setting of this name."""
    return name in _places()


def _as_given(value: Any) -> Any:
    """Convert a value of a config's state for its keyword: lists of strings are lists of bytes in the state."""
    if isinstance(value, list):
        return [part.decode() if isinstance(part, bytes) else part for part in value]
    return value


@functools.cache
def _places() -> dict[str, int]:
    """The index of each setting in a config's state, found by changing one at a time: torch does not tell their names."""
    usual = _Config().__getstate__()
    index_of: dict[str, int] = {}
    for name in _KEYWORD.findall(_Config.__init__.__doc__ or ""):
        for value in _OTHER_VALUES:
            try:
                state = _Config(**{name: value}).__getstate__()
            except TypeError:
                continue
            differing = [
                index for index, (new, old) in enumerate(zip(state, usual, strict=True)) if new != old
            ]
            if len(differing) == 1:
                index_of[name] = differing[0]
                break
    return index_of
