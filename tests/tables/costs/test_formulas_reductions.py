"""Reductions, sorting, norms, softmax and losses, against loops with numbers that count."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tests.support.counting import Counting, recorded

X = torch.arange(24.0).view(2, 3, 4) / 24 + 0.1


def rows_of(counting, shape, dims):
    """The numbers of each row that is brought together, `dims` being those that vanish."""
    numbers = counting.array(*shape)
    kept = [range(size) if place not in dims else (slice(None),) for place, size in enumerate(shape)]
    grids = [[]]
    for choices in kept:
        grids = [[*grid, choice] for grid in grids for choice in choices]
    return [numbers[tuple(grid)].reshape(-1).tolist() for grid in grids]


def total(numbers):
    out = numbers[0]
    for number in numbers[1:]:
        out = out + number
    return out


def largest(counting, numbers):
    out = numbers[0]
    for number in numbers[1:]:
        out = counting.max(out, number)
    return out


def mean(numbers):
    return total(numbers) / len(numbers)


def variance(numbers):
    middle = mean(numbers)
    deviations = [number - middle for number in numbers]
    return total([number * number for number in deviations]) / len(numbers)


def logsumexp(m, numbers):
    top = largest(m, numbers)
    return m.log(total([m.exp(number - top) for number in numbers])) + top


REDUCTIONS = {
    "sum": (lambda x, d: x.sum(d), lambda m, row: total(row)),
    "mean": (lambda x, d: x.mean(d), lambda m, row: mean(row)),
    "amax": (lambda x, d: x.amax(d), largest),
    "var": (lambda x, d: x.var(d), lambda m, row: variance(row)),
    "std": (lambda x, d: x.std(d), lambda m, row: m.sqrt(variance(row))),
    "logsumexp": (lambda x, d: x.logsumexp(d), logsumexp),
    "linalg_vector_norm": (
        lambda x, d: torch.linalg.vector_norm(x, 2, d),
        lambda m, row: m.sqrt(total([number * number for number in row])),
    ),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dims", [(0,), (2,), (0, 2), (0, 1, 2)])
def test_a_reduction_is_its_loop(name, dims):
    run, loop = REDUCTIONS[name]
    counting = Counting()
    for row in rows_of(counting, X.shape, dims):
        loop(counting, row)
    found = recorded(lambda: run(X, dims))
    assert found.by_name == {name: counting.count}
    assert found.bytes[name] == 4 * (24 + 24 // len(row))


def test_an_extreme_along_one_dimension_or_all():
    assert recorded(X.max).by_name == {"max": 23}
    assert recorded(lambda: X.max(1)).by_name == {"max": 24 - 8}
    assert recorded(lambda: torch.max(X, X)).flops == 24
    assert recorded(lambda: X.argmax(2)).by_name == {"argmax": 24 - 6}
    assert recorded(X.argmax).by_name == {"argmax": 23}
    assert recorded((X > 0).all).by_name["all"] == 23


def test_sums_of_integers_are_of_64_bits():
    found = recorded(lambda: torch.ones(3, 4, dtype=torch.int32).sum(1))
    assert found.bytes["sum"] == 48 + 3 * 8
    assert recorded(lambda: X.sum(dtype=torch.float64)).bytes["sum"] == 96 + 8


@given(st.integers(1, 6), st.integers(1, 6))
def test_cumulative_sums_add_each_element_but_the_first(rows, length):
    found = recorded(lambda: torch.ones(rows, length).cumsum(1))
    assert found.by_name.get("cumsum", 0) == rows * (length - 1)


def softmax(m, row):
    top = largest(m, row)
    powers = [m.exp(number - top) for number in row]
    whole = total(powers)
    return [power / whole for power in powers]


def log_softmax(m, row):
    top = largest(m, row)
    shifted = [number - top for number in row]
    whole = m.log(total([m.exp(number) for number in shifted]))
    return [number - whole for number in shifted]


def softmax_backward(m, row):
    products = [m.number() * number for number in row]
    whole = total(products)
    return [number * (m.number() - whole) for number in row]


def log_softmax_backward(m, row):
    whole = total([m.number() for _ in row])
    return [m.number() - m.exp(number) * whole for number in row]


@pytest.mark.parametrize(
    ("name", "run", "loop"),
    [
        ("_softmax", lambda: X.softmax(2), softmax),
        ("_log_softmax", lambda: X.log_softmax(2), log_softmax),
        (
            "_softmax_backward_data",
            lambda: torch.ops.aten._softmax_backward_data(X, X, 2, torch.float32),
            softmax_backward,
        ),
        (
            "_log_softmax_backward_data",
            lambda: torch.ops.aten._log_softmax_backward_data(X, X, 2, torch.float32),
            log_softmax_backward,
        ),
    ],
    ids=["softmax", "log_softmax", "softmax_backward", "log_softmax_backward"],
)
def test_softmax_is_its_loop(name, run, loop):
    counting = Counting()
    for row in rows_of(counting, X.shape, (2,)):
        loop(counting, row)
    assert recorded(run).by_name == {name: counting.count}


def normalised(m, row, weight, bias):
    middle = mean(row)
    deviations = [number - middle for number in row]
    spread = total([number * number for number in deviations]) / len(row)
    scale = m.function(lambda x: x**-0.5)(spread + 1e-5)
    out = [number * scale for number in deviations]
    out = [number * m.number() for number in out] if weight else out
    return [number + m.number() for number in out] if bias else out


@pytest.mark.parametrize(("weight", "bias"), [(False, False), (True, False), (True, True)])
def test_layer_norm_is_its_loop(weight, bias):
    counting = Counting()
    for row in rows_of(counting, X.shape, (1, 2)):
        normalised(counting, row, weight, bias)
    w, b = torch.ones(3, 4) if weight else None, torch.ones(3, 4) if bias else None
    assert recorded(lambda: functional.layer_norm(X, (3, 4), w, b)).by_name == {
        "native_layer_norm": counting.count
    }


def test_group_and_batch_norm_are_the_same_over_other_groups():
    counting = Counting()
    for row in rows_of(counting, (2, 2, 2, 3), (2, 3)):
        normalised(counting, row, weight=True, bias=True)
    x = torch.ones(2, 4, 3)
    found = recorded(lambda: functional.group_norm(x, 2, torch.ones(4), torch.ones(4)))
    assert found.by_name == {"native_group_norm": counting.count}
    counting = Counting()
    for row in rows_of(counting, x.shape, (0, 2)):
        normalised(counting, row, weight=True, bias=True)
        for _ in range(2):
            0.9 * counting.number() + 0.1 * counting.number()
    norm = torch.nn.BatchNorm1d(4)
    assert recorded(lambda: norm(x)).by_name["native_batch_norm"] == counting.count


def test_batch_norm_with_kept_statistics_scales_and_shifts():
    counting = Counting()
    for row in rows_of(counting, (2, 4, 3), (0, 2)):
        scale = counting.number() * counting.function(lambda x: x**-0.5)(counting.number() + 1e-5)
        for number in row:
            (number - 0.5) * scale + 0.1
    norm = torch.nn.BatchNorm1d(4).eval()
    assert recorded(lambda: norm(torch.ones(2, 4, 3))).by_name == {"native_batch_norm": counting.count}


def norm_backward(m, row, weight):
    """One group: the normalised input, the gradient times the weight, and the gradient of the input."""
    hat = [(number - 0.5) * m.number() for number in row]
    gradient = [m.number() * m.number() for _ in row] if weight else [m.number() for _ in row]
    first, second = mean(gradient), mean([g * h for g, h in zip(gradient, hat, strict=True)])
    return [(g - first - h * second) * m.number() for g, h in zip(gradient, hat, strict=True)]


def test_layer_norm_backward_is_its_loop():
    counting = Counting()
    for row in rows_of(counting, X.shape, (1, 2)):
        norm_backward(counting, row, weight=True)
    counting.count += (
        2 * 24 - 12
    )  # the weight's gradient: products with the normalised input, added over the rows
    counting.count += 24 - 12  # the bias's gradient: the sum over the rows
    x, norm = X.clone().requires_grad_(), torch.nn.LayerNorm((3, 4))
    out = norm(x)
    found = recorded(lambda: out.backward(torch.ones_like(out)))
    assert found.by_name["native_layer_norm_backward"] == counting.count


def test_rms_norm_counts_what_runs():
    found = recorded(lambda: functional.rms_norm(X, (4,), torch.ones(4)))
    counting = Counting()
    for row in rows_of(counting, X.shape, (2,)):
        scale = counting.function(lambda x: x**-0.5)(mean([number * number for number in row]) + 1e-5)
        [number * scale * counting.number() for number in row]
    assert found.flops == counting.count
    assert found.unknown == set()


def loss_rows(counting, loop, reduction):
    losses = [loop(counting, counting.number(0.4), counting.number(0.6)) for _ in range(24)]
    return {"none": lambda: losses, "sum": lambda: total(losses), "mean": lambda: mean(losses)}[reduction]()


def squared(m, x, t):
    difference = x - t
    return difference * difference


def huber(m, x, t):
    distance = m.abs(x - t)
    return 0.5 * distance * distance if distance > -1 else distance


def smooth(m, x, t):
    distance = m.abs(x - t)
    return 0.5 * distance * distance / 0.9 if distance > -1 else distance


LOSSES = {
    "mse_loss": (functional.mse_loss, squared),
    "huber_loss": (functional.huber_loss, huber),
    "smooth_l1_loss": (functional.smooth_l1_loss, smooth),
    "binary_cross_entropy": (
        functional.binary_cross_entropy,
        lambda m, x, t: -(t * m.log(x) + (1 - t) * m.log(1 - x)),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_loss_is_its_formula_and_its_reduction(name, reduction):
    run, loop = LOSSES[name]
    counting = Counting()
    loss_rows(counting, loop, reduction)
    found = recorded(lambda: run(X.clamp(0, 1), X.clamp(0, 1), reduction=reduction))
    # Some are made of a pointwise part and a reduction that is recorded as well.
    assert sum(flops for label, flops in found.by_name.items() if label != "clamp") == counting.count


def test_cross_entropy_is_log_softmax_and_one_negation_a_row():
    found = recorded(lambda: functional.cross_entropy(torch.ones(5, 7), torch.zeros(5, dtype=torch.long)))
    assert found.by_name == {"_log_softmax": 5 * 35 - 5, "nll_loss_forward": 5 + 5}


def comparisons(length):
    return max(length - 1, 0).bit_length()


@given(st.integers(1, 9), st.integers(1, 3))
def test_sorting_takes_a_logarithm_of_the_length(length, rows):
    x = torch.ones(rows, length)
    found = recorded(lambda: (x.sort(1), x.topk(1, 1), torch.searchsorted(x, x)))
    assert found.by_name.get("sort", 0) == rows * length * comparisons(length)
    assert found.by_name["topk"] == rows * length
    assert found.by_name["searchsorted"] == rows * length * comparisons(length + 1)
    assert found.unknown == set()
