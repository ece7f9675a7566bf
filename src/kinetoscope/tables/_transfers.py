"""Which transfer belongs to which call between ranks.

A backend such as gloo carries a call out on threads of its own and marks each transfer with a range, `gloo:all_reduce`
for example. torch ties the two together by nothing, so they are told by what must hold: the transfer begins after its
call, has its name and its number of elements, comes in the order of the calls, and a thread works for one group only.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# What carries out a call; gloo has no reduce_scatter of its own.
_CARRIED_BY = {"reduce_scatter": ("reduce_scatter", "all_reduce")}


@dataclass
class Transfer:
    """A range of a backend: one movement of data.

    Attributes:
        span: Its row of spans.
        name: What it does, without the backend's mark.
        backend: Whose range it is.
        thread: The row of the thread it ran on.
        start_ns: When it began.
        end_ns: When it ended.
        elements: How many elements it was given, -1 if not known.
        type: The type of the elements as torch names it, empty if not known.
    """

    span: int
    name: str
    backend: str
    thread: int
    start_ns: int
    end_ns: int
    elements: int = -1
    type: str = ""


@dataclass
class Call:
    """A call between ranks, as far as it matters here.

    Attributes:
        name: What was asked for, such as all_reduce.
        group: The process group, empty if not known.
        start_ns: When the call began.
        elements: How many elements one transfer of it moves, -1 if not known.
        parts: How many transfers carry it out.
        transfers: Those that were found.
    """

    name: str
    group: str
    start_ns: int
    elements: int = -1
    parts: int = 1
    transfers: list[Transfer] = field(default_factory=list)


def pair(calls: Iterable[Call], transfers: Iterable[Transfer]) -> None:
    """Give each call its transfers; a transfer belongs to one call at most.

    Args:
        calls: The calls in order of time; their `transfers` are filled.
        transfers: The transfers of the same process.
    """
    waiting: dict[str, list[Transfer]] = defaultdict(list)
    for transfer in sorted(transfers, key=lambda transfer: transfer.start_ns):
        waiting[transfer.name].append(transfer)
    group_of_thread: dict[int, str] = {}
    for call in calls:
        for name in _CARRIED_BY.get(call.name, (call.name,)):
            found = _fitting(call, waiting[name], group_of_thread)
            if not found:
                continue
            call.transfers = found
            taken = {transfer.span for transfer in found}
            waiting[name] = [transfer for transfer in waiting[name] if transfer.span not in taken]
            if call.group:
                group_of_thread.update((transfer.thread, call.group) for transfer in found)
            break


def _fitting(call: Call, waiting: list[Transfer], group_of_thread: dict[int, str]) -> list[Transfer]:
    """The first transfers that can be those of a call; of a thread of its own group where there is a choice."""
    own: list[Transfer] = []
    unknown: list[Transfer] = []
    for transfer in waiting:
        if transfer.start_ns < call.start_ns or (
            call.elements >= 0 and transfer.elements >= 0 and call.elements != transfer.elements
        ):
            continue
        group = group_of_thread.get(transfer.thread)
        if not call.group or group == call.group:
            own.append(transfer)
        elif group is None:
            unknown.append(transfer)
        if len(own) == call.parts or len(own) + len(unknown) > 8 * call.parts:
            break
    # A thread that nobody has claimed yet may be a second one of the same group, and then comes earlier.
    both = sorted(own + unknown, key=lambda transfer: transfer.start_ns)
    return both[: call.parts]
