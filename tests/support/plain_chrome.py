"""What a Kineto trace says when it is read the plain way: `json.loads`, dictionaries, and nothing of ours.

It is slow and knows little, so that one can see that it is right. Times are exact: decimals, never floats.
"""

import gzip
import json
from collections import Counter, defaultdict
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from pathlib import Path

OPERATORS = ("cpu_op", "Operator")
RANGES = ("user_annotation",)
RUNTIME = ("cuda_runtime", "cuda_driver", "Runtime", "Driver", "mtia_runtime")
KERNELS = ("kernel", "Kernel")
COPIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
DEVICE_WORK = (*KERNELS, *COPIES, "mtia_ccp_events")

# torch's device types: memory of AMD's devices is marked HIP, and is CUDA's everywhere else.
HIP, CUDA = 6, 1


class PlainTrace:
    """The events of one file, sorted into what is counted."""

    def __init__(self, path: Path) -> None:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        # Old files hold bytes that are no UTF-8 in their names.
        content = json.loads(text.decode("utf-8", "replace"), parse_float=Decimal)
        events = content["traceEvents"] if isinstance(content, dict) else content
        timed = [event for event in events if event.get("ph") in ("X", "i", "s", "t", "f", "C")]
        self.base_ns = min(nanoseconds(event["ts"]) for event in timed)
        self.slices = [event for event in timed if event["ph"] == "X" and event.get("cat") != "Trace"]
        self.moments = [event for event in timed if event["ph"] == "i"]

    def start_ns(self, event: dict) -> int:
        """When it began, from the first time in the file."""
        return nanoseconds(event["ts"]) - self.base_ns

    def sums(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """For each category and name: how many slices, and the sums of their durations and starts."""
        found: dict[tuple[str, str], tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
        for event in self.slices:
            key = event["cat"], event["name"]
            count, duration_ns, start_ns = found[key]
            found[key] = count + 1, duration_ns + length_ns(event), start_ns + self.start_ns(event)
        return dict(found)

    def count(self, categories: tuple[str, ...]) -> int:
        """How many slices have one of the categories."""
        return sum(event["cat"] in categories for event in self.slices)

    def steps(self) -> list[tuple[int, int, int]]:
        """Number, start and duration of each marked step."""
        return sorted(
            (int(event["name"].partition("#")[2]), self.start_ns(event), length_ns(event))
            for event in self.slices
            if event["cat"] in (*OPERATORS, *RANGES) and event["name"].startswith("ProfilerStep#")
        )

    def launches(self) -> set[tuple[str, int, str, int]]:
        """Call and work on the device that have a correlation in common, each by name and start."""
        calls = {
            event["args"]["correlation"]: event
            for event in self.slices
            if event["cat"] in RUNTIME and "correlation" in event["args"]
        }
        return {
            (call["name"], self.start_ns(call), event["name"], self.start_ns(event))
            for event in self.slices
            if event["cat"] in DEVICE_WORK
            and (call := calls.get(event.get("args", {}).get("correlation"))) is not None
        }

    def numbers(self, key: str, *spellings: str) -> Counter[str]:
        """For each category the sum of a number among the arguments."""
        found: Counter[str] = Counter()
        for event in self.slices:
            arguments = event.get("args", {})
            value = next((arguments[name] for name in (key, *spellings) if name in arguments), None)
            if value is not None:
                found[event["cat"]] += int(value)
        return found

    def blocks_of_grids(self) -> int:
        """How many blocks all kernels had together."""
        total = 0
        for event in self.slices:
            if event["cat"] in KERNELS and "grid" in event["args"]:
                x, y, z = event["args"]["grid"]
                total += x * y * z
        return total

    def moved_bytes(self) -> int:
        """What all copies and fillings say that they moved."""
        return sum(int(event["args"].get("bytes", 0)) for event in self.slices if event["cat"] in COPIES)

    def memory(self) -> dict[tuple[int, int], tuple[int, int, int]]:
        """For each device: how many allocations and frees, and the bytes of either."""
        found: dict[tuple[int, int], tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
        for event in self.moments:
            if event["name"] != "[memory]":
                continue
            arguments = event["args"]
            device = int(arguments["Device Type"])
            key = CUDA if device == HIP else device, int(arguments["Device Id"])
            count, taken, freed = found[key]
            size = int(arguments["Bytes"])
            found[key] = count + 1, taken + max(size, 0), freed + max(-size, 0)
        return dict(found)


@lru_cache(maxsize=1)
def plain_trace(path: Path) -> PlainTrace:
    """Read a file; the last one stays, because several tests ask about each."""
    return PlainTrace(path)


def nanoseconds(microseconds: int | Decimal) -> int:
    """Microseconds as whole nanoseconds; halves are rounded away from 0."""
    return int((Decimal(microseconds) * 1000).to_integral_value(ROUND_HALF_UP))


def length_ns(event: dict) -> int:
    """How long a slice is; one that ends before it begins has no length."""
    return max(0, nanoseconds(event.get("dur", 0)))
