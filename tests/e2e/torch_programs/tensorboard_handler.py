"""Files for TensorBoard."""

import gzip
import json
import os

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

with P.profile(
    activities=[P.ProfilerActivity.CPU],
    schedule=P.schedule(wait=0, warmup=1, active=1, repeat=2),
    on_trace_ready=P.tensorboard_trace_handler("logs", worker_name="worker0", use_gzip=True),
) as prof:
    for _ in range(4):
        train_step()
        prof.step()
names = sorted(os.listdir("logs"))
print([(name.split(".")[0], name.split(".")[2:]) for name in names])
for name in names:
    with gzip.open(f"logs/{name}") as file:
        print(
            sum(event.get("name", "").startswith("ProfilerStep#") for event in json.load(file)["traceEvents"])
            > 0
        )
