from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, final

import numpy as np
from numpy.typing import NDArray

class _AppendedRows(TypedDict):
    session: int
    buffered: bool
    time_ns: int
    rows: int
    json: bytes

class _Recording(TypedDict):
    info: dict[str, str]
    state: str
    process: int
    start_realtime_ns: int
    stop_ns: int
    clock_checks: dict[str, NDArray[np.int64]]
    losses: dict[str, int]
    strings: list[str]
    threads: dict[str, Any]
    frames: dict[str, NDArray[np.int32]]
    stacks: dict[str, NDArray[np.int32]]
    modules: dict[str, NDArray[Any]]
    parameters: dict[str, NDArray[Any]]
    shapes: dict[str, list[str]]
    names: dict[str, NDArray[np.int32]]
    spans: dict[str, NDArray[Any]]
    optimizer_steps: dict[str, NDArray[Any]]
    allocations: dict[str, NDArray[Any]]
    notes: dict[str, NDArray[Any]]
    samples: dict[str, NDArray[Any]]
    rows: dict[str, list[_AppendedRows]]

class _Nesting(TypedDict):
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    lane: NDArray[np.int32]
    self_ns: NDArray[np.int64]

class _InheritedModules(TypedDict):
    module: NDArray[np.int32]
    forward_stack: NDArray[np.int32]

class _Calls(TypedDict):
    thread: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    step: NDArray[np.int32]
    depth: NDArray[np.int32]
    unsure: NDArray[np.uint8]

class _AttributedAllocations(TypedDict):
    span: NDArray[np.int32]
    match: NDArray[np.int32]
    total_bytes: NDArray[np.int64]
    span_self_bytes: NDArray[np.int64]
    span_bytes: NDArray[np.int64]
    unmatched_frees: int

class _RecordingProgress(TypedDict):
    stopped: bool
    process: int
    position: int

