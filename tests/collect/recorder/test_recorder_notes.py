"""What the recorder notes beside spans: operands, gradients, torch's ids; and recording with pauses."""

from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from kinetoscope._errors import StateError
from kinetoscope.collect.engines.native import NativeEngine
from kinetoscope.collect.recorder.library import load_recorder
from kinetoscope.collect.request.activities import ProfilerActivity
from kinetoscope.collect.request.options import RecordingRequest
from kinetoscope.trace import Trace
from tests.support.recorded import named, profile


def operands_of(trace: Trace, name: str) -> list[list[tuple[int, int, int]]]:
    """For each span of that name its (argument, address, bytes)."""
    table = trace.columns("operands")
    rows = zip(table["span"], table["argument"], table["address"], table["bytes"], strict=True)
    found: dict[int, list[tuple[int, int, int]]] = {row: [] for row in named(trace, name)}
    for span, argument, address, size in rows:
        if int(span) in found:
            found[int(span)].append((int(argument), int(address), int(size)))
    return list(found.values())


def block(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def test_operands_are_the_blocks_of_the_arguments() -> None:
    a, b = torch.ones(4, 8), torch.ones(8, 3)
    view = a[1:]
    with profile(record_shapes=True, profile_memory=True) as prof:
        torch.mm(view, b)
        torch.cat([a, a])
        torch.neg(torch.empty(3, device="meta"))
    assert operands_of(prof.trace, "aten::mm") == [[(0, *block(a)), (1, *block(b))]]
    assert operands_of(prof.trace, "aten::cat") == [[(0, *block(a)), (0, *block(a))]]
    assert operands_of(prof.trace, "aten::neg") == [[]]


def test_operands_are_noted_of_the_outermost_operator() -> None:
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    with profile(record_shapes=True, profile_memory=True) as prof, torch.profiler.record_function("range"):
        layer(x)
    expected = [(0, *block(x)), (1, *block(layer.weight)), (2, *block(layer.bias))]
    assert operands_of(prof.trace, "aten::linear") == [expected]
    assert operands_of(prof.trace, "aten::addmm") == [[]]


@pytest.mark.parametrize("shapes", [False, True])
def test_gradients_carry_their_parameter(shapes: bool) -> None:
    model = nn.Linear(4, 4)
    with profile(record_shapes=shapes, profile_memory=True) as prof:
        model(torch.ones(2, 4)).sum().backward()
    trace = prof.trace
    table, parameters = trace.columns("operands"), trace.columns("parameters")
    gradients = {
        trace.strings[parameters["name"][parameter]]: int(address)
        for argument, parameter, address in zip(
            table["argument"], table["parameter"], table["address"], strict=True
        )
        if argument == -1
    }
    # On a first backward the engine hands its buffer over: it is the gradient that the parameter then holds.
    assert gradients == {name: block(p.grad)[0] for name, p in model.named_parameters() if p.grad is not None}
    assert shapes or len(table) == 2


def test_without_options_there_are_no_notes() -> None:
    with profile(record_shapes=True) as prof:
        nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
    assert len(prof.trace.columns("operands")) == 0
    assert (prof.trace.column("spans", "record_function") == -1).all()


def test_ids_rise_with_the_calls_of_a_thread(tmp_path: Path) -> None:
    engine = NativeEngine()
    engine.prepare(RecordingRequest(frozenset({ProfilerActivity.CPU}), record_function_ids=True))
    engine.start()
    nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
    trace = engine.stop().trace()
    ids = trace.column("spans", "record_function")
    assert len(ids) > 10
    assert (ids > 0).all()
    threads = trace.column("spans", "thread")
    for thread in set(threads.tolist()):
        own = ids[threads == thread]
        assert (own[1:] > own[:-1]).all()


def test_a_pause_leaves_out_what_begins_in_it() -> None:
    recorder = load_recorder()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with torch.profiler.record_function("across the pause"):
            inside.set()
            leave.wait()

    with profile() as prof:
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        recorder.pause()
        with torch.profiler.record_function("paused"):
            torch.ones(3)
            leave.set()
            thread.join()
            recorder.resume()
        torch.zeros(3)
    trace = prof.trace
    assert not {"paused", "aten::ones"} & set(trace.strings)
    assert len(named(trace, "aten::zeros")) == 1
    across = named(trace, "across the pause")[0]
    assert trace.column("spans", "flags")[across] == 0
    assert trace.complete
    assert len(trace.columns("losses")) == 0


@pytest.mark.parametrize("options", [{}, {"profile_memory": True}, {"record_shapes": True}])
def test_torch_calls_nothing_of_ours_while_a_recording_is_paused(options: dict[str, bool]) -> None:
    recorder = load_recorder()
    # torch's own answer to whether any callback is to be called at an operator.
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    is_called = library["_ZN2at12hasCallbacksEv"]
    is_called.restype = ctypes.c_bool
    assert not is_called()
    with profile(**options) as prof:
        seen = [is_called()]
        for switch in (recorder.pause, recorder.pause, recorder.resume, recorder.pause, recorder.resume):
            switch()
            torch.ones(3)
            seen.append(is_called())
    assert seen == [True, False, False, True, False, True]
    assert not is_called()
    assert len(named(prof.trace, "aten::ones")) == 2


def test_a_pause_ends_with_its_recording() -> None:
    with profile():
        load_recorder().pause()
    with profile() as prof:
        torch.zeros(3)
    assert len(named(prof.trace, "aten::zeros")) == 1


def test_only_a_recording_can_be_paused() -> None:
    with pytest.raises(StateError, match="nothing to pause"):
        load_recorder().pause()
    with pytest.raises(StateError, match="nothing to resume"):
        load_recorder().resume()
    assert load_recorder().modules() == []


def test_living_modules_are_listed_with_their_rows() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    engine = NativeEngine()
    engine.prepare(RecordingRequest(frozenset({ProfilerActivity.CPU})))
    engine.start()
    model(torch.ones(2, 4))
    living = load_recorder().modules()
    trace = engine.stop().trace()
    classes = [trace.strings[row] for row in trace.column("modules", "class")]
    seen = {id(module): classes[number - 1] for number, module in living}
    assert seen == {id(module): type(module).__name__ for module in model.modules()}


@pytest.mark.parametrize("number", [0.1, 1 / 3, 2**0.5, 1e-310, 123456789.123456789, -0.0, 3.0])
def test_scalars_keep_all_their_digits(number: float) -> None:
    with profile(record_shapes=True) as prof:
        torch.pow(torch.ones(2), number)
    trace = prof.trace
    shapes = trace.column("spans", "shapes")[named(trace, "aten::pow")[0]]
    concrete = json.loads(trace.columns("shapes")["concrete"][shapes])
    assert repr(float(concrete[1])) == repr(number)
