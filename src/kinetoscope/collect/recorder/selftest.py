"""Self-test of the loaded recorder with the installed torch and Python, once per process.

The recorder reads internals of torch and Python, which may change in any release. So each feature is tested on a small program
with a known result, and a feature that fails is not used.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetoscope.collect.recorder.library import Recorded, Recorder
from kinetoscope.collect.recorder.stream import STREAM, NewFile, Subscription
from kinetoscope.model.schema import SCOPE_MODULE, SCOPE_PYTHON

FEATURES = ("operators", "nesting", "backward", "shapes", "stacks", "modules")


# The name of the range around the program.
_RANGE = "kinetoscope self-test"

# The program takes a thousandth of this. If the recorder hangs, the user's job must not.
_PATIENCE_SECONDS = 30.0


def check_recorder(recorder: Recorder) -> dict[str, str]:
    """Record a small program, and compare the recording with the known result.

    It runs on its own thread, where no mode, autocast or default device of the caller is active, and does not use random numbers.

    Returns:
        For each of `FEATURES` an empty string if it works, else a description of the failure.
    """
    results: dict[str, str] = {}
    # An import on another thread would wait for this one: do not use a thread.
    is_importing = any(map(_is_importing, ("torch", "kinetoscope")))
    failure = _failure_of(lambda: results.update(_try_features(recorder)), on_thread=not is_importing)
    return dict.fromkeys(FEATURES, failure) if failure else results


def _failure_of(test: Callable[[], None], *, on_thread: bool = True) -> str:
    """Run a test, on a thread of its own for a limited time if asked; return why it failed, empty if it did not."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            test()
        except Exception as error:  # noqa: BLE001  (hooks of the program for all modules may raise anything)
            failures.append(error)

    if on_thread:
        thread = threading.Thread(target=run, name="kinetoscope self-test", daemon=True)
        thread.start()
        thread.join(_PATIENCE_SECONDS)
        if thread.is_alive():
            return f"the self-test did not end within {_PATIENCE_SECONDS:.0f} seconds"
    else:
        run()
    return f"the self-test failed: {failures[0]}" if failures else ""


def _is_importing(package: str) -> bool:
    """Whether a package is being imported, as torch is where a program is left on from then, or this one where torch was there before."""
    return bool(getattr(getattr(sys.modules.get(package), "__spec__", None), "_initializing", False))


def _try_features(recorder: Recorder) -> dict[str, str]:
    import torch

    import kinetoscope._core as _core

    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2, 3, device="cpu", dtype=torch.float32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mul(x, self.weight)

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x)

    model = Outer()
    x = torch.ones(2, 3, device="cpu", dtype=torch.float32)

    def program() -> None:
        with torch.profiler.record_function(_RANGE):
            model(x).sum().backward()

    with tempfile.TemporaryDirectory(prefix="kinetoscope-selftest-") as folder:
        path = Path(folder) / "selftest.recording"
        recorder.start(path, Recorded.SHAPES | Recorded.STACKS | Recorded.MODULES, None)
        try:
            program()
        finally:
            recorder.stop()
            recorder.resolve([model, model.inner])
            recorder.close()
        recording = _core.read_recording(str(path))
    readback = _ReadBack(recording)
    checks: dict[str, Callable[[], str]] = {
        "operators": readback.operators,
        "nesting": readback.nesting,
        "backward": readback.backward,
        "shapes": readback.shapes,
        "stacks": lambda: readback.stacks(program.__code__.co_filename),
        "modules": readback.modules,
    }
    return {feature: checks[feature]() for feature in FEATURES}


def check_calls(recorder: Recorder) -> str:
    """Test the recording of Python calls and module calls.

    Not part of `check_recorder`, because only sessions that record calls need it. It joins the current recording, if there is one.

    Returns:
        An empty string if both are recorded correctly, else a description of the failure.
    """
    import torch

    import kinetoscope._core as _core

    class Called(torch.nn.Module):
        def forward(self) -> None:
            return None

    model = Called()

    def call() -> None:
        # This thread has those of threading.setprofile and settrace, which belong to the program.
        sys.setprofile(None)
        sys.settrace(None)
        recorded = Recorded.STACKS | Recorded.MODULES | Recorded.CALLS | Recorded.MODULE_SPANS
        session = Subscription(STREAM, recorder, recorded)
        session.start(NewFile(lambda: path, belongs_to_user=True))
        try:
            # The recorder skips the code of this package, so a function of torch is called.
            model()
        finally:
            session.stop()
            part = session.close()
        if part is not None:
            part.cut(path)

    with tempfile.TemporaryDirectory(prefix="kinetoscope-selftest-") as folder:
        path = Path(folder) / "calls.recording"
        if failure := _failure_of(call):
            return failure
        recording = _core.read_recording(str(path))
    spans, strings = recording["spans"], recording["strings"]
    names = [strings[name] for name in spans["name"]]
    # Only of this thread: others may call modules meanwhile.
    called_on = spans["thread"][names.index("Called")] if "Called" in names else -1
    calls = [
        (int(scope), name)
        for scope, name, thread in zip(spans["scope"], names, spans["thread"], strict=True)
        if thread == called_on and (scope == SCOPE_MODULE or name == "Module._wrapped_call_impl")
    ]
    right = calls == [(SCOPE_MODULE, "Called"), (SCOPE_PYTHON, "Module._wrapped_call_impl")]
    return "" if right else f"the calls of a module read {calls}"


