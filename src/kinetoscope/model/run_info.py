"""What a trace states about its run: the metadata as users see them, and the same as typed values.

A file may come from anywhere, so a key can be absent or hold anything. `RunInfo` is the one place that looks: a value
that is absent or makes no sense is None, empty or False there, and nobody else checks types.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, SupportsIndex

# Larger numbers of nanoseconds, bytes or the system are not meant, and would not fit into a column after a sum.
_LIMIT = 1 << 62
# Every reader of JSON has numbers below this exactly.
_EXACT = 1 << 53


@dataclass(frozen=True)
class DeviceName:
    """A processor or device of the machine, by torch's type of it and its index (-1 for the CPU)."""

    type: str
    index: int
    name: str


NSIGHT, SNAPSHOT = "Nsight Systems", "torch.cuda.memory._dump_snapshot"
"""The metadata `recorded_by`: which other tool wrote the file."""


@dataclass(frozen=True)
class DeviceProperties:
    """A device as Kineto describes it: its index, its model, its memory, and the major number of its compute capability."""

    index: int
    name: str
    total_bytes: int | None
    compute_major: int | None = None


@dataclass(frozen=True)
class ProcessGroup:
    """A process group of a distributed job, with the global ranks in it."""

    name: str
    ranks: tuple[Any, ...]


@dataclass(frozen=True)
class ClockChecks:
    """How well clocks agreed; None where that was not checked.

    Attributes:
        readings: How often the recorder's clock was compared with the system's.
        largest_error_ns: The largest difference of these.
        device_calls: Calls of a device's runtime that were compared with the operators around them.
        device_calls_crossing: Those that cross the start or end of an operator.
    """

    readings: int | None = None
    largest_error_ns: int | None = None
    device_calls: int | None = None
    device_calls_crossing: int | None = None


@dataclass(frozen=True)
class AttainableTimes:
    """How long one sort of work takes at least on the machine, as its calibration measured it.

    Attributes:
        name: The sort, as `kinetoscope.tables.costs.attainable` names it.
        size: Amounts of work: operations, or bytes.
        time_ns: How long a call with each of them takes, in nanoseconds.
    """

    name: str
    size: tuple[float, ...]
    time_ns: tuple[float, ...]


