"""Activation checkpointing: what is marked as recomputed is the second forward, all of it and nothing else."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from kinetoscope import Trace
from kinetoscope.model.schema import Phase
from tests.support.recorded import profile


class Blocks(nn.Module):
    """Two blocks, of which the first or both are checkpointed, and a head that is not."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5))
        self.two = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
        self.head = nn.Linear(4, 2)
        self.options = options

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.inside(checkpoint(self.one, x, **self.options)))

    def inside(self, x: torch.Tensor) -> Any:
        return self.two(x)


class Nested(Blocks):
    def forward(self, x: torch.Tensor) -> Any:
        return self.head(checkpoint(self.both, x, **self.options))

    def both(self, x: torch.Tensor) -> Any:
        return self.two(checkpoint(self.one, x, **self.options))


def recorded(model: nn.Module) -> Trace:
    x = torch.ones(2, 4, requires_grad=True)
    model(x).sum().backward()
    with profile() as prof:
        model(x).sum().backward()
    return prof.trace


def names(trace: Trace, rows: Any) -> list[str]:
    spans = trace.columns("spans")
    return [trace.strings[spans["name"][row]] for row in rows]


def of_modules(trace: Trace, paths: tuple[str, ...], *, again: bool, phase: Phase) -> list[str]:
    """Names of operators that ran in these modules themselves."""
    spans, path = trace.columns("spans"), trace.column("modules", "path")
    rows = [
        row
        for row in range(len(spans))
        if spans["own_module"][row] >= 0
        and path[spans["own_module"][row]].startswith(paths)
        and bool(spans["recompute"][row]) is again
        and spans["phase"][row] == phase
    ]
    return names(trace, rows)


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_second_forward_is_marked_and_nothing_else(reentrant: bool) -> None:
    trace = recorded(Blocks(use_reentrant=reentrant))
    spans = trace.columns("spans")
    marked = names(trace, [row for row in range(len(spans)) if spans["recompute"][row]])
    assert marked == of_modules(trace, ("one",), again=False, phase=Phase.FORWARD)
    assert "aten::tanh" in marked
    assert set(spans["phase"][spans["recompute"] != 0]) == {Phase.BACKWARD}


def test_reentrant_checkpoints_within_each_other() -> None:
    trace = recorded(Nested(use_reentrant=True))
    first = of_modules(trace, ("one", "two"), again=False, phase=Phase.FORWARD)
    again = of_modules(trace, ("one", "two"), again=True, phase=Phase.BACKWARD)
    # The outer one runs both again, and the backward of that the inner one once more.
    assert again == first + of_modules(trace, ("one",), again=False, phase=Phase.FORWARD)


def test_checkpoints_without_reentrance_within_each_other() -> None:
    trace = recorded(Nested(use_reentrant=False))
    again = of_modules(trace, ("one", "two"), again=True, phase=Phase.BACKWARD)
    assert again.count("aten::sigmoid") == 1
    assert again.count("aten::tanh") >= 1
    spans = trace.columns("spans")
    assert not any(
        name.endswith("Backward0") for name in names(trace, (spans["recompute"] != 0).nonzero()[0])
    )


def test_selective_checkpointing_marks_what_runs_again() -> None:
    kept = [torch.ops.aten.addmm.default]
    trace = recorded(
        Blocks(use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(kept))
    )
    again = of_modules(trace, ("one",), again=True, phase=Phase.BACKWARD)
    assert "aten::tanh" in again
    assert not of_modules(trace, ("two", "head"), again=True, phase=Phase.BACKWARD)


def test_without_checkpoints_nothing_is_marked() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    trace = recorded(model)
    assert not trace.column("spans", "recompute").any()
    assert trace.table("modules")["recompute_ns"].to_pylist() == [0, 0, 0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_parts_of_a_module_add_up(reentrant: bool) -> None:
    trace = recorded(Blocks(use_reentrant=reentrant))
    for row in trace.table("modules").to_pylist():
        assert row["forward_ns"] + row["backward_ns"] + row["recompute_ns"] == row["total_ns"]
        assert row["forward_self_ns"] + row["backward_self_ns"] + row["recompute_self_ns"] == row["self_ns"]
        checkpointed = row["path"].startswith("one") or row["depth"] == 0
        assert (row["recompute_ns"] > 0) == checkpointed
        if row["total_ns"]:
            assert row["recompute_percent"] == pytest.approx(100 * row["recompute_ns"] / row["total_ns"])
    shown = trace.table("spans")["recompute"].to_pylist()
    assert sum(shown) == trace.column("spans", "recompute").sum() > 0


@pytest.mark.parametrize(
    ("function", "file", "again"),
    [
        ("checkpoint.<locals>.recompute_fn", "torch/utils/checkpoint.py", True),
        ("_checkpoint_without_reentrant_generator.<locals>.recompute_fn", "torch/utils/checkpoint.py", True),
        (
            "_checkpoint_without_reentrant_generator_impl.<locals>.recompute_fn",
            "torch/utils/checkpoint.py",
            True,
        ),
        ("a_program.<locals>.recompute_fn", "project/train.py", False),
        ("recompute_fn", "torch/utils/checkpoint.py", False),
    ],
)
def test_the_function_that_runs_again_is_known_by_its_end_and_its_file(
    function: str, file: str, again: bool
) -> None:
    # torch 2.0, 2.1 and 2.14 name what is around it so.
    code = _tanh.__code__.replace(co_qualname=function, co_filename=f"/site-packages/{file}")
    with profile() as prof:
        types.FunctionType(code, globals())()
    trace = prof.trace
    row = names(trace, range(len(trace.columns("spans")))).index("aten::tanh")
    assert bool(trace.columns("spans")["recompute"][row]) is again


def _tanh() -> torch.Tensor:
    return torch.ones(2).tanh()
