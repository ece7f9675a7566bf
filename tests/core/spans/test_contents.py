"""Which calls have the result of an earlier one, by the contents of storages: compared with the same in Python, on random calls."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinetoscope._core as _core
from tests.support.effort import examples

TORCHS, DETERMINED, WRITES, FILLS, OVERWRITES, STATISTICS, WRITES_UNKNOWN = (1 << bit for bit in range(7))
RESULT, SHARED, WHOLE, NUMBER = (1 << bit for bit in range(4))
INT32, INT64, UINT8 = np.int32, np.int64, np.uint8
TYPES = {
    "kind": INT32,
    "cycle": INT32,
    "flags": UINT8,
    "first": INT64,
    "argument": INT32,
    "storage": INT64,
    "version": INT64,
    "offset": INT64,
    "tensor_flags": UINT8,
    "content": np.uint64,
}

TENSORS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 3, 4]),  # argument
        st.sampled_from([0, 1, 1, 2, 2, 3, 4]),  # storage
        st.integers(0, 1),  # version
        st.integers(0, 1),  # offset
        st.sampled_from(
            [0, 0, WHOLE, WHOLE, SHARED, NUMBER, RESULT, RESULT, RESULT | WHOLE, RESULT | SHARED]
        ),
        st.sampled_from([0, 0, 7, 8]),  # content
    ),
    max_size=4,
)
FLAGS = st.sampled_from([
    TORCHS | DETERMINED, TORCHS | DETERMINED, TORCHS | DETERMINED | WRITES, TORCHS | DETERMINED | FILLS,
    TORCHS | DETERMINED | WRITES | FILLS | OVERWRITES, TORCHS | WRITES | OVERWRITES, TORCHS | DETERMINED | STATISTICS,
    TORCHS | STATISTICS, WRITES_UNKNOWN, TORCHS | WRITES | WRITES_UNKNOWN, 0,
])  # fmt: skip
CALLS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0, 0, 0, 1]), FLAGS, TENSORS), max_size=14)


def columns_of(calls):
    """Calls as the columns that the function takes."""
    tensors = [tensor for *_, own in calls for tensor in own]
    found = dict(
        zip(("kind", "cycle", "flags"), zip(*(call[:3] for call in calls), strict=True), strict=False)
    )
    found |= dict(
        zip(
            ("argument", "storage", "version", "offset", "tensor_flags", "content"),
            zip(*tensors, strict=True),
            strict=False,
        )
    )
    found["first"] = np.cumsum([0, *(len(own) for *_, own in calls)])
    return {name: np.array(found.get(name, ()), kind) for name, kind in TYPES.items()}


class Contents:
    """The same in Python: the contents of each storage by number, and who made them."""

    def __init__(self):
        self.last, self.known, self.numbers, self.calls, self.makers, self.unread = 0, {}, {}, {}, {}, {}
        self.before, self.overwritten_by, self.from_outside = {}, {}, set()

    def fresh(self):
        self.last += 1
        return self.last

    def revoke(self, storage):
        for call in self.makers.pop(storage, ()):
            self.before[call] = -1

    def changed(self, storage):
        self.known.pop(storage, None)
        self.unread.pop(storage, None)
        self.revoke(storage)

    def number(self, storage, version):
        if self.known.get(storage, (0, version))[1] != version:
            self.changed(storage)
        if storage not in self.known:
            self.known[storage] = (self.fresh(), version)
            self.from_outside.add(storage)
        return self.known[storage][0]

    def call(self, row, kind, flags, tensors):
        arguments = [one for one in tensors if not one[4] & RESULT]
        results = [one for one in tensors if one[4] & RESULT]
        determined, key, given_ = bool(flags & DETERMINED), [kind], {}
        for place, storage, version, offset, what, content in arguments:
            if what & NUMBER:
                key.append((place, "number", offset))
                continue
            given_[storage] = version
            if storage == 0 and flags & WRITES_UNKNOWN:
                for one in list(self.makers):
                    self.revoke(one)
                self.known.clear()
                self.unread.clear()
            number = self.number(storage, version)
            is_read = bool(content) and storage in self.from_outside
            key.append((place, "values", content) if is_read else (place, number, offset))
            if storage == 0 or what & SHARED:
                determined = determined and is_read
                self.changed(storage)
            elif flags & OVERWRITES and place == 0 and what & WHOLE:
                fill = self.unread.pop(storage, None)
                others = [one for one in arguments if one[0] != place and one[1] == storage]
                if fill is not None and not others:
                    self.overwritten_by[fill] = row
            elif flags & WRITES or all(one[1] != storage for one in results):
                self.unread.pop(storage, None)
        made = [
            one
            for one in results
            if one[1] and (one[1] not in given_ or flags & WRITES or one[2] != given_[one[1]])
        ]
        statistics = flags & STATISTICS and not determined
        if not flags & TORCHS or (flags & WRITES and not made) or statistics:
            for place, storage, *_ in arguments:
                if not statistics or place in (3, 4):
                    self.changed(storage)
        key = tuple(key)
        earlier = self.calls.get(key, -1) if determined and made else -1
        if determined and made:
            self.calls[key] = row
        self.before[row] = earlier
        for place, storage, version, offset, what, _ in made:
            if storage in given_ and earlier < 0:
                self.revoke(storage)
            self.makers.setdefault(storage, []).append(row)
            place_key = (key, place, offset)
            number = self.numbers.setdefault(place_key, self.fresh()) if determined else self.fresh()
            self.known[storage] = (number, version)
            (self.from_outside.discard if determined else self.from_outside.add)(storage)
            if flags & FILLS and what & WHOLE and not what & SHARED:
                self.unread[storage] = row
            else:
                self.unread.pop(storage, None)


@settings(max_examples=examples(200), deadline=None)
@given(CALLS)
def test_repeats_are_those_of_the_same_in_python(calls):
    plain, cycle = Contents(), None
    for row, (kind, now, flags, tensors) in enumerate(calls):
        if now != cycle:
            plain.known, plain.unread, plain.makers, cycle = {}, {}, {}, now
        plain.call(row, kind, flags, tensors)
    found = _core.find_repeats(**columns_of(calls))
    assert found["before"].tolist() == [plain.before[row] for row in range(len(calls))]
    assert found["overwritten_by"].tolist() == [
        plain.overwritten_by.get(row, -1) for row in range(len(calls))
    ]


def test_columns_that_do_not_fit_are_refused():
    good = columns_of([(0, 0, TORCHS | DETERMINED, [(0, 1, 0, 0, 0, 0), (0, 2, 0, 0, RESULT, 0)])] * 2)
    assert _core.find_repeats(**good)["before"].tolist() == [-1, 0]
    for name in TYPES:
        with pytest.raises(ValueError, match="find_repeats"):
            _core.find_repeats(**{**good, name: good[name][:-1]})
    for first in ([0, 3, 2], [1, 2, 4], [0, 2, 5]):
        with pytest.raises(ValueError, match="first is not in order"):
            _core.find_repeats(**{**good, "first": np.array(first)})