class _ReadBack:
    """The recording of the program, and a check of each feature, which returns a description of the failure or ""."""

    def __init__(self, recording: Any) -> None:
        self._recording = recording
        self._strings: list[str] = recording["strings"]
        spans = recording["spans"]
        names = [self._strings[name] for name in spans["name"]]
        # Only of the thread of the self-test: others may run operators meanwhile.
        threads = spans["thread"]
        on_thread = threads == threads[names.index(_RANGE)] if _RANGE in names else threads >= 0
        self._spans = {column: values[on_thread] for column, values in spans.items()}
        self._names = [self._strings[name] for name in self._spans["name"]]

    def _row(self, name: str) -> int:
        return self._names.index(name) if name in self._names else -1

    def operators(self) -> str:
        missing = [name for name in (_RANGE, "aten::mul", "aten::sum") if name not in self._names]
        if missing:
            return f"{missing} were not recorded, but {self._names[:8]}"
        row = self._row("aten::mul")
        overload = self._strings[self._spans["overload"][row]]
        return "" if overload == "Tensor" else f"the overload of aten::mul reads {overload!r}, not 'Tensor'"

    def nesting(self) -> str:
        start, duration = self._spans["start_ns"], self._spans["duration_ns"]
        around, within = self._row(_RANGE), self._row("aten::mul")
        if within < 0 or around < 0:
            return "the spans are missing"
        end = int(start[around] + duration[around])
        inside = int(start[around]) <= int(start[within]) and int(start[within] + duration[within]) <= end
        scopes = (int(self._spans["scope"][around]), int(self._spans["scope"][within]))
        if not inside:
            return "aten::mul does not lie inside the range around it"
        return "" if scopes == (7, 0) else f"the scopes read {scopes}, not (7, 0)"

    def backward(self) -> str:
        forward, backward = self._row("aten::mul"), self._row("MulBackward0")
        if backward < 0:
            return "MulBackward0 was not recorded"
        sequence = self._spans["sequence"]
        if int(sequence[forward]) < 0 or int(sequence[forward]) != int(sequence[backward]):
            return f"the sequence numbers read {int(sequence[forward])} and {int(sequence[backward])}"
        accumulate = self._row("torch::autograd::AccumulateGrad")
        if accumulate < 0 or int(self._spans["parameter"][accumulate]) < 0:
            return "the parameter of AccumulateGrad is unknown"
        return ""

    def shapes(self) -> str:
        row = int(self._spans["shapes"][self._row("aten::mul")])
        if row < 0:
            return "aten::mul has no shapes"
        dims = str(self._recording["shapes"]["dims"][row])
        types = str(self._recording["shapes"]["types"][row])
        right = dims == "[[2, 3], [2, 3]]" and types == '["float", "float"]'
        return "" if right else f"the inputs of aten::mul read {dims} {types}"

    def stacks(self, filename: str) -> str:
        stack = int(self._spans["stack"][self._row("aten::mul")])
        functions: list[str] = []
        files: list[str] = []
        while stack >= 0:
            frame = int(self._recording["stacks"]["frame"][stack])
            functions.append(self._strings[self._recording["frames"]["function"][frame]])
            files.append(self._strings[self._recording["frames"]["file"][frame]])
            stack = int(self._recording["stacks"]["parent"][stack])
        right = (
            functions[:1] == [f"{_try_features.__qualname__}.<locals>.Inner.forward"] and files[0] == filename
        )
        return "" if right else f"the innermost frame of aten::mul reads {functions[:1]} {files[:1]}"

    def modules(self) -> str:
        modules = self._recording["modules"]
        row = int(self._spans["module"][self._row("aten::mul")])
        if row < 0:
            return "aten::mul has no module"
        name = self._strings[modules["name"][row]]
        kind = self._strings[modules["class"][row]]
        parent = int(modules["parent"][row])
        root = self._strings[modules["class"][parent]] if parent >= 0 else ""
        right = (name, kind, root) == ("inner", "Inner", "Outer")
        return "" if right else f"the module of aten::mul reads {name!r} {kind!r} in {root!r}"
