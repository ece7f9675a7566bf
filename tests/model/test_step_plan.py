"""Which steps a recording has, in words."""

import pytest

from kinetoscope.model.losses import sampled_losses
from kinetoscope.model.step_plan import recorded_share


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ([], ""),
        ([1 / 32], "1 of 32 steps"),
        ([1 / 4, 1 / 4096, 1 / 128], "1 of 4 to 1 of 4,096 steps"),
        ([63 / 64], "63 of 64 steps"),
        ([63 / 64, 0.5], "63 of 64 to 1 of 2 steps"),
        ([1], "1 of 1 steps"),
    ],
)
def test_shares_in_words(shares, text):
    plan = {"stretches": [[place, share] for place, share in enumerate(shares)]}
    assert recorded_share({"step_plan": plan}) == text


def test_what_makes_no_sense_is_left_out():
    plan = {"stretches": [[0, 0], [1, 2], [2], "x", [3, "a"], [4, 0.5]], "asked": {}}
    assert recorded_share({"step_plan": plan}) == "1 of 2 steps"
    assert recorded_share({}) == ""
    assert recorded_share({"step_plan": []}) == ""
    assert recorded_share({"step_plan": {"stretches": 1}}) == ""


def test_a_sampled_run_says_so():
    info = {"step_plan": {"stretches": [[0, 0.25]]}, "pauses": [{}, {}, {}]}
    (loss,) = sampled_losses(info)
    assert (loss.code, loss.count) == ("sampled_steps", 3)
    assert loss.why.startswith("kinetoscope.leave_on recorded 1 of 4 steps, to keep to its budget:")
    assert sampled_losses({"pauses": [{}]}) == []
    assert sampled_losses(info | {"pauses": []}) == []
