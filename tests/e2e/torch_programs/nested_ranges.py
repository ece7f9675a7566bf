"""Ranges inside ranges, and ranges as decorators."""

import torch
import torch.profiler as P


@P.record_function("decorated")
def doubled(x):
    return x * 2


@torch.autograd.profiler.record_function("from autograd")
def halved(x):
    return x / 2


with P.profile(activities=[P.ProfilerActivity.CPU]) as prof, P.record_function("outer"):
    with P.record_function("inner", "with text"):
        doubled(torch.ones(2))
    with torch.autograd.profiler.record_function("inner"):
        halved(torch.ones(2))


def show(event, depth):
    print("  " * depth + event.name, event.is_user_annotation)
    for child in event.cpu_children:
        show(child, depth + 1)


for event in prof.events():
    if event.cpu_parent is None:
        show(event, 0)
print([(event.key, event.count) for event in prof.key_averages() if event.is_user_annotation])
