"""Check whether the hybrid engine works with the device of this machine: once, with a cached result.

The native recorder and torch's collector read different clocks, and drivers differ in what they report. So before `engine="auto"`
uses the hybrid engine, a separate process launches a hundred small kernels, recorded by the hybrid engine and again by torch's
collector alone. Both must record every kernel, in order, launched by the right operator, and the runtime calls must lie inside
their operators. The result is valid for this torch, driver, device and version of Kinetoscope. The check cannot harm the program,
because it is another process with a time limit, `PATIENCE_S`; after a failure of any kind, torch's collector records.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kinetoscope._errors import KinetoscopeError
from kinetoscope._version import __version__
from kinetoscope.collect.engines.hybrid import HybridEngine
from kinetoscope.collect.engines.native import say
from kinetoscope.collect.recorder.library import load_recorder
from kinetoscope.collect.request.activities import ProfilerActivity, name_of
from kinetoscope.collect.request.options import Engine, EngineStatus, RecordingRequest
from kinetoscope.model import units
from kinetoscope.storage.atomic_write import write_atomically
from kinetoscope.storage.cache import cache_directory
from kinetoscope.storage.system_files import text_of
from kinetoscope.trace import Trace

PATIENCE_S = 120.0
"""Time limit of the check in seconds, which takes about ten; compiling the recorder, which happens before, does not count."""


LARGEST_ERROR_NS = 500_000
"""The largest accepted error of device times against host times in nanoseconds, measured by the launches."""


_OPERATORS = ("mul", "neg", "add", "exp", "mul", "mul", "sub", "neg", "sin", "sqrt")
_ROUNDS = 10
# The check is repeated once after a failure, since a preempted process can distort a recording.
_ATTEMPTS = 2
_DRIVERS = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version", "/sys/module/xe/srcversion")
# Profiler settings in the program's environment that the check must not inherit.
_REMOVED_VARIABLES = ("KINETO_USE_DAEMON", "KINETO_CONFIG", "KINETO_DAEMON_INIT_DELAY_S")
_START = (
    "import json, sys; target, device, sys.path[:] = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]); "
    "from kinetoscope.collect.engines.hybrid_check import run_check; run_check(target, device)"
)
_results: dict[str, EngineStatus] = {}
_lock = threading.Lock()


class _Outcome(NamedTuple):
    """The result of a check.

    Attributes:
        holds: Whether the hybrid engine may be used.
        reason: One sentence, without a period.
        lasting: Whether the result is cached for later processes.
    """

    holds: bool
    reason: str
    lasting: bool

    @classmethod
    def read(cls, path: Path) -> _Outcome:
        """Read an outcome from a file that holds the text of `as_json`."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def as_json(self) -> str:
        return json.dumps(self._asdict(), indent=1)


def hybrid_status(
    activity: ProfilerActivity, progress: Callable[[str], None] | None = None, *, repeat_failed: bool = False
) -> EngineStatus:
    """Return whether the hybrid engine can record a device activity here, by the cached result or a new check.

    Args:
        activity: The device's activity, such as `ProfilerActivity.CUDA`.
        progress: Called with one line when a check begins; by default the line goes to stderr.
        repeat_failed: Check again if the last check failed.

    Returns:
        The status; `details["checked"]` is the file of the result.
    """
    name = name_of(activity)
    with _lock:
        status = _results.get(name)
        if status is None or (repeat_failed and not status.available):
            status = _results[name] = _find_status(name, progress or say, repeat_failed=repeat_failed)
        return status


def _find_status(name: str, progress: Callable[[str], None], *, repeat_failed: bool) -> EngineStatus:
    """Return the result that is cached on disk, or that of a new check."""
    folder = cache_directory()
    path = folder / f"hybrid-{_key(name)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "hybrid.lock", "w", encoding="utf-8") as lock:
            # Of several processes, such as the ranks of a job, one checks, within its time limit, and the others wait.
            fcntl.flock(lock, fcntl.LOCK_EX)
            outcome = None
            # Where the file is missing or not ours, check again.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                outcome = _Outcome.read(path)
            if outcome is None or (repeat_failed and not outcome.holds):
                progress(
                    f"checking the hybrid engine on {name} (once, about 10 seconds, at most {PATIENCE_S:.0f})"
                )
                outcome = _check(name, folder)
                if outcome.lasting:
                    # If that fails, the next process checks again.
                    with contextlib.suppress(OSError):
                        write_atomically(path, outcome.as_json().encode())
    # A process that ended while writing its result leaves incomplete JSON.
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        outcome = _Outcome(False, f"the hybrid engine could not be checked: {error}", False)
    return EngineStatus(outcome.holds, outcome.reason, {"checked": str(path)})


