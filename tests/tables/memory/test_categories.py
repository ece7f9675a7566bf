"""The rules that give each block a category, one by one, and the facts they are asked with."""

import numpy as np
import pytest

from kinetoscope.model.schema import Phase, StorageRole
from kinetoscope.tables.memory.categories import (
    CATEGORY_NAMES,
    NO_ROLE,
    BlockFacts,
    MemoryCategory,
    categorise,
    judged_blocks,
)
from tests.support.trace_builder import TraceBuilder

FLAGS = ("recorded", "is_gradient", "gone_with_operator", "gone_with_step", "in_module", "computed", "fed", "stepped", "freed")  # fmt: skip


def category_of(*, role=NO_ROLE, phase=Phase.FORWARD, **flags):
    flags = {"recorded": True, **flags}
    facts = BlockFacts(
        role=np.array([role], np.uint8),
        phase=np.array([phase], np.uint8),
        **{name: np.array([flags.get(name, False)]) for name in FLAGS},
    )
    (category,) = categorise(facts).tolist()
    return MemoryCategory(category)


@pytest.mark.parametrize(
    ("known", "category"),
    [
        ({"role": StorageRole.PARAMETER, "phase": Phase.OPTIMIZER}, "PARAMETER"),
        ({"role": StorageRole.BUFFER, "recorded": False}, "PARAMETER"),
        ({"role": StorageRole.OPTIMIZER_STATE, "in_module": True}, "OPTIMIZER_STATE"),
        ({"role": StorageRole.GRADIENT, "recorded": False}, "GRADIENT"),
        ({"is_gradient": True, "phase": Phase.BACKWARD}, "GRADIENT"),
        ({"in_module": True, "gone_with_operator": True}, "TEMPORARY"),
        ({"phase": Phase.BACKWARD, "gone_with_operator": True}, "TEMPORARY"),
        ({"phase": Phase.OPTIMIZER, "gone_with_step": True}, "TEMPORARY"),
        ({"phase": Phase.OPTIMIZER}, "OPTIMIZER_STATE"),
        ({"phase": Phase.BACKWARD}, "AUTOGRAD_DETAIL"),
        ({"phase": Phase.BACKWARD, "in_module": True}, "ACTIVATION"),
        ({"in_module": True}, "ACTIVATION"),
        ({"computed": True}, "ACTIVATION"),
        ({"fed": True}, "INPUT"),
        ({"fed": True, "role": StorageRole.TENSOR}, "INPUT"),
        ({"fed": True, "stepped": True, "recorded": False}, "PARAMETER"),
        ({"stepped": True, "recorded": False}, "OPTIMIZER_STATE"),
        ({"freed": True}, "TEMPORARY"),
        ({"freed": True, "recorded": False}, "UNKNOWN"),
        ({}, "UNKNOWN"),
    ],
)
def test_each_rule(known, category):
    assert category_of(**known) is MemoryCategory[category]


def test_the_names_are_in_the_order_of_torchs_timelines():
    assert CATEGORY_NAMES == (
        "parameter", "optimizer state", "input", "temporary", "activation", "gradient", "autograd detail", "unknown",
    )  # fmt: skip


def found(builder):
    """Each block's address with its category and module, in order of blocks."""
    trace = builder.build()
    judged = judged_blocks(trace)
    paths = trace.column("modules", "path")
    return {
        hex(key): (CATEGORY_NAMES[category], paths[module] if module >= 0 else None)
        for key, category, module in zip(
            judged.blocks.key.tolist(), judged.category.tolist(), judged.module.tolist(), strict=True
        )
    }


def training():
    """A step: input is made, a linear layer runs, a loss outside it, backward, and an optimizer with state."""
    builder = TraceBuilder()
    layer = builder.module("Linear")
    weight = builder.parameter(layer)
    builder.span("aten::rand", 0, 10)
    builder.allocate(5, 0x10, 100)
    builder.span("aten::linear", 20, 30, module=layer, sequence=1)
    builder.span("aten::addmm", 22, 20, module=layer, sequence=1)
    builder.allocate(25, 0x20, 100)
    builder.allocate(26, 0x30, 100)
    builder.free(45, 0x30)
    builder.span("aten::mse_loss", 60, 10, sequence=2)
    builder.allocate(65, 0x40, 4)
    builder.backward("MseLossBackward0", 100, 10, sequence=2)
    builder.allocate(105, 0x50, 100)
    builder.backward("AddmmBackward0", 120, 10, sequence=1)
    builder.span("aten::mm", 122, 6)
    builder.allocate(123, 0x60, 16)
    builder.backward("torch::autograd::AccumulateGrad", 140, 10, sequence=-1, parameter=weight)
    builder.give("torch::autograd::AccumulateGrad", 0x60, 16, argument=-1, parameter=weight)
    builder.annotation("Optimizer.step#AdamW.step", 200, 50)
    builder.span("aten::zeros_like", 205, 5)
    builder.allocate(206, 0x70, 16)
    builder.span("aten::sqrt", 220, 5)
    builder.allocate(221, 0x80, 16)
    builder.free(230, 0x80)
    builder.free(300, 0x50)
    return builder


def test_a_training_step_without_operands():
    assert found(training()) == {
        "0x10": ("input", "Linear"),
        "0x20": ("activation", "Linear"),
        "0x30": ("temporary", "Linear"),
        "0x40": ("activation", "Linear"),
        "0x50": ("autograd detail", "Linear"),
        "0x60": ("gradient", "Linear"),
        "0x70": ("optimizer state", None),
        "0x80": ("temporary", None),
    }


