"""What torch's collector returned, read by torch and by us: the same events, numbers and tables, times included."""

from __future__ import annotations

import inspect
from itertools import compress
from typing import Any

import pytest

pytest.importorskip("torch", reason="the comparison is with torch's own profiler")

from torch.profiler import ProfilerActivity, profile

from kinetoscope.collect import RecordingRequest
from kinetoscope.collect.engines import kineto_recording
from kinetoscope.collect.engines.kineto_recording import KinetoRecording, note_this_thread
from kinetoscope.model.pauses import Pauses
from kinetoscope.trace import Trace
from tests.support.programs import PROGRAMS
from tests.torch_events.test_event_list_against_torch import assert_same_text
from tests.torch_events.test_event_tree_calls import is_overfull
from tests.torch_events.test_torch_events_against_torch import EQUAL, EQUAL_OF_SPANS

READ = (
    "mlp_training", "convolutional_training", "scripted", "checkpointing", "inference", "nested_ranges", "sparse_and_scatter",
    "custom_autograd_function",
)  # fmt: skip
# The others, as those of functions of TorchScript, torch keeps to itself when it writes: docs/differences.md.
TOLD_SCOPES = (0, 1, 7)


@pytest.fixture(scope="module", params=READ)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Trace]:
    """torch's session, and our trace of what its collector returned."""
    run = PROGRAMS[request.param]()
    run()
    run()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as theirs:
        run()
    note_this_thread()
    request = RecordingRequest(frozenset([ProfilerActivity.CPU]), info={"profile_memory": "1"})
    return theirs, KinetoRecording(theirs.profiler.kineto_results, request, Pauses()).trace()


def test_every_attribute_of_every_event_is_equal(pair):
    theirs, ours = pair
    assert [event.name for event in ours.events()] == [event.name for event in theirs.events()]
    for mine, its in zip(ours.events(), theirs.events(), strict=True):
        for name in EQUAL if its.name == "[memory]" else EQUAL + EQUAL_OF_SPANS:
            wanted = getattr(its, name) or 0 if name == "flops" else getattr(its, name)
            if name == "scope" and wanted not in TOLD_SCOPES:
                wanted = 0
            assert getattr(mine, name) == wanted, (name, mine, its)
        for name in ("cpu_time", "cpu_time_total", "self_cpu_time_total"):
            assert getattr(mine, name) == pytest.approx(getattr(its, name), abs=1e-3), (name, mine)
        assert mine.time_range.start == pytest.approx(its.time_range.start)
        assert mine.time_range.end == pytest.approx(its.time_range.end)
        assert mine.concrete_inputs == (its.concrete_inputs or [])
        assert (mine.cpu_parent and mine.cpu_parent.name) == (its.cpu_parent and its.cpu_parent.name)
        assert [child.name for child in mine.cpu_children] == [child.name for child in its.cpu_children]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sort_by": "self_cpu_memory_usage", "row_limit": -1},
        {"top_level_events_only": True, "time_unit": "us"},
    ],
    ids=str,
)
def test_tables_with_memory_are_the_same(pair, options):
    theirs, ours = pair
    sorted_ = "sort_by" in options
    assert_same_text(
        ours.key_averages().table(**options), theirs.key_averages().table(**options), any_order=sorted_
    )
    by_shape = ours.key_averages(group_by_input_shape=True).table(**options)
    assert_same_text(
        by_shape, theirs.key_averages(group_by_input_shape=True).table(**options), any_order=sorted_
    )
    assert_same_text(ours.events().table(**options), theirs.events().table(**options), any_order=sorted_)


@pytest.fixture(scope="module", params=("mlp_training", "nested_ranges", "custom_autograd_function"))
def pair_with_calls(request: pytest.FixtureRequest) -> tuple[Any, Trace]:
    """The same with the calls of Python functions, which the collector has with stacks."""
    run = PROGRAMS[request.param]()
    run()
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as theirs:
        run()
    note_this_thread()
    request = RecordingRequest(frozenset([ProfilerActivity.CPU]), info={"with_stack": "1"})
    with pytest.MonkeyPatch.context() as patch:
        # Hooks that earlier sessions left in the optimizers are called in this program, too.
        patch.setattr(kineto_recording, "leave_out_own_calls", lambda _: None)
        return theirs, KinetoRecording(theirs.profiler.kineto_results, request, Pauses()).trace()


def in_order(session: Any) -> list[Any]:
    events = session.events()
    # pytest-xdist has threads of its own, whose calls torch lists too, on no thread that has a number.
    threads = {event.thread for event in events if not event.is_python_function}
    return sorted(
        (event for event in events if event.thread in threads),
        key=lambda event: (round(event.time_range.start, 3), -event.cpu_time_total),
    )


def facts_of_calls(event: Any) -> tuple[Any, ...]:
    around = event.cpu_parent
    return (
        event.name, event.is_python_function, event.activity_type, event.thread, around and around.name,
        [child.name for child in event.cpu_children],
    )  # fmt: skip


def test_calls_are_events_in_the_same_places_with_the_same_times(pair_with_calls):
    theirs, ours = pair_with_calls
    mine, its = in_order(ours), in_order(theirs)
    assert sum(event.is_python_function for event in its) > 50
    assert [facts_of_calls(event) for event in mine] == [facts_of_calls(event) for event in its]
    alike = [not is_overfull(event) for event in its]
    assert sum(alike) > 50
    for name, compared in (("cpu_time_total", mine), ("self_cpu_time_total", list(compress(mine, alike)))):
        expected = its if compared is mine else compress(its, alike)
        assert [getattr(event, name) for event in compared] == pytest.approx(
            [getattr(event, name) for event in expected], abs=2e-3
        )
    assert all(event.self_cpu_time_total >= 0 for event in mine)
    for grouping in ({}, {"group_by_input_shape": True}):
        sums = [
            sorted((event.key, event.count) for event in averages)
            for averages in (
                ours.key_averages(**grouping, include_python_functions=True),
                torch_averages(theirs, grouping),
            )
        ]
        assert sums[0] == sums[1]
    assert ours.events().total_average().count == theirs.events().total_average().count


def torch_averages(session: Any, grouping: dict[str, bool]) -> Any:
    """torch's sums with Python functions, which newer releases leave out unless they are asked for."""
    known = inspect.signature(session.key_averages).parameters
    asked = {"include_python_functions": True} if "include_python_functions" in known else {}
    return session.key_averages(**grouping, **asked)
