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
from kinetoscope.model.schema import SCOPE_MODULE, SCOPE_PYTHON, SCOPE_USER

FEATURES = ("operators", "nesting", "backward", "shapes", "stacks", "modules")


# The name of the range around the program.
_RANGE = "kinetoscope self-test"

# The program takes a thousandth of this. The limit keeps the user's job from hanging if the recorder does.
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
    """Run a test, by default on its own thread with a time limit; return why it failed, empty if it did not."""
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
    """Whether a package is just being imported, by a program that turns on the flight recorder at that moment."""
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
    return {
        feature: "" if read == right else f"{feature} of the test program read {read}, not {right}"
        for feature, (read, right) in _read_and_right(recording, program.__code__.co_filename).items()
    }


def _read_and_right(recording: Any, filename: str) -> dict[str, tuple[object, object]]:
    strings: list[str] = recording["strings"]
    spans, threads = recording["spans"], recording["spans"]["thread"]
    range_rows = [row for row, name in enumerate(spans["name"]) if strings[name] == _RANGE]
    # Only of the thread of the self-test: others may run operators meanwhile.
    on_thread = threads == threads[range_rows[0]] if range_rows else threads >= 0
    columns = {column: values[on_thread].tolist() for column, values in spans.items()}
    names = [strings[name] for name in columns["name"]]

    def value(span: str, column: str) -> int:
        return columns[column][names.index(span)] if span in names else -1

    def window(span: str) -> tuple[int, int]:
        return value(span, "start_ns"), value(span, "start_ns") + value(span, "duration_ns")

    def entry(table: str, column: str, row: int) -> Any:
        return recording[table][column][row] if row >= 0 else -1

    def text(table: str, column: str, row: int) -> str | None:
        return strings[entry(table, column, row)] if row >= 0 else None

    multiply, gradient = "aten::mul", "torch::autograd::AccumulateGrad"
    (around_ns, around_end_ns), (start_ns, end_ns) = window(_RANGE), window(multiply)
    is_inside = around_ns <= start_ns and end_ns <= around_end_ns
    sequence, is_known = value(multiply, "sequence"), value(gradient, "parameter") >= 0
    shapes, module = value(multiply, "shapes"), value(multiply, "module")
    frame = entry("stacks", "frame", value(multiply, "stack"))
    root = entry("modules", "parent", module)
    recorded = [name for name in (_RANGE, multiply, "aten::sum") if name in names]
    overload = strings[value(multiply, "overload")] if multiply in names else None
    return {
        "operators": ((recorded, overload), ([_RANGE, multiply, "aten::sum"], "Tensor")),
        "nesting": (
            (is_inside, value(_RANGE, "scope"), value(multiply, "scope")),
            (True, SCOPE_USER, 0),
        ),
        "backward": (
            (sequence, sequence >= 0, is_known),
            (value("MulBackward0", "sequence"), True, True),
        ),
        "shapes": (
            (str(entry("shapes", "dims", shapes)), str(entry("shapes", "types", shapes))),
            ("[[2, 3], [2, 3]]", '["float", "float"]'),
        ),
        "stacks": (
            (text("frames", "function", frame), text("frames", "file", frame)),
            (f"{_try_features.__qualname__}.<locals>.Inner.forward", filename),
        ),
        "modules": (
            (
                text("modules", "name", module),
                text("modules", "class", module),
                text("modules", "class", root),
            ),
            ("inner", "Inner", "Outer"),
        ),
    }


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
        # A new thread starts with the functions of threading.setprofile and settrace, which belong to the program.
        sys.setprofile(None)
        sys.settrace(None)
        recorded = Recorded.STACKS | Recorded.MODULES | Recorded.CALLS | Recorded.MODULE_SPANS
        session = Subscription(recorder, recorded)
        STREAM.start(session, NewFile(lambda: path, belongs_to_user=True))
        try:
            # The recorder skips the code of this package, so a function of torch is called.
            model()
        finally:
            STREAM.stop(session)
            part = STREAM.close(session)
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
