import json

import numpy as np
import pytest
from hypothesis import given, settings

from kinetoscope._errors import ArgumentError
from kinetoscope.viewer.server.routes import answer, respond
from kinetoscope.viewer.timeline.rows import span_tracks
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder


def trace():
    builder = TraceBuilder()
    builder.thread("main", os_tid=77)
    fc = builder.module("Linear", name="fc", parent=builder.module("Net"))
    stack = builder.stack(("train.py", 3, "main"), ("net.py", 8, "forward"))
    builder.step(6, 0, 400)
    builder.span(
        "aten::linear",
        10,
        90,
        module=fc,
        stack=stack,
        sequence=1,
        shapes=builder.shapes([[2, 3]], ["float"], ["1.0"]),
    )
    builder.runtime(
        "cudaLaunchKernel", 20, 10, correlation=9, arguments={"cbid": 211, "odd": float("inf"), "big": 2**60}
    )
    builder.kernel(
        "gemm", 60, 100, correlation=9, grid=(2, 1, 1), block=(128, 1, 1), launch={"registers": 32}
    )
    builder.copy("Memcpy HtoD (Pageable -> Device)", 200, 10, size_bytes=4096)
    builder.backward("AddmmBackward0", 300, 50, sequence=1)
    return builder.build()


def told(name):
    traced = trace()
    names = [traced.strings[row] for row in traced.column("spans", "name").tolist()]
    return answer(traced, f"span/{names.index(name)}", {})


def facts(found):
    return {fact["label"]: (fact["value"], fact["unit"]) for fact in found["facts"]}


def links(found):
    return [(link["label"], link["name"]) for link in found["links"]]


def test_an_operator_says_where_it_ran_and_what_it_launched():
    found = told("aten::linear")
    assert (found["name"], found["kind"], found["start_ns"], found["duration_ns"], found["self_ns"]) == (
        "aten::linear", "operator", 10, 90, 80,
    )  # fmt: skip
    known = facts(found)
    assert known["Thread"] == ("main (77)", "")
    assert known["Step"] == (6, "")
    assert known["Device time"] == (100, "ns")
    assert known["Module"] == ("fc", "module")
    assert known["Input shapes"] == ("[[2, 3]]", "")
    assert found["stack"] == ["net.py(8): forward", "train.py(3): main"]
    assert links(found)[:2] == [("in", "ProfilerStep#6"), ("launched", "gemm")]
    assert ("backward", "AddmmBackward0") in links(found)


def test_a_kernel_says_how_it_was_launched_and_for_whom():
    found = told("gemm")
    known = facts(found)
    assert known["Grid"] == ("2 × 1 × 1", "")
    assert known["Registers per thread"] == (32, "")
    assert known["Device"] == ("cuda:0", "")
    assert links(found) == [("launched by", "cudaLaunchKernel"), ("launched for", "aten::linear")]
    assert found["links"][0]["duration_ns"] == 10


def test_a_copy_says_how_much_it_moved_and_how_fast():
    known = facts(told("Memcpy HtoD (Pageable -> Device)"))
    assert known["Size"] == (4096, "bytes")
    assert known["Direction"] == ("HtoD (pageable to device)", "")
    assert known["Bandwidth"] == (409.6, "GB/s")


def test_a_backward_function_shows_the_stack_and_the_operator_of_its_forward():
    found = told("AddmmBackward0")
    assert ("forward", "aten::linear") in links(found)
    assert found["stack"][0] == "net.py(8): forward"
    assert facts(found)["Phase"] == ("backward", "")


def test_arguments_are_those_of_the_source_and_can_be_written_as_json():
    assert told("cudaLaunchKernel")["arguments"] == {"cbid": 211, "odd": "inf", "big": str(2**60)}


@pytest.mark.parametrize("number", ["99", "-1", "x", "", "1" * 30, "٣"])
def test_an_unknown_span_is_refused(number):
    with pytest.raises(ArgumentError, match="there is no span"):
        answer(trace(), f"span/{number}", {})


@settings(max_examples=examples(20), deadline=None)
@given(any_traces())
def test_every_span_can_be_told_and_is_where_it_says(trace):
    every = np.arange(len(trace.columns("spans")))
    track, row = span_tracks(trace).places(every)
    for span in every.tolist():
        response = respond([("", trace)], f"api/0/span/{span}", {})
        found = json.loads(response.body)
        assert (found["id"], found["track"], found["row"]) == (span, track[span], row[span])
        for link in found["links"]:
            assert (link["track"], link["row"]) == (track[link["span"]], row[link["span"]])
