"""Counters of the system and of this process, sampled by a thread during a recording."""

from __future__ import annotations

import importlib
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kinetoscope._errors import ArgumentError, MissingDependencyError, checked_seconds, needed
from kinetoscope.collect.request.options import AppendRows, Source
from kinetoscope.collect.sources.nvml import NvmlDevice, NvmlError, nvml
from kinetoscope.storage.appended_rows import LOSSES


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
    with needed('SystemCounters needs psutil: install it with `pip install "kinetoscope[system]"`'):
        psutil = importlib.import_module("psutil")
    process = psutil.Process()
    readers = ((cpu, _cpu), (memory, _memory), (disk, _disk), (network, _network))
    return [partial(read, psutil, process) for is_on, read in readers if is_on]


def _cpu(psutil: Any, process: Any, reading: Reading) -> None:
    """Read the CPU time of all cores, and of this process, for which 100 % is one core, as in top.

    Follows /proc/stat, see proc(5): all time but `idle` and `iowait`, with guest time, part of `user` and `nice`, counted once.
    """
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
    """A function that reads one NVIDIA device, without counters that it does not support."""
    name = f"gpu{device.index}"

    def read(reading: Reading) -> None:
        memory = device.memory()
        used_bytes = None if memory is None else memory.used_bytes
        counters = {
            "percent": device.busy_percent(),
            "memory_used_bytes": used_bytes,
            "power_watts": device.power_watts(),
        }
        reading.values |= {
            f"{name}_{counter}": value for counter, value in counters.items() if value is not None
        }

    return read


def _torch_memory(reading: Reading) -> None:
    """Memory held by torch's allocator on each CUDA device. Avoids the CUDA runtime, which could break another thread's graph capture."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for index in range(torch.cuda.device_count()):
        if (reserved := torch.cuda.memory_reserved(index)) > 0:
            reading.values[f"gpu{index}_torch_reserved_bytes"] = reserved
            reading.values[f"gpu{index}_torch_allocated_bytes"] = torch.cuda.memory_allocated(index)


# Samples are written to the recording at the latest after this time.
_WRITTEN_WITHIN_NS = 1_000_000_000
# Reading takes milliseconds. After this time, the thread is assumed to hang in a driver or file system.
_PATIENCE_S = 2.0


class SystemCounters(Source):
    """Records the utilization of the machine: a source for `profile(sources=[SystemCounters()])`.

    The table `counters` has, of the whole machine, `cpu_percent`, `memory_used_bytes`, `memory_available_bytes`,
    `disk_read_bytes_per_s`, `disk_written_bytes_per_s`, `network_received_bytes_per_s`, `network_sent_bytes_per_s`; of this
    process `process_cpu_percent` (100 is one CPU core) and `process_rss_bytes`; of each NVIDIA device, such as the first,
    `gpu0_percent`, `gpu0_memory_used_bytes` and `gpu0_power_watts`. Rates are means over the time since the previous sample. The Chrome export shows each as a track.

    Args:
        cpu: Record CPU utilization.
        memory: Record memory in use.
        disk: Record disk throughput.
        network: Record network throughput.
        gpu: Record NVIDIA devices with `nvidia-ml-py`; None: if available.
        interval_s: Seconds between samples. The first is at the start and the last at the end of each recording.

    Raises:
        ArgumentError: `interval_s` is not a number above 0, or everything is turned off.
        MissingDependencyError: psutil, or for `gpu=True` nvidia-ml-py, is not installed.
        RecorderError: With `gpu=True`: the driver cannot be reached.
    """

    def __init__(
        self,
        *,
        cpu: bool = True,
        memory: bool = True,
        disk: bool = True,
        network: bool = True,
        gpu: bool | None = None,
        interval_s: float = 0.5,
    ) -> None:
        self.interval_s = checked_seconds("interval_s", interval_s)
        readers = system_readers(cpu=cpu, memory=memory, disk=disk, network=network)
        self._readers = readers + device_readers(gpu)
        if not self._readers and gpu is not None:
            raise ArgumentError(
                "SystemCounters: cpu, memory, disk, network and gpu are all off: turn on at least one."
            )
        self._sampler: Sampler | None = None

    def start(self) -> None:
        """Start sampling."""
        self._sampler = Sampler(self._readers, self.interval_s)
        self._sampler.start()

    def write_to(self, append: AppendRows) -> None:
        """Write samples to the recording, at least once a second."""
        if self._sampler is not None:
            self._sampler.write_to(append)

    def stop(self) -> None:
        """Take a last sample, and stop sampling."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()


