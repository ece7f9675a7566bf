"""The event objects that stand in for those of torch's collector: beside torch's own of the same run, and of built traces."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="the comparison is with torch's own event objects")

import torch
from torch._C import _profiler
from torch.autograd import DeviceType

import kinetoscope
from kinetoscope import ProfilerActivity
from kinetoscope.collect.engines.event_objects import event_nodes, raw_events
from tests.support.programs import PROGRAMS
from tests.support.torch_engines import native  # noqa: F401  (a fixture)
from tests.support.trace_builder import TraceBuilder
from tests.torch_events.test_torch_events_against_torch import recorded_by_both

# Of events at once recorded by both, what does not depend on when they ran, or on who numbers them.
EQUAL = (
    "name", "scope", "sequence_nr", "start_thread_id", "fwd_thread_id", "is_async", "is_user_annotation",
    "is_python_function", "device_type", "activity_type", "shapes", "dtypes", "structured_input_strides", "nbytes",
)  # fmt: skip


@pytest.fixture(
    scope="module", params=("mlp_training", "nested_ranges", "checkpointing", "custom_autograd_function")
)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """What torch and we have of the same run."""
    run = PROGRAMS[request.param]()
    run()
    run()
    theirs, ours = recorded_by_both(run)
    return theirs.profiler.kineto_results, ours.profiler.kineto_results


def outline(nodes: list[Any]) -> list[Any]:
    """The names of nodes with those inside, without the allocations, of which torch's order with equal times is its own."""
    tag = _profiler._EventType.Allocation
    return [(node.name, outline(node.children)) for node in nodes if node.tag != tag]


def in_order(nodes: list[Any]) -> list[Any]:
    return [node for root in nodes for node in (root, *in_order(root.children))]


def operators(nodes: list[Any]) -> list[Any]:
    return [node.extra_fields for node in in_order(nodes) if node.tag == _profiler._EventType.TorchOp]


def tensors(inputs: list[Any]) -> list[Any]:
    """What is equal of arguments: the tensors, those in lists without their types, and numbers."""
    equal: list[Any] = []
    for value in inputs:
        if isinstance(value, _profiler._TensorMetadata):
            equal.append((value.sizes, value.strides, value.dtype, value.layout, value.device))
        elif isinstance(value, list) and value and isinstance(value[0], _profiler._TensorMetadata):
            equal.append([(tensor.sizes, tensor.strides) for tensor in value])
        else:
            equal.append(value)
    return equal


@pytest.mark.usefixtures("native")
def test_the_tree_is_that_of_torch(both):
    theirs, ours = (results.experimental_event_tree() for results in both)
    assert outline(ours) == outline(theirs)
    for mine, its in zip(operators(ours), operators(theirs), strict=True):
        assert (mine.name, mine.scope, mine.sequence_number) == (its.name, its.scope, its.sequence_number)
        assert tensors(mine.inputs) == tensors(its.inputs), mine.name
        assert isinstance(mine, _profiler._ExtraFields_TorchOp)


@pytest.mark.usefixtures("native")
def test_raw_events_have_the_values_of_torchs(both):
    spans = [[event for event in results.events() if event.name() != "[memory]"] for results in both]
    assert [event.name() for event in spans[1]] == [event.name() for event in spans[0]]
    for its, mine in zip(*spans, strict=True):
        # torch 2.11 lacks some.
        for name in filter(partial(hasattr, its), EQUAL):
            assert getattr(mine, name)() == getattr(its, name)(), (name, mine.name())
        assert mine.duration_ns() == mine.end_ns() - mine.start_ns() >= 0
        missing = {name for name in dir(its) if not name.startswith("_") and not hasattr(mine, name)}
        assert missing == set()


def test_numbers_of_events_are_not_used_again(native):  # noqa: F811
    numbers = []
    for _ in range(2):
        with kinetoscope.profile(activities=[ProfilerActivity.CPU], engine=native) as session:
            torch.ones(2).add(1)
        numbers += [event.correlation_id() for event in session.profiler.kineto_results.events()]
    assert len(numbers) == len(set(numbers)) > 2


def test_calls_of_modules_and_functions_are_nodes_with_their_callers(native):  # noqa: F811
    with kinetoscope.profile(
        activities=[ProfilerActivity.CPU], with_stack=True, python_calls=True, engine=native
    ) as session:
        torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(1, 2))
    nodes = in_order(session.profiler.kineto_results.experimental_event_tree())
    (linear,) = [node for node in nodes if node.name.startswith("nn.Module: Linear")]
    assert linear.typed[0] == _profiler._EventType.PyCall
    assert linear.extra_fields.module.cls_name == "Linear"
    assert linear.extra_fields.optimizer is None
    forward = next(node for node in in_order([linear]) if node.name.endswith(": forward"))
    assert forward.extra_fields.module is None
    assert forward.extra_fields.callsite.function_name == "forward"
    around = forward.parent
    while not isinstance(around.extra_fields, _profiler._ExtraFields_PyCall):
        around = around.parent
    assert vars(forward.extra_fields.caller) == vars(around.extra_fields.callsite)
    assert "aten::linear" in [node.name for node in in_order([forward])]


def with_a_kernel() -> Any:
    builder = TraceBuilder()
    builder.span("aten::mm", 0, 100)
    builder.runtime("cudaLaunchKernel", 10, 20, correlation=7)
    builder.kernel("gemm", 50, 300, correlation=7)
    builder.kernel("alone", 500, 10, correlation=9)
    return builder.build()


def test_device_work_is_in_the_call_that_launched_it():
    trace = with_a_kernel()
    (operator,) = event_nodes(trace)
    (launch,) = operator.children
    (kernel,) = launch.children
    assert [node.name for node in (operator, launch, kernel)] == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert {node.tag for node in (launch, kernel)} == {_profiler._EventType.Kineto}
    assert {node.start_tid for node in (launch, kernel)} == {operator.start_tid}
    assert event_nodes(trace)[0] is operator
    # As vLLM's profiler by layers looks up the time of a node.
    (event,) = [
        event
        for event in raw_events(trace)
        if event.correlation_id() == kernel.correlation_id and event.device_type() == DeviceType.CUDA
    ]
    assert (event.name(), event.duration_ns()) == ("gemm", 300)
    with pytest.raises(AttributeError, match="no_such_value"):
        event.no_such_value()


def test_an_allocation_is_a_node_and_its_free_has_its_number():
    builder = TraceBuilder()
    builder.span("aten::empty", 0, 100)
    builder.allocate(10, 4096, 64)
    builder.free(200, 4096)
    operator, free = event_nodes(builder.build())
    (allocation,) = operator.children
    assert [node.name for node in (allocation, free)] == ["[memory]", "[memory]"]
    fields = allocation.extra_fields, free.extra_fields
    assert [(part.ptr, part.alloc_size, part.device) for part in fields] == [
        (4096, 64, torch.device("cpu")),
        (4096, -64, torch.device("cpu")),
    ]
    assert fields[0].allocation_id == fields[1].allocation_id
    assert isinstance(fields[0], _profiler._ExtraFields_Allocation)
