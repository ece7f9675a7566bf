"""The face of Composer's `TorchProfiler`, under Composer and without it.

The names are found on first use: importing this module imports neither torch nor Composer.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetoscope.integrations.composer._callback import TorchProfiler
    from kinetoscope.integrations.composer._files import TraceFiles
    from kinetoscope.integrations.composer._present import ProfilerAction
    from kinetoscope.integrations.composer._schedule import cyclic_schedule
    from kinetoscope.integrations.composer._swap import install_composer, uninstall_composer
    from kinetoscope.integrations.composer._timestamp import Timestamp

__all__ = [
    "ProfilerAction",
    "Timestamp",
    "TorchProfiler",
    "TraceFiles",
    "cyclic_schedule",
    "install_composer",
    "uninstall_composer",
]

_HOMES = {
    "ProfilerAction": "_present",
    "Timestamp": "_timestamp",
    "TorchProfiler": "_callback",
    "TraceFiles": "_files",
    "cyclic_schedule": "_schedule",
    "install_composer": "_swap",
    "uninstall_composer": "_swap",
}


def __getattr__(name: str) -> object:
    """Find a public name in its module on first use and keep it."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
