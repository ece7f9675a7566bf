"""The memory timeline in its forms."""

import gzip
import json
import warnings

import torch
import torch.profiler as P

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.ones(4, 8)


def train_step():
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()


train_step()

options = {"record_shapes": True, "profile_memory": True, "with_stack": True}
with P.profile(activities=[P.ProfilerActivity.CPU], **options) as prof:
    train_step()
    train_step()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    prof.export_memory_timeline("memory.json", device="cpu")
    prof.export_memory_timeline("memory.raw.json.gz", device="cpu")
with open("memory.json") as file:
    times, sizes = json.load(file)
print(len(times) == len(sizes), {len(row) for row in sizes}, times == sorted(times))
with gzip.open("memory.raw.json.gz") as file:
    actions = json.load(file)
print({len(row) for row in actions}, {row[1] for row in actions} <= {0, 1, 2, 3})