def _key(name: str) -> str:
    """A hash of everything that the result depends on, for the name of its file."""
    drivers = [text for path in _DRIVERS if (text := text_of(Path(path)))]
    devices = sorted(
        line
        for path in Path("/proc/driver/nvidia/gpus").glob("*/information")
        for line in text_of(path).splitlines()
        if line.startswith("Model:")
    )
    # Backends of accelerators that are not part of torch are installed as packages.
    backends = sorted(
        f"{entry.value} {entry.dist and entry.dist.version}" for entry in entry_points(group="torch.backends")
    )
    facts = (name, backends, load_recorder().path.name, __version__, torch.__version__, torch.version.cuda)
    identity = repr((facts, torch.version.hip, drivers, devices, platform.machine()))
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _check(name: str, folder: Path) -> _Outcome:
    environment = {key: value for key, value in os.environ.items() if key not in _REMOVED_VARIABLES}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        target, log = Path(scratch, "result.json"), Path(scratch, "log")
        # Isolated, so that `kinetoscope run --children` does not record this process.
        command = [sys.executable, "-I", "-W", "ignore", "-c", _START, str(target), _device_name(name)]
        with log.open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603
                [*command, json.dumps([str(entry) for entry in sys.path])],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                reason = f"the check of the hybrid engine did not end within {PATIENCE_S:.0f} seconds"
                return _Outcome(False, reason, True)
            finally:
                _kill(process)
        if target.is_file():
            return _Outcome.read(target)
        if code < 0:
            ending = f"was ended by signal {-code}"
        else:
            last = [line for line in text_of(log).splitlines() if line.strip()][-1:]
            ending = f"ended with exit code {code}{f': {last[0][:300]}' if last else ''}"
        return _Outcome(False, f"the check of the hybrid engine {ending}", True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process; do not wait long for it, since one that hangs in a driver call cannot be killed."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)


def _device_name(name: str) -> str:
    """torch's name of the current device; does not initialize a device."""
    kind = torch._C._get_privateuse1_backend_name() if name == "PrivateUse1" else name.lower()  # noqa: SLF001  (torch's own)
    if kind == "cuda" and torch.cuda.is_initialized():
        return f"cuda:{torch.cuda.current_device()}"
    return f"{kind}:0"


def run_check(target: str, device_name: str) -> None:
    """Run the check in this process, and write the result as JSON to a file."""
    try:
        outcome = _run_both(torch.device(device_name))
    except (KinetoscopeError, RuntimeError, OSError, AssertionError) as error:
        # Not cached: the device may be out of memory, or in use by another process.
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        outcome = _Outcome(False, f"the hybrid engine could not be checked: {first_line}", False)
    Path(target).write_text(outcome.as_json(), encoding="utf-8")


def _run_both(device: torch.device) -> _Outcome:
    from kinetoscope.collect.engines.kineto import KinetoEngine

    # Backends that torch has no activity for are recorded by `PrivateUse1`.
    activities = ProfilerActivity.__members__
    activity = activities.get(device.type.upper(), activities["PrivateUse1"])
    for _ in range(3):
        _launch(device)
    problem, error_ns = "", 0
    for _ in range(_ATTEMPTS):
        hybrid = _recorded(HybridEngine(), activity, device)
        kineto = _recorded(KinetoEngine(), activity, device)
        problem, error_ns = _compare(hybrid, kineto)
        if not problem:
            break
    if problem:
        return _Outcome(False, f"the hybrid engine failed its check: {problem}", True)
    launches = len(_OPERATORS) * _ROUNDS
    reason = f"{launches} launches recorded by both engines agree, and the clocks of host and device to {units.duration(error_ns)}"
    return _Outcome(True, reason, True)


def _launch(device: torch.device) -> None:
    with torch.no_grad():
        x = torch.ones(16, 16, device=device)
        for _ in range(_ROUNDS):
            for name in _OPERATORS:
                x = getattr(torch, name)(x, *([0.5] if name in {"mul", "add", "sub"} else []))
    torch.accelerator.synchronize(device)


def _recorded(engine: Engine, activity: ProfilerActivity, device: torch.device) -> Trace:
    engine.prepare(RecordingRequest(frozenset({ProfilerActivity.CPU, activity})))
    engine.start()
    try:
        _launch(device)
    finally:
        recording = engine.stop()
    return recording.trace()


def _compare(hybrid: Trace, kineto: Trace) -> tuple[str, int]:
    """Return the first difference, or "", and the largest possible error of device times in nanoseconds."""
    expected = [f"aten::{name}" for _ in range(_ROUNDS) for name in _OPERATORS]
    kernels = []
    for engine, trace in (("the hybrid engine", hybrid), ("torch's collector", kineto)):
        launches = [
            (row["operator"], row["device_name"], row["device_start_ns"])
            for row in sorted(trace.table("launches").to_pylist(), key=lambda row: row["host_start_ns"])
            if row["operator"] in expected
        ]
        if (ran := [operator for operator, _, _ in launches]) != expected:
            wrong = next(
                (i for i, pair in enumerate(zip(ran, expected, strict=False)) if len({*pair}) > 1), None
            )
            where = "" if wrong is None else f", number {wrong} by {ran[wrong]} instead of {expected[wrong]}"
            return f"{engine} saw {len(ran)} of {len(expected)} launches{where}", 0
        kernels.append([kernel for _, kernel, _ in sorted(launches, key=lambda launch: launch[2])])
        if not trace.complete:
            return f"{engine} lost {trace.losses[0]['what']}: {trace.losses[0]['why']}", 0
    if kernels[0] != kernels[1]:
        return "the two engines saw different kernels", 0
    checks: dict[str, Any] = hybrid.info["clock_checks"]
    calls = checks["device_calls"]
    if calls < len(expected):
        return (
            f"{units.count(calls, 'call')} of the runtime {units.noun(calls, 'lies on a thread', 'lie on threads')} with operators, of at least {len(expected)}",
            0,
        )
    bounds = [
        abs(checks[key]) for key in ("device_earliest_ns", "device_latest_ns") if checks[key] is not None
    ]
    error_ns = max(*bounds, checks["device_largest_crossing_ns"])
    if error_ns > LARGEST_ERROR_NS:
        return f"the clocks of host and device are only known to agree to {units.duration(error_ns)}", 0
    return "", error_ns
