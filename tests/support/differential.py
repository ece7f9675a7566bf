"""One run as each profiler tells it, in a form that can be compared: what ran, inside what, with which inputs and bytes."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.profiler_util

import kinetoscope
from kinetoscope import ProfilerActivity

MARK = "the program under test"
FLAGS: dict[str, Any] = {
    "activities": [ProfilerActivity.CPU],
    "record_shapes": True,
    "profile_memory": True,
    "with_flops": True,
}


def _of_both(attribute: str) -> str:
    """The name of an event's attribute where the installed torch has it; else a name that neither has."""
    known = inspect.signature(torch.autograd.profiler_util.FunctionEvent).parameters
    return attribute if attribute in known else "none of both"


# Events of older releases of torch have neither.
STRUCTURED, TYPES = _of_both("structured_input_shapes"), _of_both("input_dtypes")
KNOWS_TYPES = TYPES == "input_dtypes"


@dataclass(frozen=True)
class Told:
    """What a profiler tells of a run.

    Attributes:
        threads: torch's numbers of the threads that it tells of.
        main: The one that ran the program.
        aspects: For each aspect, how often each thing was seen.
    """

    threads: set[int]
    main: int
    aspects: dict[str, Counter[Any]]


def marked(run: Callable[[], object]) -> Callable[[], object]:
    """The program inside a range, by which its thread is known."""

    def inside() -> None:
        with torch.profiler.record_function(MARK):
            run()

    return inside


def record_theirs(run: Callable[[], object]) -> torch.profiler.profile:
    """Runs a program under torch.profiler."""
    config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    with torch.profiler.profile(**FLAGS, experimental_config=config) as profiler:
        run()
    return profiler


def record_ours(run: Callable[[], object]) -> kinetoscope.Trace:
    """Runs a program under our native recorder."""
    with kinetoscope.profile(**FLAGS, engine="native") as profiler:
        run()
    return profiler.trace


def told_by_theirs(profiler: torch.profiler.profile, *, main_only: bool = False) -> Told:
    """What torch.profiler tells, of the thread that ran the program or of all."""
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    return _told(profiler.events(), _allocations_in_tree(results), main_only=main_only)


def told_by_ours(
    trace: kinetoscope.Trace, threads: set[int] | None = None, *, main_only: bool = False
) -> Told:
    """What our trace tells, of certain threads or of all."""
    return _told(trace.events(), _allocations_in_trace(trace), threads, main_only=main_only)


Block = tuple[int, int, int, str]


