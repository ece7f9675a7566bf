"""The metadata of a session as JSON texts: flags, process group, devices, and the user's own keys."""

from __future__ import annotations

import json
import os
import platform
import re
import site
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
import torch.distributed

from kinetoscope._errors import ArgumentError, ArgumentTypeError, StateError


def import_folders() -> list[str]:
    """The folders that torch removes from file names, longer ones first."""
    of_torch = str(Path(torch.__file__).parent.parent)
    folders = {*site.getsitepackages(), *sys.path, site.getuserbase(), site.getusersitepackages(), of_torch}
    return sorted({os.path.abspath(folder) for folder in folders}, reverse=True)


# The boot of the machine: recordings of the same boot share a monotonic clock.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOCKS = Path("/proc/self/ns/time")


def boot() -> dict[str, str]:
    """The key `boot_id` and its JSON text; empty if the system does not provide it.

    It is Linux' own random number of the boot, and the number of the time namespace, in which a container can have a
    monotonic clock of its own.
    """
    try:
        number = _BOOT_ID.read_text().strip()
    except OSError:
        return {}
    try:
        clocks = f" {os.readlink(_CLOCKS)}"
    except OSError:
        # A kernel without time namespaces, which came with Linux 5.6.
        clocks = ""
    return {"boot_id": json.dumps(number + clocks)}


def monotonic_of_realtime_ns() -> int:
    """What has to be added to a clock on the wall to get the monotonic one, as they are now: of three readings the closest."""
    readings = []
    for _ in range(3):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after - before, (before + after) // 2 - wall))
    return min(readings)[1]


# The names of the devices.

_CPU_INFO = Path("/proc/cpuinfo")


def described_devices() -> dict[str, str]:
    """The names of the processor and of the devices in use, and how torch computes on them, as JSON texts."""
    devices: list[dict[str, object]] = [{"type": "cpu", "index": -1, "name": processor_name()}]
    # A context of the device is not made for this: what has none was not used.
    if torch.cuda.is_initialized():
        devices += [
            {"type": "cuda", "index": index, "name": _cuda_name(index)}
            for index in range(torch.cuda.device_count())
        ]
    found = {"devices": json.dumps(devices), "torch_threads": json.dumps(torch.get_num_threads())}
    try:
        found["float32_matmul_precision"] = json.dumps(torch.get_float32_matmul_precision())
    except RuntimeError:
        # The program set precisions through both of torch's interfaces, which torch then refuses to put in one word.
        return found
    return found


@cache
def processor_name() -> str:
    """The name of the processor, or its architecture if the system has no name for it."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _cuda_name(index: int) -> str:
    """The name of a device; empty if its driver does not report one."""
    try:
        return str(torch.cuda.get_device_name(index))
    except (RuntimeError, AssertionError):
        return ""


# Keys that a Chrome trace has by its format; a second one of that name would make the file ambiguous.
_RESERVED = frozenset(
    {
        "traceEvents",
        "schemaVersion",
        "displayTimeUnit",
        "baseTimeNanoseconds",
        "traceName",
        "deviceProperties",
    }
)
RANK_PLACE = "{rank}"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Metadata:
    """The user's metadata of a session: for every cycle, and for the next one only."""

    def __init__(self) -> None:
        """Begin without any."""
        self._every_cycle: dict[str, str] = {}
        self._next_cycle: dict[str, str] = {}

    def preset(self, key: str, value: str) -> None:
        """Store a JSON text for every cycle."""
        self._every_cycle[_usable_key(key)] = json_text(key, value)

    def add(self, key: str, value: str) -> None:
        """Store a JSON text for the cycle that records now or next."""
        self._next_cycle[_usable_key(key)] = json_text(key, value)

    def gathered(self) -> dict[str, str]:
        """All that belongs to the cycle that records now or next."""
        return self._every_cycle | self._next_cycle

    @property
    def preset_ones(self) -> dict[str, str]:
        """The JSON texts for every cycle."""
        return dict(self._every_cycle)

    def end_cycle(self) -> None:
        """Forget what was for this cycle only."""
        self._next_cycle.clear()


