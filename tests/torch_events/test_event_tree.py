"""Which spans are events, and what is around them."""

import numpy as np

from kinetoscope.torch_events.event_tree import _shown_parents


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
