"""Single events without torch's objects."""

import subprocess
import sys

from kinetoscope.model.schema import DeviceType
from tests.support.trace_builder import TraceBuilder


def test_an_event_knows_its_place():
    builder = TraceBuilder()
    main, engine = builder.thread("main", torch_tid=1), builder.thread("engine", torch_tid=4)
    layer = builder.module("Linear")
    stack = builder.stack(("a.py", 1, "main"))
    shapes = builder.shapes([[2, 3], []], ["float", "Scalar"], ["", "2"])
    builder.span("aten::linear", 0, 10, thread=main, sequence=5, module=layer, stack=stack, shapes=shapes)
    builder.backward("LinearBackward0", 100, 10, thread=engine, sequence=5, forward_thread=main)
    forward, engine_span, backward = builder.build().events()
    assert (engine_span.sequence_nr, engine_span.fwd_thread, engine_span.scope) == (5, 1, 0)
    assert forward.input_shapes == [[2, 3], []]
    assert forward.input_dtypes == ["float", "Scalar"]
    assert forward.concrete_inputs == [None, 2]
    assert forward.kwinputs == {}
    assert (forward.fwd_thread, backward.fwd_thread) == (0, 1)
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert forward.module == backward.module == "Linear"
    assert forward.stack == backward.stack == ["a.py(1): main"]
    assert backward.scope == 1
    assert backward.thread == 4
    assert not backward.is_python_function
    assert "name=LinearBackward0" in repr(backward)
    assert "FunctionEventAvg key=aten::linear count=1" in repr(builder.build().key_averages()[0])


def test_a_backward_function_without_a_number_has_no_forward_thread():
    builder = TraceBuilder()
    main = builder.thread("main", torch_tid=1)
    builder.backward("torch::autograd::AccumulateGrad", 0, 10, thread=main, sequence=-1, forward_thread=main)
    assert [(event.sequence_nr, event.fwd_thread) for event in builder.build().events()] == [(-1, 0), (-1, 0)]


def test_an_operator_without_a_module_has_an_empty_one():
    assert TraceBuilder().span("aten::add", 0, 1).build().events()[0].module == ""


def test_device_types_are_torchs_own_only_when_torch_is_there():
    program = (
        "from kinetoscope.torch_events.function_event import DeviceType, device_type\n"
        "import sys\n"
        "print(type(device_type(1)) is DeviceType, device_type(1).name, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["True", "CUDA", "False"]


def test_the_numbers_of_device_types_are_torchs():
    torch = __import__("pytest").importorskip("torch", reason="the numbers are torch's")
    assert {name: int(value) for name, value in torch.autograd.DeviceType.__members__.items()}.items() >= {
        kind.name: int(kind) for kind in DeviceType
    }.items()