def quoted(key: str, value: str) -> str:
    """A user's text as a JSON string, whatever characters it has."""
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"metadata {key!r}: {value!r} is not a string. Pass str(value), or JSON with add_metadata_json."
        )
    return json.dumps(value)


def json_text(key: str, value: str) -> str:
    """A user's JSON text, proven to be strict JSON that can be written as UTF-8."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"metadata {key!r}: {value!r} is not a JSON text. Pass json.dumps(value).")
    try:
        # Written again, because a number beyond the range of a double is read as an infinity.
        json.dumps(json.loads(value, parse_constant=_refuse_constant), allow_nan=False)
    except (ValueError, RecursionError) as error:
        shown = value if len(value) <= 80 else value[:77] + "..."
        raise ArgumentError(
            f"metadata {key!r}: {shown!r} is not valid JSON ({error}). Pass json.dumps(value), or text with add_metadata."
        ) from error
    # In valid JSON a surrogate can only be inside a string, where its escape means the same.
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", value)


def flags(switches: Mapping[str, bool]) -> dict[str, str]:
    """The switches that are on, each as the number 1."""
    return {name: "1" for name, on in switches.items() if on}


def process_group() -> dict[str, str]:
    """The key `distributedInfo` when a process group is initialised, else nothing."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return {}
    backend = distributed.get_backend()
    facts: dict[str, object] = {
        "backend": backend,
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
        "pg_count": distributed.get_pg_count(),
        "pg_config": distributed.distributed_c10d._get_all_pg_configs(),
    }
    if backend == "nccl":
        facts["nccl_version"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {"distributedInfo": json.dumps(facts, default=str)}


def execution_trace(observer: object) -> dict[str, str]:
    """The path of the execution trace of the same run, if its observer has one."""
    place = getattr(observer, "get_output_file_path", None)
    if place is None:
        return {}
    try:
        path = place()
    except StateError:
        return {}
    return {"execution_trace": json.dumps(os.path.abspath(path))} if isinstance(path, str) and path else {}


def own_rank() -> int | None:
    """The rank of this process: in its process group or, before there is one, as its launcher set it; else None."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isascii() and rank.isdecimal() else None


def rank_info() -> dict[str, str]:
    """The keys of the rank that recorded: `rank`, and `distributedInfo` in a process group."""
    rank = own_rank()
    return process_group() | ({} if rank is None else {"rank": json.dumps(rank)})


def ranked(path: Path) -> Path:
    """A path that no other rank of this job has: `{rank}` in its name is filled in, else `.rank3` goes before the suffix.

    Without a rank, or with only one, the path stays as it is, with 0 for `{rank}`. So does a name that
    ends in the rank already.
    """
    rank = own_rank()
    if RANK_PLACE in str(path):
        return rank_filled_in(path)
    if rank is None or _ranks() < 2 or re.search(rf"(?<![0-9A-Za-z])rank{rank}$", path.stem):
        return path
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def rank_filled_in(path: Path) -> Path:
    """The path with `{rank}` replaced by the rank of this process, or 0."""
    return Path(str(path).replace(RANK_PLACE, str(own_rank() or 0)))


def numbered(path: Path, number: int) -> Path:
    """The path of a cycle: of the first as it is, of later ones with their number before the suffix."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path


def _ranks() -> int:
    """The number of ranks; 1 outside a distributed job."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isascii() and size.isdecimal() else 1


def _usable_key(key: str) -> str:
    """A key that is allowed at the top level of a trace file, or an error."""
    if not isinstance(key, str):
        raise ArgumentTypeError(f"metadata: the key {key!r} is not a string.")
    if key in _RESERVED:
        raise ArgumentError(
            f"metadata: the key {key!r} belongs to the trace format. Choose another one; taken are: "
            f"{', '.join(sorted(_RESERVED))}."
        )
    return key


def _refuse_constant(name: str) -> None:
    """Turn the NaN and Infinity that Python's parser lets through into an error."""
    raise ValueError(f"{name} is not JSON")
