"""What a trace holds: every table it keeps, every column with its type, unit and meaning, and the kinds of spans.

These definitions are the documentation (``docs/tables.md`` is generated from them) and the check: a trace refuses a
column that is not named here. The tables that people see are built from these; see `kinetoscope.tables.stored` and
the rooms named in `kinetoscope.trace.tables`.

Ids are row numbers of the table named as the unit; -1 means none. Times are integer nanoseconds from the start of the
trace. Rows of `spans` are ordered by thread, then start, then the longer one first, so an enclosing span comes
before what it encloses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class SpanKind(IntEnum):
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


class Phase(IntEnum):
    """Which part of a training step a span belongs to. The numbers are those of the `phase` column."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


class StorageRole(IntEnum):
    """What a tensor was that held a block of memory. The numbers are those of the `role` column and never change."""

    TENSOR = 0
    PARAMETER = 1
    BUFFER = 2
    GRADIENT = 3
    OPTIMIZER_STATE = 4


class SampleState(IntEnum):
    """What a thread did when its stack was sampled. The numbers are those of the `state` column and never change."""

    UNKNOWN = 0
    RUNNING = 1
    WAITING_FOR_GIL = 2
    BLOCKED = 3


class SampleWait(IntEnum):
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


class DeviceType(IntEnum):
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


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Its name, with the unit where it has one (`start_ns`, `bytes`).
        type: A numpy type name, `text` (a list of strings), or for tables people see also `string` and `category`.
        unit: `ns`, `bytes`, `row of <table>`, or empty.
        meaning: One sentence for the reader of the table.
        default: The value of every row where a source does not know the column; also what is shown as null.
        derived: True when it is computed from other columns on first use and not stored in files.
    """

    name: str
    type: str
    unit: str
    meaning: str
    default: int = -1
    derived: bool = False


@dataclass(frozen=True)
class Table:
    """One table: its name, what a row is, and its columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """Return the definition of one column, or raise `KeyError`."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns in order."""
        return tuple(column.name for column in self.columns)


def _c(name: str, kind: str, unit: str, meaning: str, default: int = -1) -> Column:
    """Shorten the definition of a column that a source delivers."""
    return Column(name, kind, unit, meaning, default)


def _d(name: str, kind: str, unit: str, meaning: str, default: int = -1) -> Column:
    """Shorten the definition of a column that is computed on first use."""
    return Column(name, kind, unit, meaning, default, derived=True)


_OF_PROCESS = _c(
    "process_row", "int32", "row of processes", "The process it belongs to, in a trace of several processes."
)

