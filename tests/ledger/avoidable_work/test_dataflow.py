"""What becomes of tensors: small recorded programs that work on copies of rows or compute what nothing reads, and the same ones where all of it is needed."""

import pytest
import torch
from torch import nn

import kinetoscope
from kinetoscope.ledger.avoidable_work.waste import waste_of
from kinetoscope.model.time_spent import Cause

torch.manual_seed(0)
nodes, index = torch.randn(200, 64), torch.randint(0, 200, (1600,))
edges = torch.randn(1600, 64)
users, flags = torch.randint(0, 50, (100,)), torch.randint(0, 5, (800,))
layer, wide = nn.Linear(64, 64), nn.Linear(128, 64)
tables = nn.Embedding(50, 64), nn.Embedding(5, 64)
early, late = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512))


def recorded(step, steps=4):
    """Which causes some steps have, and the largest part of each."""
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=steps, repeat=1)
    with kinetoscope.profile(
        record_shapes=True, with_stack=True, tensor_versions=True, schedule=schedule
    ) as prof:
        for _ in range(steps + 1):
            step()
            prof.step()
    waste = waste_of(prof.trace)
    return {
        Cause(why): float(waste.part[waste.why == why].max())
        for why in set(waste.why.tolist()) - {Cause.NONE}
    }


def transforms_each_edge():
    return layer(nodes[index]).relu().sum()


def transforms_each_node():
    return layer(nodes)[index].relu().sum()


def transforms_edges_with_their_own_features():
    return wide(torch.cat([nodes.index_select(0, index), edges], dim=1)).sum()


def transforms_part_of_the_nodes():
    return layer(nodes[index[:100]]).sum()


def repeats_users_before_their_tower():
    user = users.repeat_interleave(8)
    return wide(torch.cat([tables[0](user), tables[0](user + 0)], dim=1)).sum()


def repeats_users_beside_other_features():
    return wide(torch.cat([tables[0](users.repeat_interleave(8)), tables[1](flags)], dim=1)).sum()


keys, queries, weights = torch.randn(64, 2, 16), torch.randn(64, 16, 32), torch.randn(100, 16)


def repeats_heads_and_not_rows():
    return (keys.repeat_interleave(8, dim=1) @ queries).sum()


def multiplies_by_repeated_weights():
    return (torch.randn(128, 800) @ weights.repeat_interleave(8, dim=0)).sum()


def repeats_rows_for_a_bias():
    return torch.addmm(torch.zeros(64), nodes.repeat_interleave(8, dim=0), layer.weight).sum()


@pytest.mark.parametrize(
    "step", [transforms_each_edge, repeats_rows_for_a_bias, repeats_users_before_their_tower]
)
def test_work_on_copies_of_rows_is_that_of_all_but_one(step):
    assert recorded(step)[Cause.COPIED_ROWS] == pytest.approx(7 / 8, abs=1e-3)


@pytest.mark.parametrize(
    "step",
    [
        transforms_each_node,
        transforms_edges_with_their_own_features,
        transforms_part_of_the_nodes,
        repeats_users_beside_other_features,
        repeats_heads_and_not_rows,
        multiplies_by_repeated_weights,
    ],
)
def test_rows_that_differ_are_no_copies(step):
    assert Cause.COPIED_ROWS not in recorded(step)


state = [torch.zeros(1600, 512)]


def uses_the_first_layer_alone():
    hidden = early(edges)
    late(hidden)
    hidden.square().mean().backward()


def looks_at_the_rest_without_gradients():
    hidden = early(edges)
    late(hidden).detach().amax().item()
    hidden.square().mean().backward()


def keeps_the_rest_for_the_next_step():
    hidden = early(edges)
    before, state[0] = state[0], late(hidden)
    (hidden.square().mean() + before.detach().mean() * hidden.mean()).backward()


def runs_backward_through_all():
    late(early(edges)).square().mean().backward()


def never_runs_backward():
    return late(early(edges))


def test_layers_whose_results_nothing_reads_are_left_out():
    assert recorded(uses_the_first_layer_alone)[Cause.UNUSED_RESULT] == 1.0


@pytest.mark.parametrize(
    "step",
    [
        looks_at_the_rest_without_gradients,
        keeps_the_rest_for_the_next_step,
        runs_backward_through_all,
        never_runs_backward,
    ],
)
def test_a_result_that_is_read_later_is_used(step):
    assert Cause.UNUSED_RESULT not in recorded(step)
