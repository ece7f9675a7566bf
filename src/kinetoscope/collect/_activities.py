"""torch's own profiling vocabulary, re-exported, and the checks of what a session is asked to record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch.profiler import DeviceType, ProfilerAction, ProfilerActivity, kineto_available, record_function

from kinetoscope._errors import ArgumentError
from kinetoscope.collect._warn import warn_user

__all__ = [
    "DeviceType",
    "ProfilerAction",
    "ProfilerActivity",
    "kineto_available",
    "record_function",
    "supported_activities",
]

# The torch module whose is_available() tells whether the device behind an activity is there.
_DEVICE_MODULES = {"CUDA": "cuda", "XPU": "xpu", "MTIA": "mtia", "HPU": "hpu"}


def supported_activities() -> set[ProfilerActivity]:
    """The activities that can be recorded with this build of torch on this machine.

    Returns:
        A new set of torch's own `ProfilerActivity` values; the CPU is always among them. A device whose support is
        compiled into torch but which is not there (a CUDA build on a laptop) is not.
    """
    known = torch.autograd._supported_activities()
    return {activity for activity in known if _is_there(activity)} | {ProfilerActivity.CPU}


def asked_activities(
    activities: Iterable[ProfilerActivity] | None, *, use_cuda: bool | None = None
) -> set[ProfilerActivity]:
    """The activities a session was asked for, after checks; `use_cuda` adds or removes CUDA."""
    asked = supported_activities() if activities is None else checked_activities(activities)
    if use_cuda is not None:
        asked = asked | {ProfilerActivity.CUDA} if use_cuda else asked - {ProfilerActivity.CUDA}
    if not asked:
        raise ArgumentError(f"activities is empty: there is nothing to record. Valid ones: {_valid_names()}.")
    return asked


def checked_activities(activities: Iterable[ProfilerActivity]) -> set[ProfilerActivity]:
    """What a user's iterable holds, or an error that names the first thing in it that is no activity."""
    return set(_checked(activities))


def recordable(asked: set[ProfilerActivity]) -> frozenset[ProfilerActivity]:
    """The part of what was asked for that this machine has; a warning names the rest."""
    supported = supported_activities()
    missing = sorted(activity.name for activity in asked - supported)
    if not asked & supported:
        raise ArgumentError(
            f"activities={missing} cannot be recorded: {', '.join(missing)} is not available here. "
            f"Available: {', '.join(sorted(activity.name for activity in supported))}."
        )
    if missing:
        warn_user(f"{', '.join(missing)} is not available, disabling {', '.join(missing)} profiling")
    return frozenset(asked & supported)


def _is_there(activity: ProfilerActivity) -> bool:
    """Whether the device behind an activity can be used now."""
    module_name = _DEVICE_MODULES.get(activity.name)
    if module_name is None:
        return True
    module = getattr(torch, module_name, None)
    return module is not None and bool(module.is_available())


def _checked(activities: Iterable[ProfilerActivity]) -> Iterable[ProfilerActivity]:
    """Each item of a user's iterable, or an error that names the first one that is none."""
    if isinstance(activities, (str, bytes, ProfilerActivity)) or not isinstance(activities, Iterable):
        raise ArgumentError(
            f"activities={activities!r} is not a collection of activities: pass a list or a set of {_valid_names()}."
        )
    seen = set()
    for item in activities:
        if isinstance(item, Mapping):
            raise ArgumentError(
                f"activities contains {item!r}: choosing single kinds of an activity arrives in a later version. "
                f"Pass the activities themselves: {_valid_names()}."
            )
        if not isinstance(item, ProfilerActivity):
            raise ArgumentError(
                f"activities contains {item!r}, which is no activity. Valid ones: {_valid_names()}."
            )
        if item in seen:
            raise ArgumentError(
                f"activities contains ProfilerActivity.{item.name} more than once: name each one once."
            )
        seen.add(item)
        yield item


def _valid_names() -> str:
    """The activities this torch knows, as they are written in a program."""
    return ", ".join(f"ProfilerActivity.{name}" for name in ProfilerActivity.__members__)
