"""Choose the engine: the native one where available, torch's own collector elsewhere."""

from __future__ import annotations

import torch

from kinetoscope._errors import ArgumentError, RecorderError
from kinetoscope.collect.session.activities import (
    ALWAYS_NATIVE,
    EVENT_METADATA,
    GARBAGE_COLLECTION_SETTING,
    ProfilerActivity,
    changed_settings,
    has_setting,
)
from kinetoscope.collect.session.options import Engine, EngineStatus, RecordingOptions
from kinetoscope.collect.session.user_warnings import warn_user


def choose_engine(options: RecordingOptions, activities: frozenset[ProfilerActivity]) -> Engine:
    """Make the engine that records.

    Args:
        options: Their `engine` is `"native"` or `"kineto"` for that one, `"auto"` for the native one where it can record
            these options; where it cannot, one warning says why. With a device, native means hybrid: our recorder
            records the host and torch's collector the device; `"auto"` does so where `hybrid_status` finds that the two
            agree. An engine object is returned as it is.
        activities: What is recorded.

    Returns:
        The engine, not yet prepared.

    Raises:
        ArgumentError: The native engine cannot record these activities.
        RecorderError: The native engine was requested by name and is not available.
    """
    requested = options.engine
    if not isinstance(requested, str):
        return requested

    from kinetoscope.collect.engines.kineto import KinetoEngine

    if requested == "kineto":
        return KinetoEngine()

    from kinetoscope.collect.engines.native import NativeEngine, native_engine_status

    devices = activities - {ProfilerActivity.CPU}
    beyond_native = sorted(activity.name for activity in devices)
    with_host = ProfilerActivity.CPU in activities
    if beyond_native and not with_host:
        obstacle = f"the native recorder does not record {', '.join(beyond_native)} activity alone"
        if requested == "native":
            raise ArgumentError(
                f"engine='native' cannot be used: {obstacle}; add ProfilerActivity.CPU, or pass engine='kineto'."
            )
    elif any(choice.kinds is not None for choice in options.activity_choices.values()):
        obstacle = "the native recorder does not choose among the kinds of an activity"
        if requested == "native":
            raise ArgumentError(
                f"engine='native' cannot be used: {obstacle}; pass the activities themselves."
            )
    elif beyond_native and options.profile_memory and requested == "auto":
        obstacle = (
            "torch reports device memory only to its own collector; engine='native' records host memory only, and without "
            "profile_memory=True the hybrid engine is used"
        )
    else:
        status = native_engine_status()
        if status.available and beyond_native:
            from kinetoscope.collect.engines.hybrid import HybridEngine, hybrid_status

            if requested == "native":
                return HybridEngine()
            checks = [hybrid_status(activity) for activity in devices]
            status = next((check for check in checks if not check.available), checks[0])
            if status.available:
                return HybridEngine()
            status = EngineStatus(False, f"{status.reason} (`kinetoscope doctor` checks again)")
        if status.available:
            return NativeEngine()
        obstacle = status.reason
        if requested == "native":
            raise RecorderError(
                f"engine='native' is not available: {obstacle.rstrip('.')}. `kinetoscope doctor` has the details."
            )
    warn_user(
        f"recording with torch's own collector (Kineto), which is slower: {obstacle.rstrip('.')}. "
        "engine='kineto' chooses it without this warning."
    )
    return KinetoEngine()


def records_garbage_collection(engine: Engine) -> bool:
    """Whether an engine can record collections of garbage: torch's own collector can since torch 2.9."""
    return engine.name != "kineto" or has_setting(GARBAGE_COLLECTION_SETTING)


def warn_of_ignored_settings(engine: Engine, options: RecordingOptions) -> None:
    """Warn once of the settings that have no effect on the engine."""
    configs = options.extension_configs
    # torch.profiler runs this collector in addition to Kineto; only Kineto is accessible to others.
    if any(type(one).__name__ == "CuspyConfig" for one in configs):
        warn_user(
            "without effect: CuspyConfig. only torch.profiler.profile can use torch's Cuspy collector; Kineto records "
            "the devices instead."
        )
    if options.garbage_collection and not records_garbage_collection(engine):
        warn_user(
            f"without effect: garbage_collection. The collector of torch {torch.__version__} cannot record collections of "
            "garbage; engine='native' can."
        )
    if engine.name != "native":
        return
    changed = changed_settings(options.experimental_config)
    if getattr(engine, "has_torchs_collector", False):
        # In the hybrid engine torch's collector records devices, and its event objects are not read.
        idle = [f"experimental_config.{EVENT_METADATA}"] if EVENT_METADATA in changed else []
    else:
        idle = [f"experimental_config.{name}" for name in changed if name not in ALWAYS_NATIVE]
        idle += [type(one).__name__ for one in configs if type(one).__name__ != "CuspyConfig"]
        if options.post_processing_timeout_s is not None:
            idle.append("post_processing_timeout_s")
    if idle:
        warn_user(
            f"without effect on the native engine: {', '.join(idle)}. engine='kineto' passes them to "
            "torch's own collector."
        )
