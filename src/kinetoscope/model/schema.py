"""What a trace holds: the tables it keeps, the kinds of spans, and other numbers and names with a fixed meaning.

A trace refuses a column that the dictionary of tables does not name. The tables that people see are built from these;
see `kinetoscope.tables.stored` and the rooms named in `kinetoscope.trace.tables`.

Ids are row numbers of the table named as the unit; -1 means none. Times are integer nanoseconds from the start of the
trace. Rows of `spans` are ordered by thread, then start, then the longer one first, so an enclosing span comes
before what it encloses.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from kinetoscope.model.dictionary import tables_of


class ColumnCode(IntEnum):
    """A number that a column of small integers holds.

    NumPy takes a subclass of `int` for 64 bits wide and widens the whole column for each comparison: 13 times as slow.
    """

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Take part in NumPy's functions as a plain number, which takes the type of the column."""
        numbers = (int(value) if isinstance(value, ColumnCode) else value for value in inputs)
        return getattr(ufunc, method)(*numbers, **options)


class SpanKind(ColumnCode):
    """What a span is. The numbers are those of the `kind` column and never change."""

    OPERATOR = 0
    BACKWARD = 1
    USER_ANNOTATION = 2
    STEP = 3
    PYTHON = 4
    MODULE = 5
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    RUNTIME = 9
    DRIVER = 10
    SYNC = 11
    OVERHEAD = 12
    COLLECTIVE = 13
    FUSED_KERNEL = 14


class Phase(ColumnCode):
    """Which part of a training step a span belongs to. The numbers are those of the `phase` column."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


class StorageRole(ColumnCode):
    """What a tensor was that held a block of memory. The numbers are those of the `role` column and never change."""

    TENSOR = 0
    PARAMETER = 1
    BUFFER = 2
    GRADIENT = 3
    OPTIMIZER_STATE = 4


class SampleState(ColumnCode):
    """What a thread did when its stack was sampled. The numbers are those of the `state` column and never change."""

    UNKNOWN = 0
    RUNNING = 1
    WAITING_FOR_GIL = 2
    BLOCKED = 3


class SampleWait(ColumnCode):
    """What a blocked thread waited for when its stack was sampled. The numbers are those of the `wait` column and never change."""

    UNKNOWN = 0
    LOCK = 1
    SLEEP = 2
    FILE = 3
    PIPE = 4
    SOCKET = 5
    PROCESS = 6
    EVENTS = 7
    MEMORY = 8
    TERMINAL = 9
    OTHER = 10


class DeviceType(ColumnCode):
    """Where something ran; the numbers are torch's own."""

    CPU = 0
    CUDA = 1
    MKLDNN = 2
    OPENGL = 3
    OPENCL = 4
    IDEEP = 5
    HIP = 6
    FPGA = 7
    MAIA = 8
    XLA = 9
    Vulkan = 10
    Metal = 11
    XPU = 12
    MPS = 13
    Meta = 14
    HPU = 15
    VE = 16
    Lazy = 17
    IPU = 18
    MTIA = 19
    PrivateUse1 = 20


COLLECTED_DEVICES: dict[str, DeviceType] = {
    name: DeviceType[name] for name in ("CUDA", "XPU", "HPU", "MTIA", "PrivateUse1")
}
"""The devices that torch's collector records, by the name of their activity; AMD devices are CUDA, as in torch."""

KIND_NAMES: tuple[str, ...] = tuple(kind.name.lower() for kind in SpanKind)
PHASE_NAMES: tuple[str, ...] = tuple(phase.name.lower() for phase in Phase)

# at::RecordScope, as the recorder writes it.
SCOPE_BACKWARD = 1
SCOPE_USER = 7
# And of calls, which have no scope of torch.
SCOPE_PYTHON = 100
SCOPE_MODULE = 101
# And of kernels that a compiler generated, as far as their graph is known.
SCOPE_FUSED = 102

# What the ranges begin with in which a backend carries out calls between ranks.
TRANSFER_MARKS = ("gloo:", "nccl:", "xccl:", "hccl:", "ucc:", "mpi:")
ASKING = ("c10d::", "_c10d_functional::", "record_param_comms")
"""How operators are called that only ask for communication or wait for it."""
IMPORTING = "importlib._bootstrap>"
"""How the file is called of the frames that import a module."""
# The operator that autograd's engine wraps around each backward function it runs.
ENGINE_WRAPPER = "autograd::engine::evaluate_function: "
# How the ranges begin that torch's optimizers open.
OPTIMIZER_STEP = "Optimizer.step#"
ZERO_GRAD = "Optimizer.zero_grad#"

# Under this name the arguments of a span have what Kineto shows of an event beside its columns, as a text.
EVENT_METADATA_KEY = "metadata_json"
# And under this one what a range was given by keyword, but torch leaves out of its traces: an object.
OTHER_KEYWORDS = "other_keywords"

FLAG_ASYNC = 1
FLAG_UNFINISHED = 2
FLAG_BEGUN_BEFORE = 4
FLAG_INSTANT = 8


STORED = tables_of("stored")
"""Every stored table, by name. `strings` (a list) and `info` (a mapping) are not tables."""

STEP_SOURCES = ("marked", "optimizer")
SAMPLE_STATES = ("unknown", "running", "waiting for the GIL", "blocked")
SAMPLE_WAITS = (
    "", "a lock", "sleep", "a file", "a pipe", "a socket", "a process", "events", "a page of memory", "the terminal", "another system call",
)  # fmt: skip


# torch marks each call for the next batch of a `DataLoader` with a range whose name begins so.
NEXT_BATCH = "enumerate(DataLoader)#"
# Making one batch: asking the dataset for the samples, and putting them together, which is inside.
FETCH_BATCH = "DataLoader.fetch"
COLLATE_BATCH = "DataLoader.collate"
# Copying a batch to memory that devices can read directly.
PIN_BATCH = "DataLoader.pin"
# Metadata of loaders and their workers, in `info`.
LOADING_INFO = "data_loading"
