"""The cost of communication in a job: by process group, by pair of ranks, and along the dimensions of parallelism."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from kinetoscope.ledger.parts import PARTS
from kinetoscope.model.arrow import rows_to_arrow, to_arrow
from kinetoscope.model.groups import Groups
from kinetoscope.model.rows import Rows, mask_of
from kinetoscope.summaries.clocks import aligned
from kinetoscope.summaries.lateness import exposed_by_step
from kinetoscope.summaries.sections import Group, Sections
from kinetoscope.tables.device.collectives import bus_factor

# Words in the descriptions of process groups by torch's device meshes, Megatron and DeepSpeed.
_DIMENSIONS = {
    "tp": "TP", "tensor": "TP", "dp": "DP", "data": "DP", "ddp": "DP", "fsdp": "DP", "hsdp": "DP", "pp": "PP", "pipeline": "PP",
    "pipe": "PP", "ep": "EP", "expert": "EP", "cp": "CP", "context": "CP",
}  # fmt: skip
# Libraries' names for groups without a description.
_UNDESCRIBED = frozenset({"", "undefined", "default_pg"})
_LEAST_LINKS = 3


def dimension_of(group: Group, world: int) -> str:
    """The parallel dimension of a process group; empty for a group of all ranks or of one."""
    if group.description.lower() not in _UNDESCRIBED:
        words = re.split(r"[^a-z]+", group.description.lower())
        dimensions = dict.fromkeys(_DIMENSIONS[word] for word in words if word in _DIMENSIONS)
        return "+".join(dimensions) or group.description
    distances = set(np.diff(group.ranks).tolist())
    if len(distances) != 1 or len(group.ranks) >= world:
        return ""
    return f"{len(group.ranks)} ranks, {distances.pop()} apart"


def exposed_communication(sections: Sections) -> pyarrow.Table:
    """Return the table `exposed_communication`."""
    meetings, (groups, of_record) = sections.matched, sections.groups
    names = sections.codes("collectives", "name").astype(np.int64)
    cells = Groups.by([of_record, names])
    cell, first = cells.of_row, cells.first
    duration, size = (sections.numbers("collectives", name) for name in ("duration_ns", "bytes"))
    # The transfer time once all ranks were there; the full duration if no other rank's call is known.
    transfer = duration.copy()
    transfer[meetings.rows] = meetings.shortest_ns[meetings.place]
    split = mask_of(cell[meetings.rows], len(first))
    row = sections.rows("collectives").astype(np.int64)
    # The steps of a rank that contain it: means over these are comparable to step times.
    by_step = Groups.by([cell, row, sections.numbers("collectives", "step")])
    exposed = sections.exposed_ns(by_step.of_row)
    steps = Groups(cell[by_step.first], len(cells)).sizes()

    def mean(values: NDArray[Any]) -> NDArray[np.float64]:
        return np.asarray(cells.sums(values) / steps)

    step_ns = np.maximum(sections.step_ns, 1)[row]
    texts = sections.texts("collectives", "name", first)
    of_group = [groups[number] if number >= 0 else None for number in of_record[first].tolist()]
    factors = np.array([
        bus_factor(name or "", group.size if group else -1) for name, group in zip(texts, of_group, strict=True)
    ])  # fmt: skip
    nan = np.where(split, 1.0, np.nan)
    moved, transfers = mean(np.maximum(size, 0)), mean(transfer)
    columns: dict[str, Any] = {
        "group": [group.name if group else None for group in of_group],
        "description": [group.description or None if group else None for group in of_group],
        "dimension": [
            dimension_of(group, sections.world_size) or None if group else None for group in of_group
        ],
        "size": np.array([group.size if group else -1 for group in of_group]),
        "name": texts,
        "ranks": Groups(cell[Groups.by([cell, row]).first], len(cells)).sizes(),
        "calls": cells.sizes() / steps,
        "bytes": np.where(moved > 0, moved, np.nan),
        "total_ns": mean(duration),
        "transfer_ns": transfers,
        "waited_ns": mean(duration - transfer) * nan,
        "exposed_ns": mean(exposed),
        "exposed_transfer_ns": mean(np.minimum(exposed, transfer)) * nan,
        "exposed_percent": 100.0 * mean(exposed / step_ns),
        "bus_gb_per_s": np.where(moved > 0, moved, np.nan) * factors / np.maximum(transfers, 1),
    }
    order = np.argsort(-mean(exposed) * steps, kind="stable")
    return to_arrow("job: exposed_communication", columns, order)


def links(sections: Sections) -> pyarrow.Table:
    """Return the table `links`; empty if no two ranks communicated in pairs."""
    rank, peer, record, transfer = (
        np.concatenate(pair)
        for pair in zip(_groups_of_two(sections), _sends_and_receives(sections), strict=True)
    )
    names = sections.codes("collectives", "name").astype(np.int64)[record]
    pairs = Groups.by([rank, peer, names])
    count, first = pairs.sizes(), pairs.first
    size = pairs.medians(np.maximum(sections.numbers("collectives", "bytes")[record], 0))
    time_ns = pairs.medians(transfer)
    # Compare messages with sizes in the same power of two.
    alike = Groups.by([names[first], np.frexp(size.astype(np.float64))[1]])
    usual = np.where(alike.sizes() < _LEAST_LINKS, np.nan, alike.medians(time_ns))[alike.of_row]
    row, peer_row = np.searchsorted(sections.ranks, [rank[first], peer[first]])
    hosts = sections.summaries["host"].to_pylist()
    steps = sections.counts("steps")
    whole_ns = np.maximum(steps * sections.step_ns, 1)[row]
    slower = np.where(time_ns > 0, time_ns, np.nan) / np.maximum(usual, 1)
    columns: dict[str, Any] = {
        "rank": rank[first],
        "peer": peer[first],
        "host": [hosts[rank_row] for rank_row in row.tolist()],
        "peer_host": [hosts[rank_row] for rank_row in peer_row.tolist()],
        "name": sections.texts("collectives", "name", record[first]),
        "transfers": count,
        "bytes": np.where(size > 0, size, -1),
        "transfer_ns": time_ns,
        "gb_per_s": np.where(size > 0, size, np.nan) / np.maximum(time_ns, 1),
        "times_slower": slower,
        "extra_percent": 100.0 * np.maximum(time_ns - usual, 0) * count / whole_ns,
    }
    return to_arrow("job: links", columns, np.argsort(-np.nan_to_num(slower), kind="stable"))


def _groups_of_two(sections: Sections) -> tuple[Rows, Rows, Rows, Rows]:
    """The collectives of groups of two: both ranks, a record, and the transfer time once both were there."""
    meetings = sections.matched
    chosen = np.flatnonzero((sections.group_sizes[meetings.first] == 2) & (meetings.count == 2))
    begin = np.append(0, np.cumsum(meetings.count))[chosen].astype(np.int64)
    ranks = np.sort([sections.ranks[meetings.rank[begin]], sections.ranks[meetings.rank[begin + 1]]], axis=0)
    return ranks[0], ranks[1], meetings.first[chosen], meetings.shortest_ns[chosen]


def _sends_and_receives(sections: Sections) -> tuple[Rows, Rows, Rows, Rows]:
    """The sends with a recorded receive: sender, receiver, the record of the send, and the shorter of the two transfer times."""
    rank = sections.ranks[sections.rows("collectives")]
    peer, step = sections.numbers("collectives", "peer"), sections.numbers("collectives", "step")
    sent, received = (sections.is_named(name) & (peer >= 0) for name in ("send", "recv"))
    record = np.flatnonzero(sent | received)
    outward = sent[record]
    keys = [np.where(outward, rank[record], peer[record]), np.where(outward, peer[record], rank[record])]
    keys += [sections.groups[1][record], step[record]]
    series = Groups.by(keys).of_row
    # Match by order of time if both sides have equally many.
    order = np.lexsort((sections.numbers("collectives", "start_ns")[record], outward, series))
    record, outward, series = record[order], outward[order], series[order]
    count = int(series.max(initial=-1)) + 1
    by_series = Groups(series, count)
    both = (by_series.sums(outward) == by_series.sums(~outward))[series]
    record, outward = record[both], outward[both]
    out, back = record[outward], record[~outward]
    duration = sections.numbers("collectives", "duration_ns")
    shorter = np.minimum(duration[out], duration[back])
    return rank[out], rank[back], out, np.minimum(shorter, _both_there_ns(sections, out, back))


def _both_there_ns(sections: Sections, record: Rows, other: Rows) -> Rows:
    """The longest possible overlap of two records of `collectives`; the largest integer if clocks are not aligned or nothing overlaps.

    With a backend such as gloo, a send lasts until the program waits for it, long after the receiver has the message.
    """
    longest = np.full(len(record), np.iinfo(np.int64).max)
    if len(record) == 0:
        return longest
    clocks, row = aligned(sections), sections.rows("collectives")
    lines = np.stack([clocks.values("offset_ns"), clocks.values("drift")], axis=1)
    start, duration = (sections.numbers("collectives", name) for name in ("start_ns", "duration_ns"))

    def at(record: Rows, time_ns: Rows) -> NDArray[np.float64]:
        offset_ns, drift = lines[row[record]].T
        return np.asarray(offset_ns + time_ns * (1 + drift))

    sides = (record, other)
    begin = np.maximum(*(at(record, start[record]) for record in sides))
    end = np.minimum(*(at(record, start[record] + duration[record]) for record in sides))
    error_ns = clocks.error_ns[row[record]] + clocks.error_ns[row[other]]
    # A small message can be sent before its receive begins; without aligned clocks these are NaN.
    overlap = end > begin
    longest[overlap] = (end - begin + error_ns)[overlap]
    return longest


def coordinates_of(sections: Sections) -> dict[str, Rows]:
    """For each dimension of the job the index of each rank in its group, -1 if it is in none."""
    coordinates: dict[str, Rows] = {}
    for group in sorted(sections.known_groups, key=lambda group: len(group.ranks)):
        dimension = dimension_of(group, sections.world_size)
        if dimension and len(group.ranks) > 1:
            positions = coordinates.setdefault(dimension, np.full(len(sections), -1, dtype=np.int64))
            rows = np.minimum(np.searchsorted(sections.ranks, group.ranks), len(sections) - 1)
            here = sections.ranks[rows] == np.array(group.ranks)
            positions[rows[here]] = np.arange(len(group.ranks))[here]
    return coordinates


def coordinates(sections: Sections) -> pyarrow.Table:
    """Return the table `coordinates`; empty if the process groups are unknown or contain all ranks."""
    of_rank: dict[str, Rows] = {"step_ns": sections.step_ns}
    of_rank |= {name: sections.usual_of_steps(name) for name in PARTS}
    of_rank |= {"exposed_ns": sections.usual(*exposed_by_step(sections)), "late_ns": sections.late_ns}
    rows: list[dict[str, Any]] = []
    for dimension, positions in sorted(coordinates_of(sections).items()):
        ranks = Groups(positions, int(positions.max(initial=-1)) + 1).sizes().tolist()
        for position, count in enumerate(ranks):
            rows.append({"dimension": dimension, "coordinate": position, "ranks": count})
            for name, values in of_rank.items():
                present = values[(positions == position) & (values >= 0)]
                rows[-1][name] = int(np.median(present)) if len(present) else -1
    return rows_to_arrow("job: coordinates", rows)
