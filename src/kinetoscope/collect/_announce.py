"""torch's own sign that a profiler is running: its compiler writes some of its ranges only while it is up."""

from __future__ import annotations


def announce() -> bool:
    """Put the sign up, and return whether it was up before, as it is inside `torch.profiler`."""
    from torch.autograd import profiler

    before = bool(profiler._is_profiler_enabled)
    profiler._set_is_profiler_enabled(True)
    return before


def withdraw(before: bool) -> None:
    """Put the sign back to what `announce` found."""
    from torch.autograd import profiler

    profiler._set_is_profiler_enabled(before)
