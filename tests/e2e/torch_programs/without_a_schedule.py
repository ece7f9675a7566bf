"""Steps without a schedule leave no marks."""

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

ready = []
with P.profile(activities=[P.ProfilerActivity.CPU], on_trace_ready=ready.append) as prof:
    for _ in range(2):
        train_step()
        prof.step()
print(len(ready), ready[0] is prof, prof.step_num)
print([event.name for event in prof.events() if event.is_user_annotation])
print(prof.current_action)
