"""Traces with identities of the job's own."""

import torch
import torch.profiler as P

numbers = iter(range(100))
prof = P.profile(activities=[P.ProfilerActivity.CPU], custom_trace_id_callback=lambda: f"job-{next(numbers)}")
with prof:
    torch.ones(1)
print(prof.get_trace_id())
prof.export_chrome_trace("trace.json")
