"""Kineto traces of any length: the events of a real one again and again, each time later and with ids of their own.

What is repeated is one of the real traces of accelerators, where they lie beside the repository or in
KINETOSCOPE_SHARED_TRACES; else training steps that torch records here, which have no kernels. Operators, shapes, Python
calls, launches, kernels and marks of memory are there in the proportions of the original, laid out as Kineto does it.
"""

import gzip
import json
import os
import tempfile
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.workloads import tiny_training_step

FOLDER = Path(
    os.environ.get("KINETOSCOPE_SHARED_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces")
)
# Shapes, stacks, memory, launches, kernels: everything at once.
PREFERRED = "h100_owlv2_stack_mem.json.gz"

# Numbers that are an event's own, so that each repetition needs others.
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
# Where the clock stood, about.
_FIRST_NS = 1_419_124_704_850_743_000
_MARKS = ("Iteration Start: ", "Record Window End")


# No repetition takes as long as another: each is stretched as a whole, so that what encloses another still does.
_LEAST_STRETCH, _MOST_STRETCH = 0.9, 1.1


@dataclass(frozen=True)
class Pattern:
    """What is repeated: `text % numbers`.

    Ids among the numbers grow by `steps` with each repetition. Times are two numbers, microseconds and thousandths, of
    which the first is at a place in `starts` or `durations`; events without a duration have -1 there.
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
        """How many events a repetition has."""
        return len(self.starts)

    def repetition(self, number: int, begin_ns: int, stretch: float) -> bytes:
        """The text of one repetition, which begins at `begin_ns`."""
        numbers = self.numbers + number * self.steps
        start_ns = (self.start_ns * stretch).astype(np.int64)
        duration_ns = (self.end_ns * stretch).astype(np.int64) - start_ns
        lasting = self.durations >= 0
        for places, times_ns in (
            (self.starts, start_ns + begin_ns),
            (self.durations[lasting], duration_ns[lasting]),
        ):
            numbers[places], numbers[places + 1] = times_ns // 1000, times_ns % 1000
        return self.text % tuple(numbers.tolist())


def pattern() -> Pattern:
    """Read what is repeated."""
    real = FOLDER / PREFERRED
    if real.is_file():
        return pattern_of(gzip.decompress(real.read_bytes()), f"as in {PREFERRED}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recorded.json"
        record(path)
        return pattern_of(
            path.read_bytes(), "as torch records it here, without kernels: no real trace of a GPU is there"
        )


def record(path: Path) -> None:
    """Have torch's own profiler record a few training steps on the CPU, with everything on."""
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


def pattern_of(content: bytes, source: str) -> Pattern:
    """Take a trace apart: what comes before its events, those that are repeated, and what comes after."""
    trace = json.loads(content, parse_float=Decimal)
    events = trace.pop("traceEvents")
    once = [event for event in events if event["ph"] == "M"]
    repeated = [
        event
        for event in events
        if event["ph"] != "M" and event.get("cat") != "Trace" and not event["name"].startswith(_MARKS)
    ]
    layout = _Layout()
    text = ",".join(layout.event(event) for event in repeated)
    lengths = {
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
    """Writes events as Kineto does, with `%d` in place of the numbers that differ, and these aside."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.keys: list[str] = []
        self.starts: list[int] = []
        self.durations: list[int] = []

    def event(self, event: dict[str, object]) -> str:
        """One event over several lines."""
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
        """A time in microseconds with three decimals, whose numbers are filled in later."""
        if key == "ts":
            self.starts.append(len(self.numbers))
        else:
            self.durations[-1] = len(self.numbers)
        self.numbers += [0, 0]
        self.keys += [key, key]
        return "%d.%03d"

    def pair(self, key: str, value: object) -> str:
        """A key and its value, which is put aside where it differs."""
        begin = f"{json.dumps(key)}: ".replace("%", "%%")
        if key in _IDS and isinstance(value, int):
            self.numbers.append(value)
            self.keys.append(key)
            return begin + "%d"
        return begin + self.value(value).replace("%", "%%")

    def value(self, value: object) -> str:
        """Any other value; decimals as they were."""
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
    """Write a trace of about so many events; return how many they are."""
    repetitions = max(1, round(events / repeated.events))
    length_ns = int(repeated.end_ns.max() * _MOST_STRETCH) + 100_000
    with path.open("wb") as file:
        file.write(repeated.before)
        for number, stretch in enumerate(np.linspace(_LEAST_STRETCH, _MOST_STRETCH, repetitions)):
            if number:
                file.write(b",")
            file.write(repeated.repetition(number, _FIRST_NS + number * length_ns, stretch))
        file.write(repeated.after)
    return repetitions * repeated.events
