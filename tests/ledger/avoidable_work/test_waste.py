"""What could be left out, and why operators are slow: in recorded programs and their twins."""

from functools import partial

import pytest
import torch
from torch.nn import functional

import kinetoscope
from kinetoscope.ledger.avoidable_work.waste import waste_of
from kinetoscope.model.schema import Phase
from kinetoscope.model.time_spent import Cause
from tests.support.trace_builder import TraceBuilder


def reasons(step, steps=3, *, of="why"):
    """Why operators of some steps could be left out, or are slow."""
    with kinetoscope.profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
        for _ in range(steps):
            step()
            prof.step()
    found = waste_of(prof.trace)
    return {Cause(one) for one in getattr(found, of).tolist()} - {Cause.NONE}, found


def layer(*, before):
    """A layer of many classes, of whose result one row in 64 is used."""
    body, head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 300)
    rows = torch.randn(512, 16)

    def step():
        hidden = functional.relu(body(rows))
        chosen = head(hidden[::64]) if before else head(hidden).log_softmax(1)[::64]
        chosen.sum().backward()

    return step


def test_a_result_of_which_a_small_part_is_used_is_mostly_discarded():
    found, waste = reasons(layer(before=False))
    assert found == {Cause.DISCARDED}
    assert waste.part.max() == pytest.approx(1 - 1 / 64)


def test_what_layers_pass_on_to_each_other_is_not_discarded():
    body = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    rows = torch.randn(64, 32, 256)
    assert reasons(lambda: body(rows)[:, -1].sum().backward())[0] == set()


@pytest.mark.parametrize("chosen", [slice(0, 512, 64), torch.arange(0, 512, 64)])
def test_a_part_may_be_chosen_by_an_index(chosen):
    body, head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 300)
    rows = torch.randn(512, 16)
    found, _ = reasons(lambda: head(functional.relu(body(rows)))[chosen].sum().backward())
    assert found == {Cause.DISCARDED}


def test_a_result_of_which_all_parts_are_used_one_by_one_is_used():
    layer = torch.nn.Linear(64, 512)
    rows = torch.randn(256, 64)

    def step():
        heads = layer(rows).view(256, 16, 32)
        torch.stack([heads[:, one].sum() for one in range(16)]).sum().backward()

    assert reasons(step)[0] == set()


@pytest.mark.parametrize("heads", [(32,), (1, 32)])
def test_rows_that_others_are_made_of_are_used(heads):
    layer = torch.nn.Linear(64, 32)
    nodes, edges = torch.randn(4096, 64), torch.randint(4096, (2, 9000))

    def step():
        sent = layer(nodes).view(4096, *heads)
        summed = torch.zeros_like(sent).index_add(0, edges[1], sent.index_select(0, edges[0]))
        summed.view(4096, 32)[:100].sum().backward()

    assert reasons(step)[0] == set()


def table(rows, *, tied):
    words, looked_up = torch.nn.Embedding(rows, 16), torch.randint(rows, (32,))
    optimizer = torch.optim.Adam(words.parameters())

    def step():
        hidden = words(looked_up)
        loss = (hidden @ words.weight.T if tied else hidden).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def test_a_gradient_of_a_table_of_which_few_rows_are_used_is_almost_all_zeros():
    found, _ = reasons(table(20_000, tied=False))
    assert found == {Cause.ZERO_GRADIENT}


@pytest.mark.parametrize(
    ("optimizer_of", "phases"),
    [
        (torch.optim.SGD, {Phase.BACKWARD, Phase.OPTIMIZER}),
        (torch.optim.Adagrad, {Phase.BACKWARD, Phase.OPTIMIZER}),
        (partial(torch.optim.SGD, momentum=0.9), {Phase.BACKWARD}),
    ],
)
def test_an_optimizer_with_a_momentum_moves_rows_without_a_gradient(optimizer_of, phases):
    words, looked_up = torch.nn.Embedding(20_000, 16), torch.randint(20_000, (32,))
    optimizer = optimizer_of(words.parameters(), 0.1)
    with kinetoscope.profile(record_shapes=True) as prof:
        for _ in range(3):
            optimizer.zero_grad()
            words(looked_up).sum().backward()
            optimizer.step()
    waste = waste_of(prof.trace)
    phase = prof.trace.column("spans", "phase")
    assert {Phase(one) for one in phase[waste.part[:-1] > 0].tolist()} == phases


