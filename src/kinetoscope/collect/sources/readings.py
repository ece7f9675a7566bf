"""Read the current counters of the system, this process and the devices: gauges and totals that grow.

The CPU utilization of the system follows /proc/stat, see proc(5): all time except `idle` and `iowait`. Guest time, which is
contained in `user` and `nice`, counts once. That of the process is its user and system time; 100 % is one processor, as in top.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kinetoscope._errors import MissingDependencyError
from kinetoscope.collect.sources.nvml import NvmlDevice, NvmlError, nvml


@dataclass
class Reading:
    """The counters at one moment.

    Attributes:
        values: Gauges, by the name of their counter.
        totals: Totals that grow; the counter of this name is their growth per second.
        shares: Pairs of totals (part, whole); the counter of this name is the growth of the part as a percentage of that of
            the whole. A whole of None is time in seconds.
    """

    values: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    shares: dict[str, tuple[float, float | None]] = field(default_factory=dict)


Reader = Callable[[Reading], None]


def system_readers(*, cpu: bool, memory: bool, disk: bool, network: bool) -> list[Reader]:
    """Return the functions that read counters of the system and of this process.

    Raises:
        MissingDependencyError: psutil is not installed.
    """
    if not (cpu or memory or disk or network):
        return []
    try:
        psutil = importlib.import_module("psutil")
    except ImportError as error:
        raise MissingDependencyError(
            'SystemCounters needs psutil: install it with `pip install "kinetoscope[system]"`'
        ) from error
    process = psutil.Process()
    readers = ((cpu, _cpu), (memory, _memory), (disk, _disk), (network, _network))
    return [partial(read, psutil, process) for is_on, read in readers if is_on]


def _cpu(psutil: Any, process: Any, reading: Reading) -> None:
    times = psutil.cpu_times()._asdict()
    total = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    idle = times["idle"] + times.get("iowait", 0.0)
    reading.shares["cpu_percent"] = total - idle, total
    used = process.cpu_times()
    reading.shares["process_cpu_percent"] = used.user + used.system, None


def _memory(psutil: Any, process: Any, reading: Reading) -> None:
    machine = psutil.virtual_memory()
    reading.values["memory_used_bytes"] = machine.total - machine.available
    reading.values["memory_available_bytes"] = machine.available
    reading.values["process_rss_bytes"] = process.memory_info().rss


def _disk(psutil: Any, _process: Any, reading: Reading) -> None:
    """Read the bytes that all disks have read and written; nothing if the system does not tell."""
    # nowrap=True would affect the results of the program's own calls of psutil.
    counts = psutil.disk_io_counters(nowrap=False)
    if counts is not None:
        reading.totals["disk_read_bytes_per_s"] = counts.read_bytes
        reading.totals["disk_written_bytes_per_s"] = counts.write_bytes


def _network(psutil: Any, _process: Any, reading: Reading) -> None:
    counts = psutil.net_io_counters(nowrap=False)
    if counts is not None:
        reading.totals["network_received_bytes_per_s"] = counts.bytes_recv
        reading.totals["network_sent_bytes_per_s"] = counts.bytes_sent


def device_readers(gpu: bool | None) -> list[Reader]:
    """Return the functions that read counters of the devices.

    Args:
        gpu: False for no devices; True for all devices of NVML; None for those or, without NVML, for the device memory that
            torch's allocator holds.

    Raises:
        MissingDependencyError: `gpu` is True, and nvidia-ml-py is not installed.
        NvmlError: `gpu` is True, and there is no driver, or it failed.
    """
    if gpu is False:
        return []
    try:
        devices = nvml()
    except (MissingDependencyError, NvmlError):
        if gpu:
            raise
        return [_torch_memory]
    return [_reader(device) for device in devices]


def _reader(device: NvmlDevice) -> Reader:
    """Return a function that reads one NVIDIA device; counters that the device does not support are skipped."""
    name = f"gpu{device.index}"

    def read(reading: Reading) -> None:
        if (busy_percent := device.busy_percent()) is not None:
            reading.values[f"{name}_percent"] = busy_percent
        if (memory := device.memory()) is not None:
            reading.values[f"{name}_memory_used_bytes"] = memory.used_bytes
        if (watts := device.power_watts()) is not None:
            reading.values[f"{name}_power_watts"] = watts

    return read


def _torch_memory(reading: Reading) -> None:
    """Read how much memory torch's allocator holds on each CUDA device.

    Does not call the CUDA runtime: on this thread that could break the capture of a CUDA graph on another.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for index in range(torch.cuda.device_count()):
        if (reserved := torch.cuda.memory_reserved(index)) > 0:
            reading.values[f"gpu{index}_torch_reserved_bytes"] = reserved
            reading.values[f"gpu{index}_torch_allocated_bytes"] = torch.cuda.memory_allocated(index)
