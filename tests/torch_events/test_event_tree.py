"""Which spans are events, and what is around them."""

import numpy as np

from kinetoscope.torch_events.event_tree import _shown_parents
from tests.support.trace_builder import TraceBuilder


class Counted(np.ndarray):
    """Counts how often rows of it are looked up."""

    lookups = 0

    def __getitem__(self, rows):
        Counted.lookups += 1
        return super().__getitem__(rows)


def test_the_nearest_ancestor_that_is_shown_is_found_in_few_steps_however_deep_it_is():
    generator = np.random.default_rng(0)
    rows = 20_000
    # A chain, from which trees of all depths branch off.
    parent = np.arange(-1, rows - 1, dtype=np.int32)
    branches = np.arange(rows // 2, rows)
    parent[branches] = generator.integers(-1, branches)
    absorbed = generator.random(rows) < 0.999
    wanted = np.full(rows, -1)
    for row, above in enumerate(parent):
        if above >= 0:
            wanted[row] = wanted[above] if absorbed[above] else above
    Counted.lookups = 0
    found = _shown_parents(parent.view(Counted), absorbed)
    assert np.asarray(found).tolist() == wanted.tolist()
    assert Counted.lookups < 100


def test_no_self_time_is_negative_where_spans_that_overlap_fill_the_one_around_them():
    builder = TraceBuilder()
    for name, start_ns, end_ns in (
        ("outer", 28_000, 38_000),
        ("first", 28_000, 30_000),
        ("second", 29_000, 38_000),
    ):
        builder.span(name, start_ns, end_ns - start_ns)
    events = {event.name: event for event in builder.build().events()}
    assert [child.name for child in events["outer"].cpu_children] == ["first", "second"]
    # What both run is the later one's, so the sum is the outer one's 10 us.
    assert {name: event.self_cpu_time_total for name, event in events.items()} == {
        "outer": 0,
        "first": 1,
        "second": 9,
    }


def test_spans_that_overlap_have_torchs_self_times_where_none_of_these_is_negative():
    builder = TraceBuilder()
    for name, start_ns, end_ns in (
        ("outer", 20_000, 40_000),
        ("first", 28_000, 30_000),
        ("second", 29_000, 38_000),
    ):
        builder.span(name, start_ns, end_ns - start_ns)
    events = {event.name: event for event in builder.build().events()}
    assert {name: event.self_cpu_time_total for name, event in events.items()} == {
        "outer": 9,
        "first": 2,
        "second": 9,
    }
