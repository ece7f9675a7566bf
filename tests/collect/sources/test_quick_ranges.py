"""Ranges that are opened quickly are those that `record_function` opens."""

import pytest
import torch

import kinetoscope
from kinetoscope.collect.sources import quick_ranges as quick
from tests.support.torch_engines import native  # noqa: F401  (a fixture)


@pytest.mark.parametrize("bindings", [torch._C._autograd, None], ids=["quick", "slow"])
def test_a_range_is_that_of_record_function(bindings, native):  # noqa: F811
    begin, end = quick._chosen(bindings)
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine=native) as prof:
        outer = begin("outer")
        with kinetoscope.record_function("inner"):
            torch.ones(2)
        end(outer)
    spans = prof.trace.to_pandas("spans").set_index("name")
    assert spans.loc["outer", "kind"] == spans.loc["inner", "kind"] == "user_annotation"
    assert (spans.loc["outer", "depth"], spans.loc["inner", "depth"]) == (0, 1)


def test_this_torch_has_the_quick_way():
    assert quick.begin_range is torch._C._autograd._record_function_with_args_enter
