"""Work for which there is a cheaper way: small recorded programs, and the same ones in the cheaper way or with something that needs all of it."""

import pytest
import torch
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

import kinetoscope
from kinetoscope.ledger.avoidable_work.waste import waste_of
from kinetoscope.model.time_spent import Cause
from tests.support.trace_builder import TraceBuilder


def wasted(step, steps=3):
    """Why operators of some steps could be left out, and the largest part."""
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=steps, repeat=1)
    with kinetoscope.profile(record_shapes=True, with_stack=True, schedule=schedule) as prof:
        for _ in range(steps + 1):
            step()
            prof.step()
    found = waste_of(prof.trace)
    return {Cause(one) for one in found.why.tolist()} - {Cause.NONE}, float(found.part.max())


def keys():
    return torch.randn(8, 4096)


def sort_and_slice():
    return torch.argsort(keys(), dim=1, descending=True)[:, :10]


def sort_and_take_one():
    return keys().sort(dim=1).values[:, 0]


def top_k():
    return keys().topk(10, dim=1).indices


def sort_and_use_all():
    order = torch.argsort(keys(), dim=1)
    return order[:, :10], order.float()


def sort_and_look_up():
    values = keys()
    return values.gather(1, torch.argsort(values, dim=1))


def first_of_a_permutation():
    return torch.randperm(50_000)[:64]


def all_of_a_permutation():
    return torch.arange(50_000)[torch.randperm(50_000)]


layer = torch.nn.Linear(32, 512)
tokens = torch.randn(4, 64, 32)


@torch.no_grad()
def last_position():
    return layer(tokens)[:, -1].softmax(-1)


@torch.no_grad()
def last_position_first():
    return layer(tokens[:, -1]).softmax(-1)


@torch.no_grad()
def queries_and_keys():
    both = layer(tokens)
    return both[..., :256] @ both[..., 256:].transpose(1, 2)


left, right = torch.randn(128, 1, 32), torch.randn(1, 128, 32)


def all_pairs():
    return (left - right).square().sum(-1).argmin(1)


def similarities_of_all_pairs():
    return torch.nn.functional.cosine_similarity(left, right, dim=2)


scores = torch.randn(512)


def count_of_larger_pairs():
    return (scores[:, None] > scores[None]).double().sum()


def all_pairs_by_a_product():
    a, b = left[:, 0], right[0]
    return ((a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.t()).argmin(1)


def all_pairs_that_something_else_reads():
    difference = left - right
    return difference.square().sum(-1), difference.softmax(-1)


square, thin = torch.randn(256, 256), torch.randn(256, 2)


def product_from_the_left():
    return square @ square @ thin


queries, keys_of_queries, values_of_keys = (torch.randn(2, 4, 256, 8) for _ in range(3))


def attention_without_softmax():
    return queries @ keys_of_queries.transpose(-1, -2) @ values_of_keys


def attention_with_softmax():
    return (queries @ keys_of_queries.transpose(-1, -2)).softmax(-1) @ values_of_keys


def product_from_the_right():
    return square @ (square @ thin)


def one_hot_rows():
    return functional.one_hot(torch.arange(128) % 64, 64).float() @ square[:64]


def rows_by_index():
    return square[:64][torch.arange(128) % 64]


def one_hot_targets():
    return functional.one_hot(torch.arange(128) % 64, 64).float() * square[:128, :64]


positive = square @ square.t() / 256 + torch.eye(256)


def inverse_to_multiply():
    return (torch.linalg.inv(positive) @ thin).sum() + torch.logdet(positive)


def inverse_by_itself():
    return torch.linalg.inv(positive).diagonal()


def solution():
    return torch.linalg.solve(positive, thin)


tall = torch.randn(512, 16)


def all_factors():
    return torch.linalg.svd(tall)[1]


def first_factors():
    return torch.linalg.svd(tall, full_matrices=False)[1]


def all_of_q():
    return torch.linalg.qr(tall, mode="complete")[1]


def grown():
    found = torch.zeros(0, 64)
    for _ in range(20):
        found = torch.cat([found, torch.ones(16, 64)])
    return found


def collected():
    return torch.cat([torch.ones(16, 64) for _ in range(20)])


queue = torch.randn(4096, 16)


def shifted_queue():
    return torch.cat([queue[32:], torch.ones(32, 16)])


def few_rows_of_all_that_were_scaled():
    return (queue * 2.0)[:128]


def half_of_a_queue():
    return torch.cat([queue[2048:], torch.ones(2048, 16)])


def joined_to_the_same():
    return [torch.cat([square, thin], 1) for _ in range(20)]


orthogonal = parametrizations.orthogonal(torch.nn.Linear(48, 48, bias=False))
rows = torch.randn(8, 48)


def weight_for_each_call():
    hidden = rows
    for _ in range(6):
        hidden = orthogonal(hidden)
    return hidden


def weight_once():
    with parametrize.cached():
        return weight_for_each_call()


@pytest.mark.parametrize(
    ("step", "shortcut"),
    [
        (sort_and_slice, Cause.SORTED),
        (sort_and_take_one, Cause.SORTED),
        (first_of_a_permutation, Cause.SHUFFLED),
        (last_position, Cause.DISCARDED),
        (all_pairs, Cause.EXPANDED),
        (count_of_larger_pairs, Cause.EXPANDED),
        (similarities_of_all_pairs, Cause.EXPANDED),
        (attention_without_softmax, Cause.ORDER),
        (product_from_the_left, Cause.ORDER),
        (one_hot_rows, Cause.ONE_HOT),
        (inverse_to_multiply, Cause.INVERSE),
        (all_factors, Cause.FULL_FACTORS),
        (all_of_q, Cause.FULL_FACTORS),
        (grown, Cause.GROWN),
        (shifted_queue, Cause.SHIFTED),
        (few_rows_of_all_that_were_scaled, Cause.DISCARDED),
        (weight_for_each_call, Cause.PARAMETRIZED),
    ],
)
def test_a_cheaper_way_is_known(step, shortcut):
    found, part = wasted(step)
    assert shortcut in found
    assert part > 0.5


@pytest.mark.parametrize(
    "step",
    [
        top_k,
        sort_and_use_all,
        sort_and_look_up,
        all_of_a_permutation,
        last_position_first,
        queries_and_keys,
        all_pairs_by_a_product,
        all_pairs_that_something_else_reads,
        product_from_the_right,
        rows_by_index,
        half_of_a_queue,
        one_hot_targets,
        inverse_by_itself,
        solution,
        first_factors,
        collected,
        joined_to_the_same,
        attention_with_softmax,
        weight_once,
    ],
)
def test_nothing_is_said_of_the_cheaper_way_or_where_all_of_it_is_used(step):
    assert not {cause for cause in wasted(step)[0] if cause.does}


def head_of_a_body(look=lambda body: None, *, is_trained=False):
    """Steps of a body and a head, of which the optimizer has both or the head alone; `look` sees the body after backward."""
    body = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 96))
    head = torch.nn.Linear(96, 8)
    updated = [*body.parameters(), *head.parameters()] if is_trained else head.parameters()
    optimizer = torch.optim.SGD(updated, lr=0.1)
    x = torch.randn(16, 64)

    def step():
        optimizer.zero_grad()
        body.zero_grad()
        head(body(x)).square().mean().backward()
        look(body)
        optimizer.step()

    return step


