"""A step that fails: what was recorded is there."""

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


def risky(step):
    train_step()
    if step == 2:
        raise RuntimeError("a bad batch")


done = []
try:
    with P.profile(
        activities=[P.ProfilerActivity.CPU],
        schedule=P.schedule(wait=0, warmup=1, active=5),
        on_trace_ready=lambda prof: done.append(len(prof.events()) > 0),
    ) as prof:
        for step in range(5):
            with P.record_function("step"):
                risky(step)
            prof.step()
except RuntimeError as error:
    print(error)
print(done, prof.step_num)
print(sum(event.name == "Optimizer.step#SGD.step" for event in prof.events()))
with P.profile(activities=[P.ProfilerActivity.CPU]) as again:
    torch.ones(1)
print([event.name for event in again.events()])