def _allocations_in_tree(results: Any) -> Iterator[Block]:
    """Thread, address, size (negative when freed) and innermost operator of torch's allocations, in order of time."""
    found = []
    waiting = list(results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append(event)
    for event in sorted(found, key=lambda event: event.start_time_ns):
        where = event.parent.name if event.parent is not None else ""
        yield event.start_tid, event.extra_fields.ptr, event.extra_fields.alloc_size, where


def _allocations_in_trace(trace: kinetoscope.Trace) -> Iterator[Block]:
    """The same of ours."""
    strings = trace.strings
    names, tids = trace.column("spans", "name"), trace.column("threads", "torch_tid")
    columns = [
        trace.column("allocations", name).tolist() for name in ("thread", "address", "bytes", "match", "span")
    ]
    for thread, address, size, match, span in zip(*columns, strict=True):
        freed = columns[2][match] if match >= 0 else 0
        yield int(tids[thread]), address, size or -freed, strings[names[span]] if span >= 0 else ""


def _blocks(allocations: Iterable[Block], threads: set[int]) -> Counter[tuple[int, str]]:
    """Size and operator of each allocation, and of each free of a block that was allocated before in the same run.

    torch keeps the sizes of blocks from session to session by their address, and takes an old block's size for that of
    a newer one at its place, so frees of blocks from before the run are left out.
    """
    counted: Counter[tuple[int, str]] = Counter()
    live: set[int] = set()
    for thread, address, size, where in allocations:
        if thread not in threads:
            continue
        if size > 0:
            live.add(address)
        elif address in live:
            live.remove(address)
        else:
            continue
        counted[size, where] += 1
    return counted


ASPECTS = ("nesting", "overloads", "shapes", "types", "scalars", "sequence", "links", "blocks", "flops")
# For these torch counts what the usual algorithm computes; its other formulas are too rough to compare with.
_COUNTED = ("aten::mm", "aten::addmm", "aten::bmm", "aten::conv2d")


def _told(
    events: Iterable[Any], blocks: Iterable[Block], threads: set[int] | None = None, *, main_only: bool
) -> Told:
    seen = [event for event in events if event.name != "[memory]"]
    (main,) = {event.thread for event in seen if event.name == MARK}
    if main_only:
        threads = {main}
    # Outside the mark are the operators that a session runs itself when it starts and stops.
    seen = [
        event
        for event in seen
        if (threads is None or event.thread in threads) and (event.thread != main or chain(event)[0] == MARK)
    ]
    shown = {event.thread for event in seen}
    aspects: dict[str, Counter[Any]] = {aspect: Counter() for aspect in ASPECTS}
    aspects["blocks"] = _blocks(blocks, shown)
    first = _first_sequence_numbers(seen)
    for event in seen:
        name, sequence = event.name, event.sequence_nr
        aspects["nesting"][chain(event)] += 1
        aspects["overloads"][name, event.overload_name] += 1
        if name in _COUNTED:
            aspects["flops"][name, str(event.input_shapes), event.flops or 0] += 1
        aspects["shapes"][name, str(event.input_shapes), str(getattr(event, STRUCTURED, None))] += 1
        aspects["types"][name, str(getattr(event, TYPES, None))] += 1
        aspects["scalars"][name, str([scalar(value) for value in event.concrete_inputs])] += 1
        aspects["sequence"][name, sequence - first[_owner(event)] if sequence >= 0 else -1] += 1
        aspects["links"][name, event.fwd_thread, event.scope, event.is_user_annotation, event.is_async] += 1
    return Told(shown, main, aspects)


def _owner(event: Any) -> int:
    """The thread whose sequence numbers an event has: a backward function has those of its forward thread."""
    return int(event.fwd_thread or event.thread)


def _first_sequence_numbers(events: Iterable[Any]) -> dict[int, int]:
    """The smallest number of each thread; they go on from run to run."""
    first: dict[int, int] = {}
    for event in events:
        if event.sequence_nr >= 0:
            owner = _owner(event)
            first[owner] = min(first.get(owner, event.sequence_nr), event.sequence_nr)
    return first


_BARE_POINT = re.compile(r"(?<=\d)\.(?!\d)")


def chain(event: Any) -> tuple[str, ...]:
    """The names from the outermost event to this one."""
    names = []
    while event is not None:
        names.append(event.name)
        event = event.cpu_parent
    return tuple(reversed(names))


def scalar(value: Any) -> Any:
    """A concrete input without what only one of them writes: devices and texts, and the last digits of a fraction."""
    if isinstance(value, str):
        try:
            value = json.loads(
                _BARE_POINT.sub(".0", value.lower()).replace("inf", "Infinity").replace("nan", "NaN")
            )
        except ValueError:
            value = None
    if isinstance(value, list):
        return [scalar(one) for one in value]
    return f"{value:.14g}" if isinstance(value, float) else value


def differences(theirs: Told, ours: Told) -> Iterator[tuple[str, str, Any]]:
    """What only one of them tells: the aspect, whose it is, and the thing, as often as it is missing."""
    for aspect in ASPECTS:
        one, other = theirs.aspects[aspect], ours.aspects[aspect]
        for whose, surplus in (("only torch", one - other), ("only ours", other - one)):
            for thing in surplus.elements():
                yield aspect, whose, thing
