"""What a Chrome trace says of its run as a whole, and what reading it lost."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetoscope.formats.chrome.read_tracks import CUDA, HPU, MTIA, PRIVATE_USE_1, XPU
from kinetoscope.model.losses import Loss, counted_losses, loss_columns
from kinetoscope.storage.unpacking import LIMIT_IN_WORDS

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping, Sequence

_TYPE_NAMES = {CUDA: "cuda", XPU: "xpu", HPU: "hpu", MTIA: "mtia", PRIVATE_USE_1: "privateuseone"}
# Times as the files of torch before 2.4 have them count from 1970; those of other clocks are far smaller.
_YEAR_2001_NS = 10**18
_YEAR_2100_NS = 41 * 10**17
_CYCLE = re.compile(r"PyTorch Profiler \((?P<number>\d{1,18})\)")
# What a trace says of itself in other ways, or what the writer made for viewers.
_NOT_KEPT = {"displayTimeUnit", "baseTimeNanoseconds", "losses", "stop_ns", "start_realtime_ns"}

NOT_RECORDED = "not_recorded"
"""The key of a trace's metadata that lists what a file that was read lacks, so that no export adds it.

Arguments of events stand there by their names, categories as `cat`.
"""
WINDOW = "Record Window End"
"""The last event of a file of Kineto's, which stands in that list for all that say when was recorded."""


def read_header(header: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The keys of a file beside its events, each with its value; what is no JSON stays text, of two equal keys the last counts."""
    return {key: _value(text) for key, text in header}


def read_info(
    header: Mapping[str, Any], base_ns: int, stop_ns: int, device_types: Sequence[int]
) -> dict[str, Any]:
    """What is known about the run, as `Trace.info` holds it.

    Args:
        header: What `read_header` gave.
        base_ns: The first time of the file, on its own axis.
        stop_ns: The last time, from the first.
        device_types: The types of the devices that have streams.
    """
    info: dict[str, Any] = {key: value for key, value in header.items() if key not in _NOT_KEPT}
    info["stop_ns"] = stop_ns
    since = header.get("baseTimeNanoseconds")
    if type(since) is int and 0 <= since < 2**62:
        if since or "start_realtime_ns" not in header:
            info["start_realtime_ns"] = since + base_ns
    elif _YEAR_2001_NS <= base_ns < _YEAR_2100_NS:
        info["start_realtime_ns"] = base_ns
    if "host" not in info and isinstance(host := header.get("host_name"), str):
        info["host"] = host
    if "devices" not in info and (devices := _devices(header.get("deviceProperties"), device_types)):
        info["devices"] = devices
    complete = info.get("complete")
    info["complete"] = complete if isinstance(complete, bool) else True
    return info


def not_recorded(
    windows: Sequence[tuple[str, int, int]],
    categories: Collection[str],
    spans: Container[str],
    allocations: Mapping[str, Any] | None,
) -> list[str]:
    """What a file lacks that our exports otherwise write, as `NOT_RECORDED` lists it.

    Args:
        windows: The events that say when was recorded.
        categories: The categories of events; an empty one is that of events without.
        spans: The names of the columns of spans.
        allocations: The columns of the marks of memory, as the file has them; None without marks.
    """
    lacking = [] if any(name == WINDOW for name, _, _ in windows) else [WINDOW]
    if "" in categories:
        lacking.append("cat")
    if "external_id" not in spans:
        lacking.append("External id")
    if allocations is not None:
        for key, column in (("Total Allocated", "allocated_bytes"), ("Total Reserved", "reserved_bytes")):
            if column not in allocations or (allocations[column] < 0).any():
                lacking.append(key)
        if not allocations["address"].any():
            lacking.append("Addr")
    return lacking


def lacks(info: Mapping[str, Any], what: str) -> bool:
    """Whether the file that a trace was read from is known not to have had something of `NOT_RECORDED`."""
    listed = info.get(NOT_RECORDED)
    return isinstance(listed, list) and what in listed


def read_losses(header: Mapping[str, Any], counted: Mapping[str, int]) -> dict[str, list[Any]]:
    """The table `losses`: what reading lost, and what the file says was lost before."""
    losses = [
        replace(loss, why=LIMIT_IN_WORDS) if loss.code == "beyond_unpacking_limit" else loss
        for loss in counted_losses(counted)
    ]
    told = header.get("losses")
    for loss in told if isinstance(told, list) else []:
        if isinstance(loss, dict) and isinstance(loss.get("what"), str):
            times = loss.get("count")
            count = times if type(times) is int and 0 <= times < 2**62 else 1
            where, why, code = (str(loss.get(name, "")) for name in ("where", "why", "code"))
            losses.append(Loss(loss["what"], count, where, why, code))
    return loss_columns(losses)


def read_cycles(windows: Sequence[tuple[str, int, int]], stop_ns: int) -> dict[str, list[int]]:
    """The table `cycles`: the windows that Kineto says it recorded in, or else the whole file."""
    found = {
        (start_ns, max(0, duration_ns), int(name["number"]))
        for text, start_ns, duration_ns in windows
        if (name := _CYCLE.fullmatch(text)) is not None
    }
    rows = sorted(found) or [(0, stop_ns, 0)]
    return {
        "number": [row[2] for row in rows],
        "start_ns": [row[0] for row in rows],
        "duration_ns": [row[1] for row in rows],
    }


def _value(text: str) -> Any:
    """What a JSON text means."""
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def _devices(properties: object, device_types: Sequence[int]) -> list[dict[str, Any]]:
    """The devices by name, in the form in which recordings keep them."""
    kind = _TYPE_NAMES.get(device_types[0], "cuda") if device_types else "cuda"
    return [
        {"type": kind, "index": entry["id"], "name": entry["name"]}
        for entry in (properties if isinstance(properties, list) else [])
        if isinstance(entry, dict)
        and type(entry.get("id")) is int
        and isinstance(entry.get("name"), str)
        and entry["name"]
    ]
