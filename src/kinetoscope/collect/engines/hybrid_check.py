"""Whether the hybrid engine works with the device of this machine: checked once, and the result is cached.

The native recorder and torch's collector read clocks in different ways, and drivers report differently, too.
So before `engine="auto"` uses the hybrid engine, a separate process runs a hundred small kernels under it and
again under torch's collector alone. Both must record every kernel, in order, launched by the right operator, and
the times of the runtime's calls must fit those of the operators. The result holds for this torch, driver, device and version
of Kinetoscope. The check cannot harm the program: it is another process with `PATIENCE_S` seconds, and any other
failure is a reason to record with torch's collector.
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
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kinetoscope._errors import KinetoscopeError
from kinetoscope._version import __version__
from kinetoscope.collect.engines.hybrid import HybridEngine
from kinetoscope.collect.recorder.library import load_recorder
from kinetoscope.collect.request.activities import ProfilerActivity, name_of
from kinetoscope.collect.request.options import Engine, EngineStatus, RecordingRequest
from kinetoscope.model import units
from kinetoscope.storage.cache import cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kinetoscope.trace import Trace


PATIENCE_S = 60.0
"""Time limit in seconds of the check, or of waiting for that of another process.

The recorder is compiled before. The time in which the check is ready to run and other programs have the processors does not count."""


_LONGEST_S = 600.0
LARGEST_ERROR_NS = 500_000
"""The largest accepted disagreement of device and host times, judged by the launches."""


_OPERATORS = ("mul", "neg", "add", "exp", "mul", "mul", "sub", "neg", "sin", "sqrt")
_ROUNDS = 10
# A preempted process can spoil one recording.
_ATTEMPTS = 2
_DRIVERS = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version", "/sys/module/xe/srcversion")
# The check does not inherit profiler settings from the program's environment.
_NOT_FOR_THE_CHECK = ("KINETO_USE_DAEMON", "KINETO_CONFIG", "KINETO_DAEMON_INIT_DELAY_S")
_START = (
    "import json, sys; target, device, sys.path[:] = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]); "
    "from kinetoscope.collect.engines.hybrid_check import run_check; run_check(target, device)"
)
_results: dict[str, EngineStatus] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class _Outcome:
    """The result of a check.

    Attributes:
        holds: Whether the hybrid engine may be used.
        reason: One sentence, without a period.
        lasting: Whether the result holds for later processes.
    """

    holds: bool
    reason: str
    lasting: bool


def hybrid_status(
    activity: ProfilerActivity, progress: Callable[[str], None] | None = None, *, repeat_failed: bool = False
) -> EngineStatus:
    """Whether the hybrid engine can record an activity of a device here, by a cached check or a new one.

    Args:
        activity: The activity of the device.
        progress: Called with one line when a check begins; by default the line goes to stderr.
        repeat_failed: Check again if the last check failed.

    Returns:
        The status; `details["checked"]` is the file of the result.
    """
    name = name_of(activity)
    with _lock:
        known = _results.get(name)
        if known is None or (repeat_failed and not known.available):
            known = _results[name] = _find_status(name, progress or _say, repeat_failed=repeat_failed)
        return known


def _say(line: str) -> None:
    print(f"kinetoscope: {line}", file=sys.stderr, flush=True)


def _find_status(name: str, progress: Callable[[str], None], *, repeat_failed: bool) -> EngineStatus:
    """The cached result, or that of a new check."""
    folder = cache_directory()
    path = folder / f"hybrid-{_key(name)}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one_checker(folder):
            outcome = _cached(path)
            if outcome is None or (repeat_failed and not outcome.holds):
                progress(
                    f"checking the hybrid engine on {name} (once, about 10 seconds, at most {PATIENCE_S:.0f})"
                )
                outcome = _check(name, folder)
                if outcome.lasting:
                    _keep(path, outcome)
    # A process that ended while writing its result leaves incomplete JSON.
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        outcome = _Outcome(False, f"the hybrid engine could not be checked: {error}", False)
    return EngineStatus(outcome.holds, outcome.reason, {"checked": str(path)})


def _key(name: str) -> str:
    """A name made of everything that the result depends on."""
    drivers = [text for path in _DRIVERS if (text := _text(Path(path)))]
    devices = sorted(
        line
        for path in Path("/proc/driver/nvidia/gpus").glob("*/information")
        for line in _text(path).splitlines()
        if line.startswith("Model:")
    )
    # Accelerators outside of torch's own tree come as packages.
    backends = sorted(
        f"{entry.value} {entry.dist and entry.dist.version}" for entry in entry_points(group="torch.backends")
    )
    facts = (name, backends, load_recorder().path.name, __version__, torch.__version__, torch.version.cuda)
    whole = repr((facts, torch.version.hip, drivers, devices, platform.machine()))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def _text(path: Path) -> str:
    """The content of a system file; empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


