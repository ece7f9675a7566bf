"""Splits a Chrome trace by process, so that each is read like a separate file.

Scripts that merge the files of several ranks write one file: they keep the process ids, add an offset, or make them texts such as
`[TP01] 4711`. Kineto's own files have several ids, too, but one process: its devices, its overhead and its windows have others.

Device work belongs to the process that its track names, else to the one that launched it. Numbers of launches repeat among processes:
work with equal numbers then belongs to the processes in the order in which these launched it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinetoscope.formats.chrome.read_links import last_before, spans_at
from kinetoscope.formats.chrome.read_tracks import DEVICE_LABEL, OWN, Names, made
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_runtime_call
from kinetoscope.model.rows import Rows, places_of

Native = dict[str, Any]
Key = tuple[int, str]


_RANK = re.compile(r"\brank[\s_:#=-]*(?P<rank>\d{1,9})", re.IGNORECASE)
# How SGLang names the ranks of a job with tensor parallelism only.
_TENSOR_RANK = re.compile(r"\[TP(?P<rank>\d{1,9})(?:-(?:PP|DP|EP)0+)*\]")
_LAST_NUMBER = re.compile(r"(?P<before>.*?)(?P<number>\d{1,18})", re.DOTALL)
# Parts of a process that torch_npu and XLA write as processes.
_COMPONENT = re.compile(
    r"/device:.*|Ascend Hardware|CANN|AscendCL|Communication|Overlap Analysis|NPU_MEM|Pipeline|AI Core Freq"
)
_OVERHEAD = "overhead"
# Numbers of other processes occur by chance; below this share of its work, a device does not belong to one process.
_LEAST_SHARE = 0.9
# Processes without a number in the file get numbers from here on.
_FIRST_MADE_UP = 1 << 40


@dataclass(frozen=True)
class FileProcess:
    """A process as the file identifies it.

    Attributes:
        key: Its number and text in the file.
        pid: Its process id, or a made-up one if the file does not say it.
        rank: Its rank, None if unknown.
    """

    key: Key
    pid: int
    rank: int | None


def host_processes(native: Native, names: Names) -> list[FileProcess]:
    """Return the processes that ran on the host, in the order of their numbers; one or none for an ordinary file."""
    threads, categories = native["threads"], native["categories"]
    keys = _keys(threads)
    has_rows = np.diff(threads["first_row"]) > 0
    if native["rows"].get("allocations"):
        has_rows[np.unique(made(native["allocations"]["thread"]))] = True
    host_keys: dict[Key, None] = {}
    for row in np.flatnonzero(has_rows & (np.asarray(threads["on_device"]) == 0)).tolist():
        key, first = keys[row], int(threads["first_category"][row])
        is_component = (
            (key[0] < 0 and not key[1])
            or (first >= 0 and categories[first] == _OVERHEAD)
            or _COMPONENT.fullmatch(names.processes.get(key, "")) is not None
            or DEVICE_LABEL.fullmatch(names.labels.get(key, "")) is not None
        )
        if not is_component:
            host_keys.setdefault(key)
    ranks = [_rank(key, names) for key in host_keys]
    if len(set(ranks)) < len(ranks):
        ranks = [None] * len(ranks)
    pids = [key[0] if not key[1] else _last_number(key[1]) for key in host_keys]
    return [
        FileProcess(key, pid if pid is not None and pids.count(pid) == 1 else _FIRST_MADE_UP + index, rank)
        for index, (key, pid, rank) in enumerate(zip(host_keys, pids, ranks, strict=True))
    ]


def _keys(threads: Mapping[str, Any]) -> list[Key]:
    return list(zip(np.asarray(threads["process"]).tolist(), threads["process_text"], strict=True))


def _rank(key: Key, names: Names) -> int | None:
    for text in (key[1], names.labels.get(key, ""), names.processes.get(key, "")):
        if (stated := _RANK.search(text) or _TENSOR_RANK.match(text)) is not None:
            return int(stated["rank"])
    return names.ranks.get(key)


def _last_number(text: str) -> int | None:
    parts = _LAST_NUMBER.fullmatch(text)
    return None if parts is None else int(parts["number"])


def span_owners(
    native: Native,
    names: Names,
    processes: Sequence[FileProcess],
    spans: Mapping[str, Any],
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """Return the process of each span, and of each track; of a track that several share, the first.

    Args:
        native: The native reader's result.
        names: The names in the file.
        processes: The result of `host_processes`.
        spans: The columns of the spans.

    Returns:
        Both as places in `processes`, and how many device spans are of a process that had to be guessed.
    """
    threads, thread = native["threads"], spans["thread"]
    keys, on_device = _keys(threads), np.asarray(threads["on_device"]) != 0
    index_of = {process.key: index for index, process in enumerate(processes)}
    by_process = Groups(np.array([index_of.get(key, 0) for key in keys], np.int32), len(processes))
    main = by_process.largest(np.diff(threads["first_row"]) * ~on_device)
    of_track = np.array(
        [
            -1 if device else index_of.get(key, -1)
            for key, device in zip(keys, on_device.tolist(), strict=True)
        ],
        np.int32,
    )
    for row in np.flatnonzero(of_track < 0).tolist():
        of_track[row] = _named_owner(keys[row], names, processes)
    of_track[~on_device & (of_track < 0)] = main
    owner = of_track[thread]
    device = np.flatnonzero(owner < 0)
    if len(device) == 0:
        return owner, of_track, 0
    starters = _starters(spans, owner, device, len(processes))
    chosen = _in_order_of_launches(spans, starters, device)
    before = (starters >= 0) & (spans["start_ns"][starters] <= spans["start_ns"][device, None])
    possible = np.where(before.any(axis=1, keepdims=True), before, starters >= 0)
    alone = possible.sum(axis=1) == 1
    chosen[alone] = possible[alone].argmax(axis=1)
    unsure = ~alone
    number_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    of_key = np.array([number_of[key] for key in keys])[thread[device]]
    # With fewer devices than processes, processes share them; else each device is of one process, unless launches say otherwise.
    are_shared = len(np.unique(of_key)) < len(np.unique(chosen[chosen >= 0]))
    for number in np.unique(of_key).tolist():
        device_rows = np.flatnonzero(of_key == number)
        sure, votes = (
            Groups(chosen[rows], len(processes)).sizes()
            for rows in (device_rows[alone[device_rows]], device_rows)
        )
        if are_shared or not votes.any() or sure.max() < _LEAST_SHARE * sure.sum():
            continue
        chosen[device_rows] = sure.argmax() if sure.any() else votes.argmax()
        unsure[device_rows] = not sure.any() and np.count_nonzero(votes) > 1
    last = np.maximum.accumulate(np.where(chosen >= 0, np.arange(len(chosen)), -1))
    chosen = np.where(last >= 0, chosen[last], np.int32(main))
    owner[device] = chosen
    track, first = np.unique(thread[device], return_index=True)
    of_track[track] = chosen[first]
    of_track[of_track < 0] = main
    return owner, of_track, int(unsure.sum())


def _named_owner(key: Key, names: Names, processes: Sequence[FileProcess]) -> int:
    """The only other process in the file with the same rank or text prefix; else -1."""
    rank, parts = _rank(key, names), _LAST_NUMBER.fullmatch(key[1])
    before = parts["before"] if parts is not None else ""
    owners = [
        index
        for index, process in enumerate(processes)
        if (rank is not None and process.rank == rank)
        or (
            before and (hit := _LAST_NUMBER.fullmatch(process.key[1])) is not None and hit["before"] == before
        )
    ]
    return owners[0] if len(owners) == 1 else -1


def _starters(spans: Mapping[str, Any], owner: NDArray[np.int32], device: Rows, count: int) -> Rows:
    """For each device span and process, the host span that may have launched it; else -1."""
    calls = is_runtime_call(spans["kind"])
    called, operated = np.full((2, len(device), count), -1, np.int64)
    for key, rows, hosts in (("correlation", called, calls), ("external_id", operated, ~calls)):
        if key in spans:
            for index in range(count):
                rows[:, index] = last_before(spans, key, np.flatnonzero((owner == index) & hosts), device)
    # A process with both numbers is preferred to those with one of them.
    both = np.where(operated >= 0, called, -1)
    starters = np.where((both >= 0).any(axis=1, keepdims=True), both, called)
    launched: Rows = np.where((called >= 0).any(axis=1, keepdims=True), starters, operated)
    return launched


def _in_order_of_launches(spans: Mapping[str, Any], starters: Rows, device: Rows) -> NDArray[np.int32]:
    """The process of each device span, -1 without a launch; where numbers are equal, work is assigned in the order of launches."""
    chosen = np.full(len(device), -1, np.int32)
    _, group = np.unique(starters, axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.lexsort((np.arange(len(device)), spans["start_ns"][device], group))
    edges = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    start_ns = spans["start_ns"]
    for low, high in pairwise(edges.tolist()):
        rows = order[low:high]
        launches = starters[rows[0]]
        candidates = np.flatnonzero(launches >= 0)
        if len(candidates):
            ordered = candidates[np.argsort(start_ns[launches[candidates]], kind="stable")]
            chosen[rows] = ordered[np.arange(len(rows)) * len(ordered) // len(rows)]
    return chosen


def split(
    native: Native, names: Names, processes: Sequence[FileProcess], *, shares_axis: bool
) -> tuple[list[Native], int]:
    """Return what the native reader would return for a file of each process.

    Args:
        native: The native reader's result.
        names: The names in the file.
        processes: The processes.
        shares_axis: Whether times of all processes count from the start of the trace, as in our own files; in others, a process
            begins with its first event.

    Returns:
        The parts, and how many device spans are of a process that is not certain.
    """
    spans = {name: made(values) for name, values in native["spans"].items()}
    owner, of_track, unsure = span_owners(native, names, processes, spans)
    tables = {
        name: {column: made(values) for column, values in native[name].items()}
        for name in ("kernels", "copies", "allocations", "counters", "flows")
        if name in native
    }
    arguments = made(native["arguments"]["json"])
    keys = [process.key for process in processes]
    of_counter = np.array(
        [keys.index(key) if key in keys else 0 for key in native["counter_processes"]] or [0]
    )
    chosen: dict[str, NDArray[Any]] = {}
    for name, table in tables.items():
        if name in ("kernels", "copies"):
            chosen[name] = owner[table["span"]]
        elif name == "allocations":
            chosen[name] = of_track[table["thread"]]
        elif name == "counters":
            chosen[name] = of_counter[table.pop("process")]
        else:
            span_rows = spans_at(spans, table["thread"], table["time_ns"])
            chosen[name] = np.where(span_rows >= 0, np.append(owner, 0)[span_rows], of_track[table["thread"]])
    parts = []
    for index in range(len(processes)):
        rows = np.flatnonzero(owner == index)
        new_row = places_of(rows, len(owner))
        tracks = np.union1d(np.unique(spans["thread"][rows]), np.flatnonzero(of_track == index))
        new_track = places_of(tracks, len(of_track))
        part: Native = {
            name: {column: values[chosen[name] == index] for column, values in table.items()}
            for name, table in tables.items()
        }
        part["spans"] = part_spans = {name: values[rows] for name, values in spans.items()}
        for table in part.values():
            for column, moved in (("thread", new_track), ("span", new_row)):
                if column in table:
                    table[column] = moved[table[column]]
        windows = [
            window for window in native["windows"] if (of_track[window[3]] if window[3] >= 0 else 0) == index
        ]
        times = [part_spans["start_ns"]] + [
            part[name]["time_ns"] for name in ("allocations", "counters", "flows") if name in part
        ]
        firsts = [int(values.min()) for values in times if len(values)] + [window[1] for window in windows]
        first_ns = 0 if shares_axis else min(firsts, default=0)
        for table in part.values():
            for column in ("start_ns", "time_ns"):
                if column in table:
                    table[column] = table[column] - first_ns
        ends = [
            part_spans["start_ns"] + part_spans["duration_ns"],
            *(part[name]["time_ns"] for name in ("allocations", "counters") if name in part),
        ]
        threads = {
            name: [values[row] for row in tracks.tolist()] if isinstance(values, list) else values[tracks]
            for name, values in native["threads"].items()
            if name != "first_row"
        }
        threads["first_row"] = np.searchsorted(part_spans["thread"], np.arange(len(tracks) + 1))
        with_spans = np.diff(threads["first_row"]) > 0
        threads["first_category"] = np.full(len(tracks), -1, np.int32)
        threads["first_category"][with_spans] = part_spans["category"][threads["first_row"][:-1][with_spans]]
        shapes, texts, stacks = (
            _used_rows(part_spans, column, np.full(count, -1, np.int32)).tolist()
            for column, count in (
                ("shapes", len(native["shapes"]["dims"])),
                ("arguments", len(arguments)),
                ("call_stack", len(native["call_stacks"])),
            )
        )
        part |= {
            "threads": threads,
            "metadata": native["metadata"],
            "windows": [(text, start_ns - first_ns, length, -1) for text, start_ns, length, _ in windows],
            "shapes": {name: [values[row] for row in shapes] for name, values in native["shapes"].items()},
            "arguments": {"json": [arguments[row] for row in texts]},
            "call_stacks": [native["call_stacks"][row] for row in stacks],
            "strings": list(native["strings"]),
            "categories": list(native["categories"]),
            "collective_arguments": native["collective_arguments"],
            "losses": {},
            "implausible": (),
            "base_ns": native["base_ns"] + first_ns,
            "last_ns": max([0, *(int(values.max()) for values in ends if len(values))]),
        }
        for tree, column, above in (("stacks", "own_stack", "parent"), ("modules", "own_module", "caller")):
            if tree in native:
                nodes = _used_rows(part_spans, column, native[tree][above])
                part[tree] = {name: values[nodes] for name, values in native[tree].items()}
                part[tree][above] = places_of(nodes, len(native[tree][above]))[part[tree][above]]
        parts.append(part)
    return parts, unsure


def _used_rows(spans: dict[str, Any], column: str, parent: NDArray[np.int32]) -> Rows:
    """The rows of a table that spans use, with their ancestors, ascending; renumbers the column."""
    used = np.zeros(len(parent) + 1, np.bool_)
    rows = np.unique(spans[column]) if column in spans else np.zeros(0, np.int64)
    while len(rows := rows[(rows >= 0) & ~used[rows]]):
        used[rows] = True
        rows = np.unique(parent[rows])
    used_rows = np.flatnonzero(used)
    if column in spans:
        spans[column] = places_of(used_rows, len(parent))[spans[column]]
    return used_rows


def header_of_process(header: Mapping[str, Any], process: FileProcess) -> dict[str, Any]:
    """Return the header of a merged file as one process would have it: the rank in it is that of the first file."""
    process_header = {
        key: value
        for key, value in header.items()
        if key not in (OWN, "rank", "process", "process_name", "processes", "losses")
    }
    if isinstance(job := process_header.get("distributedInfo"), dict):
        process_header["distributedInfo"] = {key: value for key, value in job.items() if key != "rank"}
        if process.rank is not None:
            process_header["distributedInfo"]["rank"] = process.rank
    return process_header


def add_process_info(info: dict[str, Any], process: FileProcess | None, names: Names) -> None:
    """Add a file's facts about the process of a trace to the metadata; `process` is None if the file names none."""
    if process is None:
        info.pop("process", None)
        return
    info["process"] = process.pid
    if name := names.processes.get(process.key) or process.key[1]:
        info.setdefault("process_name", name)
    if process.rank is not None:
        info.setdefault("rank", process.rank)
