"""The route of the findings: what the analysis says, with what the page links to."""

from hypothesis import given, settings

from kinetoscope.analyses.findings import as_dict, examine
from kinetoscope.viewer.server.routes import answer, respond
from tests.support.any_trace import any_traces
from tests.support.effort import examples
from tests.support.trace_builder import TraceBuilder


def test_it_is_what_the_command_prints_with_the_names_of_the_evidence():
    builder = TraceBuilder()
    for step in range(8):
        builder.step(step, step * 10_000_000, 10_000_000)
        stack = builder.stack(("train.py", 3, "train"))
        builder.span("aten::mm", step * 10_000_000, 2_000_000, stack=stack)
    trace = builder.build()
    found, said = answer(trace, "findings", {}), as_dict(examine(trace))
    shown = found["findings"][0]["spans"]
    assert [one["span"] for one in shown] == said["findings"][0]["spans"]
    assert shown[0] | {"span": 0} == {
        "span": 0,
        "name": "aten::mm",
        "kind": "operator",
        "duration_ns": 2_000_000,
    }
    for one in (*found["findings"], *said["findings"]):
        del one["spans"]
    assert said.items() <= found.items()
    assert found["summary"] == ""
    memory = "Cannot tell about memory-growth: record with profile_memory=True"
    assert any(text.startswith(memory) for text in found["unknown"])


def test_evidence_shows_the_short_name_of_a_kernel():
    builder = TraceBuilder()
    stream = builder.stream(7)
    for step in range(8):
        builder.step(step, step * 10_000_000, 10_000_000)
        name = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)"
        builder.kernel(name, step * 10_000_000, 9_000_000, stream=stream)
    found = answer(builder.build(), "findings", {})
    shown = {
        one["name"] for finding in found["findings"] for one in finding["spans"] if one["kind"] == "kernel"
    }
    assert shown == {"vectorized_elementwise_kernel ‹FillFunctor›"}


def test_a_trace_without_time_is_neither_slow_nor_healthy():
    found = answer(TraceBuilder().build(), "findings", {})
    assert (found["findings"], found["summary"]) == ([], "")


@settings(max_examples=examples(10), deadline=None)
@given(any_traces(max_spans=20))
def test_any_trace_has_an_answer_that_json_can_hold(trace):
    assert respond([("trace", trace)], "api/0/findings", {}).status == 200


def test_the_text_of_lines_is_sent_once_for_all_pages():
    trace = TraceBuilder().know("source_lines", {"/a/train.py": {"3": "loss.item()\ud800"}}).build()
    assert answer(trace, "source", {}) == {"/a/train.py": {"3": "loss.item()\\u{d800}"}}
    assert respond([("trace", trace)], "api/0/source", {}).status == 200
