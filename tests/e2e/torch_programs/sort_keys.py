"""Every key that tables can be sorted by."""

import torch
import torch.profiler as P

with P.profile(activities=[P.ProfilerActivity.CPU], profile_memory=True) as prof:
    for _ in range(3):
        torch.ones(100) + 1
    torch.ones(1000).sum()
averages = prof.key_averages()
keys = (
    "cpu_time cuda_time cpu_time_total cuda_time_total cpu_memory_usage cuda_memory_usage self_cpu_memory_usage "
    "self_cuda_memory_usage self_cpu_time_total count device_time device_time_total self_device_time_total"
)
for key in keys.split():
    table = averages.table(sort_by=key, row_limit=3)
    print(key, len(table.splitlines()), table.splitlines()[-1].split(":")[0])
print(averages.table(sort_by="count", row_limit=1).splitlines()[3].split()[0])
print(averages.table(sort_by="cpu_memory_usage", row_limit=1).splitlines()[3].split()[0])
