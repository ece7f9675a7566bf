"""A schedule with a handler, as the recipe for long jobs has it."""

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


def ready(prof):
    steps = sorted(
        {event.name for event in prof.events() if event.is_user_annotation and "Step" in event.name}
    )
    print(prof.step_num, prof.current_action, steps)
    print(sum(event.key == "aten::addmm" and event.count for event in prof.key_averages()))
    prof.export_chrome_trace(f"trace_{prof.step_num}.json")


with P.profile(
    activities=[P.ProfilerActivity.CPU],
    schedule=P.schedule(skip_first=2, wait=1, warmup=1, active=2, repeat=2),
    on_trace_ready=ready,
) as prof:
    for _ in range(12):
        train_step()
        prof.step()
print(sorted(name for name in os.listdir(".") if name.startswith("trace_")))
