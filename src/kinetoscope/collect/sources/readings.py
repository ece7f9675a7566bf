"""What the system and its devices say of themselves at one moment: gauges and growing totals.

The share of time that processors were busy is that of /proc/stat as proc(5) describes it: everything but `idle` and `iowait`,
with the time of guests, which `user` and `nice` contain, counted once. A process has used what its user and system time
say; 100 % is one processor, as in top.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kinetoscope._errors import MissingDependencyError
from kinetoscope.collect.sources.nvml import NvmlDevice, NvmlError, nvml


@dataclass
class Reading:
    """What was read at one moment.

    Attributes:
        values: Current values, by the name of their counter.
        totals: Numbers that grow; a counter of this name is how much they grow in a second.
        shares: Pairs of (part, whole) that both grow; a counter of this name is what part of the whole's growth is the
            part's, in per cent. A whole of None is time.
    """

    values: dict[str, float] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    shares: dict[str, tuple[float, float | None]] = field(default_factory=dict)


Reader = Callable[[Reading], None]


def system_readers(*, cpu: bool, memory: bool, disk: bool, network: bool) -> list[Reader]:
    """Functions that read the machine and this process.

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
    readers: list[Reader] = []
    if cpu:
        readers.append(lambda reading: _cpu(psutil, process, reading))
    if memory:
        readers.append(lambda reading: _memory(psutil, process, reading))
    if disk:
        readers.append(lambda reading: _disk(psutil, reading))
    if network:
        readers.append(lambda reading: _network(psutil, reading))
    return readers


def _cpu(psutil: Any, process: Any, reading: Reading) -> None:
    """How busy the processors are, with all and with this process."""
    times = psutil.cpu_times()._asdict()
    whole = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    idle = times["idle"] + times.get("iowait", 0.0)
    reading.shares["cpu_percent"] = whole - idle, whole
    own = process.cpu_times()
    reading.shares["process_cpu_percent"] = own.user + own.system, None


def _memory(psutil: Any, process: Any, reading: Reading) -> None:
    """How much memory is in use, and how much of it is this process's."""
    machine = psutil.virtual_memory()
    reading.values["memory_used_bytes"] = machine.total - machine.available
    reading.values["memory_available_bytes"] = machine.available
    reading.values["process_rss_bytes"] = process.memory_info().rss


def _disk(psutil: Any, reading: Reading) -> None:
    """How much all disks have read and written; nothing where the system does not say."""
    # nowrap would change the results of the program's own psutil calls.
    counts = psutil.disk_io_counters(nowrap=False)
    if counts is not None:
        reading.totals["disk_read_bytes_per_s"] = counts.read_bytes
        reading.totals["disk_written_bytes_per_s"] = counts.write_bytes


def _network(psutil: Any, reading: Reading) -> None:
    """How much all network interfaces have received and sent."""
    counts = psutil.net_io_counters(nowrap=False)
    if counts is not None:
        reading.totals["network_received_bytes_per_s"] = counts.bytes_recv
        reading.totals["network_sent_bytes_per_s"] = counts.bytes_sent


def device_readers(gpu: bool | None) -> list[Reader]:
    """Functions that read the devices of the machine.

    Args:
        gpu: False for none; True for all that NVML knows; None likewise or, where there is no NVML, for what torch's
            allocator knows of the memory it holds on devices.

    Raises:
        MissingDependencyError: `gpu` is True, and nvidia-ml-py is not installed.
        NvmlError: `gpu` is True, and there is no driver, or it does not answer.
    """
    if gpu is False:
        return []
    try:
        devices = nvml().devices()
    except (MissingDependencyError, NvmlError):
        if gpu:
            raise
        return [_torchs_memory]
    return [_reader(device) for device in devices]


def _reader(device: NvmlDevice) -> Reader:
    """A function that reads one device of NVIDIA; what it does not tell is left out."""
    name = f"gpu{device.index}"

    def read(reading: Reading) -> None:
        if (utilization := device.utilization()) is not None:
            reading.values[f"{name}_percent"] = utilization.compute_percent
        if (memory := device.memory()) is not None:
            reading.values[f"{name}_memory_used_bytes"] = memory.used_bytes
        if (watts := device.power_watts()) is not None:
            reading.values[f"{name}_power_watts"] = watts

    return read


def _torchs_memory(reading: Reading) -> None:
    """What torch's allocator holds of each device.

    It asks no device: a call of the runtime from this thread could disturb a graph that another one captures.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for index in range(torch.cuda.device_count()):
        if (reserved := torch.cuda.memory_reserved(index)) > 0:
            reading.values[f"gpu{index}_torch_reserved_bytes"] = reserved
            reading.values[f"gpu{index}_torch_allocated_bytes"] = torch.cuda.memory_allocated(index)
