"""Where nothing else gains much: the line whose operators take most of the time, with the largest of them."""

import pytest

from kinetoscope.analyses.findings import examine, headline, severity
from kinetoscope.display.sentence import plain
from tests.support.trace_builder import TraceBuilder

STEP_NS, STEPS = 10_000_000, 8
FOLDER = "/home/ann/project"
TRAIN, MODEL = f"{FOLDER}/train.py", f"{FOLDER}/model.py"
MODULE = ("/usr/lib/python3.12/site-packages/torch/nn/modules/module.py", 1779, "Module._call_impl")
MAIN, STEP = (TRAIN, 50, "<module>"), (TRAIN, 20, "train")
IN_LAYER = (MAIN, STEP, MODULE, (MODEL, 7, "Layer.forward"))


def training(layer_ns, *, beside_ns=500_000, at_call_ns=0):
    """Steps with a product in a layer of a model, and others at the call of the model and beside it."""
    builder = TraceBuilder()
    builder.know("program", {"command": ["train.py"], "folder": FOLDER})
    shapes = builder.shapes([[36000, 320], [320, 320]], ["float", "float"])
    main, call, layer = (builder.stack(*frames) for frames in ((MAIN,), (MAIN, STEP), IN_LAYER))
    for step in range(STEPS):
        start_ns = step * STEP_NS
        builder.step(step, start_ns, STEP_NS)
        at_ns = start_ns
        for took_ns, stack in ((beside_ns, main), (at_call_ns, call), (layer_ns, layer)):
            if took_ns:
                builder.span("aten::mm", at_ns, took_ns, stack=stack, shapes=shapes)
            at_ns += took_ns
    return examine(builder.build())


def test_the_call_of_the_model_is_the_place_if_the_line_is_nearly_all_of_it():
    report = training(9_000_000)
    dominant = report.findings[0]
    assert (dominant.code, dominant.gain_ns, severity(dominant)) == ("dominant-line", None, "note")
    assert (dominant.place.file, dominant.place.line) == (TRAIN, 20)
    text = plain(headline(dominant, report.whole_ns))
    assert text.startswith("train.py:20 takes 90.0 % of step time, ")
    assert "1 call a step of aten::mm on 36000x320 and 320x320, 9 ms each at model.py:7" in text


def test_a_line_that_is_only_a_part_of_the_call_is_the_place_itself():
    dominant = training(6_000_000, at_call_ns=2_400_000).findings[0]
    assert (dominant.code, dominant.place.file, dominant.place.line) == ("dominant-line", MODEL, 7)


@pytest.mark.parametrize("layer_ns", [0, 2_000_000])
def test_less_than_a_quarter_is_not_named(layer_ns):
    codes = [finding.code for finding in training(layer_ns, beside_ns=0).findings]
    assert "dominant-line" not in codes


def test_where_something_gains_much_nothing_else_is_named():
    # Python takes most of these steps.
    codes = [finding.code for finding in training(3_000_000).findings]
    assert "python-bound" in codes
    assert "dominant-line" not in codes


def test_a_call_that_takes_most_of_the_time_in_many_lines_is_named_with_its_callers():
    builder = TraceBuilder().know("program", {"command": ["train.py"], "folder": FOLDER})
    shapes = builder.shapes([[1728, 4], [4]], ["float", "float"])
    for step in range(STEPS):
        start_ns = step * STEP_NS
        builder.step(step, start_ns, STEP_NS)
        for number in range(9):
            inner = (MODEL, 30 + number, f"overlap_{number}")
            stack = builder.stack(MAIN, STEP, (MODEL, 12, "suppress"), inner)
            builder.span("aten::mul", start_ns + number * 1_000_000, 1_000_000, stack=stack, shapes=shapes)
    dominant = examine(builder.build()).findings[0]
    assert (dominant.code, dominant.place.file, dominant.place.line) == ("dominant-line", MODEL, 12)
    text = plain(dominant.finding)
    assert "model.py:12 takes 90.0 % of step time" in text
    assert "called at train.py:20 and train.py:50" in text