@contextlib.contextmanager
def _only_one_checker(folder: Path) -> Iterator[None]:
    """Let one process of many (the ranks of a job) check; the others wait for its result, with a time limit."""
    with open(folder / "hybrid.lock", "w", encoding="utf-8") as lock:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise TimeoutError("another process has been running this check for too long") from None
                time.sleep(0.1)
        yield


def _cached(path: Path) -> _Outcome | None:
    """An earlier result."""
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        return _Outcome(bool(stated["holds"]), str(stated["reason"]), True)
    except (OSError, ValueError, KeyError, TypeError):
        # Missing or foreign: check again.
        return None


def _keep(path: Path, outcome: _Outcome) -> None:
    """Write a result atomically; if that is not possible, the next process checks again."""
    stated = {
        "holds": outcome.holds,
        "reason": outcome.reason,
        "torch": str(torch.__version__),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch, path.name)
        made.write_text(json.dumps(stated, indent=1) + "\n", encoding="utf-8")
        made.replace(path)


def _check(name: str, folder: Path) -> _Outcome:
    """Run the check in a process of its own."""
    if not sys.executable:
        return _Outcome(
            False, "the hybrid engine could not be checked: Python does not know its own program", False
        )
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_THE_CHECK}
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
                code = _exit_code(process)
            except subprocess.TimeoutExpired:
                reason = f"the check of the hybrid engine did not end within {PATIENCE_S:.0f} seconds"
                return _Outcome(False, reason, True)
            finally:
                _end(process)
        if target.is_file():
            stated = json.loads(target.read_text(encoding="utf-8"))
            return _Outcome(bool(stated["holds"]), str(stated["reason"]), bool(stated["lasting"]))
        if code < 0:
            said = f"was ended by {_signal_name(-code)}"
        else:
            last = [line for line in _text(log).splitlines() if line.strip()][-1:]
            said = f"ended with exit code {code}{f': {last[0][:300]}' if last else ''}"
        return _Outcome(False, f"the check of the hybrid engine {said}", True)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process; raise `TimeoutExpired` at the time limit."""
    begin_s = time.monotonic()
    while True:
        taken_s = time.monotonic() - begin_s
        left_s = PATIENCE_S - max(taken_s - _waited_s(process.pid), 0.0)
        try:
            return process.wait(max(min(left_s, _LONGEST_S - taken_s), 0.0))
        except subprocess.TimeoutExpired:
            if left_s <= 0 or taken_s >= _LONGEST_S:
                raise


def _waited_s(pid: int) -> float:
    """For how long the main thread of a process was ready to run, but had no processor; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _signal_name(number: int) -> str:
    """The name of a signal; real-time signals have none."""
    return signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process; a process that cannot be killed, such as in a driver call that hangs, is not waited for."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)


def _device_name(name: str) -> str:
    """torch's name of the device in use; does not initialize a device."""
    kind = torch._C._get_privateuse1_backend_name() if name == "PrivateUse1" else name.lower()
    if kind == "cuda" and torch.cuda.is_initialized():
        return f"cuda:{torch.cuda.current_device()}"
    return f"{kind}:0"


