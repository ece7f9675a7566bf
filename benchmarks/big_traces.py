"""Kineto traces of any length, made by repeating the events of a real one with later times and new ids.

The repeated trace is one of the real accelerator traces, if they are next to the repository or in
KINETOSCOPE_SHARED_TRACES, else training steps recorded here with torch, without kernels. Operators, shapes, Python calls,
launches, kernels and memory events have the proportions and the JSON formatting of the original.
"""

import gzip
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.workloads import tiny_training_step

FOLDER = Path(
    os.environ.get("KINETOSCOPE_SHARED_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces")
)
# Has shapes, stacks, memory, launches and kernels.
PREFERRED = "h100_owlv2_stack_mem.json.gz"

# Arguments with ids, which differ in each repetition.
_IDS = frozenset(
    (
        "id",
        "correlation",
        "External id",
        "Record function id",
        "Ev Idx",
        "Sequence number",
        "Python id",
        "Python parent id",
    )
)
# A plausible Unix time.
_FIRST_NS = 1_419_124_704_850_743_000
_STEP = "ProfilerStep#"
_MARKS = ("Iteration Start: ", "Record Window End")


# Repetitions have different durations: each is stretched as a whole, so that nesting is preserved.
_LEAST_STRETCH, _MOST_STRETCH = 0.9, 1.1


