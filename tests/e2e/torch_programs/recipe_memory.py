"""What operators allocate."""

import torch
import torch.profiler as P

with P.profile(activities=[P.ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as prof:
    big = torch.empty(1000, 25)
    kept = big.fill_(1.0) + 1
    del big
for event in prof.key_averages():
    print(
        event.key, event.count, event.cpu_memory_usage, event.self_cpu_memory_usage, event.device_memory_usage
    )
print(prof.key_averages().table(sort_by="self_cpu_memory_usage", row_limit=3))
print([event.cpu_memory_usage for event in prof.events() if event.name == "aten::add"])
