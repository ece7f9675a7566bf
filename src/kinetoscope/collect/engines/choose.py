"""Which engine records: our native one where it can serve, torch's own collector elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from kinetoscope._errors import ArgumentError, RecorderError
from kinetoscope.collect.engines.engine import EngineStatus
from kinetoscope.collect.session.activities import ProfilerActivity
from kinetoscope.collect.session.user_warnings import warn_user

if TYPE_CHECKING:
    from kinetoscope.collect.engines.engine import Engine

EngineName = Literal["auto", "native", "kineto"]


def choose_engine(
    requested: EngineName | Engine,
    activities: Iterable[ProfilerActivity],
    *,
    chooses_kinds: bool = False,
    profile_memory: bool = False,
) -> Engine:
    """Make the engine that shall record.

    Args:
        requested: `"native"` or `"kineto"` for that one, `"auto"` for the native one where it can record what is asked
            for; where it cannot, one warning says why. With a device, native means hybrid: the host is recorded by our
            recorder and the device by torch's collector; `"auto"` does so where `hybrid_status` finds that the two agree.
            An engine object is returned as it is.
        activities: What shall be recorded.
        chooses_kinds: Whether only single kinds of some activity shall be.
        profile_memory: Whether memory is recorded, too.

    Returns:
        The engine, not yet prepared.

    Raises:
        ArgumentError: The name is unknown, or the native engine cannot record these activities.
        RecorderError: The native engine was asked for by name and is not available.
    """
    if not isinstance(requested, str):
        return requested

    from kinetoscope.collect.engines.kineto import KinetoEngine

    if requested == "kineto":
        return KinetoEngine()
    if requested not in ("auto", "native"):
        raise ArgumentError(f"engine={requested!r} is not valid: choose 'auto', 'native' or 'kineto'.")

    from kinetoscope.collect.engines.native import NativeEngine, native_engine_status

    asked = set(activities)
    beyond_native = sorted(activity.name for activity in asked if activity != ProfilerActivity.CPU)
    with_host = ProfilerActivity.CPU in asked
    if beyond_native and not with_host:
        obstacle = f"the native recorder does not record {', '.join(beyond_native)} activity alone"
        if requested == "native":
            raise ArgumentError(
                f"engine='native' cannot be used: {obstacle}; add ProfilerActivity.CPU, or pass engine='kineto'."
            )
    elif chooses_kinds:
        obstacle = "the native recorder does not choose among the kinds of an activity"
        if requested == "native":
            raise ArgumentError(
                f"engine='native' cannot be used: {obstacle}; pass the activities themselves."
            )
    elif beyond_native and profile_memory and requested == "auto":
        obstacle = (
            "torch reports the memory of devices to no other; engine='native' records that of the host, and both without "
            "profile_memory=True are recorded natively"
        )
    else:
        status = native_engine_status()
        if status.available and beyond_native:
            from kinetoscope.collect.engines.hybrid import JoinedEngine
            from kinetoscope.collect.engines.hybrid_check import hybrid_status

            if requested == "native":
                return JoinedEngine()
            checks = [hybrid_status(activity) for activity in asked - {ProfilerActivity.CPU}]
            status = next((check for check in checks if not check.available), checks[0])
            if status.available:
                return JoinedEngine()
            status = EngineStatus(False, f"{status.reason} (`kinetoscope doctor` checks again)")
        if status.available:
            return NativeEngine()
        obstacle = status.reason
        if requested == "native":
            raise RecorderError(
                f"engine='native' is not available: {obstacle.rstrip('.')}. `kinetoscope doctor` says more."
            )
    warn_user(
        f"recording with torch's own collector (Kineto), which is slower: {obstacle.rstrip('.')}. "
        "engine='kineto' chooses it without this warning."
    )
    return KinetoEngine()
