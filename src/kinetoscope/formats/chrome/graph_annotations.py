"""Adds a program's annotations to the work of CUDA graphs, as torch 2.15 does.

A program records them during the capture of a graph, by the numbers of its nodes, which kernels have in every replay.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kinetoscope.combine.extend import GrowingTable, extend
from kinetoscope.formats.chrome.slices import ShownSpans
from kinetoscope.model.groups import Groups
from kinetoscope.model.kinds import is_device_work
from kinetoscope.model.rows import Rows
from kinetoscope.model.schema import SpanKind
from kinetoscope.model.strings import parsed_json
from kinetoscope.model.trace_data import AnyTrace, TraceData

# The key of a file whose work is annotated, and the field of an annotation that names the track of its lane.
_ANNOTATED, _LANE_NAME = "cudaGraphInlineAnnotated", "Process Group Description"


@dataclasses.dataclass(frozen=True)
class GraphAnnotations:
    """Annotations of the nodes of graphs, and whether work moves to other tracks.

    Attributes:
        of_node: The fields of each node by its number, a mapping or a list of mappings; `stream` in them names a lane.
        on_lanes: Whether work of graphs is moved to the lane that its annotation names, and all other to `default_lane`.
        default_lane: The number of the lane for work whose annotation does not name one.
    """

    of_node: Mapping[int, Any]
    on_lanes: bool = False
    default_lane: int = 7

    def fields_of(self, node: int) -> tuple[dict[str, Any], int | None, str]:
        """Return the fields that the work of a node gets, the lane that they name, and that lane's name."""
        fields: dict[str, Any] = {}
        lane_name = ""
        annotation = self.of_node.get(node) or ()
        for part in annotation if isinstance(annotation, list) else [annotation]:
            if isinstance(part, dict):
                fields |= {str(key): part[key] if key == "stream" else str(part[key]) for key in part}
                lane_name = lane_name or str(part.get(_LANE_NAME, ""))
        lane = int(fields.pop("stream")) if "stream" in fields else None
        return fields, lane, lane_name


def annotate(
    trace: AnyTrace, shown: ShownSpans, annotations: GraphAnnotations
) -> tuple[AnyTrace, ShownSpans]:
    """Add annotations to the arguments of work of graphs; with `on_lanes`, move it to its lanes.

    Ranges on streams without work are left out: a device shows a range on each stream that a graph is replayed on.

    Returns:
        The trace with the lanes, and the slices.
    """
    columns = {"arguments": np.full(len(shown.columns["start_ns"]), -1, np.int32), **shown.columns}
    if "stream" not in columns:
        return trace, shown
    for name in ("arguments", "thread", "stream", "lane"):
        columns[name] = columns[name].copy()
    arguments, texts, threads = columns["arguments"], list(shown.arguments), columns["thread"]
    spans, streams = trace.columns("spans"), trace.columns("streams")
    on_device = np.flatnonzero(spans["stream"] >= 0)
    stream_of = dict(zip(*(spans[name][on_device].tolist() for name in ("thread", "stream")), strict=True))
    lanes = _Lanes(trace, stream_of)
    annotated = False
    for node, rows in _graphed(trace, shown):
        fields, named_lane, lane_name = annotations.fields_of(node)
        annotated |= bool(annotations.of_node.get(node))
        thread, stored = int(threads[rows[0]]), int(arguments[rows[0]])
        source = parsed_json(texts[stored]) if stored >= 0 else None
        source = source if isinstance(source, dict) else {}
        ran_on = int(streams["number"][stream_of[thread]])
        lane = annotations.default_lane if named_lane is None else named_lane
        if annotations.on_lanes and lane != ran_on:
            source.pop("stream", None)
            fields["original_stream"] = ran_on
            threads[rows], columns["stream"][rows] = lanes.of(thread, lane, lane_name)
            columns["lane"][rows] = 0
        elif named_lane is not None:
            fields["annotated_stream"] = named_lane
        if fields:
            arguments[rows] = len(texts)
            texts.append(json.dumps(source | fields))
    ranges = np.isin(columns["kind"], (SpanKind.USER_ANNOTATION, SpanKind.STEP)) & (columns["stream"] >= 0)
    idle = ranges & ~np.isin(threads, threads[is_device_work(columns["kind"])])
    extended = extend(trace, tables=lanes.tables(), info={_ANNOTATED: True} if annotated else {})
    return extended, dataclasses.replace(shown, columns=columns, arguments=texts).without(idle)


def _graphed(trace: TraceData, shown: ShownSpans) -> Iterator[tuple[int, Rows]]:
    """For each node of a graph, the rows of its work that have the same arguments and stream, ordered by first start."""
    node_of = np.zeros(len(shown.columns["start_ns"]), np.int64)
    for table in (trace.columns("kernels"), trace.columns("copies")):
        node_of[shown.rows(table["span"])] = table["graph_node"]
    graphed = np.flatnonzero(node_of > 0)
    graphed = graphed[np.argsort(shown.columns["start_ns"][graphed], kind="stable")]
    same = [shown.columns[name][graphed] for name in ("arguments", "thread") if name in shown.columns]
    order, begins = Groups.by([node_of[graphed], *same]).rows()
    for begin, end in itertools.pairwise(begins.tolist()):
        rows = graphed[order[begin:end]]
        yield int(node_of[rows[0]]), rows


class _Lanes:
    """The streams of a trace while lanes are added to them."""

    def __init__(self, trace: TraceData, stream_of: dict[int, int]) -> None:
        self._streams = GrowingTable(trace, "streams", ("device_type", "device_index", "number"))
        in_merged_traces = {"process_row"} & set(trace.columns("threads").given)
        self._of_process = ("rank", "process", *in_merged_traces)
        self._threads = GrowingTable(trace, "threads", self._of_process)
        self._recorded, self._stream_of = len(self._streams), stream_of
        self._thread_of = {(self._process(thread), stream): thread for thread, stream in stream_of.items()}

    def _process(self, thread: int) -> tuple[int, ...]:
        return tuple(self._threads.columns[name][thread] for name in self._of_process)

    def of(self, thread: int, number: int, name: str) -> tuple[int, int]:
        """Return the thread and the stream of a lane of the device of a thread, added if it has none."""
        columns, source = self._streams.columns, self._stream_of[thread]
        device = columns["device_type"][source], columns["device_index"][source]
        stream = self._streams.row((*device, number), name="")
        if name and stream >= self._recorded:
            columns["name"][stream] = name
        key = self._process(thread), stream
        if key not in self._thread_of:
            self._thread_of[key] = self._threads.add(key[0])
        return self._thread_of[key], stream

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables that have the lanes."""
        return {"threads": self._threads.columns, "streams": self._streams.columns}
