"""torch's activities and actions, re-exported, and checks of the argument `activities`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.profiler
from torch.profiler import DeviceType, ProfilerAction, ProfilerActivity, kineto_available, record_function

from kinetoscope._errors import ArgumentError, ArgumentTypeError
from kinetoscope.collect.process.user_warnings import warn_user

__all__ = [
    "DeviceType",
    "ProfilerAction",
    "ProfilerActivity",
    "kineto_available",
    "record_function",
    "supported_activities",
]

# The torch module whose is_available() tells whether the device of an activity exists.
_DEVICE_MODULES = {"CUDA": "cuda", "XPU": "xpu", "MTIA": "mtia", "HPU": "hpu"}


def device_among(activities: Iterable[ProfilerActivity]) -> str | None:
    """Return torch's name of the device that some activities record; None for the CPU only."""
    names = {name_of(activity) for activity in activities}
    if named := next((device for name, device in _DEVICE_MODULES.items() if name in names), None):
        return named
    return str(torch._C._get_privateuse1_backend_name()) if "PrivateUse1" in names else None  # noqa: SLF001  (torch's own)


def supported_activities() -> set[ProfilerActivity]:
    """Return the activities that can be recorded with this build of torch on this machine.

    Returns:
        A new set of torch's own `ProfilerActivity` values. It always contains the CPU, and not a device that torch supports
        but the machine lacks, such as CUDA on a laptop.
    """
    supported = torch.autograd._supported_activities()  # noqa: SLF001  (torch's own)
    return {activity for activity in supported if _is_available(activity)} | {ProfilerActivity.CPU}


# A program may register an accelerator under its own name, which then is an alias of `PrivateUse1`.
_TORCHS_NAMES: dict[ProfilerActivity, str] = {
    activity: name for name, activity in reversed(ProfilerActivity.__members__.items())
}


def name_of(activity: ProfilerActivity) -> str:
    """Return torch's own name of an activity, such as `CUDA`; `PrivateUse1` for a registered accelerator of any name."""
    return _TORCHS_NAMES[activity]


class NothingToRecordError(ArgumentError, AssertionError):
    """None of the activities can be recorded here. Also an AssertionError, which torch raises."""


@dataclass(frozen=True)
class ActivityChoice:
    """What to record of one activity.

    Attributes:
        kinds: The names of the event kinds to record; None means all.
        configs: Settings of extensions of torch's collector, such as torch's `PerformanceMetricsConfig`.
    """

    kinds: frozenset[str] | None = None
    configs: tuple[Any, ...] = ()


# An item of `activities`: an activity, or a mapping from activities to Kineto's names of event kinds, such as
# {CUDA: ["KERNEL"]}, or to torch's ProfilerActivityConfig.
ActivityItem: TypeAlias = ProfilerActivity | Mapping[ProfilerActivity, Any]
ActivityChoices: TypeAlias = dict[ProfilerActivity, ActivityChoice]


def checked_choices(
    activities: Iterable[ActivityItem] | None, *, use_cuda: bool | None = None
) -> ActivityChoices:
    """Return what to record of each activity of the argument; None means all supported ones. `use_cuda` adds or removes CUDA."""
    choices: ActivityChoices = (
        dict.fromkeys(supported_activities(), ActivityChoice())
        if activities is None
        else dict(_checked(activities))
    )
    if use_cuda:
        choices.setdefault(ProfilerActivity.CUDA, ActivityChoice())
    elif use_cuda is not None:
        choices.pop(ProfilerActivity.CUDA, None)
    if not choices:
        raise NothingToRecordError(
            f"activities is empty: there is nothing to record. Valid ones: {_valid_names()}."
        )
    return choices


@functools.cache
def collector_takes(keyword: str) -> bool:
    """Whether the collector of the installed torch has a keyword, which depends on the release."""
    return keyword in inspect.signature(torch.autograd.profiler.profile).parameters


def extensions(configs: Iterable[Any]) -> dict[str, str]:
    """Convert settings of extensions of torch's collector to the strings that it takes."""
    entries: dict[str, str] = {}
    for config in configs:
        entries |= config._to_config_entries()  # noqa: SLF001  (torch's own)
    if "PERFORMANCE_METRICS" in entries:
        entries["PERFORMANCE_METRICS_DEVICE_ID"] = str(torch.cuda.current_device())
    return entries


def torchs_configs(choices: Mapping[ProfilerActivity, ActivityChoice]) -> dict[ProfilerActivity, Any]:
    """Return torch's `ProfilerActivityConfig` of each activity that does not record its default kinds."""
    return {
        activity: _CONFIG(None if choice.kinds is None else sorted(choice.kinds), list(choice.configs))
        for activity, choice in choices.items()
        if choice != ActivityChoice()
    }


