"""The objects that live, seen without holding those of other threads."""

import gc
import sys

import pytest

from kinetoscope._runtime import live_objects


class Wanted:
    pass


class Derived(Wanted):
    @property
    def __class__(self):
        raise AssertionError("the object was asked")


def test_instances_of_a_type_and_of_those_derived_from_it():
    kept = [Wanted(), Derived()]
    found, count = live_objects((Wanted,))
    assert {id(thing) for thing in found} == set(map(id, kept))
    assert count >= len(found)
    assert live_objects(()) == ([], pytest.approx(count, abs=count // 10))


def test_a_generation():
    gc.collect()
    old = Wanted()
    gc.collect()
    young = Wanted()
    youngest, count = live_objects((Wanted,), 0)
    assert any(thing is young for thing in youngest)
    assert count < live_objects((Wanted,))[1]
    if sys.version_info < (3, 14):
        assert not any(thing is old for thing in youngest)


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_left_as_it_was(was_on):
    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        live_objects((Wanted,))
        with pytest.raises(TypeError, match="types"):
            live_objects((3,))
        with pytest.raises(ValueError, match="generation"):
            live_objects((Wanted,), 17)
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()


def test_no_python_code_runs_while_all_objects_are_held():
    """Code would let other threads run: Python refuses to resize a tuple with two owners, so their `tuple(generator)` fails."""
    filling = ([],)
    owners = sys.getrefcount(filling)
    seen = []

    def collects(phase, info):
        seen.append(sys.getrefcount(filling) - owners)

    kept = [Wanted() for _ in range(3000)]
    thresholds = gc.get_threshold()
    gc.callbacks.append(collects)
    gc.set_threshold(1)
    try:
        found, _ = live_objects((Wanted,))
        [[] for _ in range(10)]
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collects)
    assert len(found) == len(kept)
    assert set(seen) == {0}