def run_check(target: str, device_name: str) -> None:
    """Check, and write the result into a file."""
    try:
        outcome = _prove(torch.device(device_name))
    except (KinetoscopeError, RuntimeError, OSError, AssertionError) as error:
        # A device that is full or in use by another process does not count as a failed check.
        outcome = _Outcome(False, f"the hybrid engine could not be checked: {_first_line(error)}", False)
    Path(target).write_text(
        json.dumps({"holds": outcome.holds, "reason": outcome.reason, "lasting": outcome.lasting}),
        encoding="utf-8",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _prove(device: torch.device) -> _Outcome:
    """Record the same work under both engines, and compare."""
    from kinetoscope.collect.engines.kineto import KinetoEngine

    activity = _activity_of(device)
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


def _activity_of(device: torch.device) -> ProfilerActivity:
    """The activity that records a device."""
    return ProfilerActivity.__members__.get(device.type.upper(), ProfilerActivity.__members__["PrivateUse1"])


def _launch(device: torch.device) -> None:
    """A kernel for each operator."""
    with torch.no_grad():
        x = torch.ones(16, 16, device=device)
        for _ in range(_ROUNDS):
            for name in _OPERATORS:
                x = getattr(torch, name)(x, *([0.5] if name in {"mul", "add", "sub"} else []))
    torch.accelerator.synchronize(device)


def _recorded(engine: Engine, activity: ProfilerActivity, device: torch.device) -> Trace:
    """What an engine records of it."""
    engine.prepare(RecordingRequest(frozenset({ProfilerActivity.CPU, activity})))
    engine.start()
    try:
        _launch(device)
    finally:
        recording = engine.stop()
    return recording.trace()


def _compare(hybrid: Trace, kineto: Trace) -> tuple[str, int]:
    """The differences, empty if there are none, and by how many nanoseconds the clocks of the hybrid engine may disagree."""
    expected = [f"aten::{name}" for _ in range(_ROUNDS) for name in _OPERATORS]
    kernels = []
    for engine, trace in (("the hybrid engine", hybrid), ("torch's collector", kineto)):
        launches = [
            (row["operator"], row["device_name"], row["device_start_ns"])
            for row in sorted(trace.table("launches").to_pylist(), key=lambda row: row["host_start_ns"])
            if row["operator"] in expected
        ]
        if (seen := [operator for operator, _, _ in launches]) != expected:
            wrong = next(
                (i for i, pair in enumerate(zip(seen, expected, strict=False)) if len({*pair}) > 1), None
            )
            where = "" if wrong is None else f", number {wrong} by {seen[wrong]} instead of {expected[wrong]}"
            return f"{engine} saw {len(seen)} of {len(expected)} launches{where}", 0
        kernels.append([kernel for _, kernel, _ in sorted(launches, key=lambda launch: launch[2])])
        if not trace.complete:
            return f"{engine} lost {trace.losses[0]['what']}: {trace.losses[0]['why']}", 0
    if kernels[0] != kernels[1]:
        return "the two engines saw different kernels", 0
    checks: dict[str, Any] = hybrid.info["clock_checks"]
    calls, shift_ns = checks["device_calls"], checks["device_shift_ns"]
    if calls < len(expected):
        return (
            f"{units.count(calls, 'call')} of the runtime {units.noun(calls, 'lies on a thread', 'lie on threads')} with operators, of at least {len(expected)}",
            0,
        )
    if shift_ns:
        return f"the times of calls fit those of the operators only after a shift of {shift_ns} ns", 0
    bounds = [
        abs(checks[key]) for key in ("device_earliest_ns", "device_latest_ns") if checks[key] is not None
    ]
    error_ns = max(*bounds, checks["device_largest_astride_ns"])
    if error_ns > LARGEST_ERROR_NS:
        return f"the clocks of host and device are only known to agree to {units.duration(error_ns)}", 0
    return "", error_ns
