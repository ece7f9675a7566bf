"""What this build can record, and names that come from torch."""

import torch
import torch.profiler as P

print(
    P.ProfilerActivity.CPU in P.supported_activities(), P.ProfilerActivity is torch.profiler.ProfilerActivity
)
print(P.record_function is torch.profiler.record_function, P.kineto_available() is True, P.DeviceType.CPU)
