"""Large packages that few tests need: imported by the worker that runs these, and not by each that collects all tests."""

import importlib
import importlib.util
import warnings
from typing import Any

import pytest


class OnDemand:
    """A module that is imported at the first use of one of its names; skips the tests of the file that makes it where its package is missing.

    What the package warns of while it is imported is its own business.
    """

    def __init__(self, module: str, reason: str, *, needs: str = "") -> None:
        if importlib.util.find_spec(needs or module.partition(".")[0]) is None:
            pytest.skip(reason, allow_module_level=True)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        # pytest asks everything that it collects from for names of its own.
        if name.startswith("_") and name != "__version__":
            raise AttributeError(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(self._module), name)