def update(body):
    with torch.no_grad():
        for parameter in body.parameters():
            parameter -= 0.1 * parameter.grad


def test_gradients_that_no_optimizer_has_are_not_needed():
    assert wasted(head_of_a_body())[0] == {Cause.UNUSED_GRADIENT}


def test_gradients_of_what_only_modules_compute_with_are_not_needed():
    """A table of positions is added to what the body gets; that is no use of its gradient."""
    torch.manual_seed(0)
    positions, body = torch.nn.Parameter(torch.randn(16, 64)), torch.nn.Linear(64, 96)
    head = torch.nn.Linear(96, 8)
    optimizer, x = torch.optim.SGD(head.parameters(), lr=0.1), torch.randn(16, 64)

    def step():
        optimizer.zero_grad()
        head(body(x + positions)).square().mean().backward()
        optimizer.step()

    assert wasted(step)[0] == {Cause.UNUSED_GRADIENT}


def test_gradients_of_what_is_trained_or_updated_by_the_program_are_needed():
    assert wasted(head_of_a_body(is_trained=True))[0] == set()
    assert wasted(head_of_a_body(update))[0] == set()


def test_operators_without_duration_have_no_cheaper_way():
    builder = TraceBuilder().step(0, 0, 100)
    builder.backward("MmBackward0", 20, 30, sequence=1)
    builder.span("aten::mm", 25, 5, shapes=builder.shapes([[3, 2], [2, 3]]))
    builder.span("aten::linear", 60, 0, shapes=builder.shapes([[2, 3], [3, 2]]))
    assert not waste_of(builder.build()).part.any()


@pytest.mark.parametrize("grows", [True, False])
def test_growing_is_seen_in_slices_that_were_recorded_in_full(grows):
    builder = TraceBuilder()
    builder.know("deep_steps", 1)
    stack = builder.stack(("evaluate.py", 4, "evaluate"))
    for call in range(40):
        rows = 64 * (call + 1) if grows else 64
        shapes = -1
        if call in (3, 4, 5, 20, 21, 22):
            inputs = [[[rows, 32], [64, 32]], []]
            shapes = builder.shapes(inputs, ["TensorList", "Scalar"], ["", "0"])
        builder.span("aten::cat", 1000 * call, 900, stack=stack, shapes=shapes)
    why = waste_of(builder.build()).why
    assert ({Cause(cause) for cause in why.tolist()} == {Cause.NONE, Cause.GROWN}) is grows
