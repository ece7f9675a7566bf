"""Backward functions under their engine's spans."""

import torch
import torch.profiler as P

x = torch.ones(3, requires_grad=True)
with P.profile(activities=[P.ProfilerActivity.CPU], record_shapes=True) as prof:
    (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    slope.sum().backward()
for event in prof.events():
    if event.name.startswith("autograd::engine"):
        print(event.name.split(": ")[1], [child.name for child in event.cpu_children])
