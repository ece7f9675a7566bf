"""Hooks in other code that sessions share."""

import gc
import sys
import types

import pytest

from kinetoscope.collect.sources.ranges import Routes
from kinetoscope.collect.sources.shared_hooks import SharedHooks


def theirs():
    return "theirs"


def ours():
    return "ours"


class Hooks(SharedHooks):
    """Replaces a function of a module, and an entry of a dictionary."""

    def __init__(self, fails=False):
        super().__init__()
        self.module = types.ModuleType("replaced")
        self.module.function = theirs
        self.scope = {"function": theirs}
        self.fails = fails

    def _install(self, first):
        if first:
            self._replaced.put(self.module, "function", ours)
            self._replaced.put(self.scope, "function", ours)
        if self.fails:
            raise AttributeError("another release")

    @property
    def functions(self):
        return self.module.function, self.scope["function"]


class Session:
    """One that opens hooks."""


def test_hooks_stay_until_the_last_session_closes_them():
    hooks, first, second = Hooks(), Session(), Session()
    hooks.open(first)
    hooks.open(second)
    hooks.close(first)
    hooks.close(first)
    assert hooks.functions == (ours, ours)
    hooks.close(second)
    assert hooks.functions == (theirs, theirs)


def test_what_other_code_replaced_meanwhile_stays():
    hooks, session = Hooks(), Session()
    hooks.open(session)
    hooks.module.function = print
    hooks.close(session)
    assert hooks.functions == (print, theirs)


def test_hooks_that_cannot_be_installed_leave_nothing():
    hooks, session = Hooks(fails=True), Session()
    with pytest.raises(AttributeError, match="another release"):
        hooks.open(session)
    assert hooks.functions == (theirs, theirs)


def test_a_session_that_is_never_closed_does_not_keep_hooks_from_the_next():
    hooks = Hooks()
    hooks.open(Session())
    gc.collect()
    session = Session()
    hooks.open(session)
    hooks.close(session)
    assert hooks.functions == (theirs, theirs)


def test_a_forked_child_has_no_hooks():
    hooks, session = Hooks(), Session()
    hooks.open(session)
    hooks.forget_sessions()
    assert hooks.functions == (theirs, theirs)


def test_installed_ranges_stay_in_a_forked_child(monkeypatch):
    import torch.profiler.itt  # noqa: F401  (the module that is changed)

    module = sys.modules["torch.profiler.itt"]
    library = types.SimpleNamespace()
    monkeypatch.setattr(module, "_itt", library)
    routes = Routes()
    routes.install(True)
    routes.forget_sessions()
    assert module._itt._library is library
    session = Session()
    routes.open(session)
    routes.close(session)
    assert module._itt._library is library
    routes.install(False)
    assert module._itt is library
