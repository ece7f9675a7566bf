"""Links from backward to forward spans, and modules inherited through them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope._core as _core

BACKWARD = 1

span_rows = st.lists(
    st.tuples(
        st.integers(0, 2),  # thread
        st.integers(0, 20),  # start
        st.integers(0, 2),  # scope
        st.integers(-1, 5),  # sequence
        st.integers(-1, 3),  # forward thread
    ),
    max_size=60,
).map(sorted)


def link(rows: list[tuple[int, int, int, int, int]]) -> list[int]:
    columns = list(zip(*rows, strict=True)) or [()] * 5
    types = (np.int32, np.int64, np.uint8, np.int64, np.int32)
    return _core.link_backward(
        *(np.array(column, kind) for column, kind in zip(columns, types, strict=True))
    ).tolist()


def link_model(rows: list[tuple[int, int, int, int, int]]) -> list[int]:
    forward = []
    for _, start, scope, sequence, forward_thread in rows:
        found = [
            row
            for row, other in enumerate(rows)
            if other[0] == forward_thread
            and other[1] <= start
            and other[2] != BACKWARD
            and other[3] == sequence
            and other[4] == -1
        ]
        forward.append(found[-1] if scope == BACKWARD and sequence >= 0 and found else -1)
    return forward


@given(span_rows)
def test_link_backward_agrees_with_the_model(rows):
    assert link(rows) == link_model(rows)


@given(st.data())
def test_link_backward_follows_sequences_in_any_direction(data):
    count = data.draw(st.integers(1, 200))
    forward = [(0, row, 0, row // data.draw(st.integers(1, 3)), -1) for row in range(count)]
    wanted = data.draw(st.lists(st.integers(0, count), max_size=60))
    backward = [(1, 1000 + row, BACKWARD, sequence, 0) for row, sequence in enumerate(wanted)]
    assert link(forward + backward) == link_model(forward + backward)


def test_the_engines_wrapper_is_not_taken_for_the_forward_span():
    rows = [
        (0, 0, 0, 7, -1),  # aten::mul
        (0, 5, 0, 7, 0),  # evaluate_function, which carries its node's number and thread
        (0, 6, BACKWARD, 7, 0),
    ]
    assert link(rows) == [-1, -1, 0]


def test_a_number_used_again_links_to_the_last_span_before():
    rows = [(0, 0, 0, 3, -1), (0, 10, 0, 3, -1), (1, 5, BACKWARD, 3, 0), (1, 15, BACKWARD, 3, 0)]
    assert link(rows) == [-1, -1, 0, 1]


def test_threads_out_of_order_are_refused():
    with pytest.raises(ValueError, match="sorted by thread"):
        link([(1, 0, 0, 3, -1), (0, 0, 0, 3, -1)])


class Tree:
    """Builds the columns of inherit_modules for named spans."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.parameter_module: list[int] = []

    def add(self, parent=-1, module=-1, stack=-1, forward=-1, parameter=-1, scope=0) -> int:
        self.rows.append([parent, module, stack, forward, parameter, scope])
        return len(self.rows) - 1

    def inherit(self) -> tuple[list[int], list[int]]:
        parent, module, stack, forward, parameter, scope = (
            np.array(column, np.int32) for column in zip(*self.rows, strict=True)
        )
        result = _core.inherit_modules(
            parent,
            module,
            stack,
            forward,
            parameter,
            np.array(self.parameter_module, np.int32),
            scope.astype(np.uint8),
        )
        return result["module"].tolist(), result["forward_stack"].tolist()


def test_spans_without_a_module_take_their_parents():
    tree = Tree()
    root = tree.add(module=4)
    inner = tree.add(parent=root)
    tree.add(parent=inner)
    tree.add(parent=inner, module=5)
    tree.add()
    assert tree.inherit() == ([4, 4, 4, 5, -1], [-1] * 5)


def test_backward_takes_module_and_stack_of_its_forward_span():
    tree = Tree()
    linear = tree.add(module=3, stack=30)
    wrapper = tree.add(stack=99)
    backward = tree.add(parent=wrapper, forward=linear, scope=BACKWARD)
    tree.add(parent=backward)
    tree.add(parent=wrapper)
    assert tree.inherit() == ([3] * 5, [-1, 30, 30, 30, 30])


def test_the_module_that_calls_backward_is_not_the_module_of_backward():
    tree = Tree()
    linear = tree.add(module=3, stack=30)
    wrapper = tree.add(module=9)
    backward = tree.add(parent=wrapper, module=9, forward=linear, scope=BACKWARD)
    tree.add(parent=backward, module=9)
    recomputed = tree.add(parent=backward, module=5)
    tree.add(parent=recomputed)
    assert tree.inherit()[0] == [3, 3, 3, 3, 5, 5]


def test_accumulate_grad_takes_its_parameters_module():
    tree = Tree()
    tree.parameter_module = [-1, 8]
    wrapper = tree.add()
    accumulate = tree.add(parent=wrapper, parameter=1, scope=BACKWARD)
    tree.add(parent=accumulate)
    unknown = tree.add(parameter=0, scope=BACKWARD)
    assert tree.inherit() == ([8, 8, 8, -1], [-1] * 4)
    assert unknown == 3


def test_a_forward_span_in_a_later_row_is_resolved_first():
    tree = Tree()
    backward = tree.add(forward=2, scope=BACKWARD)
    tree.add(module=6)
    tree.add(parent=1, stack=12)
    assert tree.inherit() == ([6, 6, 6], [12, -1, -1])
    assert backward == 0


def test_backward_of_backward_follows_both_links():
    tree = Tree()
    linear = tree.add(module=2)
    first = tree.add(forward=linear, scope=BACKWARD)
    multiply = tree.add(parent=first, stack=5)
    tree.add(forward=multiply, scope=BACKWARD)
    assert tree.inherit() == ([2, 2, 2, 2], [-1, -1, -1, 5])


@given(
    st.lists(
        st.tuples(
            st.integers(-2, 12),
            st.integers(-1, 3),
            st.integers(-1, 3),
            st.integers(-2, 12),
            st.integers(-1, 3),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_links_in_circles_end(rows):
    tree = Tree()
    tree.rows = [list(row) for row in rows]
    tree.parameter_module = [0, -1, 2]
    module, _ = tree.inherit()
    known = {row[1] for row in rows} | {0, -1, 2}
    assert set(module) <= known


def test_different_lengths_are_refused():
    empty = np.zeros(0, np.int32)
    with pytest.raises(ValueError, match="different lengths"):
        _core.inherit_modules(empty, empty, empty, empty, empty, empty, np.zeros(1, np.uint8))