def read_recording(path: str) -> _Recording: ...
def cut_recording(
    source: str,
    session: int,
    target: str,
    from_ns: int | None = None,
    to_ns: int | None = None,
    first_step: int | None = None,
) -> None: ...
def clone_recording(source: str, target: str) -> None: ...
def recording_progress(path: str) -> _RecordingProgress: ...
def recording_layout() -> dict[str, Any]: ...
def nest(
    thread: NDArray[np.int32], start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]
) -> _Nesting: ...
def nearest_marked(
    parent: NDArray[np.int32], depth: NDArray[np.int32], marked: NDArray[np.bool_]
) -> NDArray[np.int32]: ...
def lies_in(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> NDArray[np.bool_]: ...
def running_at(
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    parent: NDArray[np.int32],
    rows: NDArray[np.int64],
    time_ns: NDArray[np.int64],
) -> NDArray[np.int64]: ...
def unite(
    start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def first_layers(
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    layers: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]: ...
def join(
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    other_start_ns: NDArray[np.int64],
    other_end_ns: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def intersect(
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    other_start_ns: NDArray[np.int64],
    other_end_ns: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def subtract(
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    other_start_ns: NDArray[np.int64],
    other_end_ns: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def length_before(
    start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], time_ns: NDArray[np.int64]
) -> NDArray[np.int64]: ...
def sums_below(
    parent: NDArray[np.int32], depth: NDArray[np.int32], own: NDArray[np.int64]
) -> NDArray[np.int64]: ...
def rebuild_calls(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    path: NDArray[np.int32],
    kept: NDArray[np.uint16],
    path_begin: NDArray[np.int32],
    key: NDArray[np.int32],
    frames: NDArray[np.int32],
) -> _Calls: ...
def link_backward(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    scope: NDArray[np.uint8],
    sequence: NDArray[np.int64],
    forward_thread: NDArray[np.int32],
) -> NDArray[np.int32]: ...
def inherit_modules(
    parent: NDArray[np.int32],
    module: NDArray[np.int32],
    stack: NDArray[np.int32],
    forward: NDArray[np.int32],
    parameter: NDArray[np.int32],
    parameter_module: NDArray[np.int32],
    scope: NDArray[np.uint8],
) -> _InheritedModules: ...
def attribute_allocations(
    span_thread: NDArray[np.int32],
    span_start_ns: NDArray[np.int64],
    span_duration_ns: NDArray[np.int64],
    span_parent: NDArray[np.int32],
    span_lane: NDArray[np.int32],
    time_ns: NDArray[np.int64],
    thread: NDArray[np.int32],
    address: NDArray[np.uint64],
    bytes: NDArray[np.int64],
    freed_bytes: NDArray[np.int64] | None = None,
) -> _AttributedAllocations: ...
def group(
    keys: Sequence[NDArray[np.int32] | NDArray[np.int64]], where: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
def group_counts(
    group_of: NDArray[np.int32], groups: int, skip: NDArray[np.uint8] | None = None
) -> NDArray[np.int64]: ...
def group_sums(
    group_of: NDArray[np.int32], groups: int, values: NDArray[np.int64], skip: NDArray[np.uint8] | None = None
) -> NDArray[np.int64]: ...
def group_min(
    group_of: NDArray[np.int32], groups: int, values: NDArray[np.int64], skip: NDArray[np.uint8] | None = None
) -> NDArray[np.int64]: ...
def group_max(
    group_of: NDArray[np.int32], groups: int, values: NDArray[np.int64], skip: NDArray[np.uint8] | None = None
) -> NDArray[np.int64]: ...
def group_medians(
    group_of: NDArray[np.int32], groups: int, values: NDArray[np.int64]
) -> NDArray[np.int64]: ...
def replay_collectives(
    collective: NDArray[np.int64],
    before: NDArray[np.int64],
    own_ns: NDArray[np.int64],
    first_visit: NDArray[np.int64],
    transfer_ns: NDArray[np.int64],
) -> NDArray[np.int64]: ...
def find_repeats(
    kind: NDArray[np.int32],
    cycle: NDArray[np.int32],
    flags: NDArray[np.uint8],
    first: NDArray[np.int64],
    argument: NDArray[np.int32],
    storage: NDArray[np.int64],
    version: NDArray[np.int64],
    offset: NDArray[np.int64],
    tensor_flags: NDArray[np.uint8],
    content: NDArray[np.uint64],
) -> dict[str, NDArray[np.int64]]: ...
def descends_from_same(parent: NDArray[np.int32], key: NDArray[np.int32]) -> NDArray[np.uint8]: ...
def escape_json(text: str) -> bytes: ...
def is_json(text: str) -> bool: ...

class _NanobindType(type): ...

@final
class ChromeWriter(metaclass=_NanobindType):
    def __init__(
        self,
        *,
        spans: Mapping[str, NDArray[Any]],
        tables: Mapping[str, NDArray[Any] | Sequence[str]],
        kernels: Mapping[str, NDArray[Any]] | None = None,
        copies: Mapping[str, NDArray[Any]] | None = None,
        flows: Mapping[str, NDArray[Any]] | None = None,
        allocations: Mapping[str, NDArray[Any]] | None = None,
        counters: Mapping[str, NDArray[Any]] | None = None,
        base_ns: int = 0,
        header: bytes = ...,
        footer: bytes = ...,
        block_bytes: int = 4194304,
    ) -> None: ...
    def write_to(self, file: int) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def __next__(self) -> bytes: ...

@final
class ChromeReader(metaclass=_NanobindType):
    def __init__(
        self, categories: Sequence[str], kinds: Sequence[int], on_device: Sequence[bool], max_bytes: int
    ) -> None: ...
    def feed(self, block: bytes | bytearray | memoryview) -> None: ...
    def follow(self, text: int, finished: int) -> None: ...
    @property
    def following(self) -> bool: ...
    @property
    def events(self) -> int: ...
    def finish(self, later: bool = False) -> dict[str, Any]: ...
