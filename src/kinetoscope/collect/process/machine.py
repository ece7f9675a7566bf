"""Metadata of the machine: CPU and devices with torch's settings for them, boot id and clocks, import folders, and the cached calibration."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import site
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
import torch.distributed

from kinetoscope.storage.atomic_write import write_atomically
from kinetoscope.storage.cache import cache_directory
from kinetoscope.storage.system_files import BOOT_ID, text_of

_CPU_INFO = Path("/proc/cpuinfo")
_CLOCKS = Path("/proc/self/ns/time")


def described_devices() -> dict[str, str]:
    """Return the names of the CPU and devices, torch's number of threads and its matmul precision, as JSON texts by key."""
    devices: list[dict[str, object]] = [{"type": "cpu", "index": -1, "name": processor_name()}]
    # A device without a context was not used; do not create one just to read its name.
    if torch.cuda.is_initialized():
        devices += [
            {"type": "cuda", "index": index, "name": _cuda_name(index)}
            for index in range(torch.cuda.device_count())
        ]
    facts = {"devices": json.dumps(devices), "torch_threads": json.dumps(torch.get_num_threads())}
    # torch raises this if the program has set precisions through both of its interfaces.
    with suppress(RuntimeError):
        facts["float32_matmul_precision"] = json.dumps(torch.get_float32_matmul_precision())
    return facts


@cache
def processor_name() -> str:
    """Return the name of the CPU, or its architecture if the system does not report a name."""
    lines = text_of(_CPU_INFO).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _cuda_name(index: int) -> str:
    try:
        return str(torch.cuda.get_device_name(index))
    except (RuntimeError, AssertionError):
        return ""


def boot() -> dict[str, str]:
    """Return the metadata `boot_id` as a JSON text; recordings with the same one share a monotonic clock. Empty if the system has none.

    It consists of Linux's random boot id and the id of the time namespace, because a container can have a monotonic clock of
    its own.
    """
    if not (number := text_of(BOOT_ID)):
        return {}
    try:
        clocks = f" {os.readlink(_CLOCKS)}"
    except OSError:
        # Kernels before Linux 5.6 have no time namespaces.
        clocks = ""
    return {"boot_id": json.dumps(number + clocks)}


def described_run(engine: str) -> dict[str, str]:
    """Return the metadata of a run recorded by the engine with this name, as JSON texts by key."""
    facts: dict[str, object] = {
        "engine": engine,
        "torch_version": str(torch.__version__),
        "python_version": platform.python_version(),
        "host": socket.gethostname(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "command_line": sys.argv,
        "import_folders": import_folders(),
        "parent_process": os.getppid(),
    }
    return {key: json.dumps(value) for key, value in facts.items()} | boot()


def monotonic_of_realtime_ns() -> int:
    """The monotonic clock minus the system's clock, in nanoseconds; the most precise of three readings."""
    readings = []
    for _ in range(3):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, (before + after) // 2 - wall))
    return min(readings)[1]


def import_folders() -> list[str]:
    """Return the folders that torch strips from the start of file names, in reverse order, so that subfolders come first."""
    of_torch = str(Path(torch.__file__).parent.parent)
    folders = {*site.getsitepackages(), *sys.path, site.getuserbase(), site.getusersitepackages(), of_torch}
    return sorted({os.path.abspath(folder) for folder in folders}, reverse=True)


# A calibration is one small file for each CPU model, version of torch and number of threads.


def calibration_file() -> Path:
    """The calibration file for this CPU, this version of torch and its current number of threads."""
    key = f"{processor_name()}|{torch.__version__}|{torch.get_num_threads()}"
    return cache_directory() / f"calibration-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def calibration() -> dict[str, str]:
    """The metadata with the cached calibration, as JSON text by key; empty without one. Reads the file once per process."""
    text = _stored_calibration(calibration_file())
    return {"attainable": text} if text else {}


def store_calibration(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Path:
    """Cache a calibration: for each kind of work, pairs of a size and the fewest nanoseconds that it took.

    Raises:
        OSError: The file cannot be written.
    """
    path = calibration_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(curves).encode())
    _stored_calibration.cache_clear()
    return path


@cache
def _stored_calibration(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        return text if isinstance(json.loads(text), dict) else ""
    except (OSError, ValueError):
        return ""
