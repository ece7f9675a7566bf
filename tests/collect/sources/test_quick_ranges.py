"""Ranges that are opened quickly are those that `record_function` opens."""

import torch

import kinetoscope
from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from tests.support.torch_engines import native  # noqa: F401  (a fixture)


def test_a_range_is_that_of_record_function(native):  # noqa: F811
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine=native) as prof:
        outer = begin_range("outer")
        with kinetoscope.record_function("inner"):
            torch.ones(2)
        end_range(outer)
    spans = prof.trace.to_pandas("spans").set_index("name")
    assert spans.loc["outer", "kind"] == spans.loc["inner", "kind"] == "user_annotation"
    assert (spans.loc["outer", "depth"], spans.loc["inner", "depth"]) == (0, 1)
