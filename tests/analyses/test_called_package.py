"""The installed package below a line, with the functions that it calls and that do the work."""

import numpy as np
import pytest

from kinetoscope.analyses.called_package import called_package
from tests.support.trace_builder import TraceBuilder

SITE = "/lib/python3.11/site-packages"
CALLED = (f"{SITE}/torchmetrics/metric.py", 300, "Metric.forward")
DOES = (f"{SITE}/torchmetrics/functional/curve.py", 40, "_binary_clf_curve")
LAYER = (f"{SITE}/torch/nn/modules/linear.py", 130, "Linear.forward")
DISTRIBUTION = (f"{SITE}/torch/distributions/normal.py", 50, "Normal.log_prob")


def named(*took):
    """What is said of operators of `train.py:7`, each of some frames below it and of so many nanoseconds."""
    builder = TraceBuilder().know("program", {"folder": "/job", "command": ["train.py"]})
    for number, (frames, took_ns) in enumerate(took):
        stack = builder.stack(("/job/train.py", 7, "train"), *frames)
        builder.span("aten::add", number * 100, took_ns, stack=stack)
    return called_package(builder.build(), np.arange(len(took)))


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([CALLED, DOES], "torchmetrics: Metric.forward > _binary_clf_curve"),
        ([CALLED], "torchmetrics: Metric.forward"),
        ([DISTRIBUTION], "torch.distributions: Normal.log_prob"),
        ([CALLED, LAYER], "torchmetrics: Metric.forward"),
    ],
)
def test_the_package_is_named_with_what_is_called_and_what_does_most(frames, text):
    assert str(named((frames, 50))) == text


@pytest.mark.parametrize("frames", [[], [LAYER], [("/job/losses.py", 3, "loss")]])
def test_the_programs_own_code_and_layers_are_no_package(frames):
    assert named((frames, 50)) is None


def test_known_functions_have_advice_of_their_own():
    metric = named(([CALLED, DOES], 50))
    assert "metric.update" in metric.advice
    assert 0 < metric.saves < 1
    distribution = named(([DISTRIBUTION], 50))
    assert (distribution.advice, distribution.saves) == ("", 0.0)


def test_a_package_with_less_than_half_of_the_time_is_not_named():
    assert named(([CALLED], 40), ([], 60)) is None
    assert str(named(([CALLED], 60), ([], 40))) == "torchmetrics: Metric.forward"
