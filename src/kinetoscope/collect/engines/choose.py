"""Choose the engine: the native one where available, torch's own collector elsewhere."""

from __future__ import annotations

import torch

from kinetoscope._errors import ArgumentError, RecorderError
from kinetoscope.collect.process.user_warnings import warn_user
from kinetoscope.collect.request.activities import ProfilerActivity, collector_takes
from kinetoscope.collect.request.options import OPTIONS, Engine, EngineKind, EngineStatus, RecordingOptions
from kinetoscope.collect.request.torch_settings import (
    ALWAYS_NATIVE,
    EVENT_METADATA,
    GARBAGE_COLLECTION_SETTING,
    changed_settings,
    has_setting,
)
from kinetoscope.collect.sources.torch_ranges import TORCH_RANGES


def choose_engine(options: RecordingOptions, activities: frozenset[ProfilerActivity]) -> Engine:
    """Choose an engine by the options and activities, and create it.

    Args:
        options: Their `engine` is `"native"` or `"kineto"` for that one, `"auto"` for the native one where it can record
            these options, else `"kineto"` with a warning that says why. With a device activity, native means hybrid: our
            recorder records the host, and torch's collector the device; `"auto"` uses it if `hybrid_status` finds that the
            two agree. While another profiler uses torch's collector, `"auto"` records what is possible without it. An
            engine object is returned as it is.
        activities: The activities to record.

    Returns:
        The engine, not yet prepared.

    Raises:
        ArgumentError: The native engine cannot record these activities.
        RecorderError: The native engine was requested by name and is not available.
    """
    requested = options.engine
    if not isinstance(requested, str):
        return requested

    from kinetoscope.collect.engines.cuspy import Cuspy
    from kinetoscope.collect.engines.kineto import KinetoEngine

    if requested == "kineto":
        return KinetoEngine()

    from kinetoscope.collect.engines.hybrid import HybridEngine
    from kinetoscope.collect.engines.native import NativeEngine, native_engine_status

    devices = activities - {ProfilerActivity.CPU}
    beyond_native = sorted(activity.name for activity in devices)
    with_host = ProfilerActivity.CPU in activities
    chooses_kinds = bool(options.activity_filters)
    advice = ""
    if Cuspy.requested(options, activities) is not None:
        obstacle = "Cuspy adds devices to what torch's own collector records of the host"
        advice = "leave out CuspyConfig, or pass engine='kineto'"
    elif beyond_native and not with_host:
        obstacle = f"the native recorder does not record {', '.join(beyond_native)} activity alone"
        advice = "add ProfilerActivity.CPU, or pass engine='kineto'"
    elif chooses_kinds:
        obstacle = "the native recorder does not choose among the kinds of an activity"
        advice = "pass the activities themselves"
    elif beyond_native and options.profile_memory and requested == "auto":
        obstacle = (
            "torch reports device memory only to its own collector; engine='native' records host memory only, and without "
            "profile_memory=True the hybrid engine is used"
        )
    else:
        status = native_engine_status()
        if status.available and beyond_native:
            from kinetoscope.collect.engines.hybrid_check import hybrid_status

            if requested == "native":
                return HybridEngine()
            checks = [hybrid_status(activity) for activity in devices]
            status = next((check for check in checks if not check.available), checks[0])
            if status.available:
                return HybridEngine(needs_devices=False)
            status = EngineStatus(False, f"{status.reason} (`kinetoscope doctor` checks again)")
        if status.available:
            return NativeEngine()
        obstacle = status.reason
        if requested == "native":
            raise RecorderError(
                f"engine='native' is not available: {obstacle.rstrip('.')}. `kinetoscope doctor` has the details."
            )
    if advice and requested == "native":
        raise ArgumentError(f"engine='native' cannot be used: {obstacle}; {advice}.")
    could_be_hybrid = beyond_native and with_host and not chooses_kinds and native_engine_status().available
    if could_be_hybrid and TORCH_RANGES.torch_profiles:
        # Another profiler uses torch's collector, of which there is only one.
        return HybridEngine(needs_devices=False)
    warn_user(
        f"recording with torch's own collector (Kineto), which is slower: {obstacle.rstrip('.')}. "
        "engine='kineto' chooses it without this warning."
    )
    return KinetoEngine()


def records_garbage_collection(engine: Engine) -> bool:
    """Whether an engine can record garbage collections; torch's own collector can since torch 2.9."""
    return engine.name != "kineto" or has_setting(GARBAGE_COLLECTION_SETTING)


def warn_of_ignored_settings(
    engine: Engine, options: RecordingOptions, *, in_place_of_torch: bool = False
) -> None:
    """Warn of options that are set but have no effect with this engine.

    With `in_place_of_torch`, options that behave as in torch.profiler are not reported.
    """
    # A user's engine object has none, and no warnings.
    kind: EngineKind | None = getattr(engine, "kind", None)
    ignored: dict[str, list[str]] = {}
    for name, option in OPTIONS.items():
        if kind is not None and kind in option.warnings and getattr(options, name) != option.default:
            ignored.setdefault(option.warnings[kind], []).extend(
                _ignored_of(name, kind, options, in_place_of_torch=in_place_of_torch)
            )
    for warning, names in ignored.items():
        if names:
            listed = (" and " if len(names) == 2 else ", ").join(names)
            warn_user(warning.format(names=listed, torch=torch.__version__))


def _ignored_of(
    name: str, kind: EngineKind, options: RecordingOptions, *, in_place_of_torch: bool
) -> list[str]:
    """Name the parts of an option that have no effect with this engine, which supports it only in part or not at all."""
    if name == "activities":
        chooses = ProfilerActivity.CPU in options.activity_filters
        names = ["the kinds of ProfilerActivity.CPU"] if chooses else []
        if kind == "native":
            names += [type(config).__name__ for config in options.extension_configs]
        return names
    if name == "experimental_config":
        changed = changed_settings(options.experimental_config)
        if kind == "hybrid":
            # torch's collector records only the devices here, and its event objects, which have this metadata, are not read.
            changed = {setting: changed[setting] for setting in (EVENT_METADATA,) if setting in changed}
        return [f"{name}.{setting}" for setting in changed if setting not in ALWAYS_NATIVE]
    if name == "with_modules" and (options.needs_python_stacks or in_place_of_torch):
        return []
    if name == "garbage_collection" and has_setting(GARBAGE_COLLECTION_SETTING):
        return []
    if name == "post_processing_timeout_s" and kind == "kineto" and collector_takes(name):
        return []
    return [name]
