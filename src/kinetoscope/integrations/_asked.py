"""What a user asks of a trainer's profiler: everything is checked when it is made, long before the training begins."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetoscope._errors import ArgumentError
from kinetoscope.collect.session.activities import (
    ActivityItem,
    ProfilerAction,
    ProfilerActivity,
    asked_activities,
    supported_activities,
)
from kinetoscope.collect.session.arguments import checked_callable, checked_switch
from kinetoscope.collect.session.profile import profile
from kinetoscope.collect.session.schedule import Schedule, ask, record_always

RECORDING = frozenset({ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE})

# Steps 2, 3 and 4 of the run: the first one is slow in every framework, and the second warms the recorder up.
DEFAULT_SCHEDULE = Schedule(wait=1, warmup=1, active=3, repeat=1)

# These are the business of the integration itself.
_OWN = frozenset({"self", "schedule", "on_trace_ready", "use_cuda"})
_OPTIONS = frozenset(inspect.signature(profile.__init__).parameters) - _OWN
_ARGUMENTS = ("folder", "schedule", "whole_run", "on_trace_ready", "overwrite")


@dataclass(frozen=True)
class Asked:
    """The checked wishes of a user.

    Attributes:
        folder: Where the traces go; None for a place in the trainer's own folder.
        schedule: When to record; None for `DEFAULT_SCHEDULE`, shortened where the run is shorter than it.
        on_trace_ready: What the user wants called with the session whenever a trace is ready.
        saves: Whether traces are written.
        overwrite: Whether the folder may hold traces of an earlier run.
        options: Further arguments of `kinetoscope.profile`.
    """

    folder: Path | None
    schedule: Callable[[int], ProfilerAction] | None
    on_trace_ready: Callable[..., Any] | None
    saves: bool
    overwrite: bool
    options: Mapping[str, Any]

    def schedule_for(self, total_steps: int | None) -> Callable[[int], ProfilerAction]:
        """The schedule of a run of so many steps, None for unknown; an error if it would record none of them."""
        if self.schedule is None:
            return _shortened(total_steps)
        if isinstance(self.schedule, Schedule) and total_steps is not None:
            needed = self.schedule.steps_before_recording()
            if needed >= total_steps:
                raise ArgumentError(
                    f"{self.schedule} leaves {needed} step{'' if needed == 1 else 's'} alone before it records, and this "
                    f"run has only {total_steps}: nothing would be recorded. Use a schedule that begins earlier, or "
                    "whole_run=True."
                )
        return self.schedule

    def records_from_the_start(self) -> bool:
        """Whether recording shall begin before the first step."""
        return self.schedule is not None and ask(self.schedule, 0) in RECORDING


def asked(
    *,
    folder: str | os.PathLike[str] | None,
    schedule: Callable[[int], ProfilerAction] | None,
    whole_run: bool,
    on_trace_ready: Callable[..., Any] | None,
    overwrite: bool,
    options: dict[str, Any],
    folder_argument: str = "folder",
) -> Asked:
    """Check what a user asks for.

    Raises:
        ArgumentError: Something cannot be used; the message names it, its value and what to do.
    """
    check_names(options)
    if checked_switch("whole_run", whole_run):
        if schedule is not None:
            raise ArgumentError(
                "whole_run=True records every step, and a schedule chooses some of them: pass one of the two."
            )
        schedule = record_always
    elif checked_callable("schedule", schedule) is not None:
        ask(schedule, 0)  # type: ignore[arg-type]
    options = {"on_error": "warn", **options}
    if "activities" in options:
        options["activities"] = present_activities(options["activities"])
    # Every argument is checked by the session itself; making one costs nothing and touches nothing.
    profile(**options, schedule=schedule, on_trace_ready=on_trace_ready)
    return Asked(
        folder=checked_folder(folder_argument, folder),
        schedule=schedule,
        on_trace_ready=on_trace_ready,
        saves=folder is not None or on_trace_ready is None,
        overwrite=checked_switch("overwrite", overwrite),
        options=options,
    )


def check_names(options: Mapping[str, Any]) -> None:
    """Raise an error that names the first option that no session has, and the nearest that one has."""
    for name in options:
        if name not in _OPTIONS:
            near = difflib.get_close_matches(name, [*_OPTIONS, *_ARGUMENTS], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ArgumentError(
                f"there is no option {name!r} (its value is {options[name]!r}): {hint}"
                f"The options of a session are {', '.join(sorted(_OPTIONS))}."
            )


def present_activities(activities: Iterable[ActivityItem | str] | None) -> list[ActivityItem] | None:
    """The activities of a user, names as `"cpu"` among them, or an error if the machine has not all of them."""
    if activities is None:
        return None
    if isinstance(activities, str):
        activities = [activities]
    if isinstance(activities, Iterable):
        activities = [_by_name(item) if isinstance(item, str) else item for item in activities]
    named: Any = activities
    found = asked_activities(named)
    present = supported_activities()
    missing = sorted(activity.name for activity in found if activity not in present)
    if missing:
        raise ArgumentError(
            f"activities asks for {', '.join(missing)}, which this machine or this build of torch does not have. "
            f"Here there is {', '.join(sorted(activity.name for activity in present))}: leave `activities` out to "
            "record all that there is."
        )
    return list(named)


def checked_folder(argument: str, folder: str | os.PathLike[str] | None) -> Path | None:
    """A folder by its name, or an error if that is the name of something else."""
    if folder is None:
        return None
    given: object = folder
    name = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{argument}={folder!r} is not valid: need the name of a folder, or None.")
    found = Path(name)
    if found.exists() and not found.is_dir():
        raise ArgumentError(f"{argument}={name!r} is a file: need the name of a folder.")
    return found


def checked_name(argument: str, name: str) -> str:
    """A text that can be a part of a file's name."""
    given: object = name
    if not isinstance(given, str) or not given or "/" in given:
        raise ArgumentError(f"{argument}={name!r} is not valid: need a name, without a folder.")
    return given


def _by_name(name: str) -> ProfilerActivity:
    """The activity of a name in any case."""
    known = dict(ProfilerActivity.__members__)
    if name.upper() not in known:
        raise ArgumentError(
            f"activities contains {name!r}, which is no activity. Valid ones: "
            f"{', '.join(sorted(repr(each.lower()) for each in known))}."
        )
    found: ProfilerActivity = known[name.upper()]
    return found


def _shortened(total_steps: int | None) -> Schedule:
    """The schedule of those who did not ask for one, in a run of so many steps."""
    usual = DEFAULT_SCHEDULE.wait + DEFAULT_SCHEDULE.warmup + DEFAULT_SCHEDULE.active
    if total_steps is None or total_steps >= usual:
        return DEFAULT_SCHEDULE
    warmup = 1 if total_steps > 1 else 0
    return Schedule(wait=0, warmup=warmup, active=max(1, total_steps - warmup), repeat=1)