def checked_activities(activities: Iterable[ProfilerActivity]) -> set[ProfilerActivity]:
    """Return a user's activities as a set, or raise ArgumentError for the first item that is not an activity."""
    choices = dict(_checked(activities))
    for activity, choice in choices.items():
        if choice != ActivityChoice():
            raise ArgumentError(
                f"activities contains single kinds of ProfilerActivity.{activity.name}: pass the activities themselves: "
                f"{_valid_names()}."
            )
    return set(choices)


def recordable(requested: set[ProfilerActivity]) -> frozenset[ProfilerActivity]:
    """Return the requested activities that this machine supports, and warn of the others."""
    supported = supported_activities()
    missing = sorted(activity.name for activity in requested - supported)
    if missing:
        warn_user(f"{', '.join(missing)} is not available, disabling {', '.join(missing)} profiling")
    return frozenset(requested & supported)


def check_that_something_is_recorded(
    requested: set[ProfilerActivity], recorded: frozenset[ProfilerActivity]
) -> None:
    """Raise NothingToRecordError if none of the requested activities can be recorded here."""
    if not recorded:
        missing = sorted(activity.name for activity in requested)
        raise NothingToRecordError(
            f"activities={missing} cannot be recorded: {', '.join(missing)} is not available here. "
            f"Available: {', '.join(sorted(activity.name for activity in supported_activities()))}."
        )


def _is_available(activity: ProfilerActivity) -> bool:
    module_name = _DEVICE_MODULES.get(name_of(activity))
    if module_name is None:
        return True
    module = getattr(torch, module_name, None)
    return module is not None and bool(module.is_available())


def _checked(activities: Iterable[ActivityItem]) -> Iterator[tuple[ProfilerActivity, ActivityChoice]]:
    if isinstance(activities, (str, bytes, ProfilerActivity)) or not isinstance(activities, Iterable):
        raise ArgumentTypeError(
            f"activities={activities!r} is not a collection of activities: pass a list or a set of {_valid_names()}."
        )
    checked = set()
    # torch also accepts a mapping and uses its keys; we use a value if it can be a choice of kinds.
    is_mapping = isinstance(activities, Mapping)
    for item in [activities] if is_mapping else activities:
        chosen: Iterable[tuple[object, object]] = (
            item.items() if isinstance(item, Mapping) else [(item, None)]
        )
        for activity, kinds in chosen:
            if not isinstance(activity, ProfilerActivity):
                raise ArgumentTypeError(
                    f"activities contains {activity!r}, which is not an activity. Valid ones: {_valid_names()}."
                )
            if activity in checked:
                raise ArgumentError(
                    f"activities contains ProfilerActivity.{activity.name} more than once: name each one once."
                )
            checked.add(activity)
            yield (
                activity,
                ActivityChoice()
                if (kinds is None and activity is item)
                or (is_mapping and not isinstance(kinds, (ActivityChoice, Iterable, _CONFIG)))
                else _choice(activity, kinds),
            )


# torch's settings of an activity, which it has from 2.15 on.
_CONFIG: type = getattr(torch.profiler, "ProfilerActivityConfig", ActivityChoice)


def _choice(activity: ProfilerActivity, choice: object) -> ActivityChoice:
    if isinstance(choice, ActivityChoice):
        return choice
    if not isinstance(choice, _CONFIG):
        return ActivityChoice(_kinds(activity, choice))
    chosen: Any = choice
    kinds = None if chosen.activity_types is None else _kinds(activity, chosen.activity_types)
    configs = tuple(chosen.profiler_configs)
    if strange := [config for config in configs if not callable(getattr(config, "_to_config_entries", None))]:
        raise ArgumentError(
            f"activities: {strange[0]!r} in the profiler_configs of ProfilerActivity.{activity.name} is not valid: need "
            "torch.profiler.PerformanceMetricsConfig(...) or torch.profiler.CuspyConfig(...)."
        )
    return ActivityChoice(kinds, configs)


def _kinds(activity: ProfilerActivity, kinds: object) -> frozenset[str]:
    """Check that event kinds are given as names; only Kineto, which has the list of them, checks the names."""
    names = list(kinds) if isinstance(kinds, Iterable) and not isinstance(kinds, (str, bytes)) else [None]
    if not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            f"activities: {kinds!r} for ProfilerActivity.{activity.name} is not valid: need a list of the names of kinds, "
            'such as ["CPU_OP", "USER_ANNOTATION"] or ["GPU_MEMCPY", "CUDA_RUNTIME"], or the activity without a choice '
            f"of kinds. Activities: {_valid_names()}."
        )
    return frozenset(str(name) for name in names)


def _valid_names() -> str:
    return ", ".join(f"ProfilerActivity.{name}" for name in ProfilerActivity.__members__)