def products(*, read_version, module=""):
    """The finding about calls of one line on a table, whose version each call reads, and on a vector of its own."""
    builder = (
        TraceBuilder().know("program", {"command": ["train.py"], "folder": FOLDER}).know("deep_steps", True)
    )
    shapes = builder.shapes([[36, 36], [36, 4]], ["float", "float"])
    inside = builder.module(module) if module else -1
    for step in range(STEPS):
        builder.step(step, step * STEP_NS, STEP_NS)
        reads = ((1, read_version(step)), (10 + step, 0))
        builder.span(
            "aten::linalg_solve", step * STEP_NS, 9_000_000, stack=builder.stack(MAIN, STEP), shapes=shapes,
            module=inside, reads=reads, makes=((100 + step, 0),),
        )  # fmt: skip
    return next(finding for finding in examine(builder.build()).findings if finding.code == "dominant-line")


def test_an_input_that_is_the_same_in_all_calls_is_named():
    dominant = products(read_version=lambda step: 3)
    assert "with the same, unchanged input of 36x36 in all calls" in plain(dominant.finding)
    assert "once, before the loop" in dominant.advice


def test_inputs_that_are_used_again_in_many_calls_are_counted(monkeypatch):
    monkeypatch.setattr("kinetoscope.analyses.dominant_lines.LEAST_CALLS", STEPS // 2)
    dominant = products(read_version=lambda step: 2 * step // STEPS)
    assert f"with only 2 different inputs of 36x36 in {STEPS} calls" in plain(dominant.finding)


@pytest.mark.parametrize("changes", [{"read_version": lambda step: step}, {"module": "Linear"}])
def test_an_input_that_changes_or_is_a_weight_of_a_module_is_not_named(changes):
    dominant = products(**{"read_version": lambda step: 3, **changes})
    assert "unchanged" not in plain(dominant.finding)


@pytest.mark.parametrize(
    ("operator", "sizes", "has_gain"),
    [
        ("aten::conv1d", [[1, 1, 9199], [1, 1, 1200]], True),
        ("aten::conv1d", [[1, 1, 9199], [1, 1, 3]], False),
        ("aten::convolution_backward", [[16, 48, 64, 31], [16, 24, 64, 31], [48, 24, 3, 3]], False),
    ],
)
def test_a_convolution_with_a_large_kernel_has_a_gain(operator, sizes, has_gain):
    builder = TraceBuilder().know("program", {"command": ["train.py"], "folder": FOLDER})
    shapes = builder.shapes(sizes, ["float"] * len(sizes))
    small = builder.shapes([[1, 1, 64], [1, 1, 3]], ["float", "float"])
    stack = builder.stack(MAIN, STEP)
    for step in range(STEPS):
        builder.step(step, step * STEP_NS, STEP_NS)
        builder.span("aten::conv1d", step * STEP_NS, 10_000, stack=builder.stack(MAIN), shapes=small)
        builder.span(operator, step * STEP_NS + 20_000, 9_000_000, stack=stack, shapes=shapes)
    dominant = examine(builder.build()).findings[0]
    assert (dominant.code, "torch.fft" in dominant.advice) == ("dominant-line", has_gain)
    assert (dominant.gain_ns is not None) == has_gain


def test_a_call_of_the_model_with_a_small_part_of_a_lines_time_is_not_its_place():
    builder = TraceBuilder().know("program", {"command": ["train.py"], "folder": FOLDER})
    shapes = builder.shapes([[36000, 320], [320, 320]], ["float", "float"])
    in_training, in_validation = (
        builder.stack(MAIN, (TRAIN, line, "train"), MODULE, (MODEL, 7, "Layer.forward")) for line in (20, 30)
    )
    names = [f"aten::{name}" for name in ("mm", "addmm", "mul", "add", "sub", "div", "exp", "log")]
    for step in range(STEPS):
        start_ns = step * STEP_NS
        builder.step(step, start_ns, STEP_NS + 3_000_000 * (step == STEPS - 1))
        for number, name in enumerate(names):
            builder.span(name, start_ns + number * 1_250_000, 1_250_000, stack=in_training, shapes=shapes)
    # One operator of all steps takes longest here, and is not most of the line's time.
    builder.span("aten::bmm", STEPS * STEP_NS, 3_000_000, stack=in_validation, shapes=shapes)
    dominant = examine(builder.build()).findings[0]
    assert (dominant.code, dominant.place.line) == ("dominant-line", 20)