def test_what_was_there_before_is_known_by_who_held_it():
    builder = training()
    builder.hold("parameter", 0x100, 16, module=0, name="weight")
    builder.hold("optimizer_state", 0x70, 16, time_ns=400, parameter=0, name="exp_avg")
    builder.hold("tensor", 0x110, 8)
    builder.hold("buffer", 0x120, 8, module=0, name="mean")
    assert {key: value for key, value in found(builder).items() if key in ("0x70", "0x100", "0x110", "0x120")} == {
        "0x70": ("optimizer state", "Linear"),
        "0x100": ("parameter", "Linear"),
        "0x110": ("input", "Linear"),
        "0x120": ("parameter", "Linear"),
    }  # fmt: skip


def test_with_operands_only_what_flows_into_the_model_is_input():
    builder = training()
    builder.hold("tensor", 0x110, 8).hold("tensor", 0x120, 8)
    # Of two tensors from before one is the source of the input; the other nobody looks at.
    builder.give("aten::rand", 0x110, 8)
    builder.give("aten::linear", 0x10, 100)
    builder.give("aten::mse_loss", 0x20, 100)
    by_address = found(builder)
    assert by_address["0x10"] == ("input", "Linear")
    assert by_address["0x110"] == ("input", "Linear")
    assert by_address["0x120"] == ("unknown", None)
    assert by_address["0x40"][0] == "activation"


def test_what_is_computed_from_an_activation_is_one_without_backward():
    builder = TraceBuilder()
    layer = builder.module("Linear")
    builder.span("aten::linear", 0, 10, module=layer)
    builder.allocate(5, 0x10, 8)
    builder.span("aten::softmax", 20, 10).give("aten::softmax", 0x10, 8)
    builder.allocate(25, 0x20, 8)
    builder.span("aten::argmax", 40, 10).give("aten::argmax", 0x20, 8)
    builder.allocate(45, 0x30, 8)
    builder.span("aten::randn", 60, 10)
    builder.allocate(65, 0x40, 8)
    builder.free(80, 0x40)
    assert {key: value[0] for key, value in found(builder).items()} == {
        "0x10": "activation", "0x20": "activation", "0x30": "activation", "0x40": "temporary",
    }  # fmt: skip


def test_a_model_that_did_not_live_to_the_end_is_known_by_what_its_operators_were_given():
    builder = TraceBuilder()
    layer = builder.module("Linear")
    builder.span("aten::linear", 0, 10, module=layer).give("aten::linear", 0x10, 8, argument=1)
    builder.annotation("Optimizer.step#SGD.step", 50, 20)
    builder.span("aten::add_", 55, 5).give("aten::add_", 0x10, 8).give("aten::add_", 0x20, 8, argument=1)
    assert {key: value[0] for key, value in found(builder).items()} == {
        "0x10": "parameter",
        "0x20": "optimizer state",
    }


def test_a_gradient_that_is_added_to_one_that_is_there_is_a_detail():
    builder = TraceBuilder()
    weight = builder.parameter(builder.module("Linear"))
    accumulate = "torch::autograd::AccumulateGrad"
    builder.backward("AddmmBackward0", 0, 10, sequence=1)
    builder.allocate(5, 0x10, 8)
    builder.backward(accumulate, 20, 20, sequence=-1, parameter=weight)
    builder.give(accumulate, 0x10, 8, argument=-1, parameter=weight)
    builder.span("aten::add_", 22, 10).give("aten::add_", 0x20, 8).give("aten::add_", 0x10, 8, argument=1)
    builder.free(35, 0x10)
    assert found(builder) == {"0x10": ("autograd detail", None), "0x20": ("gradient", "Linear")}


def test_a_gradient_that_autograd_copies_is_one():
    builder = TraceBuilder()
    weight = builder.parameter(builder.module("Linear"))
    builder.backward("torch::autograd::AccumulateGrad", 20, 20, sequence=-1, parameter=weight)
    builder.span("aten::clone", 22, 10)
    builder.allocate(25, 0x10, 8)
    assert found(builder) == {"0x10": ("gradient", "Linear")}


def test_forward_computed_again_in_backward_makes_activations():
    builder = TraceBuilder()
    outer, block = builder.module("Trainer"), builder.module("Block")
    # backward() is called from the forward of a module here; only the inner one is recomputation.
    builder.span("aten::linear", 0, 10, module=block, sequence=1)
    builder.backward("CheckpointFunctionBackward", 100, 100, sequence=1, module=outer)
    builder.span("aten::linear", 110, 20, module=block)
    builder.allocate(115, 0x10, 8)
    builder.free(190, 0x10)
    builder.span("aten::mm", 140, 10, module=outer)
    builder.allocate(145, 0x20, 8)
    builder.free(500, 0x20)
    assert {key: value[0] for key, value in found(builder).items()} == {
        "0x10": "activation",
        "0x20": "autograd detail",
    }


def test_the_same_address_twice_is_two_blocks():
    builder = training()
    builder.free(310, 0x10)
    builder.span("aten::empty", 400, 10)
    builder.allocate(405, 0x10, 50)
    builder.hold("parameter", 0x10, 50, time_ns=500, module=0)
    judged = judged_blocks(builder.build())
    at = np.flatnonzero(judged.blocks.key == 0x10)
    assert [CATEGORY_NAMES[judged.category[row]] for row in at] == ["input", "parameter"]
