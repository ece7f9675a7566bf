"""The native recorder against torch.profiler: the same program, the same operators, nesting, inputs and bytes."""

from __future__ import annotations

from collections import Counter
from functools import cache, lru_cache
from pathlib import Path

import pytest
import torch

import kinetoscope
from tests.support.differential import (
    KNOWS_TYPES,
    Told,
    differences,
    marked,
    record_ours,
    record_theirs,
    told_by_ours,
    told_by_theirs,
)
from tests.support.effort import STRESS
from tests.support.known_differences import AT_THE_SAME_TIME, KNOWN, ONE_AFTER_THE_OTHER, Difference
from tests.support.programs import PROGRAMS, SLOW_PROGRAMS, Program
from tests.support.torch_release import TORCH, notes_what_kernels_compute

MAKERS = PROGRAMS | SLOW_PROGRAMS
NAMES = [
    *sorted(PROGRAMS),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(SLOW_PROGRAMS)
        # Compiled for 20 s, in `make stress`; programs for given sizes are always compiled.
        if STRESS or name not in ("compiled_for_any_size", "exported_package")
    ),
]
# torch.profiler warns of blocks that it did not see being allocated, and of inputs that its own FLOPs cannot be counted from.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Memory block of unknown size.*"),
    pytest.mark.filterwarnings("ignore:Failed to save extra arguments for flops computation.*"),
    # The compiler looks at it where a graph goes on after a break.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf.*"),
]


@pytest.fixture(autouse=True, scope="module")
def compiled_beside_a_session() -> None:
    """Kernels have their modules if a session was there before they were compiled."""
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU]):
        pass


@lru_cache(maxsize=1)
def warm(name: str) -> Program:
    """A program that has run before, so that nothing is made for the first time while it is watched; the same one for both ways."""
    run = MAKERS[name]()
    run()
    run()
    return run


def one_after_the_other(run: Program) -> tuple[Told, Told]:
    """What both tell of the thread that runs the program, each of a run of its own."""
    theirs = record_theirs(marked(run))
    ours = record_ours(marked(run))
    # Where a thread of the program's workers runs whenever the recording looks at gradients, they are not read.
    losses = {row["code"] for row in ours.table("losses").to_pylist()} - {"unread_gradients"}
    assert losses <= (set() if notes_what_kernels_compute() else {"unknown_kernels"})
    return told_by_theirs(theirs, main_only=True), told_by_ours(ours, main_only=True)


def at_the_same_time(run: Program) -> tuple[Told, Told]:
    """What both tell of all threads that torch sees, of one and the same run."""
    traces: list[kinetoscope.Trace] = []
    theirs = told_by_theirs(record_theirs(lambda: traces.append(record_ours(marked(run)))))
    return theirs, told_by_ours(traces[0], theirs.threads)


RECORDINGS = {ONE_AFTER_THE_OTHER: one_after_the_other, AT_THE_SAME_TIME: at_the_same_time}


@cache
def told_by_both(name: str, way: str) -> tuple[Told, Told]:
    """What both tell of a program, which runs once for all tests that ask."""
    return RECORDINGS[way](warm(name))


@pytest.mark.parametrize("way", RECORDINGS)
@pytest.mark.parametrize("name", NAMES)
def test_both_tell_the_same(name: str, way: str) -> None:
    theirs, ours = told_by_both(name, way)
    unexplained = [
        (aspect, whose, thing)
        for aspect, whose, thing in differences(theirs, ours)
        if not any(known.explains_here(name, way, aspect, thing) for known in KNOWN)
    ]
    assert unexplained == []
    assert sum(theirs.aspects["nesting"].values()) > 1


@pytest.mark.parametrize("known", [known for known in KNOWN if known.seen_in], ids=lambda known: known.title)
def test_a_known_difference_is_still_one(known: Difference) -> None:
    if known.aspects == {"types"} and not KNOWS_TYPES:
        pytest.skip("events of this torch do not know the types of their inputs")
    if known.since > TORCH:
        pytest.skip(f"torch has this difference from {'.'.join(map(str, known.since))} on")
    for way in known.ways:
        theirs, ours = told_by_both(known.seen_in, way)
        seen = [
            thing
            for aspect, _, thing in differences(theirs, ours)
            if known.explains_here(known.seen_in, way, aspect, thing)
        ]
        assert seen != [], way


def test_every_known_difference_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "differences.md").read_text(encoding="utf-8")
    headings = {line[4:] for line in page.splitlines() if line.startswith("### ")}
    assert headings == {*(known.title for known in KNOWN), "Threads"}
    assert f"{len(MAKERS)} programs" in page


def test_there_are_enough_programs() -> None:
    assert len(MAKERS) >= 45


@pytest.mark.parametrize("name", ["pipeline_of_threads", "backward_in_several_threads"])
def test_we_see_the_threads_that_torch_was_not_told_of(name: str) -> None:
    """The listed difference "Threads": torch.profiler follows the thread that started it, and autograd's."""
    traces: list[kinetoscope.Trace] = []
    run = marked(warm(name))
    theirs = told_by_theirs(record_theirs(lambda: traces.append(record_ours(run))))
    ours = told_by_ours(traces[0])
    assert theirs.threads == {theirs.main}
    assert len(ours.threads) > 1
    assert ours.threads > theirs.threads


def test_torch_inside_ours() -> None:
    run = marked(warm("mlp_training"))
    holder: list[torch.profiler.profile] = []
    ours = told_by_ours(record_ours(lambda: holder.append(record_theirs(run))))
    theirs = told_by_theirs(holder[0])
    assert sum(theirs.aspects["nesting"].values()) > 100
    assert theirs.aspects["nesting"] - ours.aspects["nesting"] == Counter()
