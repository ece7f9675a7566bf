"""The same events through torch's table and ours: the text must be the same, but for the last digit of a time."""

import copy
import pickle
import re
from collections import Counter

import numpy as np
import pytest

from kinetoscope.torch_events.event_list import EventList
from kinetoscope.torch_events.function_event import FunctionEvent, FunctionEventAvg, size_text
from tests.support.trace_builder import TraceBuilder

torch = pytest.importorskip("torch", reason="the comparison is with torch's own profiler")

from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402

from tests.support.torch_release import METADATA  # noqa: E402

NUMBER = re.compile(r"-?\d+\.\d+")


def model_step():
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for number in range(2):
        with record_function(f"ProfilerStep#{number}"):
            net(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def ranges_in_ranges():
    with record_function("a"), record_function("a"):
        torch.randn(2, 4)
    with record_function("b"):
        torch.ones(2)
        with record_function("b"):
            torch.cat([torch.randn(2), torch.randn(2)])
    with record_function("c"), record_function("c"), record_function("c"):
        pass


def lists_and_scalars():
    rows = torch.randn(3, 4).split(1)
    torch.stack(list(rows), 0).clamp(0, 1).to(torch.float64).add(2)
    with record_function("a very long range name " * 4):
        torch.einsum("ij,jk->ik", torch.randn(3, 4), torch.randn(4, 5))


class Cube(torch.autograd.Function):
    """A function with its own backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


def custom_function():
    x = torch.randn(4, requires_grad=True)
    y = Cube.apply(x)
    torch.utils.checkpoint.checkpoint(torch.sin, y, use_reentrant=False).sum().backward()
    x.is_leaf, x.output_nr, x._version


PROGRAMS = [model_step, ranges_in_ranges, lists_and_scalars, custom_function]


def both(program):
    """Runs a program under torch's profiler; returns its result and a trace with the same events."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        program()
    results = prof.profiler.kineto_results
    builder = TraceBuilder()
    threads = {}
    base = results.trace_start_ns()
    for event in results.events():
        if event.activity_type() not in ("cpu_op", "user_annotation"):
            continue
        thread = event.start_thread_id()
        if thread not in threads:
            threads[thread] = builder.thread(f"t{thread}", torch_tid=thread)
        shapes = event.structured_input_shapes()
        builder.span(
            event.name(),
            event.start_ns() - base,
            event.duration_ns(),
            thread=threads[thread],
            overload=event.overload_name(),
            scope=7 if event.is_user_annotation() else event.scope(),
            sequence=event.sequence_nr(),
            shapes=builder.shapes(shapes) if shapes else -1,
        )
    return prof, builder.build()


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.__name__)
def pair(request):
    return both(request.param)


def assert_same_text(ours, theirs, *, any_order=False):
    """Compares two tables; torch adds floats of microseconds, so its last digit may differ, and with it the order of equals."""
    lines = [
        [
            (NUMBER.sub("#", line), [float(number) for number in NUMBER.findall(line)])
            for line in squeezed(text)
        ]
        for text in (ours, theirs)
    ]
    if any_order:
        lines = [sorted(text) for text in lines]
    assert [line for line, _ in lines[0]] == [line for line, _ in lines[1]]
    numbers = [[number for _, found in text for number in found] for text in lines]
    np.testing.assert_allclose(numbers[0], numbers[1], rtol=0, atol=0.011)


def squeezed(text):
    """Lines with single spaces where the width of a number may shift them."""
    return [re.sub(" +", " ", line) for line in text.splitlines()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_limit": 5},
        {"sort_by": "self_cpu_time_total"},
        {"sort_by": "cpu_time", "time_unit": "ms"},
        {"sort_by": "count", "header": "Heading", "time_unit": "us"},
        {"sort_by": "cpu_time_total", "top_level_events_only": True},
        {"max_name_column_width": 20, "row_limit": -1},
        {"sort_by": "cuda_time_total", "max_name_column_width": None},
    ],
    ids=str,
)
def test_the_table_is_torchs(pair, options):
    prof, trace = pair
    assert_same_text(
        trace.key_averages().table(**options),
        prof.key_averages().table(**options),
        any_order="sort_by" in options,
    )


@pytest.mark.parametrize(
    # Of a limited number of rows, times decide which there are.
    "options",
    [{}, {"max_shapes_column_width": 30, "sort_by": "self_cpu_time_total", "row_limit": -1}],
    ids=str,
)
def test_grouping_by_shape_is_torchs(pair, options):
    prof, trace = pair
    ours, theirs = trace.key_averages(group_by_input_shape=True), prof.key_averages(group_by_input_shape=True)
    assert_same_text(ours.table(**options), theirs.table(**options), any_order="sort_by" in options)


def test_the_table_of_single_events_is_torchs(pair):
    prof, trace = pair
    assert_same_text(trace.events().table(row_limit=30), prof.events().table(row_limit=30))


def test_the_width_of_every_line_is_torchs(pair):
    prof, trace = pair
    assert {len(line) for line in trace.key_averages().table().splitlines()[:-1]} == {
        len(line) for line in prof.key_averages().table().splitlines()[:-1]
    }


