"""Events of a device through torch's own table code and through ours: built by hand, so that no device is needed."""

import re

import numpy as np
import pytest

pytest.importorskip("torch", reason="the comparison is with torch's own tables")

from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from kinetoscope.model.schema import SpanKind
from kinetoscope.trace import Trace

OPERATOR, RANGE, RUNTIME = SpanKind.OPERATOR, SpanKind.USER_ANNOTATION, SpanKind.RUNTIME
KERNEL, COPY = SpanKind.KERNEL, SpanKind.MEMCPY
# name, kind, on the device, start and duration in microseconds, asynchronous, started by (a row of this list)
ROWS = [
    ("step", RANGE, False, 0, 900, False, None),
    ("aten::linear", OPERATOR, False, 10, 300, False, None),
    ("aten::addmm", OPERATOR, False, 20, 200, False, None),
    ("cudaLaunchKernel", RUNTIME, False, 30, 8, False, None),
    ("cudaLaunchKernel", RUNTIME, False, 60, 9, False, None),
    ("aten::copy_", OPERATOR, False, 320, 100, False, None),
    ("cudaMemcpyAsync", RUNTIME, False, 330, 20, False, None),
    ("c10d::wait", OPERATOR, False, 500, 300, True, None),
    ("aten::relu", OPERATOR, False, 520, 100, False, None),
    ("cudaLaunchKernel", RUNTIME, False, 540, 10, False, None),
    ("cudaDeviceSynchronize", RUNTIME, False, 950, 2000, False, None),
    ("step", RANGE, True, 100, 1500, False, None),
    ("gemm", KERNEL, True, 110, 700, False, 3),
    ("splitk", KERNEL, True, 820, 90, False, 4),
    ("Memcpy HtoD", COPY, True, 1000, 60, False, 6),
    ("relu_kernel", KERNEL, True, 1200, 250, False, 9),
]  # fmt: skip
# Which operator torch links a device event with: the one around the runtime call.
LINKED = {12: 2, 13: 2, 14: 5, 15: 8}


def torchs() -> EventList:
    """The events as torch makes them of Kineto's."""
    events = []
    for row, (name, kind, on_device, start, duration, is_async, _) in enumerate(ROWS):
        events.append(
            FunctionEvent(
                id=row, name=name, trace_name=name, overload_name="", thread=7 if on_device else 1, start_us=start,
                end_us=start + duration, input_shapes=[], stack=[], use_device="cuda", is_async=is_async, flops=0,
                device_type=DeviceType.CUDA if on_device else DeviceType.CPU, is_user_annotation=kind == RANGE,
                sequence_nr=-1, fwd_thread=0,
            )
        )  # fmt: skip
    for row, host in LINKED.items():
        events[host].append_kernel(events[row].name, 0, events[row].time_range.elapsed_us())
    events.sort(key=lambda event: [event.time_range.start, -event.time_range.end])
    made = EventList(events, use_device="cuda", profile_memory=False, with_flops=False)
    made._build_tree()
    return made


def ours() -> Trace:
    """The same as a trace."""
    strings = ["", *dict.fromkeys(row[0] for row in ROWS)]
    columns = {
        "name": [strings.index(row[0]) for row in ROWS],
        "kind": [row[1] for row in ROWS],
        "thread": [int(row[2]) for row in ROWS],
        "stream": [0 if row[2] else -1 for row in ROWS],
        "start_ns": [row[3] * 1000 for row in ROWS],
        "duration_ns": [row[4] * 1000 for row in ROWS],
        "flags": [int(row[5]) for row in ROWS],
        "scope": [7 if row[1] == RANGE else 0 for row in ROWS],
    }
    links = [(row[6], place) for place, row in enumerate(ROWS) if row[6] is not None]
    return Trace.from_columns(
        {
            "spans": columns,
            "threads": {"os_tid": [5, 7], "torch_tid": [1, 7]},
            "streams": {"device_type": [1], "device_index": [0], "number": [7]},
            "launches": {"host": [link[0] for link in links], "device": [link[1] for link in links]},
        },
        strings=strings,
    )


def lines(text: str) -> list[str]:
    return [re.sub(" +", " ", line).strip() for line in text.splitlines()]


def test_single_events_have_the_same_times_kernels_and_nesting():
    for mine, its in zip(ours().events(), torchs(), strict=True):
        assert mine.name == its.name
        for name in (
            "cpu_time_total", "self_cpu_time_total", "device_time_total", "self_device_time_total", "cpu_time", "device_time",
        ):  # fmt: skip
            assert getattr(mine, name) == pytest.approx(getattr(its, name)), (name, mine)
        for name in ("device_type", "is_async", "is_user_annotation", "use_device"):
            assert getattr(mine, name) == getattr(its, name), (name, mine)
        assert [tuple(kernel) for kernel in mine.kernels] == [tuple(kernel) for kernel in its.kernels]
        assert (mine.cpu_parent and mine.cpu_parent.name) == (its.cpu_parent and its.cpu_parent.name)
        assert [child.name for child in mine.cpu_children] == [child.name for child in its.cpu_children]


@pytest.mark.parametrize(
    "options",
    [
        {}, {"sort_by": "cuda_time_total", "row_limit": 4}, {"sort_by": "self_device_time_total"},
        {"top_level_events_only": True}, {"time_unit": "ms", "header": "On a device"}, {"sort_by": "self_cuda_time_total"},
    ],
    ids=str,
)  # fmt: skip
def test_tables_are_the_same(options):
    assert lines(ours().key_averages().table(**options)) == lines(torchs().key_averages().table(**options))
    assert lines(ours().events().table(**options)) == lines(torchs().table(**options))


def test_sums_and_totals_are_the_same():
    mine, its = ours().key_averages(), torchs().key_averages()
    assert [(event.key, event.count, str(event.device_type)) for event in mine] == [
        (event.key, event.count, str(event.device_type)) for event in its
    ]
    for name in ("device_time_total", "self_device_time_total", "cpu_time_total", "self_cpu_time_total"):
        np.testing.assert_allclose(mine.values(name), [getattr(event, name) for event in its], err_msg=name)
    total, wanted = ours().events().total_average(), torchs().total_average()
    assert total.self_device_time_total == pytest.approx(wanted.self_device_time_total)
    assert total.use_device == wanted.use_device == "cuda"
