import functools
from typing import Any, NamedTuple

import pytest
import torch

from kinetoscope.integrations.pyg import benchmark, checks
from tests.support.simulated_accelerator import cuda

__all__ = ["cuda"]


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time, as a list with one number."""
    time_s = [0.0]
    monkeypatch.setattr(checks, "clock", lambda: time_s[0])
    return time_s


def rows(printed: str) -> list[list[str]]:
    """The cells of a printed table, its header first."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in printed.splitlines()
        if line.startswith("| ")
    ]


def add(x, y):
    return x + y


def test_the_table_is_drawn_as_psql_does(capsys):
    benchmark([add], (torch.ones(3), torch.ones(3)), num_steps=1, num_warmups=1, backward=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "| Name   | Forward   | Backward   | Total   |"
    assert lines[3].startswith("| add    | 0.")
    assert lines[0] == lines[4] == "+--------+-----------+------------+---------+"
    assert lines[2] == "|--------+-----------+------------+---------|"


def test_warm_ups_are_not_measured(now, capsys):
    calls = []

    def slow(x):
        calls.append(1)
        now[0] += 100 if len(calls) <= 3 else 2
        return x

    benchmark([slow], (torch.ones(1),), num_steps=5, num_warmups=3)
    assert len(calls) == 8
    assert rows(capsys.readouterr().out) == [["Name", "Forward"], ["slow", "10.0000s"]]


def test_forward_backward_and_their_sum_of_one_step(now, capsys):
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            now[0] += 1
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            now[0] += 3
            return gradient

    benchmark(
        [Slow.apply], (torch.ones(1),), 4, func_names=["named"], num_warmups=1, backward=True, per_step=True
    )
    assert rows(capsys.readouterr().out)[1] == ["named", "1.000000s", "3.000000s", "4.000000s"]


def test_each_function_may_have_arguments_of_its_own_made_for_every_step(now, capsys):
    made, got = [], []

    def make():
        now[0] += 50
        made.append(torch.ones(len(made) + 1))
        return (made[-1],)

    benchmark([lambda x: got.append(len(x)), add], [make, (1, 2)], num_steps=2, num_warmups=1)
    assert got == [1, 2, 3]
    assert [row[1] for row in rows(capsys.readouterr().out)[1:]] == ["0.0000s", "0.0000s"]


class Pair(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize("backward", [True, False])
def test_arguments_begin_a_graph_of_their_own_wherever_they_are(backward):
    source = torch.ones(2, requires_grad=True)
    whole = torch.arange(3)

    def check(x, many, pair, number, sparse):
        assert isinstance(pair, Pair)
        for tensor in (x, many[0]["a"], pair.x):
            assert tensor.is_leaf
            assert tensor.requires_grad is backward
            assert tensor is not source
        assert pair.y is whole
        assert number == 7
        assert sparse.is_sparse
        return x * 2

    arguments = (source * 1, [{"a": source * 1}], Pair(source * 1, whole), 7, torch.eye(2).to_sparse())
    benchmark([check], arguments, num_steps=1, num_warmups=1, backward=backward)
    assert source.grad is None


@pytest.mark.parametrize(
    "pack",
    [lambda x: x, lambda x: (x, x, 3), lambda x: [x], lambda x: {"a": x, "b": "text"}],
    ids=["tensor", "tuple", "list", "dict"],
)
def test_backward_begins_from_all_tensors_that_are_returned(pack):
    layer = torch.nn.Linear(2, 2)
    benchmark([lambda x: pack(layer(x))], (torch.ones(1, 2),), num_steps=1, num_warmups=1, backward=True)
    assert layer.weight.grad is not None


def test_modules_partials_and_functions_have_names(capsys):
    benchmark([torch.nn.ReLU(), functools.partial(add, y=1)], (torch.ones(1),), 1, num_warmups=1)
    assert [row[0] for row in rows(capsys.readouterr().out)] == ["Name", "ReLU", "add"]


def test_a_bar_is_shown_on_the_standard_error_only(capsys):
    benchmark([add], (1, 2), 1, num_warmups=1, progress_bar=True)
    printed = capsys.readouterr()
    assert "Measuring" in printed.err
    assert "Measuring" not in printed.out


def test_the_accelerator_is_waited_for_around_each_measured_call(cuda):
    benchmark([lambda x: x * 2], (torch.ones(1),), 1, num_warmups=1, backward=True)
    assert cuda.log == ["waited"] * 8


def test_random_numbers_stay_what_they_would_be():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    benchmark([lambda x: x * 2], (torch.ones(1),), 1, num_warmups=1, backward=True)
    assert torch.equal(torch.rand(3), expected)