@dataclass(frozen=True)
class Pattern:
    """The repeated events as a format, `text % numbers`.

    Ids in `numbers` grow by `steps` with each repetition. A time is two numbers, microseconds and nanoseconds; `starts` and
    `durations` have the index of the first one, -1 for events without a duration.
    """

    before: bytes
    text: bytes
    after: bytes
    numbers: NDArray[np.int64]
    steps: NDArray[np.int64]
    starts: NDArray[np.int64]
    durations: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    source: str

    @property
    def events(self) -> int:
        """The number of events in a repetition."""
        return len(self.starts)

    def repetition(
        self, number: int, begin_ns: int, moved: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> bytes:
        """Return the text of one repetition; `moved` says for times after the first event when they are after `begin_ns`, in order."""
        numbers = self.numbers + number * self.steps
        start_ns = moved(self.start_ns)
        duration_ns = moved(self.end_ns) - start_ns
        lasting = self.durations >= 0
        for places, times_ns in (
            (self.starts, start_ns + begin_ns),
            (self.durations[lasting], duration_ns[lasting]),
        ):
            numbers[places], numbers[places + 1] = times_ns // 1000, times_ns % 1000
        return self.text % tuple(numbers.tolist())


def pattern() -> Pattern:
    """Read or record the trace to repeat."""
    real = FOLDER / PREFERRED
    if real.is_file():
        return pattern_of(gzip.decompress(real.read_bytes()), f"as in {PREFERRED}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recorded.json"
        record(path)
        return pattern_of(
            path.read_bytes(), "recorded here by torch, without kernels, because no real GPU trace was found"
        )


def record(path: Path) -> None:
    """Record a few training steps on the CPU with torch.profiler, with all options on."""
    step = tiny_training_step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as session:
        for _ in range(3):
            step()
    session.export_chrome_trace(str(path))


def is_repeated(event: dict[str, Any]) -> bool:
    """Whether an event is one of those that are repeated: not metadata, and not about the recording itself."""
    return event["ph"] != "M" and event.get("cat") != "Trace" and not event["name"].startswith(_MARKS)


def pattern_of(content: bytes, source: str) -> Pattern:
    """Split a trace into the part before the events, the repeated events, and the part after them."""
    trace = json.loads(content, parse_float=Decimal)
    events = trace.pop("traceEvents")
    once = [event for event in events if event["ph"] == "M"]
    repeated = [event for event in events if is_repeated(event)]
    layout = _Layout()
    text = ",".join(layout.event(event) for event in repeated)
    steps = [number for number, key in zip(layout.numbers, layout.keys, strict=True) if key == _STEP]
    lengths = {_STEP: len(set(steps))} | {
        key: 1
        + max(
            (number for number, own in zip(layout.numbers, layout.keys, strict=True) if own == key), default=0
        )
        for key in _IDS
    }
    first = min(event["ts"] for event in repeated)
    start_ns = np.array([int((event["ts"] - first) * 1000) for event in repeated])
    duration_ns = np.array([int(event.get("dur", 0) * 1000) for event in repeated])
    header = {"schemaVersion": 1} | trace
    plain = _Layout()
    lines = [f'"{key}": {plain.value(value)}' for key, value in header.items()]
    before = "{\n  " + ",\n  ".join(lines) + ',\n  "traceEvents": ['
    before += "".join(plain.event({"ph": "M", **event, "ts": 0}) + "," for event in once) % tuple(
        plain.numbers
    )
    return Pattern(
        before.encode(),
        text.encode(),
        b"\n  ]\n}\n",
        np.array(layout.numbers),
        np.array([lengths.get(key, 0) for key in layout.keys]),
        np.array(layout.starts),
        np.array(layout.durations),
        start_ns,
        start_ns + duration_ns,
        source,
    )


class _Layout:
    """Formats events as Kineto does, with `%d` for the numbers that differ between repetitions, which it collects."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.keys: list[str] = []
        self.starts: list[int] = []
        self.durations: list[int] = []

    def event(self, event: dict[str, object]) -> str:
        """Format one event, on several lines."""
        self.durations.append(-1)
        first = [self.pair(key, value) for key, value in event.items() if key not in ("ts", "dur", "args")]
        times = [f'"{key}": {self.time(key)}' for key in ("ts", "dur") if key in event]
        lines = [", ".join(first), ", ".join(times)]
        arguments = event.get("args")
        if isinstance(arguments, dict):
            inside = ", ".join(self.pair(key, value) for key, value in arguments.items())
            lines.append('"args": {\n      ' + inside + "\n    }")
        return "\n  {\n    " + ",\n    ".join(line for line in lines if line) + "\n  }"

    def time(self, key: str) -> str:
        """Format a time in microseconds with three decimals, to be filled in later."""
        if key == "ts":
            self.starts.append(len(self.numbers))
        else:
            self.durations[-1] = len(self.numbers)
        self.numbers += [0, 0]
        self.keys += [key, key]
        return "%d.%03d"

    def pair(self, key: str, value: object) -> str:
        """Format a key and its value; collect the value if it differs between repetitions."""
        begin = f"{json.dumps(key)}: ".replace("%", "%%")
        if isinstance(value, str) and value.startswith(_STEP) and value[len(_STEP) :].isdecimal():
            self.numbers.append(int(value[len(_STEP) :]))
            self.keys.append(_STEP)
            return begin + f'"{_STEP}%d"'
        if key in _IDS and isinstance(value, int):
            self.numbers.append(value)
            self.keys.append(key)
            return begin + "%d"
        return begin + self.value(value).replace("%", "%%")

    def value(self, value: object) -> str:
        """Format any other value, with unchanged decimals."""
        if isinstance(value, Decimal):
            return str(value)
        if isinstance(value, dict):
            return (
                "{" + ", ".join(f"{json.dumps(key)}: {self.value(part)}" for key, part in value.items()) + "}"
            )
        if isinstance(value, list):
            return "[" + ", ".join(map(self.value, value)) + "]"
        return json.dumps(value)


def write_trace(repeated: Pattern, events: int, path: Path) -> int:
    """Write a trace of about `events` events; return the exact number."""
    repetitions = max(1, round(events / repeated.events))
    length_ns = int(repeated.end_ns.max() * _MOST_STRETCH) + 100_000
    with path.open("wb") as file:
        file.write(repeated.before)
        for number, stretch in enumerate(np.linspace(_LEAST_STRETCH, _MOST_STRETCH, repetitions)):
            if number:
                file.write(b",")
            file.write(
                repeated.repetition(
                    number,
                    _FIRST_NS + number * length_ns,
                    lambda times_ns, stretch=stretch: (times_ns * stretch).astype(np.int64),
                )
            )
        file.write(repeated.after)
    return repetitions * repeated.events
