from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.rows import SpanRow
from kinetoscope.tables.device.collective_facts import Facts
from kinetoscope.tables.device.collectives import Call, Transfer, pair


def transfer(span, name, start, *, thread=1, elements=4):
    return Transfer(span, name, "gloo", thread, start, start + 5, elements)


def called(name, group, start, elements, parts=1):
    return Call(SpanRow(-1), Facts(name, group), start, elements, parts)


def paired(calls, transfers):
    pair(calls, transfers)
    return [[found.span for found in call.transfers] for call in calls]


def test_calls_and_transfers_of_one_name_go_in_order():
    calls = [called("all_reduce", "0", 0, 4), called("all_reduce", "0", 10, 4)]
    assert paired(calls, [transfer(9, "all_reduce", 12), transfer(8, "all_reduce", 3)]) == [[8], [9]]


def test_a_transfer_does_not_begin_before_its_call():
    assert paired([called("all_reduce", "0", 10, 4)], [transfer(1, "all_reduce", 9)]) == [[]]


def test_names_and_sizes_must_fit():
    calls = [called("broadcast", "0", 0, 4), called("all_reduce", "0", 1, 8), called("all_reduce", "0", 2, 4)]
    found = [transfer(5, "all_reduce", 3), transfer(6, "all_reduce", 4, elements=8), transfer(7, "reduce", 5)]
    assert paired(calls, found) == [[], [6], [5]]


def test_what_is_not_known_of_a_size_fits_any():
    assert paired([called("send", "", 0, -1)], [transfer(3, "send", 1)]) == [[3]]
    assert paired([called("send", "", 0, 4)], [transfer(3, "send", 1, elements=-1)]) == [[3]]


def test_a_call_in_parts_takes_as_many_as_it_has():
    calls = [called("reduce_scatter", "0", 0, 4, parts=2), called("all_reduce", "0", 1, 4)]
    found = [transfer(number, "all_reduce", 2 + number) for number in range(3)]
    assert paired(calls, found) == [[0, 1], [2]]


def test_a_thread_works_for_one_group():
    calls = [
        called("broadcast", "1", 0, 4),
        called("all_reduce", "0", 10, 4),
        called("all_reduce", "1", 11, 4),
    ]
    found = [
        transfer(1, "broadcast", 1, thread=7),
        transfer(2, "all_reduce", 12, thread=7),
        transfer(3, "all_reduce", 13, thread=8),
    ]
    assert paired(calls, found) == [[1], [3], [2]]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "reduce_scatter"]), st.integers(0, 50), st.integers(1, 3)), max_size=12),
    st.lists(st.tuples(st.sampled_from(["a", "b", "all_reduce"]), st.integers(0, 60), st.integers(0, 3)), max_size=20),
)  # fmt: skip
def test_no_transfer_is_given_away_twice_and_none_precedes_its_call(calls, transfers):
    made = [
        called(name, "", start, -1, parts) for name, start, parts in sorted(calls, key=lambda call: call[1])
    ]
    pair(
        made,
        [transfer(row, name, start, thread=thread) for row, (name, start, thread) in enumerate(transfers)],
    )
    given_away = [found.span for call in made for found in call.transfers]
    assert len(given_away) == len(set(given_away))
    assert all(found.start_ns >= call.start_ns for call in made for found in call.transfers)
    assert all(len(call.transfers) <= call.parts for call in made)
