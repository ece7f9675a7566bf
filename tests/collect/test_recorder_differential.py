"""The native recorder against torch.profiler: the same program, the same operators, nesting, shapes and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kinetoscope
from kinetoscope import ProfilerActivity
from tests.support.programs import PROGRAMS, Program

FLAGS: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "record_shapes": True, "profile_memory": True}

# Name -> why torch and we differ there.
DIFFERENT_SHAPES = {
    "CheckpointFunction": "torch lists an empty shape for the arguments that are no tensors; we list the tensors only",
}


def operators(events: Any) -> Counter[tuple[str, str | None, str]]:
    """Name, enclosing operator and input shapes of every event."""
    counted: Counter[tuple[str, str | None, str]] = Counter()
    for event in events:
        if event.name == "[memory]":
            continue
        parent = event.cpu_parent.name if event.cpu_parent is not None else None
        shapes = "" if event.name in DIFFERENT_SHAPES else str(event.input_shapes)
        counted[event.name, parent, shapes] += 1
    return counted


def allocated(profiler: torch.profiler.profile) -> list[int]:
    """Sizes of torch's allocation events."""
    results = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    return sorted(event.nbytes() for event in results if event.name() == "[memory]" and event.nbytes() > 0)


def recorded(run: Program) -> kinetoscope.Trace:
    """Our trace of one run."""
    with kinetoscope.profile(**FLAGS, engine="native") as profiler:
        run()
    return profiler.trace


@pytest.fixture(params=sorted(PROGRAMS))
def warm_program(request: pytest.FixtureRequest) -> Program:
    """A program that has run before, so that nothing is made for the first time while it is watched."""
    run = PROGRAMS[request.param]()
    run()
    run()
    return run


@pytest.mark.filterwarnings("ignore:.*Memory block of unknown size.*")
def test_one_after_the_other(warm_program: Program) -> None:
    with torch.profiler.profile(**FLAGS) as theirs:
        warm_program()
    ours = recorded(warm_program)
    assert operators(ours.events()) == operators(theirs.events())
    sizes = ours.column("allocations", "bytes")
    assert sorted(sizes[sizes > 0].tolist()) == allocated(theirs)
    assert ours.complete


def test_both_at_the_same_time(warm_program: Program) -> None:
    with torch.profiler.profile(**FLAGS) as theirs:
        ours = recorded(warm_program)
    assert operators(ours.events()) == operators(theirs.events())
    sizes = ours.column("allocations", "bytes")
    assert sorted(sizes[sizes > 0].tolist()) == allocated(theirs)


def test_torch_inside_ours() -> None:
    run = PROGRAMS["mlp_training"]()
    run()
    holder: list[Callable[[], Any]] = []

    def both() -> None:
        with torch.profiler.profile(**FLAGS) as theirs:
            run()
        holder.append(theirs.events)

    ours = operators(recorded(both).events())
    theirs = operators(holder[0]())
    assert sum(theirs.values()) > 100
    assert theirs - ours == Counter()


def test_sequence_numbers_and_forward_threads_agree() -> None:
    run = PROGRAMS["transformer_training"]()
    run()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as theirs:
        ours = recorded(run)
    expected = Counter(
        (event.name(), event.sequence_nr())
        for event in theirs.profiler.kineto_results.events()  # type: ignore[union-attr]
    )
    strings = ours.strings
    names, sequences = ours.column("spans", "name"), ours.column("spans", "sequence")
    found = Counter((strings[name], int(sequence)) for name, sequence in zip(names, sequences, strict=True))

    def numbered(counted: Counter[tuple[str, int]]) -> dict[tuple[str, int], int]:
        # torch copies the number of a backward function to the engine's span around it when it reads its events.
        return {
            key: count
            for key, count in counted.items()
            if key[1] >= 0 and not key[0].startswith("autograd::engine")
        }

    assert len(numbered(found)) > 100
    assert numbered(found) == numbered(expected)
