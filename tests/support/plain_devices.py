"""What the devices of a Kineto trace did, said the plain way: one sweep over its events in order of time, nothing of ours.

The rules are those of `docs/devices.md`. Where the tables put sets of moments together, this goes from one begin or end
to the next and asks what is running, which takes long and is easily seen to be right.
"""

import re
from collections import Counter, defaultdict

from tests.support.plain_chrome import (
    COPIES,
    DEVICE_WORK,
    KERNELS,
    OPERATORS,
    RANGES,
    RUNTIME,
    PlainTrace,
    length_ns,
)

LOADING = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")
LAUNCH_NS = 25_000
PARTS = ("compute", "communication", "copy", "data_wait", "host_wait", "idle")


def busy_ns(stretches: list[tuple[int, int]]) -> int:
    """How long at least one of some stretches of time, each from a start to an end, lasts."""
    total, reach = 0, None
    for start, end in sorted(stretches):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


class PlainDevices:
    """The work of devices in a plain trace."""

    def __init__(self, trace: PlainTrace) -> None:
        self.trace = trace
        self.work = [event for event in trace.slices if event["cat"] in DEVICE_WORK]
        self._marks: dict[int, list[tuple[int, int, tuple]]] = {}

    def stretch(self, event: dict) -> tuple[int, int]:
        """From when to when it ran."""
        start = self.trace.start_ns(event)
        return start, start + length_ns(event)

    def kernels(self) -> dict[str, tuple[int, int, int, int]]:
        """For each name of a kernel: how many, their time, the shortest and the longest."""
        found: dict[str, list[int]] = defaultdict(list)
        for event in self.work:
            if not is_copy(event):
                found[event["name"]].append(length_ns(event))
        return {name: (len(times), sum(times), min(times), max(times)) for name, times in found.items()}

    def copies(self) -> dict[str, tuple[int, int, int]]:
        """For each name of a copy or filling: how many, their time, and what they moved as far as it is known."""
        found: dict[str, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
        for event in self.work:
            if is_copy(event):
                count, time_ns, size = found[event["name"]]
                moved = int(event["args"].get("bytes", 0))
                found[event["name"]] = count + 1, time_ns + length_ns(event), size + moved
        return dict(found)

    def streams(self) -> dict[tuple[int, int], tuple[int, int, int, int]]:
        """For each device and stream: how much ran, how long it was busy, when the first began and the last ended."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for event in self.work:
            found[device_of(event), number_of(event["tid"])].append(self.stretch(event))
        return {
            key: (len(rows), busy_ns(rows), min(row[0] for row in rows), max(row[1] for row in rows))
            for key, rows in found.items()
        }

    def devices(self) -> dict[int, int]:
        """For each device how long it was busy."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for event in self.work:
            found[device_of(event)].append(self.stretch(event))
        return {device: busy_ns(rows) for device, rows in found.items()}

    def launched_by(self) -> Counter[str]:
        """For each name of an operator or range the time of what carries its `External id`."""
        operators = {
            event["args"]["External id"]: event["name"]
            for event in self.trace.slices
            if event["cat"] in (*OPERATORS, *RANGES) and "External id" in event.get("args", {})
        }
        found: Counter[str] = Counter()
        for event in self.work:
            arguments = event.get("args", {})
            number = arguments.get("External id", arguments.get("external id"))
            if number in operators:
                found[operators[number]] += length_ns(event)
        return found

    def parts(self, device: int, start_ns: int, end_ns: int, *, in_step: bool) -> dict[str, int]:
        """What each moment of a window counts for."""
        if device not in self._marks:
            self._marks[device] = self._begins_and_ends(device)
        found: dict[str, int] = dict.fromkeys(PARTS, 0)
        running: Counter[tuple] = Counter()
        before = start_ns
        for time, change, sort in self._marks[device]:
            here = min(max(time, start_ns), end_ns)
            if here > before:
                found[_part(running, in_step=in_step)] += here - before
                before = here
            running[sort] += change
            if not running[sort]:
                del running[sort]
        found[_part(running, in_step=in_step)] += end_ns - before
        return found

    def queued(self, device: int) -> list[tuple[int, int]]:
        """From when on each piece of work of a device could have begun, as far as the host is concerned, until it did."""
        calls = {
            event["args"]["correlation"]: event
            for event in self.trace.slices
            if event["cat"] in RUNTIME and event.get("args", {}).get("correlation", 0)
        }
        found = []
        for event in self.work:
            call = calls.get(event["args"].get("correlation"))
            if call is None or device_of(event) != device:
                continue
            taken = length_ns(call)
            if is_copy(event):
                taken = min(taken, max(int(event["args"].get("bytes", 0)) // 2, length_ns(event)))
            ready = self.trace.start_ns(call) + taken + LAUNCH_NS
            found.append((ready, self.trace.start_ns(event)))
        return [(ready, begun) for ready, begun in found if ready < begun]

    def _begins_and_ends(self, device: int) -> list[tuple[int, int, tuple]]:
        """When what means something for a device begins (1) and ends (-1), in order."""
        marks = []
        for start, end in self.queued(device):
            marks += [(start, 1, ("queued",)), (end, -1, ("queued",))]
        for event in self.trace.slices:
            sort = self._sort(event, device)
            if sort is not None:
                start, end = self.stretch(event)
                if end > start:
                    marks += [(start, 1, sort), (end, -1, sort)]
        # Ends before begins, so that nothing overlaps by touching.
        return sorted(marks, key=lambda mark: mark[:2])

    def _sort(self, event: dict, device: int) -> tuple | None:
        """What an event means for a device; None for nothing."""
        category, name = event["cat"], event["name"]
        if category in DEVICE_WORK:
            if device_of(event) != device:
                return None
            if is_copy(event):
                return ("copy",)
            return ("communication",) if "nccl" in name.lower() else ("compute",)
        thread = event["pid"], event["tid"]
        if category in RUNTIME:
            return (
                "wait" if re.search("synchronize|hipMemcpyWithStream", name, re.IGNORECASE) else "work",
                thread,
            )
        if category in (*OPERATORS, *RANGES):
            if name.startswith(LOADING):
                return ("loading",)
            if name.startswith("ProfilerStep#"):
                return ("step",)
            if name.startswith("gloo:"):
                return ("communication",)
            marked = category in RANGES or name.startswith("Optimizer.")
            return ("range",) if marked else ("work", thread)
        return None


def _part(running: Counter[tuple], *, in_step: bool) -> str:
    """The first part that fits what is running."""
    sorts = {sort[0] for sort in running}
    for part in ("compute", "communication", "copy"):
        if part in sorts:
            return part
    if "loading" in sorts:
        return "data_wait"
    waiting = {sort[1] for sort in running if sort[0] == "wait"}
    working = {sort[1] for sort in running if sort[0] == "work"}
    if "queued" in sorts or (waiting and not working - waiting):
        return "idle"
    return "host_wait" if in_step or waiting or sorts & {"work", "range", "step"} else "idle"


def is_copy(event: dict) -> bool:
    """Whether an event of a device copied or filled memory; MTIA's have the category of its kernels."""
    return event["cat"] in COPIES or (event["cat"] not in KERNELS and event["name"] == "dma_request")


def device_of(event: dict) -> int:
    """The index of the device that an event ran on."""
    return int(event.get("args", {}).get("device", event["pid"]))


def number_of(track: object) -> int:
    """The number of a stream, which old releases write as `stream 7`."""
    return int(re.sub(r"\D", "", str(track)))