@dataclass(frozen=True)
class RunInfo:
    """The metadata of a run. Texts that are not stated are empty, numbers None, lists empty.

    Attributes:
        complete: False where the recording was never stopped.
        engine: The engine that recorded.
        trace_id: The id of the recorded cycle.
        cycle_number: The number of the recorded cycle, counted over the session.
        source: The name of the file that the trace was read from, where it has no path.
        start_realtime_ns: The system's clock at the start of the trace, in nanoseconds since 1970.
        start_monotonic_ns: The machine's monotonic clock at the start of the trace.
        stop_ns: When the recording stopped, from the start of the trace.
        boot_id: Which start of which machine the monotonic clock belongs to.
        clock_checks: How well clocks agreed.
        host: The name of the machine.
        machine: Its architecture.
        cpu_count: How many processors it has.
        torch_threads: With how many threads an operator computes, `torch.get_num_threads()`.
        devices: Its processor and devices.
        device_properties: Its devices as Kineto describes them.
        float32_matmul_precision: torch's setting of that name.
        torch_version: The version of torch.
        python_version: The version of Python.
        cuda_runtime_version: The version of CUDA, as one number.
        cuda_driver_version: The version of its driver, as one number.
        hip_runtime_version: The version of HIP, as one number.
        nccl_version: The version of NCCL.
        trainer: The trainer and its version.
        profiler: Which profiler of a trainer recorded.
        process: The process id.
        process_name: What the process is called.
        parent_process: The id of the process that started it.
        recorded_parent: The id of the nearest ancestor that is in the trace.
        ancestors: The ids of its ancestors, the nearest first.
        began: How the process was started, in words.
        ended: How the process ended, in words.
        command_line: The arguments of the process, `argv`.
        command_text: The command, where it is stated as one text.
        program: The arguments of the program that the launcher ran.
        program_ended: How that program ended, in words.
        first_step: The number of the first recorded step, where the launcher recorded some steps of it, or the recording is a part
            of another one.
        import_folders: Folders that torch leaves out of the names of files.
        rank: The rank in a distributed job.
        world_size: How many ranks the job has.
        backend: The backend of its default process group.
        process_groups: Its process groups.
        record_shapes: Whether the session recorded shapes; None where that is not stated. So for the next ones.
        deep_steps: Whether it recorded some steps in full.
        profile_memory: Whether it recorded memory.
        with_stack: Whether it recorded stacks.
        with_modules: Whether it recorded modules.
        with_flops: Whether it counted floating-point operations.
        flops_of_events: "torch" where event lists count the floating-point operations that torch.profiler counts.
        capture_overload_names: Whether names of overloads were recorded.
        record_python_gc_info: Whether collections of garbage were recorded.
        execution_trace: The file of the execution trace that was recorded at the same time.
        clock_marks: Barriers of the ranks: name, and when this one entered and left, by its monotonic clock.
        attainable: What the machine attains, from its calibration.
        not_recorded: What the file that the trace was read from does not have.
        processes: The same of each process, for a trace that merges several.
    """

    complete: bool = True
    engine: str = ""
    trace_id: str = ""
    cycle_number: int = 0
    source: str = ""
    start_realtime_ns: int | None = None
    start_monotonic_ns: int | None = None
    stop_ns: int | None = None
    boot_id: str = ""
    clock_checks: ClockChecks = ClockChecks()
    host: str = ""
    machine: str = ""
    cpu_count: int | None = None
    torch_threads: int | None = None
    devices: tuple[DeviceName, ...] = ()
    device_properties: tuple[DeviceProperties, ...] = ()
    float32_matmul_precision: str = ""
    torch_version: str = ""
    python_version: str = ""
    cuda_runtime_version: int | None = None
    cuda_driver_version: int | None = None
    hip_runtime_version: int | None = None
    nccl_version: str = ""
    trainer: str = ""
    profiler: str = ""
    process: int | None = None
    process_name: str = ""
    parent_process: int | None = None
    recorded_parent: int | None = None
    ancestors: tuple[int, ...] = ()
    began: str = ""
    ended: str = ""
    command_line: tuple[str, ...] = ()
    command_text: str = ""
    program: tuple[str, ...] = ()
    program_ended: str = ""
    first_step: int | None = None
    import_folders: tuple[str, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    process_groups: tuple[ProcessGroup, ...] = ()
    record_shapes: bool | None = None
    deep_steps: bool | None = None
    profile_memory: bool | None = None
    with_stack: bool | None = None
    with_modules: bool | None = None
    with_flops: bool | None = None
    flops_of_events: str = ""
    capture_overload_names: bool | None = None
    record_python_gc_info: bool | None = None
    execution_trace: str = ""
    recorded_by: str = ""
    clock_marks: tuple[tuple[str, int, int], ...] = ()
    attainable: tuple[AttainableTimes, ...] = ()
    not_recorded: frozenset[str] = frozenset()
    processes: tuple[RunInfo, ...] = ()

    @cached_property
    def is_snapshot(self) -> bool:
        """Whether the trace is a snapshot of memory: its times say nothing of what took time."""
        return self.recorded_by == SNAPSHOT

    @cached_property
    def engine_name(self) -> str:
        """The engine as people see it: `hybrid` where torch's collector recorded a device along with the native engine."""
        is_hybrid = self.engine == "native" and self.clock_checks.device_calls is not None
        return "hybrid" if is_hybrid else self.engine

    def properties_of(self, index: int) -> DeviceProperties | None:
        """The properties of a device, by the number that its work has; None if they are unknown.

        Work on AMD's devices may have other numbers (2 to 9) than their properties (0 to 7): that is no matter where all devices are alike.
        """
        by_index = {properties.index: properties for properties in reversed(self.device_properties)}
        alike = len({replace(properties, index=0) for properties in by_index.values()}) == 1
        return by_index.get(index) or (self.device_properties[0] if alike else None)

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> RunInfo:
        """Read metadata.

        Args:
            info: The metadata by key, as `Trace.info` has them.

        Returns:
            What they state, as far as it makes sense.
        """
        job, program = _mapping(info.get("distributedInfo")), _mapping(info.get("program"))
        checks, command = _mapping(info.get("clock_checks")), info.get("command_line")
        plain = {
            field.name: _READERS[str(field.type)](info.get(field.name))
            for field in fields(cls)
            if field.type in _READERS
        }
        rank = _number(job["rank"] if "rank" in job else info.get("rank"))
        return replace(
            cls(**plain),
            complete=info.get("complete") is not False,
            cycle_number=_number(_mapping(info.get("cycle")).get("number")) or 0,
            start_realtime_ns=_number(info.get("start_realtime_ns")) or None,
            clock_checks=ClockChecks(
                *(_number(checks.get(field.name), 1 - _EXACT, _EXACT) for field in fields(ClockChecks))
            ),
            host=_text(info.get("host")) or _text(info.get("host_name")),
            devices=tuple(
                DeviceName(_text(device.get("type")), _index(device.get("index")), name)
                for device in _mappings(info.get("devices"))
                if (name := _text(device.get("name")))
            ),
            device_properties=tuple(
                DeviceProperties(
                    _index(device.get("id")),
                    _text(device.get("name")).strip(),
                    _number(device.get("totalGlobalMem")),
                    _number(device.get("computeMajor")),
                )
                for device in _mappings(info.get("deviceProperties"))
            ),
            nccl_version=_text(job.get("nccl_version")),
            ancestors=tuple(pid for pid in _list(info.get("ancestors")) if type(pid) is int),
            command_line=tuple(map(str, _list(command))),
            command_text=_text(command),
            program=tuple(map(str, _list(program.get("command")))),
            program_ended=_text(program.get("ended")),
            first_step=_number(info["first_step"] if "first_step" in info else program.get("first_step")),
            import_folders=tuple(path for path in _list(info.get("import_folders")) if isinstance(path, str)),
            rank=rank if rank is not None and rank < 1 << 31 else None,
            world_size=_number(job.get("world_size")) or None,
            backend=_text(job.get("backend")),
            process_groups=tuple(
                ProcessGroup(_text(group.get("pg_name")), tuple(_list(group.get("ranks"))))
                for group in _mappings(job.get("pg_config"))
            ),
            clock_marks=tuple(
                (name, mark[0], mark[1])
                for name, mark in _mapping(info.get("clock_marks")).items()
                if isinstance(mark, list)
                and len(mark) == 2
                and all(_number(moment, 1 - _LIMIT) is not None for moment in mark)
            ),
            attainable=_attainable(info.get("attainable")),
            not_recorded=frozenset(name for name in _list(info.get("not_recorded")) if isinstance(name, str)),
            processes=tuple(
                cls.of(entry if isinstance(entry, Mapping) else {}) for entry in _list(info.get("processes"))
            ),
        )

    @cached_property
    def program_line(self) -> str:
        """The command line of the recorded program, quoted for a shell; empty if it was not recorded."""
        words = self.program or self.command_line
        return f"python {shlex.join(words)}" if words else self.command_text

    @property
    def command(self) -> str:
        """The command line of the process as one would type it."""
        return shlex.join(self.command_line) or self.command_text


class Metadata(dict[str, Any]):
    """The metadata of a trace: a dictionary of JSON values that users read and change, and the typed form of it.

    Whoever changes a value inside of another one sets its key again, so that the typed form follows.
    """

    _read: tuple[dict[str, Any], RunInfo] | None = None

    @property
    def typed(self) -> RunInfo:
        """What they state, read again only after a change of a key."""
        if self._read is None or self._read[0] != self:
            self._read = dict(self), RunInfo.of(self)
        return self._read[1]

    def __setitem__(self, key: str, value: Any) -> None:
        # The value may be the same one, with something else inside.
        self._read = None
        super().__setitem__(key, value)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle the values alone."""
        return type(self), (dict(self),)


def _attainable(value: object) -> tuple[AttainableTimes, ...]:
    """A calibration: for each sort of work a list of pairs of size and time; those left out that are not so."""
    curves = []
    for name, points in _mapping(value).items():
        pairs = [pair for pair in _list(points) if isinstance(pair, list) and len(pair) == 2]
        if pairs and len(pairs) == len(points) and all(_is_amount(part) for pair in pairs for part in pair):
            size, time_ns = zip(*pairs, strict=True)
            curves.append(AttainableTimes(str(name), tuple(map(float, size)), tuple(map(float, time_ns))))
    return tuple(curves)


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _LIMIT


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.strip() else ""


def _number(value: object, least: int = 0, below: int = _LIMIT) -> int | None:
    return value if type(value) is int and least <= value < below else None


def _index(value: object) -> int:
    number = _number(value)
    return -1 if number is None else number


def _switch(value: object) -> bool | None:
    """True or False, which files also write as 1 and 0."""
    return bool(value) if isinstance(value, (bool, int)) else None


# How a value is read, by the type of its field.
_READERS: dict[str, Callable[[object], Any]] = {"str": _text, "int | None": _number, "bool | None": _switch}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in _list(value) if isinstance(entry, Mapping)]