def test_bags_of_rows_have_such_gradients_too():
    words, places = torch.nn.EmbeddingBag(20_000, 16, mode="sum"), torch.randint(20_000, (32, 4))
    assert reasons(lambda: words(places).sum().backward())[0] == {Cause.ZERO_GRADIENT}


@pytest.mark.parametrize(("rows", "tied"), [(20_000, True), (40, False)])
def test_a_table_that_is_used_is_not_accused(rows, tied):
    assert reasons(table(rows, tied=tied))[0] == set()


def test_a_mask_of_constants_is_made_again():
    scores = torch.randn(256, 256, requires_grad=True)

    def step():
        mask = torch.ones(256, 256).tril()
        (scores * mask).sum().backward()

    assert reasons(step)[0] == {Cause.CONSTANT}


def degrees(edges, nodes, values):
    """The weights of the edges of a graph, which no gradient flows through."""
    degree = torch.zeros(nodes).index_add_(0, edges[1], torch.ones(len(values))).clamp(min=1)
    return (degree[edges[0]] * degree[edges[1]]).rsqrt()


@pytest.mark.parametrize(("layers", "part"), [(1, 0.0), (4, 0.75)])
def test_what_comes_from_indices_is_needed_once_in_a_step(layers, part):
    edges, values = torch.randint(5000, (2, 20_000)), torch.randn(20_000, requires_grad=True)
    optimizer = torch.optim.SGD([values], 0.1)

    def step():
        optimizer.zero_grad()
        sum((values * degrees(edges, 5000, values)).sum() for _ in range(layers)).backward()
        optimizer.step()

    found, waste = reasons(step)
    assert found == ({Cause.REPEATED} if part else set())
    assert waste.part.max() == part


def test_what_comes_from_other_numbers_is_other_work_each_time():
    data, weight = torch.randn(4, 20_000), torch.randn(20_000, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)

    def step():
        for rows in data:
            shift = torch.zeros(8192)
            scaled = (rows - rows.mean()) / rows.std() + shift[0]
            (scaled * weight).sum().backward()
        optimizer.step()

    assert reasons(step)[0] == set()


def test_a_buffer_that_is_written_is_no_constant():
    places, values = torch.randint(4000, (9000,)), torch.ones(9000)
    assert reasons(lambda: torch.zeros(4000).index_add_(0, places, values))[0] == set()


@pytest.mark.parametrize(("length", "found"), [(8209, {Cause.LENGTH}), (8192, set())])
def test_a_transform_of_a_prime_length_is_slow(length, found):
    signal = torch.randn(4, length)
    assert reasons(lambda: torch.fft.rfft(signal), of="slow")[0] == found


def test_copies_to_another_layout_and_type_say_so():
    rows = torch.randn(64, 64)
    assert reasons(rows.T.contiguous, of="slow")[0] == {Cause.LAYOUT}
    assert reasons(rows.double, of="slow")[0] == {Cause.TYPE}
    assert reasons(rows.clone, of="slow")[0] == set()


@pytest.mark.parametrize("count", [9 * 2**20, 2**20])
def test_memory_that_is_new_each_time_is_slow(count):
    _, waste = reasons(lambda: torch.zeros(count), steps=2)
    assert waste.fresh.any() == (count > 2**23)


def test_a_trace_of_nothing_has_no_waste():
    assert not waste_of(TraceBuilder().build()).part.any()
