"""Programs of several processes, for a process group that is there already. Not in the list of programs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from tests.support.programs.catalog import Program, training_step


def data_parallel() -> Program:
    """A step of a model whose gradients are averaged over the processes."""
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
    x = torch.randn(4, 6)
    return training_step(model, lambda: model(x).square().mean())


def sharded() -> Program:
    """A step of a model whose parameters are spread over the processes (FSDP2)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    x = torch.randn(4, 8)
    return training_step(model, lambda: model(x).square().mean(), foreach=False)


def collectives() -> Program:
    """Each collective that gloo has, in the forms that wait and that do not."""

    def run() -> None:
        size = dist.get_world_size()
        x = torch.ones(4)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        waiting = dist.all_reduce(x, async_op=True)
        waiting.wait()
        parts = [torch.empty(4) for _ in range(size)]
        dist.all_gather(parts, x)
        dist.reduce(x, 0)
        dist.barrier()

    return run


DISTRIBUTED: dict[str, Callable[[], Program]] = {
    make.__name__: make for make in (data_parallel, sharded, collectives)
}