class Sampler:
    """Takes samples on a thread until it is stopped."""

    def __init__(
        self, readers: Sequence[Reader], interval_s: float, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Store the readers, the interval and a clock in nanoseconds; the thread is not started yet."""
        self._readers = list(readers)
        self._interval_s = interval_s
        self._clock = clock
        self._samples: list[tuple[int, str, float]] = []
        self._before: tuple[int, Reading] | None = None
        self._has_rates = False
        self._append: AppendRows | None = None
        self._writing = threading.Lock()  # guards _append and the removal of samples
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinetoscope counters", daemon=True)
        self.failure = ""

    def start(self) -> None:
        """Start the thread, which takes the first sample at once."""
        self._thread.start()

    def write_to(self, append: AppendRows) -> None:
        """Write samples with this function from now on, beginning with the current ones, or an empty table."""
        with self._writing:
            self._append = append
            self._write()

    def stop(self) -> None:
        """Let the thread take a last sample and end; if it hangs, stop waiting for it."""
        self._stopping.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            self.failure = f"reading did not end within {_PATIENCE_S:g} s"
        with self._writing:
            self._write()
            if self._append is not None and self.failure:
                self._append(LOSSES, {"code": ["counter_samples"], "count": [1], "why": [self.failure]})
            # An abandoned thread must not write into the next recording.
            self._append = None

    def sample(self) -> None:
        """Take a sample. A reader that fails is not used again."""
        reading = Reading()
        for reader in tuple(self._readers):
            try:
                reader(reading)
            except Exception as error:  # noqa: BLE001  (whatever the system answers, the job goes on)
                self._readers.remove(reader)
                self.failure = f"{type(error).__name__}: {error}"
        now_ns = self._clock()
        rates = self._rates(now_ns, reading)
        self._samples += [(now_ns, name, value) for name, value in (*reading.values.items(), *rates)]
        self._before = now_ns, reading
        with self._writing:
            next_ns = now_ns + int(self._interval_s * 1e9)
            if self._samples and next_ns - self._samples[0][0] >= _WRITTEN_WITHIN_NS:
                self._write()

    def _write(self) -> None:
        """Write the samples if there is a recording to write to; the caller holds `_writing`."""
        if self._append is None:
            return
        samples = tuple(self._samples)
        columns: dict[str, list[Any]] = {
            "monotonic_ns": [time_ns for time_ns, _, _ in samples],
            "name": [name for _, name, _ in samples],
            "value": [float(value) for _, _, value in samples],
        }
        if self._append("counters", columns, buffered=True):
            del self._samples[: len(samples)]

    def _rates(self, now_ns: int, reading: Reading) -> list[tuple[str, float]]:
        """Compute the rates of totals since the previous sample; none for totals that were reset."""
        if self._before is None or now_ns <= self._before[0]:
            return []
        before_ns, before = self._before
        elapsed_s = (now_ns - before_ns) / 1e9
        if self._has_rates and elapsed_s < self._interval_s / 2:
            # The last sample may come right after another one. That is too soon for rates, since systems count in hundredths of a second.
            return []
        self._has_rates = True
        rates = [
            (name, (total - before.totals[name]) / elapsed_s)
            for name, total in reading.totals.items()
            if total >= before.totals.get(name, math.inf)
        ]
        for name, (part, total) in reading.shares.items():
            part_before, whole_before = before.shares.get(name, (math.inf, 0.0))
            grown = elapsed_s if total is None else total - (whole_before or 0.0)
            if part >= part_before and grown > 0:
                rates.append((name, 100.0 * (part - part_before) / grown))
        return rates

    def _run(self) -> None:
        self.sample()
        while not self._stopping.wait(self._interval_s):
            self.sample()
        self.sample()
