"""Tensors that are not what they seem; those that are, alone and in parts of each other, are tested with `get_data_size`."""

import gc

import pytest
import torch
from torch._subclasses import FakeTensorMode

from kinetoscope.integrations.pyg import get_cpu_memory_from_gc, get_data_size, get_gpu_memory_from_gc
from kinetoscope.integrations.pyg.memory import bytes_of


class Refuses(torch.Tensor):
    """A tensor that lets torch do nothing with it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} was asked")


def nested(layout: torch.layout) -> torch.Tensor:
    """Rows of two lengths, 18 numbers together."""
    return torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)], layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_count_once_with_the_parts_they_are_seen_by():
    strided, jagged = nested(torch.strided), nested(torch.jagged)
    assert bytes_of([strided]) == bytes_of([strided, *strided.unbind()]) == 18 * 4
    # Where each row begins is a tensor of its own.
    assert bytes_of([jagged]) == bytes_of([jagged, jagged.values(), jagged.offsets()]) == 18 * 4 + 3 * 8


def test_fake_tensors_take_nothing_on_whatever_device_they_say_they_are():
    with FakeTensorMode():
        fakes = [torch.zeros(100), torch.zeros(100, device="cuda:3"), torch.eye(4).to_sparse()]
    assert get_data_size(fakes) == 0
    assert get_gpu_memory_from_gc("cuda:3") == 0


def test_a_subclass_is_not_asked_but_counts():
    refuses = torch.zeros(10).as_subclass(Refuses)
    gc.collect()
    counted = get_cpu_memory_from_gc()
    more = torch.zeros(5).as_subclass(Refuses)
    assert get_cpu_memory_from_gc() - counted == 20
    assert get_data_size([refuses, more]) == 60


@pytest.mark.parametrize(
    "transformed",
    [torch.func.vmap, lambda look: torch.func.grad(lambda x: look(x).sum()), torch.func.functionalize],
    ids=["vmap", "grad", "functionalize"],
)
def test_inside_a_transformation_there_is_nothing_to_count_and_nothing_fails(transformed):
    seen: list[int] = []

    def look(x):
        seen.append(get_data_size(x))
        get_cpu_memory_from_gc()
        return x * 2

    transformed(look)(torch.ones(3))
    assert seen == [0]


def test_what_has_no_shape_yet_or_no_memory_that_can_be_pointed_at_takes_nothing():
    assert get_data_size(list(torch.nn.LazyLinear(3).parameters())) == 0
    assert get_data_size(torch._efficientzerotensor(10)) == 0