_SPANS = (
    _c("thread", "int32", "row of threads", "The thread it began on.", 0),
    _c("start_ns", "int64", "ns", "When it began, from the start of the trace.", 0),
    _c("duration_ns", "int64", "ns", "How long it ran; an unfinished span is clipped at the end.", 0),
    _c("name", "int32", "row of strings", "Its name.", 0),
    _c("overload", "int32", "row of strings", "The overload of the operator's schema, empty without.", 0),
    _c("scope", "uint8", "", "torch's: 0 function, 1 backward, 7 range; 100 Python call, 101 module's, 102 fused kernel.", 0),
    _c("sequence", "int64", "", "Autograd's sequence number, -1 without."),
    _c("forward_thread", "int32", "row of threads", "For a backward function, the thread its forward ran on."),
    _c("kept", "uint16", "", "How many calls on its stack, from the outermost, it shares with its thread's previous "
                             "span, plus 1; 0 if unknown. From bit 10: how many of these, from the innermost, may be "
                             "new calls.", 0),
    _c("own_stack", "int32", "row of stacks", "The Python stack at its start, as recorded."),
    _c("own_module", "int32", "row of modules", "The module that it ran in, as recorded."),
    _c("shapes", "int32", "row of shapes", "Shapes, types and scalars of its inputs."),
    _c("parameter", "int32", "row of parameters", "For AccumulateGrad, the parameter it feeds."),
    _c("flags", "uint8", "", "Bit 0: asynchronous, can end on another thread. 1: clipped at the end. 2: clipped at the "
                             "start. 3: an instant without a duration.", 0),
    _c("stream", "int32", "row of streams", "The device stream it ran on; -1 for the host."),
    _c("record_function", "int64", "", "torch's id of the call, `rf_id` in execution traces; -1 without, 0 where torch gave none."),
    _c("event_index", "int64", "", "torch's number of the event, `Ev Idx` in Chrome traces; -1 without."),
    _c("correlation", "int64", "", "The correlation id by which a device's runtime matches launches and device work; -1 "
                                   "without."),
    _c("external_id", "int64", "", "Kineto's external id of the operator, also on what the operator launched; -1 without."),
    _c("arguments", "int32", "row of arguments", "Further metadata from its source."),
    _c("category", "int32", "row of strings", "The category that a file of Kineto or another tool gives it; empty without.", 0),
    _c("origin", "int32", "row of origins", "For a kernel of a compiled graph, the node that takes most of its time; the "
                                             "others have the same `first`."),
    _d("kind", "uint8", "", "Its kind: a `SpanKind`.", 0),
    _d("parent", "int32", "row of spans", "The innermost enclosing span on its thread; a Python or module call is the "
                                          "parent of calls only, and device work of nothing."),
    _d("caller", "int32", "row of spans", "The innermost enclosing Python or module call, where these were recorded."),
    _d("depth", "int32", "", "How many spans enclose it.", 0),
    _d("lane", "int32", "", "0, or more for a span that partly overlaps others of its thread and does not nest.", 0),
    _d("self_ns", "int64", "ns", "Self time: its duration minus that of the spans directly inside; 0 in lanes above 0. Device "
                              "work has nothing inside: its self time is its duration in every lane.", 0),
    _d("forward", "int32", "row of spans", "For a backward function, the forward operator that made it."),
    _d("module", "int32", "row of modules", "The module that it ran in or, in backward, the module of its forward operator."),
    _d("forward_stack", "int32", "row of stacks", "In backward, the Python stack of its forward operator."),
    _d("stack", "int32", "row of stacks", "The forward stack if there is one, otherwise its own."),
    _d("phase", "uint8", "", "Forward, backward or optimizer: a `Phase`.", 0),
    _d("recompute", "uint8", "", "1 for recomputation: a forward operator that activation checkpointing runs again in "
                                 "backward.", 0),
    _d("step", "int32", "row of steps", "The step it began in."),
    _d("cycle", "int32", "row of cycles", "The cycle of its session it was recorded in."),
    _d("bytes", "int64", "bytes", "Host memory allocated minus freed within it, inner spans included.", 0),
    _d("self_bytes", "int64", "bytes", "The same, inner spans excluded.", 0),
    _d("device_bytes", "int64", "bytes", "Device memory allocated minus freed within it, inner spans included.", 0),
    _d("device_self_bytes", "int64", "bytes", "The same, inner spans excluded.", 0),
    _d("device_ns", "int64", "ns", "Device time of what it and inner spans launched.", 0),
    _d("device_self_ns", "int64", "ns", "Device time of what it launched itself.", 0),
    _d("flops", "int64", "", "Floating-point operations counted here; 0 where an enclosing or inner span counts them, -1 where unknown."),
    _d("bytes_moved", "int64", "bytes", "Bytes of inputs read and outputs written, counted like `flops`; -1 where unknown."),
)  # fmt: skip

_ALLOCATIONS = (
    _c("time_ns", "int64", "ns", "When, from the start of the trace.", 0),
    _c("thread", "int32", "row of threads", "The thread that allocated or freed.", 0),
    _c("address", "uint64", "", "The address of the block.", 0),
    _c("bytes", "int64", "bytes", "The size of the block; 0 for a free.", 0),
    _c("device_type", "uint8", "", "torch's device type: 0 CPU, 1 CUDA.", 0),
    _c("device_index", "int8", "", "The index of the device, -1 without."),
    _c("stack", "int32", "row of stacks", "The Python stack, where it was recorded."),
    _c("freed_bytes", "int64", "bytes", "For a free, the size of the block if the source has it.", 0),
    _c("allocated_bytes", "int64", "bytes", "Allocated bytes after it, as the allocator counts; -1 without."),
    _c("reserved_bytes", "int64", "bytes", "Reserved bytes after it, as the allocator counts; -1 without."),
    _d("span", "int32", "row of spans", "The innermost span that ran on the thread at that time."),
    _d(
        "match",
        "int32",
        "row of allocations",
        "For an allocation the row of its free, and vice versa.",
    ),
    _d(
        "total_bytes",
        "int64",
        "bytes",
        "Live bytes known to the trace on that device in that process, after this row.",
        0,
    ),
)

