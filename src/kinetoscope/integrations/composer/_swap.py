"""Letting Composer's own `Profiler` use our `TorchProfiler`."""

from __future__ import annotations

import importlib
from typing import Any

from kinetoscope._errors import MissingDependencyError
from kinetoscope.integrations.composer._present import IS_THERE

_PLACES = ("composer.profiler", "composer.profiler.profiler", "composer.profiler.torch_profiler")
_NAME = "TorchProfiler"
_replaced: dict[str, Any] = {}


def install_composer() -> None:
    """Make every Composer `Profiler` that is made from now on use our `TorchProfiler`. A second call does nothing.

    Raises:
        MissingDependencyError: Composer is not installed, or cannot be imported.
    """
    if not IS_THERE:
        raise MissingDependencyError(
            "install_composer() needs Composer, which is not installed here or cannot be imported: `pip install mosaicml`."
        )
    from kinetoscope.integrations.composer._callback import TorchProfiler

    for place in _PLACES:
        module = importlib.import_module(place)
        if getattr(module, _NAME) is not TorchProfiler:
            _replaced[place] = getattr(module, _NAME)
            setattr(module, _NAME, TorchProfiler)


def uninstall_composer() -> None:
    """Give Composer its own `TorchProfiler` back. Without `install_composer` before, it does nothing."""
    while _replaced:
        place, original = _replaced.popitem()
        setattr(importlib.import_module(place), _NAME, original)