def test_single_events_have_torchs_attributes(pair):
    prof, trace = pair
    theirs, ours = list(prof.events()), list(trace.events())
    assert [event.name for event in ours] == [event.name for event in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for name in (
            "key", "trace_name", "overload_name", "count", "thread", "sequence_nr", "scope", "is_async", "is_remote", "is_legacy",
            "node_id", "is_user_annotation", "is_python_function", "activity_type", "device_type", "use_device", "input_shapes",
            "structured_input_shapes", "flops", "kernels", "cpu_memory_usage", "device_memory_usage", "device_time_total",
            "self_device_time_total", METADATA,
        ):  # fmt: skip
            mine, its = getattr(one, name), getattr(other, name)
            assert mine == its, (name, one)
            assert type(mine) is type(its) or isinstance(mine, int | float | list), name
        assert one.time_range.start == pytest.approx(other.time_range.start)
        assert one.time_range.end == pytest.approx(other.time_range.end)
        for name in ("cpu_time", "cpu_time_total", "self_cpu_time_total"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-3), name
            assert getattr(one, f"{name}_str").endswith("s")
        assert [child.name for child in one.cpu_children] == [child.name for child in other.cpu_children]
        assert (one.cpu_parent and one.cpu_parent.name) == (other.cpu_parent and other.cpu_parent.name)


def test_averages_have_torchs_attributes(pair):
    prof, trace = pair
    theirs, ours = prof.key_averages(), trace.key_averages()
    assert [event.key for event in ours] == [event.key for event in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for name in (
            "count", "node_id", "is_async", "is_remote", "is_legacy", "use_device", "input_shapes", "stack", "overload_name",
            "scope", "device_type", "is_user_annotation", "cpu_memory_usage", "flops",
        ):  # fmt: skip
            assert getattr(one, name) == getattr(other, name), (name, one)
        for name in ("cpu_time", "cpu_time_total", "self_cpu_time_total", "device_time_total"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-3), (name, one)
        assert (one.cpu_parent is None) == (other.cpu_parent is None)
    assert trace.events().self_cpu_time_total == pytest.approx(prof.events().self_cpu_time_total)
    mine, its = trace.events().total_average(), prof.events().total_average()
    assert (mine.key, mine.count) == (its.key, its.count)
    assert mine.cpu_time_total == pytest.approx(its.cpu_time_total)


def test_every_public_attribute_of_torchs_events_exists(pair):
    prof, trace = pair
    for ours, theirs in (
        (trace.events()[0], prof.events()[0]),
        (trace.key_averages()[0], prof.key_averages()[0]),
        (trace.events(), prof.events()),
    ):
        # Building events by hand, and what a list of torch's can do as a list.
        known = {"add", "append_kernel", "append_cpu_child", "set_cpu_parent", *dir(list)}
        # Texts that torch's table leaves on the events it printed.
        known |= {"self_cpu_percent", "total_cpu_percent", "total_device_percent"}
        missing = {name for name in dir(theirs) if not name.startswith("_")} - set(dir(ours)) - known
        assert missing == set()


def test_our_ops_table_counts_each_operator_once(pair):
    _, trace = pair
    rows = trace.table("ops").to_pylist()
    names = Counter(trace.strings[name] for name in trace.column("spans", "name").tolist())
    for row in rows:
        assert row["total_percent"] <= 100 + 1e-9
        if row["kind"] != "step":
            assert row["count"] <= names[row["name"]]
    assert sum(row["count"] for row in rows) == len(trace.columns("spans"))


def test_events_pass_as_torchs_own(pair):
    prof, trace = pair
    theirs = torch.autograd.profiler_util
    ours, sums = trace.events(), trace.key_averages()
    for events, kind in ((ours, theirs.FunctionEvent), (sums, theirs.FunctionEventAvg)):
        assert isinstance(events, theirs.EventList)
        assert isinstance(events, list)
        assert isinstance(events, EventList)
        assert all(isinstance(event, kind) for event in events)
        assert not isinstance(events[0], theirs.EventList)
        # What they are does not depend on how they pass.
        assert type(copy.copy(events[0])) is type(pickle.loads(pickle.dumps(events[0]))) is type(events[0])
        its = next(iter(prof.events() if events is ours else prof.key_averages()))
        assert vars(events[0]).keys() == vars(its).keys()
    assert isinstance(trace.events()[0], FunctionEvent)
    assert type(sums[0]) is FunctionEventAvg


def test_torchs_own_list_nests_averages_and_prints_our_events(pair):
    prof, trace = pair
    events = list(trace.events())
    nesting = [(event.cpu_parent, list(event.cpu_children)) for event in events]
    for event in events:
        event.cpu_parent, event.cpu_children = None, []
    theirs = torch.autograd.profiler_util.EventList(events)
    theirs._build_tree()
    assert len(theirs) == len(events)
    assert [(event.cpu_parent, event.cpu_children) for event in events] == nesting
    assert_same_text(theirs.table(row_limit=30), prof.events().table(row_limit=30))
    sums = theirs.key_averages()
    assert_same_text(sums.table(), prof.key_averages().table())
    assert type(sums[0]) is torch.autograd.profiler_util.FunctionEventAvg


@pytest.mark.parametrize("size", [0, 1023, -1024, 5 << 20, 3 << 30])
def test_sizes_have_the_units_of_the_installed_torch(size):
    assert size_text(size) == torch.autograd.profiler_util._format_memory(size)