STORED: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "spans", "Something that ran: an operator, a backward function, a marked range, a kernel.", _SPANS
        ),
        Table(
            "processes",
            "A process of a trace of several; no rows where the whole trace is of one process.",
            (
                _c("pid", "int64", "", "Its process id."),
                _c("rank", "int32", "", "Its rank in the distributed job."),
                _c("parent_pid", "int64", "", "The process id of its parent."),
                _c("host", "text", "", "The name of its machine."),
                _c("name", "text", "", "Its name."),
                _c("command", "text", "", "Its command line."),
                _c("start_ns", "int64", "ns", "When its recording began, from the start of the trace.", 0),
                _c("duration_ns", "int64", "ns", "How long it was recorded.", 0),
                _c("clock", "text", "", "How its clock was aligned with those of the others."),
                _c(
                    "error_ns",
                    "int64",
                    "ns",
                    "By how much its times can be off against those of the first process.",
                ),
            ),
        ),
        Table(
            "threads",
            "A thread of the recorded process; in files of other tools also the track of a stream of a device.",
            (
                _c("index", "int32", "", "The recorder's number of the thread.", 0),
                _c("os_tid", "int64", "", "The operating system's thread id.", 0),
                _c("torch_tid", "int64", "", "torch's logical thread id, the `thread` of torch's events.", 0),
                _c("name", "text", "", "The thread's name."),
                _c("process", "int64", "", "The process id; -1 where it is that of the whole trace."),
                _c("rank", "int32", "", "The rank of its process; -1 where it is that of the whole trace."),
                _OF_PROCESS,
            ),
        ),
        Table(
            "streams",
            "A stream of a device.",
            (
                _c("device_type", "uint8", "", "torch's device type: 1 CUDA.", 1),
                _c("device_index", "int32", "", "The index of the device.", 0),
                _c("number", "int64", "", "The number of the stream on its device.", 0),
                _c("name", "text", "", "Its name in the source, empty without."),
                _OF_PROCESS,
            ),
        ),
        Table(
            "launches",
            "A launch: a host span that started a device span.",
            (
                _c("host", "int32", "row of spans", "The host span, innermost."),
                _c("device", "int32", "row of spans", "The device span."),
            ),
        ),
        Table(
            "kernels",
            "How a kernel was launched, as far as its source records it.",
            (
                _c("span", "int32", "row of spans", "The kernel."),
                _c("grid_x", "int32", "", "Blocks of the grid in x."),
                _c("grid_y", "int32", "", "Blocks of the grid in y."),
                _c("grid_z", "int32", "", "Blocks of the grid in z."),
                _c("block_x", "int32", "", "Threads of a block in x."),
                _c("block_y", "int32", "", "Threads of a block in y."),
                _c("block_z", "int32", "", "Threads of a block in z."),
                _c("registers", "int32", "", "Registers per thread."),
                _c("shared_bytes", "int64", "bytes", "Shared memory per block."),
                _c(
                    "blocks_per_sm",
                    "float64",
                    "",
                    "Blocks per SM.",
                ),
                _c("warps_per_sm", "float64", "", "Warps per SM."),
                _c("occupancy_percent", "float64", "%", "Estimated achieved occupancy."),
                _c("context", "int64", "", "The context it ran in."),
                _c("graph", "int64", "", "The captured graph that launched it."),
                _c("graph_node", "int64", "", "Which node of the graph it is."),
            ),
        ),
        Table(
            "copies",
            "How much a copy between memories, or a fill, moved.",
            (
                _c("span", "int32", "row of spans", "The copy or the fill."),
                _c("bytes", "int64", "bytes", "How much was written."),
                _c("context", "int64", "", "The context it ran in."),
                _c("graph", "int64", "", "The captured graph that launched it."),
                _c("graph_node", "int64", "", "Which node of the graph it is."),
            ),
        ),
        Table(
            "arguments",
            "Metadata of spans that has no column of its own, each distinct text once.",
            (_c("json", "text", "", "One JSON object."),),
        ),
        Table(
            "origins",
            "A node of a compiled graph that a kernel computes, at one place of the program. The nodes of a kernel follow each "
            "other, the one with the most weight first.",
            (
                _c("first", "int32", "row of origins", "The first node of the same kernel.", 0),
                _c("kernel", "int32", "row of strings", "The name of the kernel in the generated code.", 0),
                _c("node", "int32", "row of strings", "The name of the node.", 0),
                _c("operator", "int32", "row of strings", "The operator that it calls.", 0),
                _c("module", "int32", "row of modules", "The module that the node belongs to."),
                _c(
                    "stack",
                    "int32",
                    "row of stacks",
                    "The Python stack of the program's line that made the node.",
                ),
                _c(
                    "weight",
                    "float64",
                    "",
                    "Its estimated share of the kernel's time; the shares of a kernel add up to 1.",
                    0,
                ),
                _c(
                    "dtype",
                    "int32",
                    "row of strings",
                    "The element type of its first tensor; empty where unknown.",
                    0,
                ),
                _c("flops", "int64", "", "The node's floating-point operations; -1 where unknown."),
                _c("bytes", "int64", "bytes", "What the whole kernel reads and writes; -1 where unknown."),
            ),
        ),
        Table("allocations", "A block of memory allocated or freed.", _ALLOCATIONS),
        Table(
            "samples",
            "The Python stack of a thread at one moment, read by the sampler. Rows are ordered by time.",
            (
                _c("time_ns", "int64", "ns", "When the stack was read, from the start of the trace.", 0),
                _c(
                    "period_ns",
                    "int64",
                    "ns",
                    "The time that the sample represents, up to `time_ns`: since the previous sample of the threads, or since "
                    "the sampler started.",
                    0,
                ),
                _c(
                    "waited_ns",
                    "int64",
                    "ns",
                    "How long the thread was ready to run, but had no CPU core, since its sample before: other programs, or other "
                    "threads, had it. Null if the system does not report it, and for the first sample of the thread.",
                ),
                _c("thread", "int32", "row of threads", "The thread.", 0),
                _c("state", "uint8", "", "What the thread did: a `SampleState`.", 0),
                _c(
                    "wait",
                    "uint8",
                    "",
                    "What it waited for where it was blocked, by its system call: a `SampleWait`.",
                    0,
                ),
                _c("stack", "int32", "row of stacks", "Its Python stack."),
                _c("module", "int32", "row of modules", "The innermost module on the stack."),
                _d("step", "int32", "row of steps", "The step it falls in."),
            ),
        ),
        Table(
            "operands",
            "A tensor argument of an outermost operator, by the block that contains its data.",
            (
                _c("span", "int32", "row of spans", "The span that received it."),
                _c(
                    "argument",
                    "int32",
                    "",
                    "Which argument of the operator; -1 for a gradient to accumulate.",
                ),
                _c("address", "uint64", "", "Where the tensor's storage begins.", 0),
                _c("bytes", "int64", "bytes", "The size of the storage.", 0),
                _c("parameter", "int32", "row of parameters", "For a gradient, its parameter."),
                _c("device_type", "uint8", "", "torch's device type: 0 CPU, 1 CUDA.", 0),
                _c("device_index", "int8", "", "The index of the device, -1 without."),
            ),
        ),
        Table(
            "tensor_versions",
            "A tensor that an outermost operator was given or returned, by its storage and version; in backward only of operators that may write "
            "to what they are given. Arguments come before results.",
            (
                _c("span", "int32", "row of spans", "The operator."),
                _c("result", "uint8", "", "1 for a result, 0 for an argument.", 0),
                _c(
                    "argument",
                    "int32",
                    "",
                    "Which argument or result, from 0; the tensors of a list have the same.",
                ),
                _c(
                    "storage",
                    "int64",
                    "",
                    "The number of its storage, which no other storage of the process has; 0 where it is not known. Of a number of Python, its bits.",
                    0,
                ),
                _c(
                    "version",
                    "int64",
                    "",
                    "How often it was written in place, as torch counts, also for results as it was then; -1 in inference mode.",
                ),
                _c("offset_bytes", "int64", "bytes", "Where it begins in the storage.", 0),
                _c(
                    "shared",
                    "uint8",
                    "",
                    "1 for memory that others than torch may write, such as that of a NumPy array.",
                    0,
                ),
                _c("whole", "uint8", "", "1 where it has every byte of the storage, once.", 0),
                _c("number", "uint8", "", "1 for a number of Python, which torch makes a tensor.", 0),
            ),
        ),
        Table(
            "storages",
            "A block of memory that a tensor of the program was found to hold, and the role of the tensor.",
            (
                _c("time_ns", "int64", "ns", "When it was found; negative before the recording began.", 0),
                _c("role", "uint8", "", "The role of the tensor: a `StorageRole`.", 0),
                _c("address", "uint64", "", "Where the storage begins.", 0),
                _c("bytes", "int64", "bytes", "The size of the storage.", 0),
                _c("device_type", "uint8", "", "torch's device type: 0 CPU, 1 CUDA.", 0),
                _c("device_index", "int8", "", "The index of the device, -1 without."),
                _c("module", "int32", "row of modules", "The module that owns the tensor or its parameter."),
                _c("name", "int32", "row of strings", "Its name in the module or in the optimizer.", 0),
                _OF_PROCESS,
            ),
        ),
        Table(
            "stacks",
            "A Python call stack: one more frame on top of its parent. Parents come first.",
            (
                _c("parent", "int32", "row of stacks", "The stack of the caller, -1 at the root."),
                _c("frame", "int32", "row of frames", "The innermost frame."),
            ),
        ),
        Table(
            "frames",
            "A line of Python code that was executed.",
            (
                _c("function", "int32", "row of strings", "The qualified name of the function.", 0),
                _c("file", "int32", "row of strings", "The file, as the interpreter names it.", 0),
                _c("line", "int32", "", "The line that was executed, from 1.", 0),
                _c(
                    "first_line",
                    "int32",
                    "",
                    "The first line of the function; 0 if not recorded.",
                    0,
                ),
            ),
        ),
        Table(
            "modules",
            "An `nn.Module` instance that ran.",
            (
                _c("parent", "int32", "row of modules", "The module that contains it, -1 for a root."),
                _c(
                    "name",
                    "int32",
                    "row of strings",
                    "Its attribute name in the parent, empty if unknown.",
                    0,
                ),
                _c("class", "int32", "row of strings", "Its class.", 0),
                _c("caller", "int32", "row of modules", "The module that called it when it first ran."),
                _c("address", "uint64", "", "Its identity in the process.", 0),
                _OF_PROCESS,
                _d(
                    "path",
                    "text",
                    "",
                    "Its dotted path as `named_modules()` spells it; a root's is its class.",
                ),
                _d("depth", "int32", "", "How many modules contain it.", 0),
                _d("holder", "int32", "row of modules", "The parent or, if unknown, the caller."),
            ),
        ),
        Table(
            "parameters",
            "A parameter whose gradient was accumulated.",
            (
                _c("module", "int32", "row of modules", "The module that owns it."),
                _c("name", "int32", "row of strings", "Its attribute name.", 0),
                _c("address", "uint64", "", "Its identity in the process.", 0),
            ),
        ),
        Table(
            "shapes",
            "The inputs of an operator call, each distinct combination once.",
            (
                _c("dims", "text", "", "The sizes, as JSON."),
                _c("types", "text", "", "The types, as JSON."),
                _c("concrete", "text", "", "Scalar arguments, as JSON."),
                _c("strides", "text", "", "The strides, as JSON; empty if not recorded."),
            ),
        ),
        Table(
            "counters",
            "A value sampled over time.",
            (
                _c("time_ns", "int64", "ns", "When, from the start of the trace.", 0),
                _c("name", "int32", "row of strings", "The name of the counter.", 0),
                _c("value", "float64", "", "The value.", 0),
                _OF_PROCESS,
            ),
        ),
        Table(
            "collectives",
            "torch's metadata of a collective.",
            (
                _c("span", "int32", "row of spans", "The span of the call, or of what ran it."),
                _c("facts", "int32", "row of strings", "torch's metadata of it, as JSON.", 0),
            ),
        ),
        Table(
            "steps",
            "One step of the program: of training, or of inference.",
            (
                _d(
                    "number",
                    "int64",
                    "",
                    "The number in `ProfilerStep#N`; else counted from 0 since the recording began, or with `run --steps` since the program did.",
                    0,
                ),
                _d("start_ns", "int64", "ns", "When it began.", 0),
                _d("duration_ns", "int64", "ns", "How long it took.", 0),
                _d(
                    "span",
                    "int32",
                    "row of spans",
                    "The span that marks it, or the optimizer range that ends it.",
                ),
                _d("source", "uint8", "", "0: marked by `step()`. 1: found from the optimizer's steps.", 0),
                _d(
                    "process_row",
                    "int32",
                    "row of processes",
                    "The process it belongs to, in a trace of several processes.",
                ),
            ),
        ),
        Table(
            "cycles",
            "A cycle: a window in which a session recorded, such as one round of its schedule.",
            (
                _c("number", "int64", "", "Its number, from 0, over all cycles of the session.", 0),
                _c("start_ns", "int64", "ns", "When it began.", 0),
                _c("duration_ns", "int64", "ns", "How long it lasted.", 0),
                _OF_PROCESS,
            ),
        ),
        Table(
            "compiles",
            "A compilation by torch.compile. Those from before the recording say only which function a compiled region is of.",
            (
                _c(
                    "compile_id",
                    "text",
                    "",
                    "TorchDynamo's id of it, such as `2/1`: the second compilation of function 2.",
                ),
                _c("stage", "text", "", "`frame`, `backward` or `runtime`."),
                _c("function", "text", "", "The compiled function; empty if unknown."),
                _c("file", "text", "", "Its file."),
                _c("line", "int32", "", "Its first line, or the line after a graph break."),
                _c("recorded", "uint8", "", "1 if it ran during the recording.", 0),
                _c(
                    "start_ns", "int64", "ns", "When it began; negative for before the start of the trace.", 0
                ),
                _c("duration_ns", "int64", "ns", "How long it took."),
                _c("thread", "int32", "row of threads", "The thread it ran on."),
                _c("dynamo_ns", "int64", "ns", "Time to trace the function's bytecode and to build guards."),
                _c("aot_ns", "int64", "ns", "Time of AOTAutograd."),
                _c(
                    "inductor_ns",
                    "int64",
                    "ns",
                    "Time of Inductor's passes over the graph, and of lowering it.",
                ),
                _c("codegen_ns", "int64", "ns", "Time to schedule and write the code of kernels."),
                _c(
                    "kernel_compile_ns",
                    "int64",
                    "ns",
                    "Time to compile kernels with Triton or a C++ compiler.",
                ),
                _c("autotune_ns", "int64", "ns", "Time to benchmark variants of kernels."),
                _c("cache_hits", "int32", "", "Graphs found in Inductor's or AOTAutograd's cache."),
                _c("cache_misses", "int32", "", "Graphs that were not found there."),
                _c("guards", "int32", "", "How many guards the compiled function has."),
                _c("operators", "int32", "", "How many operators its graph calls."),
                _c(
                    "reason",
                    "text",
                    "",
                    "Why it was compiled again: the guard that failed; empty for a first compilation.",
                ),
                _c("failure", "text", "", "Why compiling failed; empty if it succeeded."),
                _OF_PROCESS,
            ),
        ),
        Table(
            "graph_breaks",
            "A place where torch.compile could not continue a graph.",
            (
                _c("file", "text", "", "The file of the line that could not be compiled."),
                _c("line", "int32", "", "That line."),
                _c("function", "text", "", "The function it is in."),
                _c("root_function", "text", "", "The function whose compilation was cut there."),
                _c("root_file", "text", "", "The file of that function."),
                _c("root_line", "int32", "", "The line of that function that was being executed."),
                _c("reason", "text", "", "Why, in torch's words."),
                _c(
                    "stack",
                    "text",
                    "",
                    "The user's stack from that function on, outermost first, joined by `;`.",
                ),
                _c(
                    "skipped",
                    "uint8",
                    "",
                    "1 if the whole function runs uncompiled, 0 if it is continued after the line.",
                    0,
                ),
                _c("compiles", "int64", "", "How many compilations were cut there.", 0),
                _OF_PROCESS,
            ),
        ),
        Table(
            "losses",
            "Something that was not recorded, was dropped, or is unknown. No rows mean that the trace is complete.",
            (
                _c("what", "text", "", "What is missing or damaged."),
                _c("count", "int64", "", "How many, at least.", 0),
                _c("where", "text", "", "Which part of the recording is affected."),
                _c("why", "text", "", "Why, and how to avoid it."),
                _c(
                    "code",
                    "text",
                    "",
                    "The kind of loss: a stable code for programs to compare. The documentation of this table lists all "
                    "codes. Empty in files written before there were codes.",
                ),
            ),
        ),
    )
}
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
