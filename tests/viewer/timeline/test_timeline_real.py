import numpy as np
import pytest

import kinetoscope
from kinetoscope.viewer.server.routes import answer
from kinetoscope.viewer.timeline.rows import span_tracks
from kinetoscope.viewer.timeline.tracks import timeline
from tests.support.real_traces import real_trace

NAMES = ("a100_alexnet_small", "mi300_resnet_stack_rccl_rank0of8", "v100_resnet50_mem", "mtia_455k")


@pytest.mark.parametrize("name", NAMES)
def test_a_real_trace_is_laid_out_whole_without_overlaps_and_adds_up(name):
    trace = kinetoscope.open(real_trace(name))
    spans, laid = trace.columns("spans"), span_tracks(trace)
    assert (np.bincount(laid.rows.spans, minlength=len(spans)) == 1).all()
    for track in timeline(trace):
        rows = track.rows
        for row in range(track.first, track.first + track.count):
            low, high = rows.edges[row : row + 2]
            start = rows.start_ns[low:high]
            assert (start[1:] >= start[:-1] + rows.duration_ns(np.arange(low, high - 1))).all()
    told = answer(trace, "tracks", {})
    whole = {"start": str(told["start_ns"] - 1), "end": str(told["duration_ns"] + 1)}
    seen = answer(trace, "window", {**whole, "width": "1600"})
    assert sum(seen["count"].to_pylist()) == sum(track.items for track in timeline(trace))
    ranged = answer(trace, "range", whole).to_pylist()
    assert sum(row["count"] for row in ranged) == len(spans)
    assert sum(row["self_ns"] for row in ranged) == spans["self_ns"].sum()
    ops = {(row["name"], row["kind"]): row["self_ns"] for row in trace.table("ops").to_pylist()}
    of_range = {
        (row["name"], row["kind"]): row["self_ns"]
        for row in ranged
        if row["kind"] in ("operator", "backward")
    }
    assert of_range == {key: value for key, value in ops.items() if key[1] in ("operator", "backward")}
