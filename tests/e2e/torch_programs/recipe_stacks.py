"""Stacks of operators, and grouping by them."""

import torch
import torch.profiler as P

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
inputs = torch.ones(4, 8)

# Without this torch keeps stacks of its own events out of its lists.
VERBOSE = torch._C._profiler._ExperimentalConfig(verbose=True)


def inner(x):
    return torch.sin(x)


def outer(x):
    return inner(x) + 1


with P.profile(activities=[P.ProfilerActivity.CPU], with_stack=True, experimental_config=VERBOSE) as prof:
    outer(inputs)
    inner(inputs)
sines = [event for event in prof.key_averages(group_by_stack_n=5) if event.key == "aten::sin"]
print(len(sines), sorted(event.count for event in sines))
print(sorted(sum("outer" in frame for frame in event.stack) for event in sines))
print(
    "Source Location"
    in prof.key_averages(group_by_stack_n=2).table(sort_by="self_cpu_time_total", row_limit=2)
)
